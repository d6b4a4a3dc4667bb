"""Arrays of a user as tensors; those that torch would change or misread are refused with client, row and column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract.errors import BadData
from ..rows.columns import REMEDIES, native
from ..rows.fields import Fields, fields
from ..rows.lazy import Lazy, Mapped, in_memory
from ..rows.sparse import Sparse, is_sparse

Label = str | int | float
"""The name of a class, as the user's targets have it; a bool is an int."""


def as_tensor(value: Any, what: str, client: int | None = None, labels: bool = False) -> Tensor:
    """Rows as a tensor, dense or sparse: floats as they are, whole numbers and booleans as int64.

    Rows of mapped arrays of floats are read when they are used; targets and vectors are read at once.

    Args:
        value: an array, a tensor, nested lists, or one of SciPy's sparse matrices; several inputs a row as a dict or a
            tuple of arrays
        labels: whether they are targets, of which whole numbers in an array of objects are taken too; default False

    Raises BadData, naming client, row and column, for entries that are masked, complex, dates, text or other objects,
    and for whole numbers above the largest int64.
    """
    if isinstance(value, Lazy | Fields):
        return in_memory(value) if labels or value.ndim < 2 else value
    if not labels and (several := fields(value, lambda v, name: as_tensor(v, f"{what}[{name}]", client))) is not None:
        return several
    if isinstance(value, np.memmap) and value.dtype.kind == "f" and value.ndim > 1 and not labels:
        return Lazy([Mapped(value)])
    if is_sparse(value):
        if value.dtype.kind not in "buif":
            raise BadData(f"{what} is a sparse matrix of {value.dtype}; give one of real numbers", client=client)
        return Sparse.of(value)
    if not isinstance(value, Tensor):
        value = torch.from_numpy(_numbers(value, what, client, labels))
    t: Tensor = value.detach()
    check_tensor(t, what, client)
    t = t.cpu()
    return t if t.is_floating_point() else t.to(torch.int64)


def names_of(table: Any) -> tuple[str, ...]:
    """Names of the columns of a frame, or of a Hugging Face data set; none for anything else.

    Names are texts: a column 3 is "3". Raises BadData if two columns have one name.
    """
    columns = getattr(table, "column_names", None) or getattr(table, "columns", None)
    if columns is None or isinstance(table, Tensor) or not hasattr(table, "__getitem__"):
        return ()
    names = tuple(map(str, columns))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadData(f"two columns are called {twice!r}; rename one, or give an array, X.to_numpy()")
    return names


def is_text(values: Any) -> bool:
    """Whether targets are texts: an array, a list or a column of them."""
    if values is None or isinstance(values, Tensor) or is_sparse(values):
        return False
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # rows of unequal length, which `as_tensor` names
        return False
    return array.ndim > 0 and (array.dtype.kind in "US" or _all_text(array))


def refuse_mixed(values: Any, what: str, client: int | None = None) -> None:
    """Raise BadData, naming the row, for labels of which one is None, or some are texts and some are not.

    NumPy would make one text of 1 and "1", and "nan" of a missing label.
    """
    if not isinstance(values, list | tuple) and np.dtype(object) != getattr(values, "dtype", None):
        return
    found = [*values] if isinstance(values, list | tuple) else np.asarray(values).tolist()
    texts = [v for v in found if isinstance(v, str)]
    for row, v in enumerate(found):
        if v is None or (texts and isinstance(v, float) and v != v):
            raise BadData(f"{what}, row {row} has no label, {v}; fill it in or drop the row", client=client, row=row)
        if texts and not isinstance(v, str):
            said = f"{what}, row {row} has {v!s:.40}, and row {found.index(texts[0])} the text {texts[0]!r:.40}"
            raise BadData(f"{said}; give all of one kind", client=client, row=row)


def _all_text(array: np.ndarray) -> bool:
    return array.dtype == object and all(isinstance(v, str) for v in array.ravel())


def as_column(values: Any, what: str) -> np.ndarray:
    """A column [n, ...] of any values as an array, bytes as text.

    Raises BadData, naming ``what``, for a single value, and for masked ones.
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as e:
        raise BadData(f"{what} is no column: {e}") from None
    if not array.ndim:
        raise BadData(f"{what} is {values!r}; give a value for each row")
    if (mask := np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else np.zeros(0)).any():
        _refuse(mask, array, what, None, "is masked; fill such entries or leave these rows out")
    text, real = array.dtype.kind == "U", array.dtype.kind == "f"
    if isinstance(values, list | tuple) and (
        text or real
    ):  # NumPy makes one text of 1 and "1", floats of large numbers
        odd = (not isinstance(v, str) if text else isinstance(v, int) and abs(v) > 2**53 for v in values)
        array = np.array(values, object) if any(odd) else array
    try:
        return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    except UnicodeDecodeError as e:
        raise BadData(f"{what} has bytes that are no text in UTF-8: {e}") from None


def text_labels(targets: Iterable[Any]) -> tuple[str, ...]:
    """All texts among targets, without spaces at their ends, in the order of the alphabet; none without texts."""
    texts = [np.unique(_stripped(y)) for y in targets if is_text(y) and len(y)]
    return tuple(map(str, np.unique(np.concatenate(texts)))) if texts else ()


def _stripped(values: Any) -> np.ndarray:
    """Texts without spaces at their ends, as in a table's cells."""
    return np.char.strip(np.asarray(values).astype(str))


