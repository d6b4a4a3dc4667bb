"""Projection of a gradient against a reference gradient."""

from __future__ import annotations

import torch

from ..contract.types import Vec


def project(g: Vec, r: Vec) -> Vec:
    """The nearest direction to g with ⟨·, r⟩ ≥ 0 (A-GEM's equation 11, Chaudhry et al. 2019)."""
    tiny = torch.finfo(g.dtype).tiny  # if r = 0 there is nothing to protect
    return g - (g @ r).clamp(max=0) / (r @ r).clamp(min=tiny) * r
