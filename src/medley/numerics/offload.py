"""Long vectors that the server keeps: in memory up to a budget, beyond it in memory-mapped files."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import sys
import tempfile
import weakref
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..contract.errors import MedleyError
from ..runtime import tricks

BUDGET = 1 << 30
"""Bytes of long vectors to hold in memory, those included to which a round may still have to return."""

LONG = 1 << 20
"""Bytes of a long vector; shorter ones stay in memory."""

LARGE = 1 << 24
"""Bytes of a vector that leaves fewer gaps."""

FILE = 1 << 28
"""Bytes of a file with several vectors; later files grow, to a sixteenth of what is in files."""


class Place(NamedTuple):
    """A part of a file, and of the memory that shows it; ``room`` bytes from ``at`` on."""

    file: io.RawIOBase
    shown: mmap.mmap
    at: int
    room: int


_held: dict[int, int] = {}  # bytes of vectors in memory, by their id
_used: dict[int, int] = {}  # bytes of vectors in files, by their address
_free: dict[int, list[Place]] = {}  # by bytes of room; to write a new one takes ten times as long
_moved = [0]  # bytes since the last `tricks.trim`
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free.clear)  # these are the parent's


def offload(x: Tensor) -> Tensor:
    """``x`` itself, or on Linux, if more than `BUDGET` would be held in memory, a tensor of the same numbers in a file.

    The files have no names and go with their tensors. They lie in the folder for temporary files (the environment
    variable TMPDIR sets it). A forked process shares them. Raises MedleyError if the disk is full.
    """
    if id(x) in _held or not is_long(x):
        return x
    if sum([*_held.values()]) + x.nbytes <= BUDGET:
        _held[id(x)] = x.nbytes
        weakref.finalize(x, _held.pop, id(x), None).atexit = False
        if _used:
            _trim(x.nbytes)
        return x
    return to_file(x)


def is_long(x: Tensor) -> bool:
    """Whether a tensor may go to a file, and is not there: on Linux, if it is long and on a CPU."""
    return x.is_cpu and x.nbytes >= LONG and sys.platform == "linux" and x.data_ptr() not in _used


def resident_bytes(size: float, count: float) -> float:
    """The bytes that stay in memory of so many offloaded vectors of ``size`` bytes each."""
    return min(size * count, BUDGET) if size >= LONG and sys.platform == "linux" else size * count


def to_file(x: Tensor) -> Tensor:
    """A long tensor's numbers in a file, as `offload` puts them there; others stay as they are."""
    if not is_long(x):
        return x
    room = -(-x.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    raw = memoryview(x.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    try:
        place = _place(room)
        done = 0
        while done < len(raw):
            written = os.pwrite(place.file.fileno(), raw[done:], place.at + done)  # other threads use the file, too
            if not written:
                raise disk_full("no room left")
            done += written
    except OSError as e:
        raise disk_full(str(e)) from None
    bytes_there = memoryview(place.shown)[place.at : place.at + x.nbytes]
    made = torch.frombuffer(bytes_there, dtype=x.dtype).view(x.shape)
    weakref.finalize(bytes_there, _leave, made.data_ptr(), place, os.getpid()).atexit = False
    _used[made.data_ptr()] = bytes_there.nbytes
    _trim(room)
    return made


def release_pages(x: Tensor) -> bool:
    """Give the memory of a tensor in a file to the system until it is read again; returns whether it is in a file."""
    there = x.data_ptr() in _used
    if there:
        tricks.give_back(x)
    return there


def disk_full(why: str) -> MedleyError:
    """The error for a folder of temporary files without room."""
    where = tempfile.tempdir or "a folder for temporary files"  # if there is none, to ask for it is another error
    return MedleyError(
        f"what clients and server remember does not fit into {where} ({why}); set TMPDIR to a folder on a larger disk"
    )


def _place(room: int) -> Place:
    """A free place, or the first one of a new file, whose others are then free."""
    with contextlib.suppress(KeyError, IndexError):
        return _free[room].pop()
    file = cast(io.RawIOBase, tempfile.TemporaryFile(prefix="medley-", buffering=0))  # noqa: SIM115 (open as long as this is)
    size = max(1, max(FILE, sum([*_used.values()]) >> 4) // room) * room  # few files: each has two descriptors
    file.truncate(size)
    shown = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_WRITE)  # what is changed in place is not lost
    weakref.finalize(shown, file.close).atexit = False
    first, *others = (Place(file, shown, at, room) for at in range(0, size, room))
    _free.setdefault(room, []).extend(reversed(others))
    return first


def _trim(size: int) -> None:
    """Free memory between what stays, after so many more bytes: small things take the ends of vectors' gaps."""
    _moved[0] += size
    if _moved[0] > BUDGET >> (size < LARGE):
        _moved[0] = 0
        tricks.trim()


def _leave(address: int, place: Place, process: int) -> None:
    """Free the place of a vector that is gone; without any vectors the files are closed."""
    _used.pop(address, None)
    if process == os.getpid():
        place.shown.madvise(mmap.MADV_DONTNEED, place.at, place.room)
        _free.setdefault(place.room, []).append(place)
        if not _used:
            _free.clear()
