"""Dot plots: one row per method, one dot per seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..bands import thin
from ..units import FORMATS, Real
from .axes import Axis, frame, span
from .palette import colour, mark
from .svg import CHAR, Box, Markup, figure, short, text

_ROW = 26  # px


@dataclass(frozen=True)
class Dots:
    """A row of a dot plot.

    Attributes:
        slot: Its number from 0, which fixes colour and marker.
        values: Filled dots, with a tick at their mean, or at ``centre``.
        other: Hollow dots, with their mean as a tick; none by default. A line connects the two means.
    """

    name: str
    slot: int
    values: Sequence[Real]
    other: Sequence[Real] = ()
    centre: Real | None = None


def strip(rows: Sequence[Dots], *, title: str, xlabel: str = "", x: str = "percent", width: int = 520) -> Markup:
    """A dot plot, one row per method and one dot per seed or client; a row without finite values says so.

    Args:
        x: Kind of the axis: ``percent`` (default), ``points``, ``count``, ``bytes``, ``seconds`` or ``number``.
    """
    left = min(max((CHAR * len(short(r.name)) for r in rows), default=0) + 34, 0.42 * width)
    values = np.array([v for r in rows for v in (*r.values, *r.other) if math.isfinite(v)], dtype=np.float64)
    box = Box(left, 8, width - 18, 8 + _ROW * max(len(rows), 1))
    values = values if len(values) else np.array([0.0, 1.0])
    # Differences of shares lie in [-1, 1], shares in [0, 1].
    X = Axis(*span(values, x if values.min() >= 0 else "number"), box.left, box.right, x)
    body = [frame(X, None, box, xlabel, "")]
    labels = []
    for k, row in enumerate(rows):
        groups = [[v for v in group if math.isfinite(v)] for group in (row.values, row.other)]
        means = [float(np.mean(v)) for v in groups if v]
        if row.centre is not None and means:
            means[0] = float(row.centre)
        body.append(_row(row, groups, means, X, box.top + _ROW * k + 13))
        labels.append(f"{row.name}: {' and '.join(FORMATS[x](m) for m in means) or 'nothing'}")
    return figure(width, box.bottom + 34, title, f"Means: {'; '.join(labels)}.", "".join(body))


def _row(row: Dots, groups: Sequence[Sequence[Real]], means: Sequence[Real], X: Axis, y: Real) -> str:
    parts = [mark(row.slot, 9, y, 4), text(20, y + 4, short(row.name))]
    if len(means) == 2:
        a, b = (float(X(m)) for m in means)
        parts.append(
            f'<path d="M{a:.1f},{y}H{b:.1f}" style="stroke:{colour(row.slot)};stroke-opacity:.45;stroke-width:2"/>'
        )
    for group, hollow in zip(groups, (False, True), strict=True):
        paint = f"fill:none;stroke:{colour(row.slot)}" if hollow else f"fill:{colour(row.slot)};fill-opacity:.55"
        keep = thin(len(group), 400)
        parts += [f'<circle cx="{float(X(group[i])):.1f}" cy="{y}" r="3.4" style="{paint}"/>' for i in keep]
    for m in means:
        parts.append(f'<path d="M{float(X(m)):.1f},{y - 8}v16" style="stroke:{colour(row.slot)};stroke-width:2"/>')
    if not means:
        parts.append(text(float(X.start) + 6, y + 4, "no run came to its end", size=10.5))
    return f'<g class="m{row.slot}">{"".join(parts)}</g>'