SOME_LABELS = "if these are one client's rows, with only some of the classes, name all: Dataset(X, y, labels=(...))"
"""The remedy for rows of one class."""


def given_labels(values: np.ndarray, texts: Sequence[str]) -> tuple[Label, ...]:
    """Labels as results give them back: booleans and numbers as such, whole ones as int; otherwise ``texts``."""
    found = values.tolist() if values.dtype.kind in "biufO" else []
    if not found or not all(isinstance(v, int | float) for v in found):
        return tuple(texts)
    return tuple(v if isinstance(v, bool) or v % 1 else int(v) for v in found)


def numbered(values: Any, names: Sequence[str], what: str) -> np.ndarray:
    """Texts as their places in ``names``. Raises BadData, naming ``what``, for no texts, and for texts not in them."""
    if not is_text(values):
        raise BadData(
            f"{what} has labels that are not texts, but the other targets are texts; give texts, y.astype(str)"
        )
    texts, at = np.unique(_stripped(values), return_inverse=True)
    if unknown := [k for k, text in enumerate(texts.tolist()) if text not in names]:
        row = int(np.isin(at, unknown).reshape(-1).argmax())
        raise BadData(f"{what}, row {row}: {texts[at.reshape(-1)[row]]!s} is not among labels={(*names,)}", row=row)
    return np.array([names.index(text) for text in texts.tolist()], np.int64)[at].reshape(np.shape(values))


def check_tensor(t: Tensor, what: str, client: int | None = None) -> None:
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
    elif t.is_complex():
        _refuse(t.numpy(force=True).imag != 0, t.numpy(force=True), what, client, REMEDIES["c"])
    elif t.dtype == torch.uint64:
        _in_range(t.numpy(force=True), what, client)
    if why:
        raise BadData(f"{what} {why}", client=client)


def _numbers(value: Any, what: str, client: int | None, labels: bool) -> np.ndarray:
    """An array that torch reads without a change of values."""
    try:
        array = value if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as e:
        raise BadData(f"{what} cannot be made an array of rows: {_ragged(value) or e}", client=client) from None
    if isinstance(array, np.ma.MaskedArray):
        if (mask := np.ma.getmaskarray(array)).any():
            _refuse(mask, array.data, what, client, "is masked; fill such entries or leave these rows out")
        array = array.data
    kind, columns = array.dtype.kind, getattr(value, "columns", None)
    if kind == "O":
        if columns is None and array.ndim == 1 and (said := _ragged(array)):
            raise BadData(f"{what} cannot be made an array of rows: {said}", client=client)
        array = _objects(array, what, client, labels, columns)
    elif kind in REMEDIES:
        bad = array.imag != 0 if kind == "c" else np.zeros(array.shape, bool)
        _refuse(bad, array, what, client, REMEDIES[kind], columns)
    elif kind == "u" and array.itemsize == 8:
        _in_range(array, what, client)
    return native(array)


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


def _objects(array: np.ndarray, what: str, client: int | None, labels: bool, columns: Any) -> np.ndarray:
    """Whole numbers of an array of objects, where they are labels. Raises BadData for any other array."""
    wanted = int | np.integer if labels else int | float | np.number
    bad = np.array([not isinstance(v, wanted) for v in array.flat], bool).reshape(array.shape)
    if not bad.any() and (labels or columns is not None):  # a frame's columns are of several types
        if labels:
            most = np.iinfo(np.int64)
            bad = np.array([not most.min <= v <= most.max for v in array.flat], bool).reshape(array.shape)
            if bad.any():
                _refuse(bad, array, what, client, "is no int64; give labels of a smaller size", columns)
        return array.astype(np.int64 if labels else np.float64)
    words = "is no whole number; give numbers" if labels else "is in an array of objects; give X.astype(float)"
    if bad.any() and isinstance(array[tuple(np.argwhere(bad)[0])], date | np.datetime64):
        words = REMEDIES["M"]
    return _refuse(bad, array, what, client, words, columns)


def _in_range(array: np.ndarray, what: str, client: int | None) -> None:
    """Raise BadData for whole numbers that int64 does not have."""
    if (bad := array > np.iinfo(np.int64).max).any():
        _refuse(bad, array, what, client, "is above the largest int64; give floats, X.astype(float)")


def _refuse(
    bad: np.ndarray, array: np.ndarray, what: str, client: int | None, why: str, columns: Any = None
) -> np.ndarray:
    """Raise BadData that names the first place where ``bad`` is true, or the first of all."""
    if not array.size:
        raise BadData(f"{what}, an array of {array.dtype}, {why}", client=client)
    at = [int(k) for k in np.argwhere(bad)[0]] if bad.any() else [0] * array.ndim
    row, column = (at[0] if at else None), (at[1] if len(at) > 1 else None)
    name = f" ({str(columns[column])!r})" if columns is not None and column is not None else ""
    place = "".join(f", {word} {k}" for word, k in zip(("row", "column"), at, strict=False)) + name
    found = array[tuple(at)]
    said = str(found) if isinstance(found, np.generic) else repr(found)
    raise BadData(f"{what}{place}: {said[:80]} {why}", client=client, row=row, column=column)
