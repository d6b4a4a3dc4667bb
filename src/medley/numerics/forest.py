"""A forest of regression trees as one flat vector of fixed length, and its outputs for rows.

The vector begins with a header: numbers of columns, outputs, trees and levels, the loss, whether values may be missing,
how many trees have grown, and the outputs before the first tree. A record for each node of each tree follows, in the
order of a heap: the children of node j are 2j + 1 and 2j + 2. Places of trees that have not grown yet are 0. All
numbers are those of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

LOSSES = ("squared", "logistic", "softmax", "poisson")
"""The losses; a forest's header has the place of its own one."""

FIXED = 8
"""Numbers of the header before the outputs that precede the first tree."""

GROWN = 6
"""The place in the header of the number of trees that have grown."""

FEATURE, THRESHOLD, MISSING, VALUE, GAIN, COVER, RECORD = range(7)
"""Places in a node's record, and its length: the column, −1 at a leaf; a row goes left if its value is below the
threshold; 1 if rows without the value go left; a leaf's output; the gain of the split; Σh of the rows."""


class Layout(NamedTuple):
    """The shape of a forest, which its header has.

    Attributes:
        columns: of the rows
        outputs: of a row; each has a tree of its own in every round
        trees: how many rounds of trees there is room for
        depth: levels of splits in a tree
        loss: its place in `LOSSES`
        missing: 1 if rows may lack values
    """

    columns: int
    outputs: int
    trees: int
    depth: int
    loss: int
    missing: int = 0

    @property
    def nodes(self) -> int:
        """Nodes of a tree."""
        return int(2 ** (self.depth + 1) - 1)

    @property
    def first(self) -> int:
        """The place of the first tree's first number."""
        return FIXED + self.outputs

    @property
    def tree(self) -> int:
        """Numbers of the trees of one round."""
        return self.outputs * self.nodes * RECORD

    @property
    def d(self) -> int:
        """The length of the whole vector."""
        return self.first + self.trees * self.tree


def blank(layout: Layout) -> Tensor:
    """A forest in which nothing has grown, float32 [d]."""
    x = torch.zeros(layout.d)
    x[: len(layout)] = torch.tensor(layout, dtype=torch.float32)
    return x


def layout_of(x: Tensor) -> Layout:
    """The shape in a forest's header."""
    return Layout(*(int(v) for v in x[: len(Layout._fields)]))


@dataclass(frozen=True, eq=False)
class Forest:
    """A forest, read from its vector.

    Attributes:
        grown: the number of rounds of trees
        base: outputs before the first tree, float64 [outputs]
        trees: records [grown, outputs, nodes, record]
    """

    layout: Layout
    grown: int
    base: np.ndarray
    trees: np.ndarray

    @classmethod
    def of(cls, x: Tensor) -> Forest:
        """The forest in x [d]."""
        numbers = x.detach().cpu().numpy()
        layout = layout_of(x)
        grown = int(numbers[GROWN])
        return cls(
            layout,
            grown,
            numbers[FIXED : layout.first].astype(np.float64),
            read(numbers[layout.first : layout.first + grown * layout.tree], layout),
        )

    @property
    def loss(self) -> str:
        """The loss that it was grown for."""
        return LOSSES[self.layout.loss]

    def outputs(self, X: np.ndarray) -> np.ndarray:
        """Its outputs for rows X [n, columns], float64 [n, outputs]."""
        return add(np.tile(self.base, (len(X), 1)), X, self.trees)


def read(numbers: np.ndarray, layout: Layout) -> np.ndarray:
    """Flat numbers as records [trees, outputs, nodes, record]."""
    return numbers.reshape(-1, layout.outputs, layout.nodes, RECORD)


def descend(at: np.ndarray, X: np.ndarray, tree: np.ndarray) -> np.ndarray:
    """The node of each row one level further down in a tree [nodes, record]; a row at a leaf, or at −1, stays."""
    feature = tree[:, FEATURE].astype(np.intp)[at]
    values = X[np.arange(len(X)), np.maximum(feature, 0)]
    left: np.ndarray = np.asarray(values < tree[:, THRESHOLD].astype(np.float32)[at])
    missing = np.flatnonzero(np.isnan(values))
    left[missing] = tree[:, MISSING][at[missing]] > 0
    return np.where((feature >= 0) & (at >= 0), 2 * at + 2 - left, at)


def add(F: np.ndarray, X: np.ndarray, trees: np.ndarray) -> np.ndarray:
    """F [n, outputs] plus the outputs of trees, one after the other, so that a sum goes on with the same bits."""
    out = F.copy()
    for tree in trees:
        for k, nodes in enumerate(tree):
            at = np.zeros(len(X), np.intp)
            while (nodes[at, FEATURE] >= 0).any():
                at = descend(at, X, nodes)
            out[:, k] += nodes[at, VALUE]
    return out


def importance(x: Tensor) -> dict[str, np.ndarray]:
    """Sums over all splits by column: "gain", what they took off the loss; "cover", Σh of their rows; "splits"."""
    forest = Forest.of(x)
    nodes = forest.trees.reshape(-1, RECORD).astype(np.float64)
    inner = (nodes[:, FEATURE] >= 0) & (nodes[:, GAIN] > 0)
    feature = nodes[inner, FEATURE].astype(np.intp)
    weights: dict[str, Sequence[float] | np.ndarray | None] = {
        "gain": nodes[inner, GAIN], "cover": nodes[inner, COVER], "splits": None,
    }  # fmt: skip
    return {name: np.bincount(feature, w, forest.layout.columns) for name, w in weights.items()}


@runtime_checkable
class TreeRows(Protocol):
    """What the objective of a client's rows offers to a method that grows trees."""

    n: int
    work: float

    @property
    def layout(self) -> Layout:
        """The shape of the forest."""

    def values(self) -> np.ndarray:
        """The rows, float32 [n, columns]; NaN where a value is missing."""

    def sums(self, unit: float) -> np.ndarray:
        """The rows of each class, or [Σy] of targets rounded to ``unit``, float64."""

    def largest(self) -> np.ndarray:
        """How many targets have each exponent of two, see `medley.numerics.splits.exponents_of`."""

    def gradients(self, F: np.ndarray, unit: float) -> tuple[np.ndarray, np.ndarray | None]:
        """g and h of each row at outputs F [n, outputs], rounded to multiples of ``unit``; None where h is 1."""

    def codes(self, cuts: Tensor, sizes: Tensor) -> np.ndarray:
        """The bin of each value [columns, n]."""
