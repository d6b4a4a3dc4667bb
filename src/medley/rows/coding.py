"""A frame's columns as numbers: clipped, filled in if missing, and categories as columns of 0 and 1."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from ..contract import BadData, Place
from .numbers import is_missing, numbers

log = logging.getLogger("medley")

MOST = 6
"""Unknown categories that a message names."""

_counts: ContextVar[dict[str, np.ndarray]] = ContextVar("counts")


@contextmanager
def counting() -> Iterator[dict[str, np.ndarray]]:
    """The values of each column of categories that are coded meanwhile: known, unknown, and missing ones that are not
    yet filled in [3].
    """
    counts = dict[str, np.ndarray]()
    token = _counts.set(counts)
    try:
        yield counts
    finally:
        _counts.reset(token)


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    Attributes:
        name: the column
        levels: its categories, one feature each; None for a column of numbers
        clip: the smallest and the largest number; numbers beyond are set to these. None for all
        fill: what replaces a missing number or category; None for nothing
        indicator: whether an extra feature marks missing cells
    """

    name: str
    levels: tuple[str, ...] | None = None
    clip: tuple[float, float] | None = None
    fill: float | str | None = None
    indicator: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its features: "age", "ward=a" and so on, and "age missing" last."""
        names = (self.name,) if self.levels is None else tuple(f"{self.name}={level}" for level in self.levels)
        return (*names, f"{self.name} missing") if self.indicator else names

    def __call__(self, cells: np.ndarray, call: str) -> np.ndarray:
        """Its features [n, features]. An unknown category, or a missing one that is not filled in, is 0 in all.

        Raises BadData, with the row, for a cell that is missing or no number, and if no category is a known one.
        """
        gone = absent(cells)
        place = Place(call, column=self.name)
        if gone.any() and self.fill is None and (self.levels is None or not self.indicator):
            row = int(gone.argmax())
            raise BadData(
                "the cell is missing, but its preparation does not fill it in; "
                "fill it by a mean, a median, a mode or fill(value), or drop such rows",
                place=place.at(row),
            )
        if self.levels is None:
            filled = cells.astype(object) if cells.dtype.kind == "O" else np.array(cells)
            if gone.any():
                filled[gone] = self.fill
            x = numbers(filled, place, "if it holds categories, prepare it with encode")
            out = [x if self.clip is None else np.clip(x, *self.clip)]
        else:
            values = [None if m else text(v) for m, v in zip(gone, cells.tolist(), strict=True)]
            self._check_known(values, self.levels, call)
            with_fill = [self.fill if v is None else v for v in values]
            out = [np.array([v == level for v in with_fill]) for level in self.levels]
        return np.stack([*out, gone] if self.indicator else out, 1).astype(float)

    def _check_known(self, values: Sequence[str | None], levels: Sequence[str], call: str) -> None:
        """Log how many values are known categories.

        Raises BadData if none is known. A single row is an exception, because its category may be new.
        """
        present = [v for v in values if v is not None]
        unknown = Counter(v for v in present if v not in levels)
        recognised = len(present) - unknown.total()
        if (tally := _counts.get(None)) is not None:
            new = np.array([recognised, unknown.total(), len(values) - len(present)])
            tally[self.name] = tally.get(self.name, 0) + new
        place = f"{call}: column {self.name!r}"
        if not unknown:
            log.info("%s: %d values are known categories, 0 are not", place, recognised)
            return
        names = ", ".join(f"{v!r} in {n}" for v, n in unknown.most_common(MOST)) + (
            ", …" if len(unknown) > MOST else ""
        )
        spellings = {v: level for v in unknown for level in levels if folded(v) == folded(level)}
        remedy = "; recode " + ", ".join(f"{v!r} as {level!r}" for v, level in [*spellings.items()][:MOST])
        remedy += ", which differ by case or spaces only" if spellings else ""
        counts = f"{recognised} values are known categories, {unknown.total()} are not ({names}); known are "
        message = f"{place}: {counts}{', '.join(map(repr, levels))}" + (remedy if spellings else "")
        if recognised or (len(present) == 1 and not spellings):
            log.warning("%s; a row whose category is not known is 0 in each of the column's features", message)
            return
        row = next(k for k, v in enumerate(values) if v is not None)
        more = "" if spellings else "; recode them, or prepare with these rows, too"
        raise BadData(message.removeprefix(f"{place}: ") + more, place=Place(call, row=row, column=self.name))


@dataclass(frozen=True)
class Coding:
    """A frame's columns as features, in order."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return tuple(c.name for c in self.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(itertools.chain.from_iterable(c.features for c in self.columns))

    def __call__(self, cells: Mapping[str, np.ndarray], call: str) -> np.ndarray:
        """Features [n, features] of columns by name. Raises BadData, with column and row, for a cell without a
        number."""
        missing = [name for name in self.names if name not in cells]
        if missing:
            raise BadData(f"{call}: there is no column {missing[0]!r}, which the preparation reads")
        out: np.ndarray = np.concatenate([c(cells[c.name], call) for c in self.columns], 1)
        return out

    def plain(self) -> list[dict[str, Any]]:
        """Plain values, for `from_plain`."""
        tables = [asdict(c) for c in self.columns]
        return [{k: [*v] if isinstance(v, tuple) else v for k, v in table.items()} for table in tables]

    @classmethod
    def from_plain(cls, table: Any) -> Coding:
        """Inverse of `plain`. Raises TypeError or ValueError for any other table."""
        columns = []
        for c in table:
            well_formed = isinstance(c, Mapping) and all(
                c.get(k) is None or type(c[k]) is list for k in ("levels", "clip")
            )
            if not well_formed or (c.get("clip") is not None and len(c["clip"]) != 2):
                raise TypeError(f"{str(c)[:40]} is not a column of a preparation")
            levels = None if c.get("levels") is None else tuple(map(str, c["levels"]))
            clip = None if c.get("clip") is None else (float(c["clip"][0]), float(c["clip"][1]))
            fill = None if c.get("fill") is None else str(c["fill"]) if levels is not None else float(c["fill"])
            columns.append(Column(str(c["name"]), levels, clip, fill, c.get("indicator") is True))
        return cls(tuple(columns))


