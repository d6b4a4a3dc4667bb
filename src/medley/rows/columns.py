"""Tables with columns by name: pandas and polars frames, and Hugging Face data sets; their columns as numbers.

Numbers that name columns become text: a column 3 is "3". Cells are read through the table's own library; a Hugging Face
transform has then been applied to them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import date, time, timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract.errors import BadData
from .sparse import is_sparse

TARGETS = ("label", "labels", "target", "y")
"""Names of the target in rows that are mappings, and in frames."""

FINE = 128.0
"""Means over deviations up to which float32 is as good as float64: 17 of its 24 bits remain for the differences."""

DEEP = ("I", "F")
"""Prefixes of Pillow's modes whose pixels have more than eight bits."""

PLAIN = {"1": "L", "P": "RGB", "PA": "RGBA"}
"""Pillow's modes whose pixels are bits or palette indices, and the modes of their brightness or colours."""

WHOLE = 2.0**24
"""The largest number up to which float32 holds all whole numbers."""

ROUNDED = (
    "a whole number with too many digits for a float; subtract a constant from the column, or leave it out, or name it "
    "in client= or keys= if it says whose a row is"
)
"""What such a cell is, and its remedy."""

TIME = re.compile(r"\s*(\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d.*)?|\d{1,2}:\d\d(:\d\d.*)?)\s*")
"""Texts that are dates or times of day."""

MEASURED = re.compile(r"\s*[^\w\s.+-]?\s*[-+]?\d+(\.\d*)?\s*([^\w\s.+-]|[a-zA-Zµ]{1,3})?\s*")
"""Numbers with a sign or a unit, such as "12%", "$3.50" or "70 kg"."""

REMEDIES = {
    "c": "is complex; give real and imaginary parts in separate columns",
    "M": "is a date; give numbers, such as (t - t.min()) / np.timedelta64(1, 'D')",
    "m": "is a duration; give numbers, such as t / np.timedelta64(1, 's')",
    "U": "is text; give numbers, such as a column of 0 and 1 for every word",
    "S": "is text in bytes; give numbers",
    "V": "has named fields; give one array of numbers, numpy.lib.recfunctions.structured_to_unstructured(...)",
}
"""Kinds of NumPy arrays that are not numbers, with the end of a sentence about each."""


def is_hugging_face(value: object) -> bool:
    """Whether a value is a Hugging Face `Dataset`. The test does not load the package: a data set has loaded it."""
    there = sys.modules.get("datasets")
    return there is not None and isinstance(value, getattr(there, "Dataset", ()))


def is_transformed(value: Any) -> bool:
    """Whether a value is a Hugging Face data set whose rows come from a user's function, ``with_transform``."""
    return is_hugging_face(value) and value.format["type"] == "custom"


def is_frame(value: object) -> bool:
    """Whether a value is a table with columns by name, such as a frame of pandas or polars."""
    return hasattr(value, "columns") and hasattr(value, "__getitem__") and not isinstance(value, Tensor)


def columns_of(table: Any, call: str) -> dict[str, Any]:
    """The columns of a table by name. Raises BadData, naming the call, if two have the same name."""
    if is_hugging_face(table) and len(table):
        columns = [*table[0]]  # the columns of its format
    else:
        columns = list(getattr(table, "column_names", None) or table.columns)
    names = [str(c) for c in columns]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise BadData(
            f"{call}: the table has two columns {twice!r}; drop or rename one, "
            "frame.loc[:, ~frame.columns.duplicated()]"
        )
    return dict(zip(names, columns, strict=True))


def in_order(table: Any, names: Sequence[str]) -> Any:
    """The frame with its own columns in the order of these names."""
    columns = columns_of(table, "the frame")
    return table if tuple(columns) == tuple(names) else table[[columns[name] for name in names]]


def cells(table: Any, column: Any) -> np.ndarray:
    """A column of a table, as its own ``columns_of`` calls it."""
    if is_transformed(table):
        found = [table[i][column] for i in range(len(table))]
        return np.asarray([v.numpy(force=True) if isinstance(v, Tensor) else v for v in found])
    return np.asarray(table.with_format(None)[column][:] if is_hugging_face(table) else table[column])


