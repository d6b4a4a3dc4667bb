"""A linear model with a known number of features: products of x with rows, masks, and the regulariser."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...contract.types import Data, Vec
from .loss import LinearLoss


class LinearModel:
    """z = X x, or z = X Wᵀ with x = W [C, features] in rows: one for each class or target.

    Attributes:
        features: the number of columns of X, including the intercept's.
        decay: the ridge's factor for each coordinate: μ, or a vector [d] with 0 at intercepts.
        allowed: ``allowed[y]`` marks the classes that a row with label y is compared with; None for all.
    """

    def __init__(self, family: LinearLoss, features: int, width: int, dtype: torch.dtype, device: str) -> None:
        self.family = family
        self.features = features
        self.width = width
        self.dtype = dtype
        self.device = device
        self.scalar = family.scalar and width == 1
        self.d = features * width
        self.allowed: Bool[Tensor, "c c"] | None = None
        self.decay: Vec | float = family.mu
        if family.intercept:
            decay = torch.full((width, features), family.mu, dtype=dtype, device=device)
            decay[:, -1] = 0
            self.decay = decay.reshape(-1)

    def z(self, x: Vec, X: Data) -> Tensor:
        """Outputs [n], or [n, C] of several classes or targets."""
        return X @ x if self.scalar else X @ x.view(self.width, self.features).T

    def back(self, X: Data, r: Tensor) -> Vec:
        """Xᵀr [d], the transpose of `z`; r has z's shape."""
        return X.T @ r if self.scalar else (r.T @ X).reshape(-1)

    def compared(self, z: Tensor, y: Data) -> Tensor:
        """Outputs, with −∞ for the classes that a row is not compared with."""
        return z if self.allowed is None else z.masked_fill(~self.allowed[y], -torch.inf)

    def losses(self, outputs: Tensor, y: Data) -> Float[Tensor, " n"]:
        """l(z, y) of each row."""
        return self.family.losses(self.compared(outputs, y), y)

    def penalty(self, x: Vec) -> float:
        """(μ/2)‖x‖², without the intercepts."""
        return float((self.decay * x) @ x) / 2
