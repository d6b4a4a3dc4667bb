"""Counts labels, and tells whether they are one-hot."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor


def count(y: Int[Tensor, " n"], classes: int) -> Int[Tensor, " c"]:
    """The number of rows of each class [classes]."""
    return torch.bincount(y, minlength=classes)


def is_one_hot(y: Tensor) -> bool:
    """True if y is [n, classes], and each row has a single one and otherwise zeros."""
    return y.ndim == 2 and y.shape[1] > 1 and bool((((y == 0) | (y == 1)).all(1) & (y.sum(1) == 1)).all())
