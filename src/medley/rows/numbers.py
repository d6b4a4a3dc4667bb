"""Columns and arrays as numbers: what a value means is the same at every door for data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract.errors import BadData
from ..contract.place import Place
from .columns import cells, columns_of, is_frame
from .fields import Fields, fields, tensors
from .lazy import Lazy, Mapped, in_memory
from .sparse import Sparse, is_sparse, not_finite

DEEP = ("I", "F")
"""Prefixes of Pillow's modes whose pixels have more than eight bits."""

PLAIN = {"1": "L", "P": "RGB", "PA": "RGBA"}
"""Pillow's modes whose pixels are bits or palette indices, and the modes of their brightness or colours."""

ROUNDED = (
    "has too many digits for a float; subtract a constant from the column, or leave it out, or name it in client= or "
    "keys= if it says whose a row is"
)
"""The end of a sentence about a whole number that no float64 holds."""

TIME = re.compile(r"\s*(\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d.*)?|\d{1,2}:\d\d(:\d\d.*)?)\s*")
"""Texts that are dates or times of day."""

MEASURED = re.compile(r"\s*[^\w\s.+-]?\s*[-+]?\d+(\.\d*)?\s*([^\w\s.+-]|[a-zA-Zµ]{1,3})?\s*")
"""Numbers with a sign or a unit, such as "12%", "$3.50" or "70 kg"."""

MISSING = {"na", "n/a", "n.a.", "nan", "nat", "<na>", "null", "none", "?", "-", ".", "unknown", "missing"}
MISSING |= {"#n/a", "#na", "#null!", "#value!", "#ref!", "#div/0!", "#num!", "#name?"}
"""Texts, in small letters, by which files say that there is no value."""

TOKENS = "for sentences give token ids, datasets.tokens.Vocabulary.of(texts, size=5000).encode(texts, length=40)"

DAYS = "(t - pandas.Timestamp('2024-01-01')) / np.timedelta64(1, 'D'), from the same day for all clients"

REMEDIES = {
    "c": "is complex; give real and imaginary parts in separate columns",
    "M": f"is a date; give numbers, such as {DAYS}",
    "m": "is a duration; give numbers, such as t / np.timedelta64(1, 's')",
    "U": "is text; code categories in frames by medley.statistics.Study(...).prepare(['sex: encode']) "
    f"and datasets.frame(..., prepared=...), or as columns of 0 and 1; {TOKENS}",
    "S": "is text in bytes; give numbers",
    "V": "has named fields; give one array of numbers, numpy.lib.recfunctions.structured_to_unstructured(...)",
}
"""Kinds of NumPy arrays that are not numbers, with the end of a sentence about each."""


