"""Parts that several models share: normalisation by name, and the check of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Literal

from torch import nn

from ..contract.errors import RecipeError

Norm = Literal["group", "batch"]


def normal(channels: int, norm: Norm) -> nn.Module:
    """BatchNorm, or GroupNorm with gcd(channels, 16) channels per group."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(channels // gcd(channels, 16), channels)


def image_sizes(call: str, shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width of a row. Raises RecipeError, naming ``call``, if rows are not images."""
    if len(shape) != 3:
        raise RecipeError(
            f"{call}(shape={shape}): rows are images, [channels, height, width]; for flat rows take models.mlp", "shape"
        )
    c, h, w = shape
    return c, h, w


def positive(call: str, **sizes: int) -> None:
    """Raise RecipeError, naming ``call`` and the key, for the first size below 1."""
    for key, size in sizes.items():
        if size < 1:
            raise RecipeError(f"{call}({key}={size}): must be at least 1.", key)
