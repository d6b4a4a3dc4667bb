"""Parts that several models share: sizes, and normalisation by name."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Annotated, Literal

from torch import nn

from ..contract.errors import RecipeError
from ..contract.settings import at_least, below

Size = Annotated[int, at_least(1)]

Dropout = Annotated[float, at_least(0), below(1)]

Norm = Literal["group", "batch"]


def normal(channels: int, norm: Norm) -> nn.Module:
    """BatchNorm, or GroupNorm with gcd(channels, 16) channels per group."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(channels // gcd(channels, 16), channels)


def image_sizes(call: str, shape: Sequence[Size]) -> tuple[int, int, int]:
    """Channels, height and width of a row. Raises RecipeError, naming ``call``, if rows are not images."""
    if len(shape) != 3:
        raise RecipeError(
            f"{call}(shape={shape}): rows are images, [channels, height, width]; for flat rows take models.mlp", "shape"
        )
    c, h, w = shape
    return c, h, w
