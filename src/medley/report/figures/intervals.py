"""Intervals, small enough for a table's cell."""

from __future__ import annotations

import math
from html import escape

import numpy as np

from ..units import Real, plus_minus
from .axes import Axis
from .palette import colour, mark
from .svg import Markup


def interval(mean: Real, half: Real, low: Real, high: Real, slot: int, share: bool = False) -> Markup:
    """A mean and its interval, with a rule at zero, 120 by 18 px.

    Args:
        half: Its half-width; nan draws the mean alone.
        slot: The method's number from 0, which fixes colour and marker.
        share: Whether the label says it in per cent; default False.
    """
    X = Axis(low, high, 6, 114)
    a, b = (float(np.clip(X(mean + s * half), 1, 119)) if math.isfinite(half) else float(X(mean)) for s in (-1, 1))
    body = (
        f'<path d="M{float(X(0.0)):.1f},0V18" style="stroke:currentColor;stroke-opacity:.35;stroke-dasharray:2 2"/>'
        f'<path d="M{a:.1f},9H{b:.1f}" style="stroke:{colour(slot)};stroke-width:2;stroke-opacity:.6"/>'
        f"{mark(slot, float(X(mean)), 9, 3.6)}"
    )
    name = escape(plus_minus(mean, half, share, signed=True))
    return Markup(
        f'<svg class="iv" viewBox="0 0 120 18" width="120" height="18" role="img" aria-label="{name}">{body}</svg>'
    )
