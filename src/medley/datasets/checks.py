"""Checks of the rows and targets of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..contract import BadData, RecipeError, integer, take
from ..numerics.scaling import Scaling
from ..rows.fields import tensors
from .splits import check_finite


def check_rows(X: Tensor, y: Tensor, classes: int | None, name: str, part: str) -> None:
    """Raise BadData, with the row if one is at fault, for lengths, numbers or labels that do not fit."""
    if len(X) != len(y) or not len(X):
        raise BadData(f"{name}: {len(X)} {part} rows with {len(y)} targets; they must match and not be empty.")
    if X.ndim < 2:
        one = " One feature is X[:, None]." if X.ndim else ""
        shape = tuple(X.shape)
        raise BadData(f"{name}: {part} X has shape {shape}; rows are needed, [n, features] or more.{one}")
    if 0 in X.shape[1:]:
        raise BadData(f"{name}: {part} X is {list(X.shape)}, rows without columns; want one column at least.")
    for t, what in tensors(X, f"{name}: {part} X"):
        check_finite(t, what)
    if classes is None:
        if not y.is_floating_point() and y.ndim == 1:
            raise BadData(
                f"{name}: {part} y holds whole numbers, {int(y.min())} to {int(y.max())}. If they are labels, "
                "number them from 0 and give `classes=`; if they are values, give floats, y.astype('float32')."
            )
        check_finite(y, f"{name}: {part} y")
        return
    if y.dtype != torch.int64:
        raise BadData(f"{name}: {part} y holds {y.dtype}; class labels must be int64, y.astype('int64') or y.long().")
    outside = ((y < 0) & (y.ndim == 1)) | (y >= classes)
    # Sequences and maps may be padded with a negative number, or one above the classes.
    if outside.any() and (y.ndim == 1 or len(torch.unique(y[outside])) > 1):
        at = tuple(outside.nonzero()[0].tolist())
        row = at[0]
        raise BadData(f"{name}: {part} y[{row}] = {int(y[at])} is no label of 0..{classes - 1}.", row=row)


def refuse_other_targets(y: Tensor, like: Tensor, where: str, which: str, client: int | None = None) -> None:
    """Raise BadData for targets y of another form than those of the rows ``which``: a loss would pair them wrongly."""
    if y.shape[1:] != like.shape[1:]:
        raise BadData(
            f"{where} has targets of shape {list(y.shape)}, but {which} of {list(like.shape)}; give both the same "
            "form, for example y.reshape(-1) for one number a row",
            client=client,
        )


def check_keys(data: Any) -> None:
    """Raise BadData for keys of a data set that do not have one value per row."""
    for key, values in data.keys.items():
        if len(values) != len(data.X):
            raise BadData(f"{data.name}: key {key!r} has {len(values)} values for {len(data.X)} training rows.")
    tested = 0 if data.X_test is None else len(data.X_test)
    for key, values in data.test_keys.items():
        if len(values) != tested:
            raise BadData(f"{data.name}: test key {key!r} has {len(values)} values for {tested} test rows.")


def check_kinds(data: Any) -> None:
    """Raise RecipeError for fields of a data set that have the wrong type."""
    if not isinstance(data.name, str):
        raise RecipeError(f"Dataset(name={data.name!r}): give a text", "name")
    for name in ("keys", "test_keys"):
        if not isinstance(getattr(data, name), Mapping):
            raise RecipeError(f"{data.name}: {name} is {getattr(data, name)!r}; give columns by name", name)
    for name, what in (("labels", "classes"), ("features", "columns")):
        given: object = getattr(data, name)
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise RecipeError(f"{data.name}: {name} is {given!r}; give the names of the {what}", name)
    if data.scaling is not None and not isinstance(data.scaling, Scaling):
        raise RecipeError(f"{data.name}: scaling is {data.scaling!r}; leave it to standardise()", "scaling")
    take(data, integer, "classes")
    if data.classes is not None and not 1 <= (integer(data.classes) or 0) < 2**31:
        raise RecipeError(f"{data.name}: classes is {data.classes!r}; give a whole number", "classes")
