"""Numbers in float32, or in float64 if float32 would merge or move them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .sparse import is_sparse

FINE = 128.0
"""Means over deviations up to which float32 is as good as float64: 17 of its 24 bits remain for the differences."""

WHOLE = 2.0**24
"""The largest number up to which float32 holds all whole numbers."""


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
        rounded = _rounded(data, is_far(mean, np.sqrt(squares / n))[column], _small(data))
        return type(X)((rounded, X.indices, X.indptr), X.shape)
    if X.dtype.kind not in "fiu" or (X.dtype.kind == "f" and X.itemsize < 8) or X.itemsize < 4 or not len(X):
        return np.ascontiguousarray(X, np.float32)
    small = _small(X)
    if (small == X).all():
        return small
    return _rounded(X, is_far(X.mean(0, dtype=np.float64), X.std(0, dtype=np.float64)), small)


def _small(X: np.ndarray) -> np.ndarray:
    """X in float32; numbers beyond its range become infinities, which raise an error when they are read."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(X, np.float32)


def _rounded(X: np.ndarray, far: np.ndarray, small: np.ndarray) -> np.ndarray:
    """X in float32, which is ``small``; or X in float64, if float32 would change numbers that ``far`` marks or move
    some too far.
    """
    wide = far & (small != X) if far.any() else np.zeros(1, bool)
    if X.size and not max(float(X.max()), -float(X.min())) <= WHOLE:  # NaN is not, either
        wide = wide | moved(X)
    return np.where(far | wide, np.asarray(X, np.float64), small) if wide.any() else small


def moved(X: np.ndarray) -> np.ndarray:
    """Which numbers float32 changes although they are so large that its steps are 2 or more; [...], booleans."""
    small = _small(X)
    changed: np.ndarray = (small != X) & (np.abs(X) > WHOLE) & np.isfinite(small)
    return changed


def is_far(mean: Any, deviation: Any) -> Any:
    """Whether columns with this mean and deviation, not 0, are too far from 0 for float32."""
    return (deviation > 1e-14 * abs(mean)) & (abs(mean) > FINE * deviation)
