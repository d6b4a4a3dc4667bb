"""The loss l(z, y) of a row in a generalised linear model, and its derivatives with respect to the output z."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ...contract.settings import Checked, at_least


@dataclass(frozen=True)
class LinearLoss(Checked, ABC):
    """l(z, y) and the ridge. Outputs z are [n], or [n, C] with a column for each class or target.

    Attributes:
        mu: μ ≥ 0 of the ridge (μ/2)‖x‖².
        intercept: whether the model has one; the ridge leaves it out. Default False
    """

    mu: Annotated[float, at_least(0)] = 0.0
    intercept: bool = False
    classification: ClassVar[bool] = True
    """Whether labels are classes."""
    scalar: ClassVar[bool] = True
    """Whether a row has one output, z [n], unless it has several targets."""
    several: ClassVar[bool] = False
    """Whether a row may have several targets, each with an output."""
    steepest: ClassVar[float] = 1.0
    """The largest eigenvalue that ∂²l/∂z² can have."""

    @abstractmethod
    def losses(self, z: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        """l(z, y) of each row."""

    @abstractmethod
    def slope(self, z: Tensor, y: Tensor) -> Tensor:
        """∂l/∂z of each row, in z's shape."""

    @abstractmethod
    def bend(self, z: Tensor, u: Tensor) -> Tensor:
        """(∂²l/∂z²) u of each row, in z's shape."""

    def root(self, z: Tensor) -> Float[Tensor, "n k k"]:
        """B of each row with BᵀB = ∂²l/∂z², where a row has several outputs z [n, k].

        Here of losses that are sums over outputs, whose ∂²l/∂z² is diagonal.
        """
        return torch.diag_embed(self.bend(z, torch.ones_like(z)).sqrt())

    @abstractmethod
    def hits(self, z: Tensor, y: Tensor) -> Float[Tensor, " n"] | None:
        """1 for each row whose class the model predicts, else 0; None where there are no classes."""
