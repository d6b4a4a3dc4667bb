"""Targets as class numbers: the one rule for what a label is, at every door for data.

Whole numbers, True and False, and text are classes; fractions are values. The classes of all rows are numbered
together, in ascending order. Spaces around text do not count. Sequences and maps stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...contract import BadData, Place
from ...rows.coding import distinct
from ...rows.lazy import Lazy, in_memory
from ...rows.numbers import FLAGS, MISSING, REMEDIES, inexact, is_missing, is_number, kind_of_object
from ...rows.tensors import as_tensor, plain, refuse_unordered

Label = str | int | float
"""The name of a class, as the user's targets have it; a bool is an int."""

Floats = Literal["values", "either", "whole", "labels"]
"""What floats are: values; values if one has a fraction, else labels; labels if they are whole; or labels."""

SOME_LABELS = "if these rows have only some of the classes, name all: Dataset(X, y, labels=(...))"

BEYOND = "is beyond int64; if it is a label, give text, y.astype(str), and if it is a value, a float in another unit"

WHOLE = re.compile(r"[+-]?\d+")

PADDED = re.compile(r"[+-]?0\d+")
"""Whole numbers that begin with a zero, such as postal codes: as numbers they would be others."""

EXPONENT = re.compile(r"\d+[eE]\d+")
"""Codes that would be read as powers of ten, such as 1E10, a diabetes."""


@dataclass(frozen=True, eq=False)
class RawTargets:
    """RawTargets of some rows as the user has them: numbers [n, ...], or texts in an array of objects [n, ...].

    Attributes:
        place: whose rows these are; its column is the target's
    """

    values: np.ndarray
    place: Place

    @classmethod
    def of(cls, y: Any, place: Place) -> RawTargets:
        """Any column of targets. Raises BadData, naming the row, for a label that is missing, or of another kind."""
        name = str(place.column if place.column is not None else "y")
        place = place.at(column=name)
        y = in_memory(y) if isinstance(y, Lazy) else y
        if isinstance(y, Tensor):
            if y.dtype == torch.uint64:
                return cls.of(y.numpy(force=True), place)
            t = as_tensor(y, replace(place, column=None), name)
            values = (t.float() if t.dtype == torch.bfloat16 else t).numpy()
            return cls(values.astype(bool) if y.dtype == torch.bool else values, place)
        if isinstance(y, list | tuple) and all(np.ndim(v) == 0 and not isinstance(v, Tensor) for v in y):
            array = np.empty(len(y), object)
            array[:] = y
        else:
            try:
                array = y if isinstance(y, np.ma.MaskedArray) else np.asarray(y)
            except (TypeError, ValueError, RuntimeError):  # rows of unequal length, which `plain` names
                array = plain(y, replace(place, column=None), name)
        if not array.ndim:
            refuse_unordered(y, replace(place, column=None), name)
            raise BadData(
                f"{name} is {y!r:.40}; give one target for each row, y[None] and X[None] for one row",
                place=replace(place, column=None),
            )
        if array.dtype.kind == "U" and not isinstance(array, np.ma.MaskedArray) and array.size:
            texts = cls(array, place)
            if not any(map(is_missing, texts.kinds[0])):
                return texts
        if array.dtype.kind in "US":
            array = array.astype(object)
        if array.dtype == np.uint64 and (beyond := array > np.iinfo(np.int64).max).any():
            at = int(np.argwhere(beyond)[0, 0])
            raise BadData(f"{array.ravel()[beyond.ravel()][0]} {BEYOND}", place=place.at(at))
        if array.dtype.kind != "O" or isinstance(array, np.ma.MaskedArray):
            return cls(plain(array, replace(place, column=None), name), place)
        return cls(_typed(array, place), place)

    @property
    def are_text(self) -> bool:
        """Whether they are texts."""
        return self.values.dtype.kind in "OU" and self.values.size > 0 and isinstance(self.values.flat[0], str)

    @cached_property
    def kinds(self) -> tuple[list[str], np.ndarray]:
        """The texts that occur, and the place of each row's among them [n, ...]."""
        if self.values.dtype.kind == "U":
            return distinct(self.values)
        entries = self.values.ravel().tolist()
        places = {text: k for k, text in enumerate(dict.fromkeys(entries))}
        at = np.fromiter(map(places.__getitem__, entries), np.int64, len(entries))
        return [*places], at.reshape(self.values.shape)

    @property
    def first(self) -> Any:
        """The first of them, as a value of Python."""
        return self.values.ravel()[:1].tolist()[0]

    def tensor(self) -> Tensor:
        """Numbers as they are: whole ones as int64."""
        return as_tensor(self.values, replace(self.place, column=None), str(self.place.column))

    def refuse(self, index: int, message: str) -> BadData:
        """The error about the target in this position."""
        row = int(np.unravel_index(index, self.values.shape)[0]) if self.values.ndim > 1 else index
        return BadData(message, place=self.place.at(row))