def is_missing(value: Any) -> bool:
    """Whether a cell has no value: None, NaN, NaT, pandas.NA, or a text of spaces."""
    if isinstance(value, str | bytes):
        return not value.strip()
    if isinstance(value, float | np.floating | np.datetime64 | np.timedelta64):
        return bool(value != value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def table(columns: Mapping[str, np.ndarray], place: Place) -> np.ndarray:
    """Columns as float64 [n, columns]. Raises BadData, naming row and column, for cells that are no numbers."""
    return np.stack([numbers(c, place.at(column=name), columns) for name, c in columns.items()], 1)


def numbers(column: np.ndarray, place: Place, others: Mapping[str, np.ndarray] | str = "") -> np.ndarray:
    """A column's cells as float64.

    Args:
        others: all columns of the table by name, among which the error counts those that are text; or the remedy

    Raises BadData, naming the row, for dates, for cells that are not numbers, for nan and infinity, and for
    whole numbers that no float64 holds.
    """
    # pandas gives dates with a time zone, and Python's own, as objects.
    times = column.dtype.kind == "O" and any(isinstance(v, date | time | timedelta) for v in column.tolist())
    kind = "M" if times else column.dtype.kind
    if kind in "cMmV":
        raise BadData(f"the column {REMEDIES[kind]}, or leave it out by features=", place=place)
    refuse_inexact(column, place)
    try:
        if column.dtype.kind in "OU" and any(isinstance(v, str) and "_" in v for v in column.tolist()):
            raise ValueError  # Python reads "2024_01" as a number
        values = column.astype(np.float64)
    except (TypeError, ValueError):
        row = next(i for i, v in enumerate(column.tolist()) if not is_number(v))
        raise no_number(column[row], place.at(row), others) from None
    if (bad := ~(np.abs(values) <= np.finfo(np.float32).max)).any():
        row = int(np.flatnonzero(bad)[0])
        if np.isfinite(values[row]):
            raise BadData(f"{values[row]:g} is too large for float32; use another unit", place=place.at(row))
        raise no_number(values[row], place.at(row), others)
    return values


def refuse_inexact(values: Any, place: Place) -> None:
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
        raise BadData(f"{values[(row, *rest)]} {ROUNDED}", place=place.at(row, *rest[:1]))


def inexact(value: Any) -> bool:
    """Whether a value, or a text, is a whole number that no float64 holds."""
    if isinstance(value, str):
        value = int(value) if len(value) > 15 and re.fullmatch(r"\s*[-+]?\d{1,300}\s*", value) else 0
    return isinstance(value, int) and abs(value) > 2**53 and (value.bit_length() > 1000 or int(float(value)) != value)


def no_number(value: Any, place: Place, others: Mapping[str, np.ndarray] | str = "") -> BadData:
    """The error of a cell that is not a finite number, with the remedy; for ``others`` see `numbers`."""
    text, name = str(value).strip(), place.column if isinstance(place.column, str) else "age"
    fill = f"medley.statistics.Study(...).prepare(['{name}: median'])"
    if not isinstance(value, str | float | np.floating) and not is_missing(value):
        return BadData(f"{value!s:.60} is a {type(value).__name__}; give numbers", place=place)
    if is_missing(value) or not isinstance(value, str):
        shown = "it is empty" if isinstance(value, str) or value is None else f"{value} is not a number"
        said = f"{shown}; fill it in, for example by {fill}, or drop the row"
    elif special := kind_of_text(value):
        said = f"{value!r} {special}"
    elif text.lower() in MISSING:
        said = f"{value!r} says that there is no number; make it empty, pandas.read_csv(path, na_values=[{text!r}]), "
        said += f"and fill it in by {fill}, or drop the row"
    elif is_number(value):
        said = f"{value!r} is not finite; fill it in or drop the row"
    else:
        said = f"{value!r} is not a number; {others if isinstance(others, str) else _code(text, name, others)}"
    return BadData(said, place=place)


SEPARATED = "sep=None, engine='python'"
"""Arguments of pandas.read_csv that find a file's separator, which beside decimal commas is seldom a comma."""

GROUPED = re.compile(r"[-+]?\d{1,3}(?:(?:[ \u00a0\u202f'\u2019]\d{3})+(?:[.,]\d+)?|(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})")
"""Numbers with spaces, apostrophes or points between thousands."""


def kind_of_text(value: str) -> str:
    """The end of a sentence about a text that is a time, or a number in another form; empty for other texts."""
    text = value.strip()
    if TIME.fullmatch(text):
        return f"is a time; give numbers, such as {DAYS}, with t = pandas.to_datetime(column)"
    if re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?", text):
        return (
            "is a number with commas between thousands, or with a decimal comma; give datasets.frame("
            f"pandas.read_csv(path, {SEPARATED}, thousands=',')), or decimal=',', or write it without"
        )
    if GROUPED.fullmatch(text):
        return "is a number with signs between thousands; take those out in every row of the column"
    if re.fullmatch(r"[-+]?\d+,\d+", text):
        return (
            "is a number with a decimal comma; write a point, or datasets.frame("
            f"pandas.read_csv(path, {SEPARATED}, decimal=','))"
        )
    if MEASURED.fullmatch(text) and any(c.isdigit() for c in text) and not is_number(text):
        return "is a number with a sign or a unit; take that off in every row of the column"
    return ""


def _code(text: str, name: str, columns: Mapping[str, np.ndarray]) -> str:
    """What to do with a column of text among these."""
    if len(text.split()) > 3:
        return TOKENS
    odd = {n: sum(not is_number(v) for v in c.tolist()) for n, c in columns.items() if c.dtype.kind in "OUS"}
    names = [n for n, count in odd.items() if 2 * count > len(columns[n])]
    if name not in names:
        return "mend it or drop the row"
    said = "" if names[:1] == names else f" ({', '.join(map(repr, names))} hold text)"
    return (
        f"code such columns{said} as numbers: give prepared=medley.statistics.Study(...).prepare(["
        f"'{name}: encode', ...]), or pandas.get_dummies(frame, columns={names or [name]}); if one names each row's "
        f"client, say client={name!r}"
    )


def is_number(value: Any) -> bool:
    """Whether Python can make a float of a value; text with underscores does not count."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not (isinstance(value, str) and "_" in value)


def native(array: np.ndarray) -> np.ndarray:
    """The array's numbers in torch's layout: this machine's byte order, no wider than float64, row after row."""
    kind = np.dtype(np.float64) if array.dtype.kind == "f" and array.itemsize > 8 else array.dtype.newbyteorder("=")
    array = np.asarray(array).astype(kind, copy=False)
    # One reversed row counts as contiguous, but torch rejects its stride; it warns about a read-only array.
    odd = any(s < 0 for s in array.strides) or not array.flags.writeable
    return array.copy() if odd else np.ascontiguousarray(array)


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
    name = f" {path[-1]!r}" if path and isinstance(path[-1], str) else ""
    remedy = f", or leave the column out, remove_columns([{path[-1]!r}])" if name else ""
    what = f"an item's input{name} is a {type(value).__name__}"
    if array.dtype.kind in REMEDIES or (array.dtype.kind == "O" and array.size):
        bad, said = object_words(array) if array.dtype.kind == "O" else (None, REMEDIES[array.dtype.kind])
        first = array.flat[0 if bad is None or not bad.any() else int(bad.argmax())] if array.size else ""
        first = str(first) if isinstance(first, str) else first
        special = kind_of_text(first) if isinstance(first, str) else ""
        raise BadData(f"{what} with {first!r:.60}, which {special or said}{remedy}")
    if array.dtype.kind not in "fiub":
        raise BadData(f"{what}; give tensors, arrays, numbers or images{remedy}")
    t = torch.from_numpy(native(array).copy()).reshape(array.shape)
    return t if t.is_floating_point() else t.to(torch.int64)


def as_tensor(value: Any, place: Place, what: str = "X") -> Tensor:
    """Rows as a tensor, dense or sparse: floats as they are, whole numbers and booleans as int64.

    Rows of mapped arrays of floats are read when they are used; targets and vectors are read at once.

    Args:
        value: an array, a tensor, a frame, nested lists, or one of SciPy's sparse matrices; several inputs a row as a
            dict or a tuple of arrays
        what: its name in messages; "X" for rows, other names for targets and weights

    Raises BadData, naming client, row and column, for entries that are masked, complex, dates, text or other objects,
    and for whole numbers above the largest int64.
    """
    rows = what.startswith("X")
    if isinstance(value, Lazy | Fields):
        return value if rows and value.ndim > 1 else in_memory(value)
    if rows and not is_sparse(value):  # some sparse matrices are dicts
        several = fields(value, lambda v, name: as_tensor(v, place, f"{what}[{name}]"))
        if several is not None:
            return several
    if isinstance(value, np.memmap) and value.dtype.kind == "f" and value.ndim > 1 and rows:
        return Lazy([Mapped(value)])
    if is_sparse(value):
        if "[" in what:
            raise BadData(f"{what} is sparse, but an input of several is dense; give X.toarray()", place=place)
        if value.dtype.kind not in "buif" or len(value.shape) != 2:
            raise BadData(f"{what} is a sparse array of {value.dtype}, {list(value.shape)}; give real numbers [n, p]",
                          place=place)  # fmt: skip
        return Sparse.of(value)
    if not isinstance(value, Tensor):
        value = torch.from_numpy(native(plain(value, place, what)))
    t: Tensor = value.detach()
    check_tensor(t, place, what)
    t = t.cpu()
    if rows and t.dtype == torch.int64 and t.numel() and max(int(t.max()), -int(t.min())) > 2**53:
        refuse_inexact(t.numpy(), place)
    return t if t.is_floating_point() else t.to(torch.int64)


def check_tensor(t: Tensor, place: Place, what: str) -> None:
    """Raise BadData for a tensor that holds no plain real numbers."""
    if isinstance(t, Sparse | Fields):
        return
    why = ""
    if t.is_nested:
        why = "is a nested tensor; give rows of one length, padded where they are shorter"
    elif t.layout != torch.strided or t.is_quantized:
        why = "is a sparse or quantised tensor; give a dense one, or one of SciPy's sparse matrices"
    elif t.device.type == "meta":
        why = "is on the device 'meta' and has no values; give a tensor with values"
    if why:
        raise BadData(f"{what} {why}", place=place)
    if t.is_complex() or t.dtype == torch.uint64:
        plain(t.numpy(force=True), place, what)


def plain(value: Any, place: Place, what: str) -> np.ndarray:
    """An array that torch reads without a change of values. Raises BadData, naming the place, for any other."""
    if is_frame(value):
        if (array := np.asarray(value)).dtype.kind not in "biuf":
            return table({name: cells(value, column) for name, column in columns_of(value).items()}, place)
        return array
    try:
        array = value if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as e:
        raise BadData(f"{what} cannot be made an array of rows: {_ragged(value) or e}", place=place) from None
    if isinstance(array, np.ma.MaskedArray):
        if (mask := np.ma.getmaskarray(array)).any():
            raise _refused(mask, array.data, place, what, "is masked; fill such entries or leave these rows out")
        array = array.data
    kind = array.dtype.kind
    if kind == "O":
        if array.ndim == 1 and (said := _ragged(array)):
            raise BadData(f"{what} cannot be made an array of rows: {said}", place=place)
        raise _object(array, place, what)
    if kind in REMEDIES:
        bad = array.imag != 0 if kind == "c" else np.zeros(array.shape, bool)
        raise _refused(bad, array, place, what, REMEDIES[kind])
    if kind == "u" and array.itemsize == 8 and (bad := array > np.iinfo(np.int64).max).any():
        raise _refused(bad, array, place, what, "is above the largest int64; give floats, X.astype(float)")
    return array


def _ragged(value: Any) -> str:
    """The two first unequal lengths of rows, and the remedy; empty where rows have no lengths, or all the same."""
    try:
        lengths = [len(row) for row in value if not isinstance(row, str)]
    except TypeError:
        return ""
    if not (other := [k for k, n in enumerate(lengths) if n != lengths[0]]):
        return ""
    return (
        f"row 0 has {lengths[0]} entries and row {other[0]} has {lengths[other[0]]}; pad them to one length, as "
        "datasets.tokens.Vocabulary.encode does of texts and torch.nn.utils.rnn.pad_sequence of tensors"
    )


def _object(array: np.ndarray, place: Place, what: str) -> BadData:
    """The error of an array of objects, about the first that is no number if there is one."""
    bad, words = object_words(array)
    return _refused(bad, array, place, what, words)


def object_words(array: np.ndarray) -> tuple[np.ndarray, str]:
    """Which objects of an array are no numbers, and the end of a sentence about the first of them, or of all."""
    bad = np.array([not isinstance(v, int | float | np.number) for v in array.flat], bool).reshape(array.shape)
    first = array[tuple(np.argwhere(bad)[0])] if bad.any() else 0
    words = "is in an array of objects; give numbers, X.astype(float)"
    if is_sparse(first):
        words = "is sparse, and this array is dense; give X.toarray()"
    elif isinstance(first, str):
        words = REMEDIES["U"]
    elif isinstance(first, date | time | np.datetime64):
        words = REMEDIES["M"]
    elif isinstance(first, timedelta):
        words = REMEDIES["m"]
    elif bad.any():
        words = "is in an array of objects, and is no number" + ("; fill it in or drop the row" * is_missing(first))
    return bad, words


def _refused(bad: np.ndarray, array: np.ndarray, place: Place, what: str, why: str) -> BadData:
    """The error about the first place where ``bad`` is true, or the first of all."""
    if not array.size:
        return BadData(f"{what}, an array of {array.dtype}, {why}", place=place)
    at = [int(k) for k in np.argwhere(bad)[0]] if bad.any() else [0] * array.ndim
    value, inner = array[tuple(at)], what[1:] if what[1:2] == "[" else ""
    why = (isinstance(value, str) and kind_of_text(value)) or why
    shown = (str(value) if isinstance(value, np.generic) else repr(value))[:80]
    column = at[1] if len(at) > 1 else None if what.startswith("X") else what
    beyond = f" (at {at[2:]})" if at[2:] else ""
    if not at:
        return BadData(f"{what} is {shown}, which {why}", place=place)
    return BadData(f"{shown}{f' of the input {inner}' if inner else ''}{beyond} {why}", place=place.at(at[0], column))


def check_finite(t: Tensor, place: Place) -> None:
    """Raise BadData, naming row and column, for the first NaN or infinity. Lazy rows are not read for it."""
    for part, name in tensors(t, ""):
        if not part.numel() or not part.is_floating_point() or isinstance(part, Lazy):
            continue
        if not isinstance(part, Sparse) and all(bool(end.isfinite()) for end in part.aminmax()):
            continue  # both ends of a tensor with a NaN are NaN: no second copy of the data, no mask
        if (first := not_finite(part)) is not None:
            (row, *rest), value = first
            inner = f" in the input {name}" if name else ""
            said = f"{value}{inner} is not finite; remove such rows, or fill them in"
            raise BadData(said, place=place.at(row, *rest[:1]))
