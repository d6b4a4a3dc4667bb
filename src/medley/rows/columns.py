"""Tables with columns by name: frames of pandas or polars, and Hugging Face's data sets; their columns as numbers.

Numbers that name columns are texts: a column 3 is "3". Cells are what the table yields when it is used as its own
library says; a Hugging Face transform has been applied to them.
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
"""Means over deviations up to which float32 is as good as float64: 17 of its 24 bits are left for the differences."""

DEEP = ("I", "F")
"""Beginnings of Pillow's modes whose pixels have more than eight bits."""

PLAIN = {"1": "L", "P": "RGB", "PA": "RGBA"}
"""Pillow's modes whose pixels are bits or places in a palette, and the modes of their brightness or colours."""

WHOLE = 2.0**24
"""The largest number up to which float32 has all whole ones."""

TIME = re.compile(r"\s*(\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d.*)?|\d{1,2}:\d\d(:\d\d.*)?)\s*")
"""Texts that are dates or times of day."""

MEASURED = re.compile(r"\s*[^\w\s.+-]?\s*[-+]?\d+(\.\d*)?\s*([^\w\s.+-]|[a-zA-Zµ]{1,3})?\s*")
"""Numbers with a sign or a unit, such as "12%", "$3.50" or "70 kg"."""

REMEDIES = {
    "c": "is complex; give real and imaginary parts as columns of their own",
    "M": "is a date; give numbers, such as (t - t.min()) / np.timedelta64(1, 'D')",
    "m": "is a duration; give numbers, such as t / np.timedelta64(1, 's')",
    "U": "is text; give numbers, such as a column of 0 and 1 for every word",
    "S": "is text in bytes; give numbers",
    "V": "has named fields; give one array of numbers, numpy.lib.recfunctions.structured_to_unstructured(...)",
}
"""Kinds of NumPy arrays that are no numbers, and the end of a sentence about each."""


def is_hugging_face(value: object) -> bool:
    """Whether a value is a Hugging Face `Dataset`. Its package is not loaded for the test: a data set has loaded it."""
    there = sys.modules.get("datasets")
    return there is not None and isinstance(value, getattr(there, "Dataset", ()))


def is_transformed(value: Any) -> bool:
    """Whether a value is a Hugging Face data set whose rows a function of the user's makes, ``with_transform``."""
    return is_hugging_face(value) and value.format["type"] == "custom"


def is_frame(value: object) -> bool:
    """Whether a value is a table with columns by name, such as a frame of pandas or polars."""
    return hasattr(value, "columns") and hasattr(value, "__getitem__") and not isinstance(value, Tensor)


def columns_of(table: Any, call: str) -> dict[str, Any]:
    """The columns of a table by name. Raises BadData, naming the call, for two of one name."""
    if is_hugging_face(table) and len(table):
        columns = [*table[0]]  # those of its format
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
    """The frame with its columns in the order of these names, which are its own."""
    columns = columns_of(table, "the frame")
    return table if tuple(columns) == tuple(names) else table[[columns[name] for name in names]]


def cells(table: Any, column: Any) -> np.ndarray:
    """A column of a table, as its own ``columns_of`` calls it."""
    if is_transformed(table):
        found = [table[i][column] for i in range(len(table))]
        return np.asarray([v.numpy(force=True) if isinstance(v, Tensor) else v for v in found])
    return np.asarray(table.with_format(None)[column][:] if is_hugging_face(table) else table[column])


def differ(names: Collection[str], wanted: Collection[str]) -> str:
    """What names lack of the wanted ones and add to them: "lacks age and adds sex"; "" where both are the same."""
    lacks, more = sorted({*wanted} - {*names}), sorted({*names} - {*wanted})
    return " and ".join(f"{word} {', '.join(some)}" for word, some in (("lacks", lacks), ("adds", more)) if some)


def numbers(column: np.ndarray, place: str, remedy: str) -> np.ndarray:
    """A column's cells as float64.

    Raises BadData, naming the row, for dates, for cells that are no numbers, and for nan and infinity.
    """
    # pandas gives dates with a time zone, and Python's own, as objects.
    times = column.dtype.kind == "O" and any(isinstance(v, date | time | timedelta) for v in column.tolist())
    kind = "M" if times else column.dtype.kind
    if (said := REMEDIES.get(kind)) and kind not in "US":  # texts may be numbers
        raise BadData(f"{place} {said}, or leave it out by features=")
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


def no_number(value: Any, remedy: str) -> str:
    """What a cell is that is no number, and what to do; ``remedy`` is that of a text with a meaning of its own."""
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
        return "no number; fill it in or drop the row"
    return f"no number; {remedy}"


def is_number(value: Any) -> bool:
    """Whether Python makes a float of a value that is no text with underscores."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not (isinstance(value, str) and "_" in value)


def kept_apart(X: Any) -> Any:
    """Rows [n, ...] in float32, or in float64 where it would merge or move numbers, such as time stamps; sparse too.

    A column's numbers then stay as they are until something is subtracted from them; those of other columns are rounded
    all the same, but for those that `moved` marks, whichever rows they stand among.
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
    """X in float32, numbers beyond it as infinities, which are refused where they are read."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(X, np.float32)


def _rounded(X: np.ndarray, far: np.ndarray) -> np.ndarray:
    """X in float32; in float64 where that changes numbers which ``far`` marks, or moves some."""
    small = _small(X)
    kept = (far & (small != X)) | moved(X)
    return np.where(far | kept, np.asarray(X, np.float64), small) if kept.any() else small


def moved(X: np.ndarray) -> np.ndarray:
    """Which numbers float32 changes though they are so large that its steps are of 2 or more; [...], booleans."""
    small = _small(X)
    found: np.ndarray = (small != X) & (np.abs(X) > WHOLE) & np.isfinite(small)
    return found


def is_far(mean: Any, deviation: Any) -> Any:
    """Whether columns of this mean and deviation, not 0, are too far from 0 for float32."""
    return (deviation > 1e-14 * abs(mean)) & (abs(mean) > FINE * deviation)


def native(array: np.ndarray) -> np.ndarray:
    """The array's numbers as torch reads them: this machine's order of bytes, no wider than float64, row after row."""
    kind = np.dtype(np.float64) if array.dtype.kind == "f" and array.itemsize > 8 else array.dtype.newbyteorder("=")
    array = np.asarray(array).astype(kind, copy=False)
    # One row in reverse counts as contiguous, and torch refuses its stride; of a read-only array it warns.
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

    Images of a palette become those of its colours. Raises BadData for images of more than eight bits a channel.
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