def _typed(array: np.ndarray, place: Place) -> np.ndarray:
    """Objects as texts, or numbers. Raises BadData for a missing one, and for two kinds of them."""
    entries = array.ravel().tolist()
    wide = array.size // max(1, len(array))
    if {*map(type, entries)} == {str} and all(map(str.strip, {*entries})):
        return array
    values: list[Any] = [v.item() if isinstance(v, np.generic) else v for v in entries]
    values = [float(v) if isinstance(v, Decimal | Fraction) and not inexact(v) else v for v in values]
    missing = [k for k, v in enumerate(values) if is_missing(v)]
    if missing:
        drop = f"drop the row, as frame.dropna(subset=[{place.column!r}]) does"
        raise BadData(
            f"there is no label, {values[missing[0]]!r} (in {len(missing)} rows in all); fill it in, or {drop}",
            place=place.at(missing[0] // wide),
        )
    if any(isinstance(v, bytes) for v in values):
        try:
            values = [v.decode() if isinstance(v, bytes) else v for v in values]
        except UnicodeDecodeError as e:
            raise BadData(f"its bytes are no text in UTF-8: {e}", place=place) from None
    kind: Any = lambda v: str if isinstance(v, str) else bool if isinstance(v, bool) else float
    for k, v in enumerate(values):
        if not isinstance(v, str | int | float):
            message = f"{v!s:.40} is of the type {type(v).__name__}; give whole numbers, True and False, or text, "
            special = kind_of_object(v)
            message = f"{v} {REMEDIES[special]}" if special else f"{message}y.astype(str)"
            raise BadData(message, place=place.at(k // wide))
        if kind(v) is not kind(values[0]):
            text = "the text " if isinstance(values[0], str) else ""
            raise BadData(
                f"{v!r:.40} beside {text}{values[0]!r:.40} in row 0; give all of one kind", place=place.at(k // wide)
            )
    if values and isinstance(values[0], str):
        out = np.empty(len(values), object)
        out[:] = values
        return out.reshape(array.shape)
    some = any(isinstance(v, int) and not isinstance(v, bool) for v in values)  # floats alone are as in an array
    if some and all(isinstance(v, int) or v % 1 == 0 for v in values):
        values = [int(v) for v in values]  # 1 is 1.0
        big = [k for k, v in enumerate(values) if not -(2**63) <= v < 2**63]
        if big:
            raise BadData(f"{values[big[0]]} {BEYOND}", place=place.at(big[0] // wide))
    return np.array(values).reshape(array.shape) if values else np.empty(array.shape)


@dataclass(frozen=True, eq=False)
class Coded:
    """RawTargets as tensors, the number of classes, and their labels; the latter two are None and empty for values."""

    parts: list[Tensor]
    classes: int | None = None
    labels: tuple[Label, ...] = ()


def code(
    parts: Sequence[RawTargets], classes: int | None = None, labels: Sequence[Label] = (), floats: Floats = "values"
) -> Coded:
    """Number the classes of some targets together.

    Args:
        classes: the number of classes, if labels are already 0..classes-1; they then stay as they are
        labels: the names of all classes that texts may have; default those that occur

    Raises BadData, naming the row, for a label that is not among these, and if some targets are text and some are not.
    """
    _refuse_two_kinds(parts)
    if any(p.are_text for p in parts):
        return _of_texts(parts, labels)
    filled = [p for p in parts if p.values.size]
    real = any(p.values.dtype.kind == "f" for p in filled)
    if real and floats == "either":
        floats = "values" if any(_fractions(p).any() for p in filled) else "whole"
    if any(p.values.ndim != 1 for p in filled) or (real and floats == "values") or not filled:
        return Coded([p.tensor() for p in parts])
    for p in filled:
        odd = ~np.isfinite(p.values) if p.values.dtype.kind == "f" else np.zeros(len(p.values), bool)
        odd = odd | _fractions(p) if floats == "whole" else odd
        if odd.any():
            row = int(odd.argmax())
            reason = "is no class; pass regression=True for values, or use LeastSquares or Network(loss='mse')"
            reason = reason if np.isfinite(p.values[row]) else "says that there is no label; fill it in or drop the row"
            raise p.refuse(row, f"{p.values[row]} {reason}")
    if classes is not None:
        return Coded([_codes(p, classes) for p in parts], classes)
    kinds = _kinds([p.values for p in filled])
    names = tuple(v if isinstance(v, bool) or v % 1 else int(v) for v in kinds.tolist())
    if is_plain(names):
        return Coded([p.tensor().long() for p in parts], len(names), names)
    codes = [np.searchsorted(kinds, p.values.astype(kinds.dtype)).astype(np.int64) for p in parts]
    return Coded([torch.from_numpy(c) for c in codes], len(names), names)


def _fractions(p: RawTargets) -> np.ndarray:
    if p.values.dtype.kind != "f":
        return np.zeros(p.values.shape, bool)
    with np.errstate(invalid="ignore"):
        odd: np.ndarray = np.isfinite(p.values) & (p.values % 1 != 0)
    return odd


def _kinds(columns: Sequence[np.ndarray]) -> np.ndarray:
    """All numbers that occur, in ascending order; True and False where all are."""
    bools = all(c.dtype.kind == "b" for c in columns)
    low = min(c.min().item() for c in columns)
    high = max(c.max().item() for c in columns)
    are_integers = not bools and not any(c.dtype.kind == "f" and (c % 1).any() for c in columns)
    if are_integers and low > -(2**20) and high < 2**20:  # counting is faster than sorting
        counts = np.zeros(int(high) - int(low) + 1, np.int64)
        for c in columns:
            counts += np.bincount(c.astype(np.int64) - int(low), minlength=len(counts))
        return np.array(np.flatnonzero(counts) + int(low), np.int64)
    kinds: np.ndarray = np.unique(np.concatenate([np.unique(c) for c in columns]))
    if are_integers and kinds.dtype.kind == "f":  # of int64 and uint64, or of floats
        kinds = np.array(sorted({int(v) for c in columns for v in np.unique(c).tolist()}))
    return kinds


def count_kinds(columns: Sequence[np.ndarray]) -> int:
    """How many whole numbers occur."""
    return len(_kinds(columns)) if columns else 0


def _codes(p: RawTargets, classes: int) -> Tensor:
    """Labels that are 0..classes-1 already."""
    y = p.tensor().long()
    bad = (y < 0) | (y >= classes)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise p.refuse(row, f"the label {int(y[row])} is none of 0..{classes - 1}, classes={classes}")
    return y


def is_plain(labels: Sequence[Label]) -> bool:
    """Whether labels are the numbers 0..C-1 of their classes, so that they need no names; C is 2 or more."""
    return len(labels) > 1 and all(type(v) is int and v == k for k, v in enumerate(labels))


def raw(y: Tensor, labels: Sequence[Label]) -> np.ndarray:
    """Targets as the user had them, of class numbers."""
    if not labels:
        return y.numpy()
    names = np.empty(len(labels), object) if isinstance(labels[0], str) else np.array(labels)
    names[:] = labels
    values: np.ndarray = names[y.numpy()]
    return values


def placed(y: Tensor, labels: Sequence[Label], names: Sequence[Label]) -> Tensor:
    """Renumber classes from their places in ``labels`` to their places in ``names``, which has all of them. Numbers
    with a meaning for the loss, such as ``ignore_index``, stay.
    """
    at = torch.tensor([names.index(label) for label in labels])
    return torch.where((y >= 0) & (y < len(at)), at[y.clamp(0, len(at) - 1)], y)


def _refuse_two_kinds(parts: Sequence[RawTargets]) -> None:
    """Raise BadData, naming an owner of the rarest kind, if targets are of two kinds: text, numbers, True and False."""
    kinds: dict[str, list[RawTargets]] = {}
    for p in parts:
        if p.values.size:
            kind = "texts" if p.are_text else "True and False" if p.values.dtype.kind == "b" else "numbers"
            kinds.setdefault(kind, []).append(p)
    if len(kinds) < 2:
        return
    order = [*kinds]
    few = min(order, key=lambda kind: (len(kinds[kind]), -order.index(kind)))
    many = max(order, key=lambda kind: (len(kinds[kind]), -order.index(kind)))
    numeric = all(is_number(v) for p in parts for v in {*p.values.ravel().tolist()})
    remedy = "for example y.astype(float)" if numeric else "with one word for each class"
    raise BadData(
        f"the labels are {few}, such as {kinds[few][0].first!r}, and those of "
        f"{kinds[many][0].place.at(column=None).whose} {many}, such as {kinds[many][0].first!r}; give all the same "
        f"kind, {remedy}",
        place=replace(kinds[few][0].place, column=None),
    )


def _of_texts(parts: Sequence[RawTargets], labels: Sequence[Label]) -> Coded:
    named = [str(label).strip() for label in labels]
    names = named or sorted({text.strip() for p in parts if p.values.size for text in p.kinds[0]})
    places = {name: k for k, name in enumerate(names)}
    out = []
    for p in parts:
        texts, at = p.kinds
        y = np.array([places.get(text.strip(), -1) for text in texts], np.int64)[at]
        if (y < 0).any():
            row = int((y < 0).argmax())
            raise p.refuse(row, f"{p.values.flat[row]!s} is not among labels={(*names,)}")
        out.append(torch.from_numpy(y))
    return Coded(out, len(names), tuple(labels) or tuple(names))


def of_file(cells: Sequence[str], place: Place, floats: Floats = "either") -> np.ndarray:
    """A text file's column of targets: whole numbers where all entries are, else numbers, booleans, else text.

    Labels with leading zeros, with an exponent among whole numbers, or beyond int64, are texts. Raises BadData for two
    labels that are the same number, such as "1" and "1.0", for an empty label, or one that says so among numbers, and
    for text in a column of fractions.
    """
    texts = [c.strip() for c in cells]
    kinds = dict.fromkeys(texts)
    if "" in kinds and floats != "values":
        raise BadData("it is empty, which is no class; fill it in or drop the row", place=place.at(texts.index("")))
    as_text = np.empty(len(texts), object)
    as_text[:] = texts
    if kinds and kinds.keys() <= ({"False", "True"} if floats != "values" else FLAGS.keys()):
        return np.array([t.lower() == "true" for t in texts])
    are_integers = all(map(WHOLE.fullmatch, kinds))
    # Python reads "2024_01" as a number
    number = {t: _number(t, are_integers) for t in kinds}
    are_codes = len({*number.values()}) == len(kinds) and not any(v % 1 for v in number.values() if v is not None)
    codes = floats != "values" and (
        any(map(PADDED.fullmatch, kinds))
        or (are_codes and any(map(EXPONENT.fullmatch, kinds)))
        or (are_integers and any(abs(int(t)) >> 63 for t in kinds))
    )
    if floats != "values" and None in number.values():
        _refuse_words(texts, number, place)
    if codes or None in number.values():
        return as_text
    spelt: dict[Any, str] = {}
    for text in texts if len({*number.values()}) < len(kinds) and floats != "values" else ():
        if spelt.setdefault(number[text], text) != text and not any(v % 1 for v in number.values() if v is not None):
            raise BadData(
                f"the labels {spelt[number[text]]!r} and {text!r} are the same number; if they are one class, write "
                "them alike",
                place=place.at(texts.index(text)),
            )
    return np.array([number[t] for t in texts])


def _refuse_words(texts: Sequence[str], number: Mapping[str, Any], place: Place) -> None:
    """Raise BadData for text among values, and for text among numbers that says that there is no label."""
    words = {t for t, v in number.items() if v is None}
    row = next(r for r, t in enumerate(texts) if t in words)
    odd = [t for t, v in number.items() if isinstance(v, float) and v % 1]
    if 2 * sum(t in odd for t in texts) > len(texts):
        message = f"{texts[row]!r} is no number, among values such as {odd[0]}; mend it or drop the row"
        raise BadData(message, place=place.at(row))
    rest = [t for t in number if t not in words]
    if rest and all(t.lower() in MISSING for t in words):
        count = sum(t in words for t in texts)
        message = f"{texts[row]!r} among numbers such as {rest[0]} says that there is no label (in {count} rows in all)"
        raise BadData(f"{message}; fill it in or drop the row", place=place.at(row))


def _number(text: str, is_integer: bool) -> Any:
    """A cell as a number; None for any other text."""
    try:
        return None if "_" in text else int(text) if is_integer else float(text)
    except ValueError:
        return None
