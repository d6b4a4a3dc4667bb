"""A forest of a known shape, with the rows' bins and outputs that were computed last; and one client's rows."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ...contract import Data, Need, Place, RecipeError, Rows, State, Unsupported, Vec, Weights
from ...numerics import bins, forest, splits
from ...rows.lazy import in_memory
from ...rows.tensors import check_finite
from ...runtime.forwarded import forwarded
from ...runtime.meter import Meter
from ..labels import count
from .layer import Grown
from .loss import TreesLoss

Span = tuple[int, int]
"""Where rows are in memory, and how many: stands for them as long as they are there."""


MOST = 256
"""How many parts of rows to remember."""


class TreesProblem:
    """The problem contract (`medley.contract.problem.Problem`) of a forest.

    The bins of rows, and their outputs, are computed once and continued: a forest grows at its end only.
    """

    def __init__(self, family: TreesLoss, layout: forest.Layout, classes: int | None, dtype: torch.dtype) -> None:
        self.family = family
        self.layout = layout
        self.classes = classes
        self.dtype = dtype
        self.d = layout.d
        self.gives = frozenset({Need.TREES, Need.ROWS, *([Need.CLASSES] if family.classification else [])})
        self._codes: dict[Span, tuple[Tensor, Tensor, np.ndarray]] = {}
        self._outputs: dict[Span, tuple[Tensor, np.ndarray, np.ndarray, np.ndarray]] = {}

    @property
    def readout(self) -> None:
        """None: x has no linear layer."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_codes": {}, "_outputs": {}}

    def inputs(self, X: Data) -> Data:
        """Rows in memory in float32, whose numbers the forest's thresholds have.

        Raises BadData for NaN that is no missing value.
        """
        rows = in_memory(X).to(torch.float32)
        check_finite(rows, Place(), missing=bool(self.layout.missing))
        return rows

    def values(self, X: Data) -> np.ndarray:
        """Rows as an array, float32 [n, columns]."""
        values: np.ndarray = X.numpy()
        return values

    def bind(self, X: Data, y: Data, w: Weights = None) -> TreesObjective:
        """f_i of these rows; they have no weights."""
        assert w is None
        return TreesObjective(self, X, y, Meter())

    def initial(self, generator: torch.Generator) -> Vec:
        """A forest in which nothing has grown."""
        return forest.blank(self.layout).to(self.dtype)

    def check(self, x: Vec, rounds: int) -> None:
        """Raise RecipeError for a start that is no forest of this problem, or has no room for this many rounds."""
        expected = forest.blank(self.layout)[: forest.GROWN].to(x)
        grown = float(x[forest.GROWN])
        if not torch.equal(x[: forest.GROWN], expected) or not 0 <= grown <= self.layout.trees or grown % 1:
            raise RecipeError(
                "run(init=...): these numbers are no forest of this problem; give a result of Trees of the same loss, "
                "trees, depth, missing and columns, or leave init= out",
                "init",
            )
        if grown + rounds > self.layout.trees:
            before = f", of which {grown:.0f} are grown" if grown else ""
            raise RecipeError(
                f"run(rounds={rounds}): the forest has room for {self.layout.trees} rounds of trees{before}; give "
                f"problems.Trees(trees={grown + rounds:.0f})",
                "rounds",
            )

    def outputs(self, x: Vec, X: Data) -> Tensor:
        """Outputs [n], or [n, classes] of softmax: those of the last call for these rows go on with the new trees."""
        grown = forest.Forest.of(x)
        F = np.tile(grown.base, (len(X), 1))
        place = X.data_ptr(), len(X)
        done = 0
        if place in self._outputs:
            _, base, trees, earlier = self._outputs[place]
            same = np.array_equal(base, grown.base) and np.array_equal(trees, grown.trees[: len(trees)])
            if len(trees) <= grown.grown and same and len(trees):
                F = earlier
                done = len(trees)
        F = forest.add(F, self.values(X), grown.trees[done:])
        self._remember(self._outputs, X, (X, grown.base, grown.trees.copy(), F))
        z = torch.from_numpy(F).to(self.dtype)
        return z if self.layout.outputs > 1 else z[:, 0]

    def codes(self, X: Data, cuts: Tensor, sizes: Tensor) -> np.ndarray:
        """The bin of each value [columns, n], uint8 or uint16.

        Args:
            cuts: the lines of all columns, one column after the other
            sizes: the number of lines of each column
        """
        place = X.data_ptr(), len(X)
        entry = self._codes.get(place)
        if entry is None or not torch.equal(entry[1], cuts):
            lines = np.split(cuts.numpy().astype(np.float32), np.cumsum(sizes.numpy())[:-1])
            entry = X, cuts, bins.codes(self.values(X), lines)
            self._remember(self._codes, X, entry)
        return entry[2]

    @staticmethod
    def _remember(values: dict[Span, Any], X: Data, value: Any) -> None:
        """Keep a value for rows that stay where they are, as a client's part of all rows does; a copy may not."""
        if X._is_view():
            values.pop(next(iter(values)) if len(values) >= MOST else (-1, -1), None)
            values[X.data_ptr(), len(X)] = value

    def losses(self, outputs: Tensor, y: Data) -> Float[Tensor, " n"]:
        """The loss of each row."""
        return self.family.row_losses(outputs, y)

    def hits(self, outputs: Tensor, y: Data) -> Float[Tensor, " n"] | None:
        """1 for each row whose class the forest predicts, else 0; None where there are no classes."""
        return self.family.hits(outputs, y)

    def penalty(self, x: Vec) -> float:
        """0: λ acts while a tree grows."""
        return 0.0

    def module(self, x: Vec) -> nn.Module:
        """The forest as a module, whose outputs are those of `outputs`."""
        return Grown(x).eval()

    def restricted(self, allowed: Bool[Tensor, "c c"] | None) -> TreesProblem:
        """Itself. Raises RecipeError if classes are given: all outputs of a forest grow together."""
        if allowed is not None:
            raise RecipeError("a stream of classes needs Softmax or a Network, not Trees", "stream")
        return self

    def buffers(self) -> State | None:
        """None: all state is in x."""
        return None

    def load_buffers(self, state: State) -> None:
        """Does nothing: there are no buffers."""


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

    grad = losses_along = hvp = hessian = factor = features = squares = clipped = last = beside = slopes = no_gradient
