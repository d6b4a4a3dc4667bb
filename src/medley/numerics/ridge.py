"""Ridge regression from means over rows: the weights for a penalty, and the penalty by generalised cross-validation."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .dense import Matrix

GRID = tuple(10 ** (k / 2) for k in range(-20, 5))
"""The penalties that `cross_validated` tries, times the mean eigenvalue of the features' mean square."""

FREE = 1e-3
"""The least share of rows that a penalty must leave free: with less, cross-validation divides rounding by nothing."""


class Singular(ValueError):
    """Raised without a penalty if some features are combinations of others: only ``rank`` of ``features`` are not."""

    def __init__(self, rank: int, features: int) -> None:
        super().__init__(f"rank {rank} of {features}")
        self.rank = rank
        self.features = features


class Squares(NamedTuple):
    """The means of φφᵀ, φyᵀ and ‖y‖² over rows, decomposed once for all penalties.

    Attributes:
        values: eigenvalues of the mean of φφᵀ [f], ascending; without an intercept, and about the mean if there is one
        vectors: its eigenvectors in columns [f, f]
        along: the mean of φyᵀ along them [f, c]
        square: the mean of ‖y‖²
        centre: the mean of φ [f] and of y [c]; None without an intercept
        noise: how far below 0 the least eigenvalue was, by the rounding of what was summed
    """

    values: Float[Tensor, " f"]
    vectors: Float[Tensor, "f f"]
    along: Float[Tensor, "f c"]
    square: float
    centre: tuple[Float[Tensor, " f"], Float[Tensor, " c"]] | None
    noise: float


def decomposed(A: Matrix, b: Float[Tensor, "f c"], square: float, ones: bool) -> Squares:
    """The decomposition of these means. ``ones`` tells that the last feature is always 1: an intercept."""
    centre = None
    if ones:
        weight = A[-1, -1]  # 1, unless rows are weighted by their class
        centre = A[-1, :-1] / weight, b[-1] / weight
        A = A[:-1, :-1] - weight * torch.outer(centre[0], centre[0])
        b = b[:-1] - weight * torch.outer(*centre)
        square -= float(weight * centre[1] @ centre[1])
    values, vectors = torch.linalg.eigh(A)
    return Squares(values.clamp(min=0), vectors, vectors.T @ b, square, centre, max(0.0, -float(values[0])))


def weights(of: Squares, penalty: float) -> Float[Tensor, "f c"]:
    """W that minimises the mean of ‖Wᵀφ − y‖² + penalty·‖W‖²; the penalty leaves out the intercept, its last row.

    Raises Singular without a penalty if the minimiser is not unique.
    """
    rank = int((of.values > len(of.values) * sys.float_info.epsilon * of.values[-1]).sum())
    if not penalty and rank < len(of.values):
        raise Singular(rank, len(of.values))
    W = of.vectors @ (of.along / (of.values + penalty)[:, None])
    if of.centre is None:
        return W
    mean, target = of.centre
    return torch.cat([W, (target - mean @ W)[None]])


def cross_validated(of: Squares, rows: float) -> tuple[float, float]:
    """The penalty of `GRID` with the least squared error of rows that are left out, and that error.

    By generalised cross-validation (Golub, Heath & Wahba, Technometrics 1979): the residuals' mean square, divided by
    (1 − h/n)², where h are the degrees of freedom and n is the number of ``rows``. So nothing needs to be left out.
    A penalty below the noise of the sums would fit that noise, so it is not tried.
    """
    scale = float(of.values.mean()) or 1.0
    squares = of.along.square().sum(1)
    best = (math.inf, GRID[-1] * scale)
    for penalty in (g * scale for g in GRID):
        damped = of.values + penalty
        residual = max(of.square - float((squares * (of.values + 2 * penalty) / damped.square()).sum()), 0.0)
        free = 1 - (float((of.values / damped).sum()) + (of.centre is not None)) / rows
        if free >= FREE and penalty >= of.noise:
            best = min(best, (residual / free**2, penalty))
    return best[1], best[0]