def differ(names: Collection[str], wanted: Collection[str]) -> str:
    """What ``names`` lacks of ``wanted`` and adds to it: "lacks age and adds sex"; "" if both are the same."""
    lacks, more = sorted({*wanted} - {*names}), sorted({*names} - {*wanted})
    return " and ".join(f"{word} {', '.join(some)}" for word, some in (("lacks", lacks), ("adds", more)) if some)


def numbers(column: np.ndarray, place: str, remedy: str) -> np.ndarray:
    """A column's cells as float64.

    Raises BadData, naming the row, for dates, for cells that are not numbers, for nan and infinity, and for
    whole numbers that no float64 holds.
    """
    # pandas gives dates with a time zone, and Python's own, as objects.
    times = column.dtype.kind == "O" and any(isinstance(v, date | time | timedelta) for v in column.tolist())
    kind = "M" if times else column.dtype.kind
    if (said := REMEDIES.get(kind)) and kind not in "US":  # texts may be numbers
        raise BadData(f"{place} {said}, or leave it out by features=")
    refuse_inexact(column, place)
    try:
        if column.dtype.kind in "OU" and any(isinstance(v, str) and "_" in v for v in column.tolist()):
            raise ValueError  # Python reads "2024_01" as a number
        values = column.astype(np.float64)
    except (TypeError, ValueError):
        row = next(i for i, v in enumerate(column.tolist()) if not is_number(v))
        raise BadData(f"{place} has {column[row]!s} in row {row}, {no_number(column[row], remedy)}", row=row) from None
    if (bad := ~(np.abs(values) <= np.finfo(np.float32).max)).any():
        row = int(np.flatnonzero(bad)[0])
        raise BadData(f"{place} has {values[row]} in row {row}; fill it in or drop the row", row=row)
    return values


def refuse_inexact(values: Any, place: str) -> None:
    """Raise BadData, naming the row, for a whole number [n, ...] that no float64 holds, so that it would be rounded."""
    if is_sparse(values):  # its file has floats
        return
    if values.dtype.kind in "OU":
        bad = np.array([inexact(v) for v in values.ravel().tolist()], bool).reshape(values.shape)
    elif values.dtype.kind in "iu" and values.itemsize == 8:
        big = (values > 2**53) | (values < -(2**53))
        bad = np.zeros(values.shape, bool)
        bad[big] = [inexact(v) for v in values[big].tolist()]
    else:
        return
    if bad.any():
        row, *rest = (int(k) for k in np.argwhere(bad)[0])
        where = "".join(f", column {k}" for k in rest[:1])
        raise BadData(f"{place} has {values[(row, *rest)]} in row {row}{where}, {ROUNDED}", row=row)


def inexact(value: Any) -> bool:
    """Whether a value, or a text, is a whole number that no float64 holds."""
    if isinstance(value, str):
        value = int(value) if len(value) > 15 and re.fullmatch(r"\s*[-+]?\d{1,300}\s*", value) else 0
    return isinstance(value, int) and abs(value) > 2**53 and (value.bit_length() > 1000 or int(float(value)) != value)


def no_number(value: Any, remedy: str) -> str:
    """What a cell that is not a number is, and what to do; ``remedy`` is the advice for any other text."""
    if isinstance(value, str) and TIME.fullmatch(value):
        return (
            "a time; give numbers, such as (t - t.min()) / np.timedelta64(1, 'D') with t = pandas.to_datetime(column)"
        )
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?\d{1,3}(,\d{3})+(\.\d*)?\s*", value):
        return (
            "a number with commas between thousands, or with a decimal comma; give "
            "datasets.frame(pandas.read_csv(path, thousands=',')), or decimal=',', or write it without"
        )
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?\d+,\d+\s*", value):
        return (
            "a number with a decimal comma; write a point, or give datasets.frame(pandas.read_csv(path, decimal=','))"
        )
    if isinstance(value, str) and MEASURED.fullmatch(value):
        return "a number with a sign or a unit; take that off in every row of the column"
    if value is None or not str(value).strip():
        return "not a number; fill it in or drop the row"
    return f"not a number; {remedy}"


