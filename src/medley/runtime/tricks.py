"""Tricks that affect the whole process, for speed and memory; ``MEDLEY_TRICKS=0`` in the environment disables them all.

They change no result, except `onednn`, which changes the last bits of large float32 products. Each of them touches the
process or torch's private interface rather than Medley itself. Disable them if your application manages its own memory,
or if your version of torch lacks that interface. The variable is read when `medley` is imported.

- `paused_collector`: no garbage collection while Medley is imported
- `keep_freed_memory`: glibc keeps freed memory for the next step instead of returning it to the system
- `kept_vectors`: glibc keeps the memory of a large model's vectors during a run
- `trim`: glibc returns the free memory between long-lived values
- `one_arena`: threads share their free memory
- `untouched_zeros`: zeros take no memory until they are written
- `move`: a large tensor's pages are given back while it is copied
- `onednn`: oneDNN's matrix product instead of MKL's, by a private operator of torch
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ON = os.environ.get("MEDLEY_TRICKS", "1") != "0"
"""Whether the tricks of this module are in use."""


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the garbage collector, and restore it afterwards, even after an error.

    Imported modules stay for the life of the process, so searching them for garbage is useless. The searches take a
    seventh of the time of ``import medley``.
    """
    collecting = ON and gc.isenabled()
    if collecting:
        gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def keep_freed_memory() -> None:
    """Teach glibc to keep freed memory, up to twice 32 MiB at the end of the heap, by allocating and freeing one block.

    By default glibc returns freed memory at the heap's end to the system, and asks for it again page by page in the
    next step. If many clients are stacked, this takes a third of a round's time. glibc keeps up to twice the largest
    block that it has seen freed, and considers blocks of up to 32 MiB. The block here is never written to, so it takes
    no memory. On systems without glibc this has no effect.
    """
    if ON:
        import torch

        torch.empty((1 << 25) - (1 << 16), dtype=torch.uint8)


LARGE = 1 << 22
"""Bytes of a model from which a run keeps its vectors' memory: sixteen of them are what glibc keeps by itself."""

ALIGNED = 64
"""Bytes to which torch aligns memory: some kernels give different bits at other alignments."""

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""The settings of glibc's ``mallopt``, as in its ``malloc.h``."""


BLOCK = 1 << 20
"""Bytes that `move` copies at a time."""

MADV_DONTNEED = 4
"""The advice to Linux' ``madvise`` that pages of anonymous memory are not needed: they are zeros when read again."""


@contextlib.contextmanager
def kept_vectors(size: int) -> Iterator[None]:
    """Let glibc keep freed memory, and map none apart, while vectors of ``size`` bytes, if these are `LARGE`, are made.

    glibc maps each block above 32 MiB anew, and returns it when it is freed. The system then clears the next vector's
    pages, which takes as long as four passes over it. Processes forked meanwhile inherit the settings. Afterwards these
    are those that `keep_freed_memory` makes, and free memory is returned.
    """
    set_to: Callable[[int, int], object] = lambda setting, value: None
    if ON and size >= LARGE:
        with contextlib.suppress(OSError, AttributeError):  # not glibc
            set_to = ctypes.CDLL(None).mallopt
    set_to(M_MMAP_MAX, 0)
    set_to(M_TRIM_THRESHOLD, (1 << 31) - 1)
    try:
        yield
    finally:
        set_to(M_MMAP_MAX, 1 << 16)
        set_to(M_TRIM_THRESHOLD, 1 << 26)
        if size >= LARGE:
            trim()


def one_arena() -> None:
    """Let threads that begin from now on, and child processes, take memory from one place; on glibc only.

    For a process whose threads hand large objects to each other. glibc gives each thread a place of its own, and what
    one frees there is of no use to the others.
    """
    if ON:
        os.environ.setdefault("MALLOC_ARENA_MAX", "1")
        with contextlib.suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def trim() -> None:
    """Return the free memory between held values to the system; on glibc only, elsewhere without effect.

    Clients' memories are made amid the larger tensors of a client stack. The gaps that these leave behind take twice as
    much memory as the values themselves.
    """
    if ON:
        with contextlib.suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL(None).malloc_trim(0)


def untouched_zeros(like: Tensor) -> Tensor:
    """Zeros of the shape, dtype and device of ``like``; large ones on a CPU take memory page by page, once written.

    NumPy asks the system for zeroed pages, where torch fills memory with zeros.
    """
    import numpy as np
    import torch

    if not ON or not like.is_cpu or like.nbytes < LARGE:
        return torch.zeros_like(like)
    raw = torch.from_numpy(np.zeros(like.nbytes + ALIGNED, np.uint8))
    begin = -raw.data_ptr() % ALIGNED
    return raw[begin : begin + like.nbytes].view(like.dtype).view(like.shape)


def move(source: Tensor, to: Tensor) -> None:
    """Copy ``source`` into ``to``, of the same shape and dtype; the numbers of a large source on a CPU are lost.

    The system takes its pages back block by block, so that the two take no more memory than one.
    """
    if not ON or source.nbytes < LARGE or not (source.is_cpu and to.is_cpu and source.is_contiguous()):
        to.copy_(source)
        return
    each = BLOCK // source.element_size()
    for at in range(0, source.numel(), each):
        part = source.view(-1)[at : at + each]
        to.view(-1)[at : at + each].copy_(part)
        give_back(part)


def give_back(x: Tensor) -> None:
    """Give the pages of a contiguous tensor on a CPU back to the system: its numbers are lost, or a file's again."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        begin = x.data_ptr() + -x.data_ptr() % mmap.PAGESIZE
        size = max(0, x.data_ptr() + x.nbytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), MADV_DONTNEED)


def onednn() -> bool:
    """True if matrix products may use oneDNN by ``torch.ops.mkldnn._linear_pointwise``.

    On CPU torch sends float32 products to MKL, which has no kernels for the vector units of some processors. oneDNN has
    them, and is twice as fast there. torch offers it only through a private operator.
    """
    if not ON:
        return False
    import torch

    return bool(torch._C._has_mkldnn)
