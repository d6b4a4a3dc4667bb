"""Vectors in small integers with one scale each."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

Codes = Int[Tensor, "*k d"]
Scales = Float[Tensor, "*k"]


def quantise(v: Float[Tensor, "*k d"], bits: int = 8) -> tuple[Codes, Scales]:
    """The nearest of 2^bits − 1 evenly spaced levels of every row, and the rows' scales.

    int8 up to 8 bits, int16 up to 16.

    |restore(*quantise(v)) − v| ≤ max|v|/(2^bits − 2) by row, a little more for the scale's own rounding: scales are
    numbers that bfloat16 holds, rounded up, so that a codec that narrows floats leaves both ends with the same.
    """
    levels = 2 ** (bits - 1) - 1
    scale = v.abs().amax(-1) / levels
    mantissa, exponent = torch.frexp(scale)
    scale = torch.ldexp((mantissa * 256).ceil() / 256, exponent)
    codes = v / scale.where(scale > 0, 1)[..., None]
    return codes.round_().to(torch.int8 if bits <= 8 else torch.int16), scale


def restore(codes: Codes, scale: Scales) -> Float[Tensor, "*k d"]:
    """The vectors that were meant, in the scales' dtype."""
    return codes.to(scale.dtype) * scale[..., None]