def is_number(value: Any) -> bool:
    """Whether Python can make a float of a value; text with underscores does not count."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not (isinstance(value, str) and "_" in value)


def kept_apart(X: Any) -> Any:
    """Rows [n, ...] in float32, or in float64 if float32 would merge or move numbers, such as time stamps; sparse too.

    Such a column keeps its numbers until something is subtracted from them. The numbers of other columns are rounded
    anyway, unless `moved` marks them, no matter which rows they are in.
    """
    if is_sparse(X):
        data, (n, p) = X.data.astype(np.float64), X.shape
        column = X.tocoo().col
        sums: Callable[[np.ndarray], np.ndarray] = lambda v: np.bincount(column, v, p)
        mean = sums(data) / n
        squares = sums((data - mean[column]) ** 2) + (n - np.bincount(column, minlength=p)) * mean**2
        found = _rounded(data, is_far(mean, np.sqrt(squares / n))[column])
        return type(X)((found, X.indices, X.indptr), X.shape)
    if X.dtype.kind not in "fiu" or (X.dtype.kind == "f" and X.itemsize < 8) or X.itemsize < 4 or not len(X):
        return np.ascontiguousarray(X, np.float32)
    if (_small(X) == X).all():
        return _small(X)
    return _rounded(X, is_far(X.mean(0, dtype=np.float64), X.std(0, dtype=np.float64)))


def _small(X: np.ndarray) -> np.ndarray:
    """X in float32; numbers beyond its range become infinities, which raise an error when they are read."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(X, np.float32)


def _rounded(X: np.ndarray, far: np.ndarray) -> np.ndarray:
    """X in float32; in float64 if that changes numbers that ``far`` marks, or moves some."""
    small = _small(X)
    kept = (far & (small != X)) | moved(X)
    return np.where(far | kept, np.asarray(X, np.float64), small) if kept.any() else small


def moved(X: np.ndarray) -> np.ndarray:
    """Which numbers float32 changes although they are so large that its steps are 2 or more; [...], booleans."""
    small = _small(X)
    found: np.ndarray = (small != X) & (np.abs(X) > WHOLE) & np.isfinite(small)
    return found


def is_far(mean: Any, deviation: Any) -> Any:
    """Whether columns with this mean and deviation, not 0, are too far from 0 for float32."""
    return (deviation > 1e-14 * abs(mean)) & (abs(mean) > FINE * deviation)


def native(array: np.ndarray) -> np.ndarray:
    """The array's numbers in torch's layout: this machine's byte order, no wider than float64, row after row."""
    kind = np.dtype(np.float64) if array.dtype.kind == "f" and array.itemsize > 8 else array.dtype.newbyteorder("=")
    array = np.asarray(array).astype(kind, copy=False)
    # One reversed row counts as contiguous, but torch rejects its stride; it warns about a read-only array.
    odd = any(s < 0 for s in array.strides) or not array.flags.writeable
    return array.copy() if odd else np.ascontiguousarray(array)


def refuse_masked(value: object, what: str) -> None:
    """Raise BadData, naming the first place, for an array with masked entries."""
    if isinstance(value, np.ma.MaskedArray) and (mask := np.ma.getmaskarray(value)).any():
        at = [int(k) for k in np.argwhere(mask)[0]]
        place = "".join(f", {word} {k}" for word, k in zip(("row", "column"), at, strict=False))
        raise BadData(f"{what}{place} is masked; fill such entries or leave these rows out", row=next(iter(at), None))


def as_row(value: Any, path: Sequence[str | int] = ()) -> Tensor:
    """One row as a tensor: an image [h, w] or [h, w, channels] of PIL becomes [channels, h, w] in [0, 1].

    Palette images become images of its colours. Raises BadData for images with more than eight bits per channel.
    """
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else value.to(torch.int64)
    if np.ma.is_masked(value):
        raise BadData("an item's input has masked entries; fill them or leave such items out")
    array = np.asarray(value)
    if hasattr(value, "getbands"):
        if value.mode.startswith(DEEP):
            raise BadData(f"an item's image has the mode {value.mode}, more than 8 bits a channel; convert it to 8")
        array = np.asarray(value.convert(PLAIN[value.mode])) if value.mode in PLAIN else array
        pixels = torch.from_numpy(array.astype(np.float32) / 255)
        return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()
    if array.dtype.kind not in "fiub":
        name = f" {path[-1]!r}" if path and isinstance(path[-1], str) else ""
        remedy = f", or leave the column out, remove_columns([{path[-1]!r}])" if name else ""
        raise BadData(
            f"an item's input{name} is a {type(value).__name__}; give tensors, arrays, numbers or images{remedy}"
        )
    t = torch.from_numpy(native(array).copy()).reshape(array.shape)
    return t if t.is_floating_point() else t.to(torch.int64)
