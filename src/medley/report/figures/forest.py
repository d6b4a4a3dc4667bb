"""A forest plot: the estimates of a meta-analysis with their intervals."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import numpy as np

from .axes import Axis, frame, span
from .palette import colour
from .svg import CHAR, Box, Markup, figure, rule, short, text

WIDTH = 560
"""Width of a figure in px."""

ROW = 22
"""Height of a line of a figure in px."""

ALIKE = 0.25
"""The weight whose square all have that have no weights."""


def forest(table: Any, *, title: str, null: float | None = 0.0, xlabel: str = "") -> Markup:
    """A forest plot: a square for each site, sized by its weight, and a diamond for each combined estimate.

    Args:
        table: a frame with a row for each estimate, with the columns ``estimate``, ``lower``, ``upper``, and if
            estimates were combined, ``weight``, the share of a site, NaN for combined ones;
            `medley.statistics.MetaFit.table` makes it. Without weights squares are alike
        null: the value of no effect, marked by a rule; default 0; use 1 for odds and hazard ratios, None for no rule
    """
    names = [str(v) for v in table.index]
    values = table[["estimate", "lower", "upper"]].to_numpy(dtype=float)
    is_weighted = "weight" in table.columns
    shares = table["weight"].to_numpy(dtype=float) if is_weighted else np.full(len(table), ALIKE)
    left = 30 + CHAR * max(len(short(n)) for n in names)
    height = ROW * len(names)
    box = Box(left, 8, WIDTH - 150, 8 + height)
    ends = values[np.isfinite(values)]
    X = Axis(*span(ends if null is None else np.append(ends, null), "number"), box.left, box.right)
    parts = [frame(X, None, box, xlabel, "")]
    if null is not None:
        parts.append(rule(float(X(null)), box.top, float(X(null)), box.bottom, 0.6))
    for k, (name, (mid, low, high), share) in enumerate(zip(names, values, shares, strict=True)):
        y = box.top + ROW * (k + 0.5)
        is_summary = math.isnan(share)
        a, x, b = (float(np.clip(X(v), box.left, box.right)) for v in (low, mid, high))
        label = f"{mid:.2f} [{low:.2f}, {high:.2f}]" + ("" if is_summary or not is_weighted else f"  {share:.0%}")
        r = 6.0 if is_summary else 2 + 8 * math.sqrt(share)
        shape = f"M{a:.1f},{y:.1f}L{x:.1f},{y - r:.1f}L{b:.1f},{y:.1f}L{x:.1f},{y + r:.1f}Z"
        if not is_summary:
            parts.append(rule(a, y, b, y, 0.8))
            shape = f"M{x - r:.1f},{y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}Z"
        parts.append(
            f'<path d="{shape}" style="fill:{colour(1 if is_summary else 0)}"><title>{escape(name)}</title></path>'
        )
        parts.append(text(box.left - 8, y + 4, short(name), "end", strong=is_summary))
        parts.append(text(box.right + 10, y + 4, label.replace("-", "−"), strong=is_summary))
    return figure(WIDTH, box.bottom + 40, title, f"A forest plot of {len(names)} estimates.", "".join(parts))
