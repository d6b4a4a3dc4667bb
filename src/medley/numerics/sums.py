"""Weighted sums and means of vectors, some of which may be missing; corrections and row gradients of bounded length."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from ..contract.types import Vec

Terms = Sequence[tuple[float, Vec | None]]
"""Weights and vectors [d]."""


def weighted(terms: Terms) -> Vec:
    """Σ weight·v over the vectors that are present with a nonzero weight; at least one must remain."""
    total = [weight * v for weight, v in terms if weight and v is not None]
    return sum(total[1:], total[0])


def mean(terms: Terms) -> Vec | None:
    """Their weighted mean; None if there are no vectors."""
    present = [(weight, v) for weight, v in terms if v is not None]
    return weighted(present) / sum(weight for weight, _ in present) if present else None


def bounded(c: Vec, clip: float | None, v: Vec) -> Vec:
    """c, shortened to at most clip·‖v‖; ``clip=None`` leaves it as it is."""
    if clip is None:
        return c
    if not c.is_cpu:  # do not wait for an accelerator
        factor: Tensor = (clip * v.norm() / c.norm()).nan_to_num(1.0).clamp(max=1.0)
        return c * factor
    norm = float(c.norm())
    return c * min(1.0, clip * float(v.norm()) / norm) if norm > 0 else c


def shortening(norms: Float[Tensor, " n"], bound: float) -> Float[Tensor, " n"]:
    """The factor min(1, bound/‖g‖) of each vector g; 0 if the norm is not finite.

    The caller must also leave out a vector with NaN or infinities, since 0 times them is NaN.
    """
    return (bound / norms.clamp(min=bound)).nan_to_num_(0.0)
