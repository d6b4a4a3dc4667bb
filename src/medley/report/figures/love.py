"""A love plot: standardised mean differences before and after weighting."""

from __future__ import annotations

from typing import Any

import numpy as np

from .axes import Axis, frame, span
from .palette import colour
from .svg import CHAR, Box, Markup, figure, rule, short, text

WIDTH = 560
"""Width of a figure in px."""

ROW = 22
"""Height of a line of a figure in px."""


def love(table: Any, *, title: str, limit: float = 0.1) -> Markup:
    """A love plot: a circle for each column before weighting, and a dot after it, by their absolute size.

    Args:
        table: a frame with a row for each column of the study, and the columns ``before`` and ``after``;
            `medley.statistics.BalanceTable.smd` has it
        limit: where the rule of a small difference is drawn; default 0.1
    """
    names = [str(v) for v in table.index]
    values = np.abs(table[["before", "after"]].to_numpy(dtype=float))
    left = 30 + CHAR * max(len(short(n)) for n in names)
    height = ROW * len(names)
    box = Box(left, 8, WIDTH - 30, 8 + height)
    X = Axis(*span(np.append(values[np.isfinite(values)], [0.0, limit]), "number"), box.left, box.right)
    parts = [frame(X, None, box, "absolute standardised mean difference: ○ before, ● after weighting", "")]
    parts.append(rule(float(X(limit)), box.top, float(X(limit)), box.bottom, 0.6))
    for k, (name, (before, after)) in enumerate(zip(names, values, strict=True)):
        y = box.top + ROW * (k + 0.5)
        parts.append(rule(float(X(before)), y, float(X(after)), y, 0.4))
        for value, filled in ((before, False), (after, True)):
            fill = colour(0) if filled else "none"
            parts.append(
                f'<circle cx="{float(X(value)):.1f}" cy="{y:.1f}" r="4.5" style="fill:{fill};stroke:{colour(0)}">'
                f"<title>{value:.3f}</title></circle>"
            )
        parts.append(text(box.left - 8, y + 4, short(name), "end"))
    return figure(WIDTH, box.bottom + 40, title, f"A love plot of {len(names)} columns.", "".join(parts))
