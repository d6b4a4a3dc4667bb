"""Bins of columns that clients agree on by counts: a fixed grid on which no client's rows set a line.

The grid is that of float32 itself. A number's key is its 32 bits, turned so that keys have the order of the numbers; a
cell is all keys with the same first bits. At first the cells are the octaves of both signs. Those with many rows are
divided into sixteen, again and again, so that no line depends on more than the counts of all clients together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FIRST = 9
"""Bits of a cell at first: sign and exponent."""

STEP = 4
"""Bits by which a cell is divided."""

FINEST = 29
"""Bits of the finest cells: twenty of the mantissa, a millionth of a number."""

OCTAVES = 1 << FIRST
"""Cells at first."""

ABOVE = np.finfo(np.float32).max
"""A line above all values."""

FINE = 4
"""A cell with more than 1/`FINE` of a bin's rows is divided."""


def keys_of(values: np.ndarray) -> np.ndarray:
    """The keys of finite float32 numbers, uint32, in the numbers' order."""
    bits = (values + np.float32(0)).view(np.uint32)  # −0 becomes 0
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))


def numbers_of(keys: np.ndarray) -> np.ndarray:
    """The float32 numbers with these keys."""
    keys = keys.astype(np.uint32)
    return np.where(keys >> 31, keys & np.uint32((1 << 31) - 1), ~keys).astype(np.uint32).view(np.float32)


def octaves(X: np.ndarray) -> np.ndarray:
    """Counts of the first cells of each column of X [n, columns] without its missing values, int32 [columns, 512]."""
    keys = [keys_of(column[~np.isnan(column)]) >> (32 - FIRST) for column in X.T]
    return np.stack([np.bincount(k, minlength=OCTAVES) for k in keys]).astype(np.int32)


def divided(X: np.ndarray, columns: np.ndarray, cells: np.ndarray, bits: int) -> np.ndarray:
    """Counts of the sixteen parts of each of these cells, int32 [cells, 16].

    Args:
        columns: the column of each cell, ascending
        cells: their first bits, ascending within a column
        bits: how many these are
    """
    out = np.zeros((len(cells), 1 << STEP), np.int32)
    for f in np.unique(columns):
        mine = np.flatnonzero(columns == f)
        column = X[:, f]
        parts = keys_of(column[~np.isnan(column)]) >> (32 - bits - STEP)
        parents = parts >> STEP
        place = np.minimum(np.searchsorted(cells[mine], parents), len(mine) - 1)
        inside = cells[mine][place] == parents
        index = place[inside] * (1 << STEP) + (parts[inside] & ((1 << STEP) - 1))
        out[mine] = np.bincount(index, minlength=out[mine].size).reshape(-1, 1 << STEP)
    return out


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells that have rows, by column and key.

    Attributes:
        column: of each cell, int64 [cells]
        start: its first key, int64
        bits: the number of its first bits that all its keys share, int64
        count: its rows, int64
    """

    column: np.ndarray
    start: np.ndarray
    bits: np.ndarray
    count: np.ndarray

    @classmethod
    def first(cls, counts: np.ndarray) -> Cells:
        """The octaves with rows, from counts [columns, 512]."""
        column, cell = np.nonzero(counts)
        return cls(column, cell << (32 - FIRST), np.full(len(cell), FIRST), counts[column, cell].astype(np.int64))

    def coarse(self, bits: int, bins: int) -> np.ndarray:
        """Which cells of so many bits have more than 1/`FINE` of a bin's rows, bool [cells]."""
        total = np.bincount(self.column, self.count)[self.column]
        coarse: np.ndarray = (self.bits == bits) & (self.count > 1) & (self.count * (FINE * bins) > total)
        return coarse

    def refined(self, coarse: np.ndarray, counts: np.ndarray) -> Cells:
        """The cells after the ``coarse`` ones are divided, with the counts of their parts [coarse, 16]."""
        parent, part = np.nonzero(counts)
        bits = self.bits[coarse][parent] + STEP
        joined = Cells(
            np.concatenate([self.column[~coarse], self.column[coarse][parent]]),
            np.concatenate([self.start[~coarse], self.start[coarse][parent] + (part << (32 - bits))]),
            np.concatenate([self.bits[~coarse], bits]),
            np.concatenate([self.count[~coarse], counts[parent, part].astype(np.int64)]),
        )
        order = np.lexsort((joined.start, joined.column))
        return Cells(joined.column[order], joined.start[order], joined.bits[order], joined.count[order])

    def cuts(self, columns: int, bins: int) -> list[np.ndarray]:
        """The lines between the bins of each column, float32, ascending: as many rows in each bin as cells allow."""
        out = []
        for f in range(columns):
            mine = np.flatnonzero(self.column == f)
            ends = self.start[mine] + (1 << (32 - self.bits[mine]))
            last = closing(self.count[mine], bins)
            low = numbers_of(ends[last]).astype(np.float64)
            high = numbers_of(self.start[mine][last + 1]).astype(np.float64)
            out.append(((low + high) / 2).astype(np.float32))
        return out


def closing(counts: np.ndarray, bins: int) -> np.ndarray:
    """The cells, in order, that are the last of a bin, without the very last one."""
    if len(counts) <= bins:
        return np.arange(max(len(counts) - 1, 0))
    out = []
    rest = int(counts.sum())
    more = bins
    inside = 0
    for i, count in enumerate(counts[:-1].tolist()):
        inside += count
        if inside * more >= rest:
            out.append(i)
            rest -= inside
            more -= 1
            inside = 0
        if more == 1:
            break
    return np.array(out, np.int64)


def codes(X: np.ndarray, cuts: list[np.ndarray]) -> np.ndarray:
    """The bin of each value of X [n, columns], [columns, n]: the number of lines at or below it; one more if missing.

    uint8 if all fit, otherwise uint16.
    """
    most = max((len(lines) for lines in cuts), default=0) + 1
    out = np.empty((X.shape[1], len(X)), np.uint8 if most < 256 else np.uint16)
    for f, lines in enumerate(cuts):
        column = np.ascontiguousarray(X[:, f])
        out[f] = np.searchsorted(lines, column, side="right")
        out[f, np.isnan(column)] = len(lines) + 1
    return out
