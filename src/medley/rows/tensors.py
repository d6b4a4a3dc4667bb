"""Arrays, frames and images as tensors, under the rules of `numbers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set, ValuesView
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract.errors import BadData
from ..contract.place import Place
from .columns import cells, columns_of, is_frame
from .fields import Fields, fields, tensors
from .lazy import Lazy, Mapped, in_memory
from .numbers import REMEDIES, is_missing, is_number, kind_of_text, refuse_inexact, table
from .sparse import Sparse, is_sparse, not_finite

DEEP = ("I", "F")
"""Prefixes of Pillow's modes whose pixels have more than eight bits."""

PLAIN = {"1": "L", "P": "RGB", "PA": "RGBA"}
"""Pillow's modes whose pixels are bits or palette indices, and the modes of their brightness or colours."""


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
        bad, problem = object_words(array) if array.dtype.kind == "O" else (None, REMEDIES[array.dtype.kind])
        first = array.flat[0 if bad is None or not bad.any() else int(bad.argmax())] if array.size else ""
        first = str(first) if isinstance(first, str) else first
        special = kind_of_text(first) if isinstance(first, str) else ""
        raise BadData(f"{what} with {first!r:.60}, which {special or problem}{remedy}")
    if array.dtype.kind not in "fiub":
        raise BadData(f"{what}; give tensors, arrays, numbers or images{remedy}")
    t = torch.from_numpy(native(array).copy()).reshape(array.shape)
    return t if t.is_floating_point() else t.to(torch.int64)


def as_tensor(value: Any, place: Place, what: str = "X", missing: bool = False) -> Tensor:
    """Rows as a tensor, dense or sparse: floats as they are, whole numbers and booleans as int64.

    Rows of mapped arrays of floats are read when they are used; targets and vectors are read at once.

    Args:
        value: an array, a tensor, a frame, nested lists, or one of SciPy's sparse matrices; several inputs a row as a
            dict or a tuple of arrays
        what: its name in messages; "X" for rows, other names for targets and weights
        missing: whether empty cells of a frame become NaN; default False

    Raises BadData, naming client, row and column, for entries that are masked, complex, dates, text or other objects,
    and for whole numbers above the largest int64.
    """
    rows = what.startswith("X")
    if isinstance(value, Lazy | Fields):
        return value if rows and value.ndim > 1 else in_memory(value)
    if rows and not is_sparse(value):  # some sparse matrices are dicts
        several = fields(value, lambda v, name: as_tensor(v, place, f"{what}[{name}]", missing))
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
        value = torch.from_numpy(native(plain(value, place, what, missing)))
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
    elif t.is_floating_point() and t.itemsize == 1:
        why = f"is in {str(t.dtype).removeprefix('torch.')}, in which nothing is computed; give t.float()"
    elif t.device.type == "meta":
        why = "is on the device 'meta' and has no values; give a tensor with values"
    if why:
        raise BadData(f"{what} {why}", place=place)
    if t.is_complex() or t.dtype == torch.uint64:
        plain(t.numpy(force=True), place, what)


