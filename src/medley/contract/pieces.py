"""Large bytes in pieces, which are read and sent without a copy of the whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate


class Pieces:
    """Bytes that lie in several pieces, one after the other. ``len`` is their number, a slice copies some of them.

    Args:
        pieces: bytes, or views of memory, which must not change while these pieces are in use

    Raises TypeError for pieces of another kind.
    """

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self._pieces = [view for piece in pieces if len(view := memoryview(piece))]
        self._ends = [*accumulate(map(len, self._pieces))]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def views(self) -> list[memoryview]:
        """The pieces. Not by iteration: Python's lists would take memory for as many of them as there are bytes."""
        return self._pieces

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)

    def __getitem__(self, part: slice) -> bytes:
        begin, end, step = part.indices(len(self))
        if step != 1:
            raise ValueError("a slice of pieces has no step")
        return b"".join(self.between(begin, end))

    def clear(self) -> None:
        """Leave no bytes, so that their memory is free although something still holds this object."""
        self._pieces, self._ends = [], []

    def between(self, begin: int, end: int, take: bool = False) -> Iterator[memoryview]:
        """Views of the bytes from ``begin`` to before ``end``. With ``take``, a piece goes once all of it is read."""
        k = bisect_right(self._ends, begin)
        while begin < end:
            at = self._ends[k] - len(self._pieces[k])
            yield self._pieces[k][begin - at : end - at]
            begin = self._ends[k]
            if take and begin <= end:
                self._pieces[k] = memoryview(b"")
            k += 1


Content = bytes | Pieces
"""Bytes of a message, in one piece or in several."""


def pieces_of(content: Content) -> Iterable[bytes | memoryview]:
    """The pieces of some bytes, in order; one if they are in one."""
    return content.views if isinstance(content, Pieces) else [content]
