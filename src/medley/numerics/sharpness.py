"""Sharpness-aware minimisation (SAM): perturbations of fixed length."""

from __future__ import annotations

import torch

from ..contract.types import Num, Vec


def stretched(v: Vec, length: Num) -> Vec:
    """length·v/‖v‖ [d], or 0 for v = 0; row by row for a stack [k, d]."""
    norm = v.norm(dim=-1, keepdim=True)
    scale: Vec = length / norm.clamp(min=torch.finfo(v.dtype).tiny)
    return v * scale
