"""Random Fourier features: a fixed layer whose inner products approximate a Gaussian kernel, and a linear one on it.

**Reference**: Rahimi & Recht, "Random Features for Large-Scale Kernel Machines", NeurIPS 2007.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from ..contract import checked, positive
from ..runtime import streams
from .normal import Size


class Fourier(nn.Module):
    """φ(x) = √(2/D) cos(Ωx + b), which stays as it is drawn: Ω has entries of deviation scale/√features, b is uniform.

    Args:
        features: Numbers of a row; rows of other shapes are flattened.
        width: D, the number of random features.
        scale: The inverse of the kernel's width, for rows whose entries have a mean square near 1.
        seed: Names the stream of the draw, which is the same on every machine.
    """

    omega: Tensor
    phase: Tensor

    def __init__(self, features: int, width: int, scale: float, seed: int) -> None:
        super().__init__()
        self.features = features
        self.width = width
        self.scale = scale
        self.seed = seed
        rng = streams.generator(seed, "fourier")
        omega = torch.randn(width, features, generator=rng, dtype=torch.float64) * (scale / math.sqrt(features))
        phase = torch.rand(width, generator=rng, dtype=torch.float64) * (2 * math.pi)
        self.register_buffer("omega", omega.float())
        self.register_buffer("phase", phase.float())

    def forward(self, x: Tensor) -> Tensor:
        """Features [b, D] of rows."""
        return torch.cos(x.flatten(1) @ self.omega.T + self.phase) * math.sqrt(2 / self.width)


@checked("models")
def fourier(
    features: Size, classes: Size, width: Size = 1000, scale: Annotated[float, positive] = 1.5, seed: int = 0
) -> nn.Sequential:
    """A linear layer on random Fourier features: a kernel machine that `medley.Fed3R` fits in one exchange.

    Put `Fourier` between the body of a network and its last layer for the random features of what that body computes.

    Args:
        features: Numbers of a row; rows of other shapes are flattened.
        classes: Number of outputs.
        width: Number of random features; default 1000.
        scale: The inverse of the kernel's width; default 1.5, for rows whose entries have a mean square near 1.
        seed: Names the stream of the draw; default 0.

    Raises RecipeError if a size is below 1, or the scale is not above 0.
    """
    return nn.Sequential(Fourier(features, width, scale, seed), nn.Linear(width, classes))
