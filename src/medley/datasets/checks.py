"""Checks of the rows and targets of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, Place, RecipeError, integer, take
from ..numerics.scaling import Scaling
from ..rows.fields import described, layout
from ..rows.tensors import as_tensor, check_finite
from .ingest.labels import RawTargets


def rows_and_targets(X: Any, y: Any, place: Place, missing: bool = False) -> tuple[Tensor, RawTargets]:
    """Any rows and their targets, checked. Raises BadData, naming the row.

    Args:
        missing: whether NaN in X stands for a missing value; default False
    """
    rows = as_tensor(X, place, missing=missing)
    targets = y if isinstance(y, RawTargets) else RawTargets.of(y, place)
    check_rows(rows, targets.values, place, missing)
    return rows, targets


def check_rows(X: Tensor, y: Tensor | np.ndarray, place: Place, missing: bool = False) -> None:
    """Raise BadData for rows and targets that do not pair, for none, and for numbers that are not finite.

    Args:
        missing: whether NaN in X stands for a missing value; default False
    """
    if X.ndim < 2 or not y.shape or len(X) != len(y):
        remedy = "(X[None], y[None]) for one row"
        if y.shape and X.shape.numel() == y.shape[0]:
            remedy = "X[:, None] for one feature" if y.ndim == 1 else "(X, y) in this order"
        raise BadData(
            f"X is {[*X.shape]} and y is {[*y.shape]}; give one row per sample in both"
            f"{f', so {remedy}' if X.ndim == 1 else ''}",
            place=place,
        )
    if not len(X):
        raise BadData("there are no rows; leave it out", place=place)
    if 0 in X.shape[1:]:
        raise BadData(f"X is {[*X.shape]}, rows without columns; give at least one", place=place)
    check_finite(X, place, missing)


def check_targets(y: Tensor, classes: int | None, place: Place) -> None:
    """Raise BadData, naming the row, for a target that is not finite, or not one of the classes."""
    if classes is None:
        check_finite(y, place.at(column="y"))
        return
    if y.dtype != torch.int64:
        raise BadData(
            f"y holds {str(y.dtype).removeprefix('torch.')}, but classes={classes} says that it holds labels; leave "
            "classes= out if they are values, or give whole numbers, y.astype('int64') or y.long()",
            place=place,
        )
    outside = ((y < 0) & (y.ndim == 1)) | (y >= classes)
    # Sequences and maps may be padded with a negative number, or one above the classes.
    if outside.any() and (y.ndim == 1 or len(torch.unique(y[outside])) > 1):
        at = tuple(outside.nonzero()[0].tolist())
        message = f"{int(y[at])} is no label of 0..{classes - 1}; give classes= if there are more."
        raise BadData(message, place=place.at(at[0], "y"))


def weights_of(weights: Any, n: int, place: Place) -> Tensor:
    """Weights of the losses of n rows [n]: finite numbers of at least 0. Raises BadData, naming the row."""
    w = as_tensor(weights, place, "weights")
    if w.shape != (n,):
        raise BadData(f"there are {n} rows and weights {list(w.shape)}; give one weight per row", place=place)
    bad = ~((w >= 0) & w.isfinite())
    if bad.any():
        row = int(bad.nonzero()[0, 0])
        raise BadData(f"its weight is {float(w[row])}; give finite weights of at least 0", place=place.at(row))
    return w.double()


def refuse_other_form(
    rows: tuple[Tensor, Tensor | np.ndarray], like: tuple[Tensor, Tensor | np.ndarray], place: Place, which: str
) -> None:
    """Raise BadData if inputs or targets have another shape or kind than the rows ``which``."""
    (X, y), (X0, y0) = rows, like
    if layout(X) != layout(X0):
        message = f"rows have the shape {described(X)}, but {which} {described(X0)}; give the same columns in one order"
        raise BadData(message, place=place)
    if y.shape[1:] != y0.shape[1:]:  # a loss would pair them wrongly
        raise BadData(
            f"targets have the shape {list(y.shape)}, but {which} {list(y0.shape)}; give both the same "
            "form, for example y.reshape(-1) for one number a row",
            place=place,
        )


def check_keys(data: Any) -> None:
    """Raise BadData for keys of a data set that do not have one value per row."""
    for part, keys, X in (("training", data.keys, data.X), ("test", data.test_keys, data.X_test)):
        n = 0 if X is None else len(X)
        for key, values in keys.items():
            if len(values) != n:
                raise BadData(f"{data.name}: the key {key!r} has {len(values)} values for {n} {part} rows.")


def check_kinds(data: Any) -> None:
    """Raise RecipeError for fields of a data set that have the wrong type."""
    if not isinstance(data.name, str):
        raise RecipeError(f"Dataset(name={data.name!r}): give a text", "name")
    for name in ("keys", "test_keys"):
        if not isinstance(getattr(data, name), Mapping):
            raise RecipeError(f"{data.name}: {name} is {getattr(data, name)!r}; give columns by name", name)
    for name, what in (("labels", "classes"), ("features", "columns")):
        value: object = getattr(data, name)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise RecipeError(f"{data.name}: {name} is {value!r}; give the names of the {what}", name)
    for name in ("inferred", "missing"):
        if not isinstance(getattr(data, name), bool):
            raise RecipeError(f"{data.name}: {name} is {getattr(data, name)!r}; give True or False", name)
    if data.scaling is not None and not isinstance(data.scaling, Scaling):
        raise RecipeError(f"{data.name}: scaling is {data.scaling!r}; leave it to standardise()", "scaling")
    take(data, integer, "classes")
    if data.classes is not None and not 1 <= (integer(data.classes) or 0) < 2**31:
        raise RecipeError(f"{data.name}: classes is {data.classes!r}; give a whole number", "classes")
