"""Histograms of one quantity over clients."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64, Shaped

from ..units import FORMATS
from .axes import Axis, frame
from .palette import colour
from .svg import Box, Markup, empty, figure


def histogram(
    values: Shaped[np.ndarray, " n"], *, title: str, xlabel: str = "", x: str = "count", width: int = 380
) -> Markup:
    """Counts of ``values`` in at most 24 bins of equal width.

    Args:
        x: Kind of the horizontal axis: ``count`` (default), ``bytes``, ``seconds``, ``percent`` or ``number``.
    """
    v = np.asarray(values, dtype=np.float64)
    if not len(v):
        return empty(width, title)
    counts, edges = np.histogram(v, _edges(v, whole=x == "count"))
    box = Box(44, 24, width - 16, 178)
    X = Axis(float(edges[0]), float(edges[-1]), box.left, box.right, x)
    Y = Axis(0.0, 1.08 * max(int(counts.max()), 1), box.bottom, box.top, "count")
    bars = "".join(
        f'<path d="M{a + 0.7:.1f},{box.bottom}V{float(Y(float(c))):.1f}H{max(b - 0.7, a + 1):.1f}V{box.bottom}Z"/>'
        for a, b, c in zip(X(edges[:-1]), X(edges[1:]), counts, strict=True)
        if c
    )
    body = frame(X, Y, box, xlabel, "clients") + f'<g style="fill:{colour(0)};fill-opacity:.7">{bars}</g>'
    low, high, middle = (FORMATS[x](float(of(v))) for of in (np.min, np.max, np.median))
    return figure(width, 218, title, f"{len(v)} values from {low} to {high}, median {middle}.", body)


def _edges(v: Float64[np.ndarray, " n"], whole: bool) -> Float64[np.ndarray, " b"]:
    """Edges of min(24, 2∛n) bins. For ``whole`` numbers they are a whole width apart, between whole numbers.

    Otherwise some bins would hold more of the whole numbers than others.
    """
    low, high = float(v.min()), float(v.max())
    bins = int(min(24, max(1, math.ceil(2 * len(v) ** (1 / 3))))) if high > low else 1
    if whole:
        step = max(1, math.ceil((high - low + 1) / bins))
        return np.asarray(low - 0.5 + step * np.arange(math.ceil((high - low + 1) / step) + 1))
    return np.linspace(low, high, bins + 1) if high > low else np.array([low - 0.5, low + 0.5])
