"""A forest of a known shape, with the rows' bins and outputs that were computed last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ...contract import Data, Need, RecipeError, State, Vec, Weights
from ...numerics import bins, forest
from ...runtime.meter import Meter
from .layer import Grown
from .objective import TreesObjective

if TYPE_CHECKING:
    from .family import Trees

Place = tuple[int, int]
"""Where rows are in memory, and how many: stands for them as long as they are there."""


MOST = 256
"""How many parts of rows to remember."""


class TreesProblem:
    """The problem contract (`medley.contract.problem.Problem`) of a forest.

    The bins of rows, and their outputs, are computed once and continued: a forest grows at its end only.
    """

    def __init__(self, family: Trees, layout: forest.Layout, classes: int | None, dtype: torch.dtype) -> None:
        self.family = family
        self.layout = layout
        self.classes = classes
        self.dtype = dtype
        self.d = layout.d
        self.gives = frozenset({Need.TREES, Need.ROWS, *([Need.CLASSES] if family.classification else [])})
        self._codes: dict[Place, tuple[Tensor, Tensor, np.ndarray]] = {}
        self._outputs: dict[Place, tuple[Tensor, np.ndarray, np.ndarray]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_codes": {}, "_outputs": {}}

    def inputs(self, X: Data) -> Data:
        """Rows in float32, whose numbers the forest's thresholds have."""
        return X.to(torch.float32)

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

    def outputs(self, x: Vec, X: Data) -> Tensor:
        """Outputs [n], or [n, classes] of softmax: those of the last call for these rows go on with the new trees."""
        grown = forest.Forest.of(x)
        F = np.tile(grown.base, (len(X), 1))
        place = X.data_ptr(), len(X)
        done = 0
        if place in self._outputs:
            _, trees, earlier = self._outputs[place]
            if len(trees) <= grown.grown and np.array_equal(trees, grown.trees[: len(trees)]) and len(trees):
                F = earlier
                done = len(trees)
        F = forest.add(F, self.values(X), grown.trees[done:])
        self._remember(self._outputs, X, (X, grown.trees.copy(), F))
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
    def _remember(values: dict[Place, Any], X: Data, value: Any) -> None:
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
