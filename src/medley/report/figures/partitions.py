"""Partitions: rows per client as bars, and per client and label as bubbles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int

from ..bands import thin
from ..units import FORMATS
from .axes import Axis
from .palette import colour
from .svg import CHAR, Box, Markup, figure, rule, short, text


def partition(
    sizes: Int[np.ndarray, " n"],
    counts: Int[np.ndarray, "n C"] | None = None,
    labels: Sequence[object] | None = None,
    clients: Sequence[str] = (),
    *,
    title: str = "Who holds what",
    width: int = 760,
) -> Markup:
    """Rows per client as bars and, with ``counts``, rows per client and label as bubbles whose area is the count.

    At most 100 clients and 40 labels are drawn, evenly sampled. The figure says so if it leaves some out.

    Args:
        counts: Rows of each client and label [n, C]; None, the default, draws the bars alone.
        labels: Names of the C labels; default their numbers.
        clients: Names of the n clients; default their numbers.
    """
    n = len(sizes)
    C = 0 if counts is None else counts.shape[1]
    clients_shown = thin(n, 100)
    classes = thin(C, 40)
    names = [str(labels[j]) if labels is not None and j < len(labels) else str(j) for j in classes]
    left = 14 + max(26.0, CHAR * max((len(short(s, 12)) for s in names), default=0))
    cell = 16.0 if len(classes) <= 20 else 11.0
    bars = Box(left, 22, width - 12, 22 + 56)
    field = Box(left, bars.bottom + 8, width - 12, bars.bottom + 8 + cell * len(classes))
    column = (bars.right - bars.left) / max(len(clients_shown), 1)
    centres = bars.left + column * (np.arange(len(clients_shown)) + 0.5)
    body = [_bars(sizes, clients_shown, centres, bars)]
    if counts is not None and C:
        body.append(_bubbles(counts[np.ix_(clients_shown, classes)], int(counts.max()), names, centres, field))
    step = next(step for step in (1, 2, 5, 10) if len(clients_shown) <= 12 * step)
    room = max(int(column * step / CHAR), 3)
    for k in range(0, len(clients_shown), step):
        name = short(clients[clients_shown[k]], room) if len(clients) == n else str(clients_shown[k])
        body.append(text(float(centres[k]), field.bottom + 15, name, "middle", 10))
    axes = ((clients_shown, n, "clients"), (classes, C, "labels"))
    left_out = [f"{len(some)} of {count} {what}" for some, count, what in axes if len(some) < count]
    label = f"client ({', '.join(left_out)} drawn, evenly sampled)" if left_out else "client"
    body.append(text((bars.left + bars.right) / 2, field.bottom + 31, label, "middle"))
    if C:
        body.append(text(10, (field.top + field.bottom) / 2, "label", "middle", rotate=True))
    spread = f", {int(sizes.min())} to {int(sizes.max())} a client" if n else ""
    desc = f"{n} clients, {C or 'no'} labels, {int(sizes.sum())} rows{spread}."
    return figure(width, field.bottom + 40, title, desc, "".join(body))


def _bars(
    sizes: Int[np.ndarray, " n"], clients: Int[np.ndarray, " m"], centres: Float64[np.ndarray, " m"], box: Box
) -> str:
    """A bar for each of the ``clients`` that are drawn, at ``centres`` px; the tallest client of all fills the box."""
    Y = Axis(0.0, float(max(int(sizes.max()) if len(sizes) else 1, 1)), box.bottom, box.top)
    column = (box.right - box.left) / max(len(clients), 1)
    wide = max(min(column - 1, 22), 0.8)
    bars = "".join(
        f'<path d="M{x - wide / 2:.1f},{box.bottom}V{float(Y(float(sizes[i]))):.1f}h{wide:.1f}V{box.bottom}Z"/>'
        for x, i in zip(centres, clients, strict=True)
    )
    return (
        text(box.left, 12, "rows held")
        + text(box.left - 6, box.top + 8, FORMATS["count"](Y.high), "end", 10)
        + f'<g style="fill:{colour(0)};fill-opacity:.7">{bars}</g>'
    )


def _bubbles(
    counts: Int[np.ndarray, "m c"], most: int, names: Sequence[str], centres: Float64[np.ndarray, " m"], box: Box
) -> str:
    """A column of bubbles for each client that is drawn, a row for each label; the area of ``most`` fills a cell."""
    cell = (box.bottom - box.top) / len(names)
    column = (box.right - box.left) / max(len(centres), 1)
    r = 0.48 * min(cell, 2 * column)
    out = []
    for k, name in enumerate(names):
        y = box.top + cell * (k + 0.5)
        out.append(rule(box.left, y, box.right, y))
        if cell > 11 or k % 2 == 0:
            out.append(text(box.left - 6, y + 3.5, short(name, 12), "end", 10))
    out.append(f'<g style="fill:{colour(0)};fill-opacity:.78">')
    for x, row in zip(centres, counts, strict=True):
        for k in np.flatnonzero(row).tolist():
            size = max(r * math.sqrt(row[k] / max(most, 1)), 0.6)
            out.append(f'<circle cx="{x:.1f}" cy="{box.top + cell * (k + 0.5):.1f}" r="{size:.1f}"/>')
    out.append("</g>")
    return "".join(out)
