"""Figures of a model that the server chose, so coarse that they say little about a single row.

A server can choose a model at which one row's loss is far from the others': an exact mean says whether the row is
there. So a node replaces the few largest and smallest values by the next one, and rounds the mean at random to a step
that takes sixteen rows to move. The random number follows from the model and a secret of the node: a model has one
figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from torch import Tensor

from ...contract import PersonalModel, pytree
from ...statistics import Rules
from .owner import secret

STEP = 16
"""How many rows can move a figure by one step."""

RUNS = 10
"""How many runs' evaluations of one recipe a node answers. With secure sums it answers one run's."""

GRADIENT = (
    "its owner's [rules] keep the gradient of its loss, but the server asks for it: leave grad_norm out, or "
    "let the owner set exact = true"
)


@dataclass(frozen=True)
class Coarse:
    """Coarsens figures of one model.

    Attributes:
        secret: the node's secret
        model: the model's bytes, in pieces
        least: the least number of rows that a figure may depend on
    """

    secret: bytes
    model: Sequence[bytes | memoryview]
    least: int

    @classmethod
    def of(cls, config: Mapping[str, Any], rules: Rules, model: PersonalModel) -> Coarse | None:
        """How to round a model's figures at the node with this config; None if its owner lets exact figures leave."""
        parts = {"x": model.x, "buffers": model.buffers, "own": model.own}
        return None if rules.exact else cls(secret(config), pytree.in_pieces(parts), rules.rows)

    def figure(self, name: str, value: float, rows: int, size: float = 0.0) -> float:
        """Round a figure of this many rows, if each row can change it by ``size`` / rows; at least by its own size."""
        if not math.isfinite(value):
            return value
        step = self.step(value, rows, size)
        key = blake2b(name.encode(), key=self.secret, digest_size=8)
        for piece in self.model:
            key.update(piece)
        return step * math.floor(value / step + int.from_bytes(key.digest(), "big") / 2.0**64)

    def step(self, value: float, rows: int, size: float = 0.0) -> float:
        """The step of `figure`, by which a rounded figure may be off; inf if the figure is not finite."""
        if not math.isfinite(value + size):
            return math.inf
        return 2.0 ** math.ceil(math.log2(max(size, abs(value), 1e-12) * STEP / max(rows, 1)))

    def clipped(self, by_row: Tensor) -> Tensor:
        """The values [n], with the ``least`` − 1 largest and smallest replaced by the next one; NaN is the largest."""
        values = by_row.double().nan_to_num(math.inf, math.inf, -math.inf).flatten()
        order = values.sort().values
        n = len(values)
        return values.clamp(order[min(self.least, n + 1 >> 1) - 1], order[max(n - self.least, n >> 1)])

    def mean(self, name: str, by_row: Tensor) -> float:
        """The mean of `clipped` values, coarse; inf if too many rows have no finite value."""
        values = self.clipped(by_row)
        return self.figure(name, float(values.mean()), len(values), self.size(values))

    @staticmethod
    def size(values: Tensor) -> float:
        """By how much, over n, one of these n values can move their mean."""
        low = float(values.min())
        high = float(values.max())
        return max(high - low, abs(low), abs(high))
