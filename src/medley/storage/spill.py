"""Values by client: in memory up to a budget, beyond that on disk."""

from __future__ import annotations

import io
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, cast

from ..contract import pytree
from ..numerics.offload import LONG, disk_full, release_pages, to_file
from ..runtime import tricks

BUDGET = 1 << 29
"""Bytes of tensors to hold in memory."""

PAGE = 1 << 12
"""Places in the file are multiples of this many bytes, so that a value that has grown a little still fits its place."""


class LazyMapping(Mapping[int, Any]):
    """A mapping that you read from beginning to end, and that is never held whole.

    ``read`` returns a new iterator over (client, value) at every call.
    """

    def __init__(self, read: Callable[[], Iterator[tuple[int, Any]]]) -> None:
        self.read = read

    def __iter__(self) -> Iterator[int]:
        return (i for i, _ in self.read())

    def __len__(self) -> int:
        return sum(1 for _ in self.read())

    def __getitem__(self, client: int) -> Any:
        for i, value in self.read():
            if i == client:
                return value
        raise KeyError(client)

    def items(self) -> Iterator[tuple[int, Any]]:  # type: ignore[override]
        """Pairs of client and value, one at a time."""
        return self.read()


class Spill(MutableMapping[int, Any]):
    """Pytrees by client; the least recently used ones go to disk when all together exceed a budget.

    Args:
        classes: dataclasses that a value may hold, by name (default none)
        budget: bytes of tensors to hold in memory (default `BUDGET`)
        device: device to which tensors return from disk, in torch's words (default "cpu")

    The part on disk is one unnamed file in the folder for temporary files (set by the environment variable TMPDIR). So
    nothing is left behind, whichever process is killed. Never change a value in place after storing it: its copy on
    disk would not follow. Raises MedleyError if the disk is full.

    Every client has its value at every moment, even if Ctrl-C or a full disk ends a call half-way, because a value is
    stored in its new place before it leaves the old one.

    Long tensors have files of their own (see `numerics.offload`): they are read there, and written once.
    """

    def __init__(
        self, classes: Mapping[str, type] | None = None, budget: int | None = None, device: str = "cpu"
    ) -> None:
        self.classes = classes or {}
        self.device = device
        self.budget = BUDGET if budget is None else budget
        self.size = 0
        """Bytes of tensors in memory."""
        self._in_memory = OrderedDict[int, tuple[Any, int]]()  # value and bytes; the most recently used come last
        # Offset in the file, bytes written, bytes of room. A value in memory is newer than one here.
        self._in_file: dict[int, tuple[int, int, int]] = {}
        self._mapped: dict[int, Any] = {}  # values whose tensors are all in files of their own
        self._free: dict[int, list[int]] = {}  # offsets of free places, by bytes of room
        self._end = 0
        self._file: io.RawIOBase | None = None  # only this process reads and writes it
        self._put = 0  # bytes stored since the last `tricks.trim`

    def __getitem__(self, client: int) -> Any:
        if client in self._in_memory:
            self._in_memory.move_to_end(client)
        value = self.peek(client)
        if client in self._in_memory or client in self._mapped:
            return value
        self[client] = value
        return value

    def peek(self, client: int) -> Any:
        """The value of a client; it stays on disk if it is there."""
        if client in self._in_memory:
            return self._in_memory[client][0]
        if client in self._mapped:
            return self._mapped[client]
        at, length, _ = self._in_file[client]
        assert self._file is not None
        self._file.seek(at)
        value = pytree.from_bytes(self._file.read(length), self.classes)
        return pytree.map_tensors(value, lambda t: t.to(self.device))

    def __setitem__(self, client: int, value: Any) -> None:
        size = pytree.nbytes(value)
        if size >= LONG:
            size -= sum(t.nbytes for _, t in pytree.tensors(value) if release_pages(t))
        before = self._in_memory.get(client, (None, 0))[1]
        self._in_memory[client] = value, size
        self._in_memory.move_to_end(client)
        self._leave(client)
        self.size += size - before
        self._put += size if size < tricks.LARGE else 0  # larger ones leave room for each other
        while self.size > self.budget and len(self._in_memory) > 1:
            self._spill(next(iter(self._in_memory)))
        if self._put > self.budget >> 3:
            self._put = 0
            tricks.trim()

    def __delitem__(self, client: int) -> None:
        if client not in self:
            raise KeyError(client)
        self.size -= self._in_memory.pop(client, (None, 0))[1]
        self._leave(client)

    def __contains__(self, client: object) -> bool:
        return client in self._in_memory or client in self._in_file or client in self._mapped

    def __iter__(self) -> Iterator[int]:
        return iter([*(self._in_memory | self._in_file | self._mapped)])

    def __len__(self) -> int:
        return len(self._in_memory.keys() | self._in_file.keys() | self._mapped.keys())

    def _spill(self, client: int) -> None:
        """Move a client's value to disk."""
        value, size = self._in_memory[client]
        if self.device == "cpu" and all(t.nbytes >= LONG for _, t in pytree.tensors(value)):
            value = pytree.map_tensors(value, to_file)
            if all(release_pages(t) for _, t in pytree.tensors(value)):
                self._mapped[client] = value
                del self._in_memory[client]
                self.size -= size
                return
        raw = pytree.to_bytes(value)
        room = -(-len(raw) // PAGE) * PAGE
        free = self._free.get(room)
        at = free[-1] if free else self._end
        try:
            if self._file is None:
                self._file = cast(io.RawIOBase, tempfile.TemporaryFile(prefix="medley-", buffering=0))  # noqa: SIM115 (open as long as this is)
            self._file.seek(at)
            done = self._file.write(raw) or 0
        except OSError as e:
            done = 0
            why = str(e)
        else:
            why = "no room left"
        if done < len(raw):
            raise disk_full(why)
        if free:
            free.pop()
        else:
            self._end = at + room
        self._in_file[client] = at, len(raw), room
        del self._in_memory[client]
        self.size -= size

    def _leave(self, client: int) -> None:
        """Free the client's place in the file, if it has one."""
        self._mapped.pop(client, None)
        if client in self._in_file:
            at, _, room = self._in_file.pop(client)
            self._free.setdefault(room, []).append(at)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()
