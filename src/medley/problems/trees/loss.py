"""The loss of a forest, and the shape that a user gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ...contract import Checked, in_range
from ..linear import LeastSquares, Logistic, Softmax

LIKE = {"squared": LeastSquares(), "logistic": Logistic(), "softmax": Softmax(), "poisson": LeastSquares()}
"""The linear model with the same targets."""


@dataclass(frozen=True)
class TreesLoss(Checked):
    """The settings of `Trees`, which has their meaning, and the loss of a row's outputs."""

    loss: Literal["squared", "logistic", "softmax", "poisson"]
    trees: Annotated[int, in_range(1, 10_000)] = 100
    depth: Annotated[int, in_range(1, 12)] = 6
    missing: bool = False

    @property
    def classification(self) -> bool:
        """Whether targets are classes."""
        return self.loss in ("logistic", "softmax")

    def row_losses(self, z: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        """The loss of each row: ½(z − y)², log(1 + exp(∓z)), cross-entropy, or Poisson's half deviance."""
        if self.loss == "poisson":
            deviances: Tensor = z.exp() - y * z - y + torch.special.xlogy(y, y)
            return deviances
        return LIKE[self.loss].losses(z, 2 * y - 1 if self.loss == "logistic" else y)

    def hits(self, z: Tensor, y: Tensor) -> Float[Tensor, " n"] | None:
        """1 for each row whose class the outputs give, else 0; None without classes."""
        if not self.classification:
            return None
        return LIKE[self.loss].hits(z, 2 * y - 1 if self.loss == "logistic" else y)