def absent(cells: np.ndarray) -> np.ndarray:
    """Which cells are missing: None, NaN, NaT, pandas.NA, or a text that is empty but for spaces."""
    if cells.dtype.kind not in "OUS":
        nowhere = np.zeros(len(cells), bool)
        return cells != cells if cells.dtype.kind in "fcmM" else nowhere
    return np.array([is_missing(v) for v in cells.tolist()], bool)


def text(value: Any) -> str:
    """A category's text without spaces at its ends; bytes are UTF-8. 1.0 becomes "1", because a column with missing
    values has no whole numbers.
    """
    if isinstance(value, float | np.floating | Decimal):
        return f"{value:.0f}" if value % 1 == 0 else str(float(value))
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip()


def are_trimmed(texts: np.ndarray) -> bool:
    """Whether no text of an array [n] is empty or has a space at an end, seen without a Python object for each."""
    length = np.char.str_len(texts)
    if not length.all() or not len(texts):
        return False
    codes = np.ascontiguousarray(texts, texts.dtype.newbyteorder("=")).view(np.uint32).reshape(len(texts), -1)
    ends = np.concatenate([codes[:, 0], codes[np.arange(len(texts)), length - 1]])
    return not any(chr(c).isspace() for c in np.unique(ends[(ends <= 32) | (ends > 126)]).tolist())


def distinct(texts: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The texts that occur in an array [n, ...], and the place of each among them, without a Python object for each.

    Whole texts are compared as numbers, by a hash; where two have one hash, they are sorted.
    """
    words = np.ascontiguousarray(texts, texts.dtype.newbyteorder("=")).view(np.uint32).reshape(texts.size, -1)
    hashes = np.zeros(texts.size, np.uint64)
    for letters in words.T:
        hashes = hashes * np.uint64(1099511628211) + letters
    _, first, at = np.unique(hashes, return_index=True, return_inverse=True)
    kinds = texts.ravel()[first]
    if not all(np.array_equal(letters, letters[first][at]) for letters in words.T):
        kinds, at = np.unique(texts, return_inverse=True)
    return kinds.tolist(), at.reshape(texts.shape)


def folded(category: str) -> str:
    """What two spellings of one category have in common: all but case and spaces."""
    return "".join(category.split()).casefold()
