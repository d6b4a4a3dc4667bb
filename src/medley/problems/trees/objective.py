"""One client's rows, as `medley.Boost` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from jaxtyping import Int
from torch import Tensor

from ...contract import Data, Rows, Unsupported, Vec
from ...numerics import splits
from ...runtime.forwarded import forwarded
from ...runtime.meter import Meter
from ..labels import count

if TYPE_CHECKING:
    from .problem import TreesProblem


class TreesObjective:
    """f_i of one client's rows under a forest: losses and outputs, but no gradient in x.

    Args:
        problem: the forest's shape and loss
        X: rows [n, columns], NaN where a value is missing
        y: labels or targets [n]
        meter: counts work; shared with all views of the rows
    """

    (work,) = forwarded("meter", "rows")

    def __init__(self, problem: TreesProblem, X: Data, y: Data, meter: Meter) -> None:
        self.problem = problem
        self.X = X
        self.y = y
        self.meter = meter
        self.n = len(X)
        self.d = problem.d
        self.layout = problem.layout

    def loss(self, x: Vec, rows: Rows = None) -> float:
        """The mean loss on these rows."""
        z = self.outputs(x, rows)
        return float(self.problem.losses(z, self.y if rows is None else self.y[rows]).double().mean())

    def outputs(self, x: Vec, rows: Rows = None) -> Tensor:
        """Outputs of these rows: predictions, margins, logits, or logarithms of rates."""
        X = self.X if rows is None else self.X[rows]
        self.meter.rows += len(X) / 3
        return self.problem.outputs(x, X)

    def counts(self) -> Int[Tensor, " c"]:
        """The number of rows of each class."""
        return count(self.y.long(), self.problem.classes or 2)

    def take(self, order: Int[Tensor, " n"]) -> TreesObjective:
        """The same objective with its rows in this order."""
        return TreesObjective(self.problem, self.X[order], self.y[order], self.meter)

    def like(self, X: Data, y: Data) -> TreesObjective:
        """The same objective on other rows; its work counts as this one's."""
        return TreesObjective(self.problem, X, y, self.meter)

    def workspace(self, x: Vec) -> Vec:
        """A copy of x."""
        return x.clone()

    def convexity(self) -> float:
        """0: a forest's loss is no convex function of its vector."""
        return 0.0

    def smoothness(self) -> float:
        """Infinite: a forest's loss jumps where a threshold passes a row."""
        return float("inf")

    def values(self) -> np.ndarray:
        """The rows, float32 [n, columns]."""
        return self.problem.values(self.X)

    def largest(self) -> np.ndarray:
        """How many targets have each exponent of two."""
        return splits.exponents_of(self.y.numpy())

    def sums(self, unit: float) -> np.ndarray:
        """The rows of each class, or [Σy] of targets rounded to ``unit``, float64."""
        if self.problem.family.classification:
            return self.counts().double().numpy()
        return np.array([splits.rounded(self.y.double().numpy(), unit).sum()])

    def gradients(self, F: np.ndarray, unit: float) -> tuple[np.ndarray, np.ndarray | None]:
        """g and h of each row at outputs F [n, outputs], rounded to ``unit``; None where h is 1."""
        g, h = splits.gradients(self.problem.family.loss, F, self.y.double().numpy())
        return splits.rounded(g, unit), None if h is None else splits.rounded(h, unit)

    def codes(self, cuts: Tensor, sizes: Tensor) -> np.ndarray:
        """The bin of each value [columns, n]; see `TreesProblem.codes`."""
        return self.problem.codes(self.X, cuts, sizes)

    def no_gradient(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise Unsupported: a forest's loss has no useful derivative in its vector."""
        del args, kwargs
        raise Unsupported(
            "a forest has no gradients in its vector: use the method Boost with problems.Trees, or a Network with "
            "this method",
            method="a method of gradients",
            need="gradients",
        )

    losses_along = grad = hvp = hessian = factor = features = squares = clipped = no_gradient
    last = beside = slopes = no_gradient


__all__ = ["TreesObjective"]


