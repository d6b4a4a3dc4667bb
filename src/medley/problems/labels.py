"""Counts labels, and tells whether targets are one-hot or class numbers."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from ..contract.errors import BadData


def count(y: Int[Tensor, " n"], classes: int) -> Int[Tensor, " c"]:
    """The number of rows of each class [classes]."""
    return torch.bincount(y, minlength=classes)


def is_one_hot(y: Tensor) -> bool:
    """True if y is [n, classes], and each row has a single one and otherwise zeros."""
    return y.ndim == 2 and y.shape[1] > 1 and bool((((y == 0) | (y == 1)).all(1) & (y.sum(1) == 1)).all())


def refuse_classes(y: Tensor, call: str) -> None:
    """Raise BadData if a regression's targets are whole numbers 0, 1, ..., C−1 with C > 2, all of which occur.

    These may be classes, and a regression would fit their numbers as values. 0 and 1 are fitted as values.
    """
    if y.is_floating_point() or y.dtype == torch.bool or y.ndim != 1 or len(y) < 3:
        return
    top = int(y.max())
    if 2 <= top < len(y) and not int(y.min()) and len(torch.unique(y)) == top + 1:
        raise BadData(
            f"{call} fits values, and the targets are the whole numbers 0 to {top}, which look like classes: for "
            "classes use Softmax, or a Network; if they are values, such as counts, give arrays of floats, "
            "y.astype('float64'), or regression=True to a reader or to datasets.frame"
        )
