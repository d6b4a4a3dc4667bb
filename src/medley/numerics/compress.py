"""Vectors in small integers, with one scale per row."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..contract.types import Vec

Codes = Int[Tensor, "*k d"]

Scales = Float[Tensor, "*k"]


def quantise(v: Float[Tensor, "*k d"], bits: int = 8) -> tuple[Codes, Scales]:
    """The nearest of 2^bits − 1 evenly spaced levels for every row, and the rows' scales.

    Codes are int8 up to 8 bits, int16 up to 16. By row

        |restore(*quantise(v)) − v| ≤ max|v|/(2^bits − 2),

    and slightly more because the scale itself is rounded. Scales are rounded up to numbers that bfloat16 holds, so that
    a codec that narrows floats leaves both ends with the same scale.
    """
    levels = 2 ** (bits - 1) - 1
    scale = v.abs().amax(-1) / levels
    mantissa, exponent = torch.frexp(scale)
    scale = torch.ldexp((mantissa * 256).ceil() / 256, exponent)
    codes = v / scale.where(scale > 0, 1)[..., None]
    return codes.round_().to(torch.int8 if bits <= 8 else torch.int16), scale


def restore(codes: Codes, scale: Scales) -> Float[Tensor, "*k d"]:
    """codes × scale by row: inverse of `quantise` up to rounding, in the scales' dtype."""
    return codes.to(scale.dtype) * scale[..., None]


def spoils(v: Float[Tensor, "*k d"], sent: Float[Tensor, "*k d"], metric: Vec, most: float = 0.5) -> bool:
    """True if ‖sent − v‖² > most·‖v‖² in some row, with ‖v‖² = Σ_j metric_j v_j².

    One scale per row suits entries of similar size. If units differ by orders of magnitude, it leaves the small entries
    at 0, though they may matter most.

    Args:
        v, sent: rows before and after the codes.
        metric: weight of each column [d].
        most: the share that may be lost; default one half.
    """
    return bool(((sent - v).square() @ metric > most * (v.square() @ metric)).any())


def exponents(size: Vec) -> Int[Tensor, " d"]:
    """The nearest powers of 2 to positive sizes, as exponents in int8; 0 for zeros."""
    return torch.where(size > 0, size, 1).log2().round().clamp(-127, 127).to(torch.int8)
