"""Generators: networks from noise to rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from ..contract import RecipeError, checked
from .normal import Size


@checked("models")
def generator(
    shape: Sequence[Size], latent: Size = 64, hidden: Sequence[Size] = (128,), low: float = 0.0, high: float = 1.0
) -> nn.Sequential:
    """A network from noise [b, latent] to rows [b, *shape]: linear layers with BatchNorm and ReLU, then a sigmoid.

    Args:
        shape: Shape of a row.
        latent: Length of the noise; default 64.
        hidden: Units of each hidden layer; default one layer of 128.
        low: Least number in a row; default 0.
        high: Greatest number in a row; default 1.

    Raises RecipeError if a size is below 1, or ``low`` is not below ``high``.
    """
    widths = [latent, *hidden, prod(shape)]
    if not shape:
        raise RecipeError("models.generator(shape=()): give the sizes of a row", "shape")
    if not low < high:
        raise RecipeError(f"models.generator(low={low}, high={high}): low must be below high.", "low")
    layers: list[nn.Module] = []
    for a, b in pairwise(widths[:-1]):
        layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]), Between(low, high), nn.Unflatten(1, tuple(shape)))


class Between(nn.Module):
    """A sigmoid from ``low`` to ``high``."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low = low
        self.high = high

    def forward(self, x: Tensor) -> Tensor:
        """``low`` + (``high`` − ``low``) σ(x), of any shape."""
        return self.low + (self.high - self.low) * torch.sigmoid(x)

    def extra_repr(self) -> str:
        """The bounds, for ``repr``."""
        return f"low={self.low}, high={self.high}"