def plain(value: Any, place: Place, what: str, missing: bool = False) -> np.ndarray:
    """An array that torch reads without a change of values. Raises BadData, naming the place, for any other.

    Args:
        missing: whether empty cells of a frame become NaN; default False
    """
    if is_frame(value):
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            names = columns_of(value, str(place))
            return table({name: cells(value, column, place) for name, column in names.items()}, place, missing)
        return array
    refuse_unordered(value, place, what)
    try:
        array = value if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
        if array.dtype.kind == "U" and isinstance(value, list | tuple):
            array = np.array(value, object)  # NumPy makes texts of the numbers beside a text
    except (TypeError, ValueError, RuntimeError) as e:
        raise BadData(f"{what} cannot be made an array of rows: {_ragged(value) or e}", place=place) from None
    if isinstance(array, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(array)
        if mask.any():
            raise _refused(mask, array.data, place, what, "is masked; fill such entries or leave these rows out")
        array = array.data
    kind = array.dtype.kind
    if kind == "O":
        if array.ndim == 1 and (problem := _ragged(array)):
            raise BadData(f"{what} cannot be made an array of rows: {problem}", place=place)
        raise _object(array, place, what)
    if kind in REMEDIES:
        bad = array.imag != 0 if kind == "c" else np.zeros(array.shape, bool)
        raise _refused(bad, array, place, what, REMEDIES[kind])
    if kind == "u" and array.itemsize == 8 and (bad := array > np.iinfo(np.int64).max).any():
        raise _refused(bad, array, place, what, f"is above the largest int64; give floats, {what}.astype(float)")
    return array


def refuse_unordered(value: Any, place: Place, what: str) -> None:
    """Raise BadData for a value that yields rows only once, or in no order."""
    if isinstance(value, Iterator | Set | ValuesView):
        kind = type(value).__name__
        raise BadData(f"{what} is a {kind}, whose rows have no numbers; give a list of them in order", place=place)


def _ragged(value: Any) -> str:
    """The two first unequal lengths of rows, and the remedy; empty where rows have no lengths, or all the same."""
    try:
        lengths = [len(row) for row in value if not isinstance(row, str)]
    except TypeError:
        return ""
    other = [k for k, n in enumerate(lengths) if n != lengths[0]]
    if not other:
        return ""
    return (
        f"row 0 has {lengths[0]} entries and row {other[0]} has {lengths[other[0]]}; pad them to one length, as "
        "datasets.tokens.Vocabulary.encode does of texts and torch.nn.utils.rnn.pad_sequence of tensors"
    )


def _object(array: np.ndarray, place: Place, what: str) -> BadData:
    """The error of an array of objects, about the first that is no number if there is one."""
    bad, words = object_words(array, "X" if what.startswith("X") else what)
    return _refused(bad, array, place, what, words)


def object_words(array: np.ndarray, name: str = "X") -> tuple[np.ndarray, str]:
    """Which objects of the array ``name`` are no numbers, and the end of a sentence about the first, or about all."""
    bad = np.array([not isinstance(v, Real | Decimal) for v in array.flat], bool).reshape(array.shape)
    first = array[tuple(np.argwhere(bad)[0])] if bad.any() else 0
    words = f"is in an array of objects; give numbers, numpy.asarray({name}, float)"
    if is_sparse(first):
        words = "is sparse, and this array is dense; give X.toarray()"
    elif isinstance(first, str):
        words = REMEDIES["U"]
    elif isinstance(first, date | time | np.datetime64):
        words = REMEDIES["M"]
    elif isinstance(first, timedelta):
        words = REMEDIES["m"]
    elif isinstance(first, list | tuple | np.ndarray | Tensor):
        words = "is a row in an array of objects; give one array of numbers, numpy.stack([*X])"
    elif isinstance(first, Mapping):
        words = "is a row by name in an array of objects; give a frame, pandas.DataFrame([*X])"
    elif bad.any():
        words = "is in an array of objects, and is no number" + ("; fill it in or drop the row" * is_missing(first))
    return bad, words


def _refused(bad: np.ndarray, array: np.ndarray, place: Place, what: str, why: str) -> BadData:
    """The error about the first place where ``bad`` is true, or the first of all."""
    if not array.size:
        return BadData(f"{what}, an array of {array.dtype}, {why}", place=place)
    at = [int(k) for k in np.argwhere(bad)[0]] if bad.any() else [0] * array.ndim
    value = array[tuple(at)]
    inner = what[1:] if what[1:2] == "[" else ""
    if isinstance(value, str):
        array_of = "X" if what.startswith("X") else what
        number = f"is a number as text; give numbers, {array_of}.astype(float)"
        why = number if is_number(value) else kind_of_text(value) or why
        why = "is text; give numbers" if why == REMEDIES["U"] and what == "weights" else why
    shown = (str(value) if isinstance(value, np.generic) else repr(value))[:80]
    column = at[1] if len(at) > 1 else None if what.startswith("X") else what
    beyond = f" (at {at[2:]})" if at[2:] else ""
    if not at:
        return BadData(f"{what} is {shown}, which {why}", place=place)
    return BadData(f"{shown}{f' of the input {inner}' if inner else ''}{beyond} {why}", place=place.at(at[0], column))


def check_finite(t: Tensor, place: Place, missing: bool = False) -> None:
    """Raise BadData, naming row and column, for the first NaN or infinity. Lazy rows are not read for it.

    Args:
        missing: whether NaN stands for a missing value and is allowed; default False
    """
    for part, name in tensors(t, ""):
        if not part.numel() or not part.is_floating_point() or isinstance(part, Lazy):
            continue
        if not isinstance(part, Sparse) and all(bool(end.isfinite()) for end in part.aminmax()):
            continue  # both ends of a tensor with a NaN are NaN: no second copy of the data, no mask
        first = not_finite(part, missing)
        if first is not None:
            (row, *rest), value = first
            inner = f" in the input {name}" if name else ""
            problem = f"{value}{inner} is not finite; remove such rows, or fill them in"
            raise BadData(problem, place=place.at(row, *rest[:1]))
