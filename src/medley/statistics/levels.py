"""The union of the sites' categories, from sums alone: an invertible Bloom lookup table.

Each site writes its texts into three cells each of a table, as numbers, and tables add up. A cell with one text in it,
from however many sites, is the text times its count, and a checksum confirms it. Take that text out of its other cells,
and more cells have one text: so all are found, unless there are too many for the table.

**Reference**: Goodrich & Mitzenmacher, "Invertible Bloom Lookup Tables", Allerton 2011.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from ..contract import BadData

PART = 32
"""Cells in each third of a table."""

WORDS = 10
"""Words of 4 bytes of a text."""

SHAPE = (3 * PART, WORDS + 2)
"""The shape of a table: a count, the words, and a checksum in each row."""


def _entry(text: str) -> np.ndarray:
    """A count of one, the text's words, and its checksum."""
    raw = text.encode()
    words = np.frombuffer(raw.ljust(4 * WORDS, b"\0"), "<u4").astype(float)
    check = int.from_bytes(blake2b(raw, digest_size=4).digest(), "little")
    return np.array([1.0, *words, float(check)])


def _cells(text: str) -> list[int]:
    digest = blake2b(text.encode(), digest_size=6, person=b"cells").digest()
    return [k * PART + int.from_bytes(digest[2 * k : 2 * k + 2], "little") % PART for k in range(3)]


def sketched(levels: Iterable[str], where: str) -> np.ndarray:
    """The table of these texts. Raises BadData for a text that is too long; the message starts with ``where``."""
    out = np.zeros(SHAPE)
    for level in levels:
        if len(level.encode()) > 4 * WORDS or "\0" in level:
            raise BadData(f"{where} has a category of more than {4 * WORDS} bytes; give it a shorter name")
        out[_cells(level)] += _entry(level)
    return out


def union(total: np.ndarray, column: str) -> dict[str, int]:
    """The texts in a sum of tables, each with the number of sites that have it.

    Raises BadData if there are too many.
    """
    left = np.rint(total)
    sites_of = dict[str, int]()
    while (at := next((k for k in range(len(left)) if _pure(left[k])), None)) is not None:
        text = _read(left[at])
        count = int(left[at, 0])
        sites_of[text] = count
        left[_cells(text)] -= count * _entry(text)
    if left.any():
        raise BadData(
            f"C({column}) has more than about {2 * PART} categories over all sites; merge some, or use its number"
        )
    return dict(sorted(sites_of.items()))


def _read(cell: np.ndarray) -> str:
    return str((cell[1:-1] / cell[0]).astype("<u4").tobytes().rstrip(b"\0").decode(errors="replace"))


def _pure(cell: np.ndarray) -> bool:
    if cell[0] < 1 or (cell[1:] % cell[0]).any() or (cell[1:] / cell[0] >= 2.0**32).any():
        return False
    return bool((_entry(_read(cell)) * cell[0] == cell).all())
