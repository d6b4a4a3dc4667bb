"""Curves with their bands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

import numpy as np
from jaxtyping import Float

from ..bands import thin
from ..units import FORMATS, Real
from .axes import Axis, frame, span
from .palette import colour, dash, mark
from .svg import CHAR, Box, Markup, empty, figure, path, text

WIDTH = 380
"""Width of a figure in px."""

HEIGHT = 250
"""Height of a figure in px, without its legend."""

_FAR = 1e4  # px: beyond this, out of sight, a curve is cut off.


@dataclass(frozen=True)
class Line:
    """A curve, with its band if there is one.

    Attributes:
        slot: Its number from 0, which fixes colour and marker.
        x: Abscissae [k], in increasing order.
        low: Lower edge of the band [k]; None, the default, for no band.
        high: Upper edge of the band [k]; None, the default, for no band.
        broken: Whether the run ended early: drawn thin and dotted, ending in a cross. Default False.
    """

    name: str
    slot: int
    x: Float[np.ndarray, " k"]
    y: Float[np.ndarray, " k"]
    low: Float[np.ndarray, " k"] | None = None
    high: Float[np.ndarray, " k"] | None = None
    broken: bool = False


def lines(
    series: Sequence[Line],
    *,
    title: str,
    xlabel: str = "round",
    ylabel: str = "",
    x: str = "count",
    y: str = "number",
    log: bool | Literal["x", "y", "xy"] = False,
    legend: bool = True,
) -> Markup:
    """Curves with their bands, 380 px wide and 250 px high; a legend adds 18 px per row.

    The vertical axis spans the means, and the bands within half as much again: a band of two seeds may be far wider. On
    a logarithmic axis, numbers that are not positive lie on the bottom edge, and the figure says so.

    Args:
        series: The curves, in the legend's order.
        x: Kind of the horizontal axis: ``count`` (default), ``bytes``, ``seconds``, ``percent`` or ``number``.
        y: Kind of the vertical axis, from the same list; default ``number``.
        log: The logarithmic axes; default False, none. True makes the vertical one logarithmic. A logarithmic
            horizontal axis begins at the smallest positive abscissa, and zero is drawn there.
    """
    finished = [s for s in series if not s.broken and len(s.x)] or [s for s in series if len(s.x)]
    if not finished:
        return empty(WIDTH, title)
    rows = _legend_rows(series, WIDTH - 16) if legend else []
    box = Box(52, 24 if ylabel else 10, WIDTH - 16, HEIGHT - 40)
    X = _x_axis(np.concatenate([s.x for s in series]), x, box, log in ("x", "xy"))
    upright = log is True or log in ("y", "xy")
    low, high, floored = _y_span(finished, y, upright)
    Y = Axis(low, high, box.bottom, box.top, y, upright)
    # Runs that broke off lie below the others.
    curves = [_curve(s, X, Y, box) for s in sorted(series, key=lambda s: not s.broken) if len(s.x)]
    plot = "".join(d.band for d in curves) + "".join(f"{d.group}{d.curve}</g>" for d in curves)
    body = [
        frame(X, Y, box, xlabel, ylabel),
        # A nested svg clips, and needs no id.
        f'<svg x="{box.left}" y="{box.top}" width="{box.right - box.left}" height="{box.bottom - box.top}" '
        f'viewBox="{box.left} {box.top} {box.right - box.left} {box.bottom - box.top}">{plot}</svg>',
        "".join(f"{d.group}{d.end}</g>" for d in curves),
    ]
    if floored:
        body.append(text(box.right - 2, box.bottom - 5, "zero and below lie on the bottom edge", "end", 9.5))
    body += _legend(rows)
    desc = "; ".join(
        f"{s.name} {'breaks off' if s.broken else 'ends'} at {FORMATS[y](float(s.y[-1]))}" for s in series if len(s.x)
    )
    # The page's script reads values back from pixels by these.
    data = (
        f'class="plot" data-x="{X.low:.9g} {X.high:.9g} {box.left} {box.right} {x} {int(X.log)}" '
        f'data-y="{Y.low:.9g} {Y.high:.9g} {box.bottom} {box.top} {y} {int(upright)}" data-xlabel="{escape(xlabel)}"'
    )
    tall = HEIGHT + 18 * len(rows)
    return figure(WIDTH, tall, title, f"{ylabel or title} over {xlabel}: {desc}.", "".join(body), data)


def _x_axis(v: Float[np.ndarray, " k"], kind: str, box: Box, log: bool) -> Axis:
    positive = v[v > 0]
    if not log or not len(positive) or float(positive.min()) == float(v.max()):
        return Axis(*span(v, kind, tight=True), box.left, box.right, kind)
    return Axis(float(positive.min()), float(v.max()), box.left, box.right, kind, log=True)


@dataclass(frozen=True)
class _Drawn:
    """SVG text of one curve; ``group`` opens the element around ``curve``, and the one around ``end``."""

    band: str
    group: str
    curve: str
    end: str


def _curve(s: Line, X: Axis, Y: Axis, box: Box) -> _Drawn:
    keep = thin(len(s.x), 400)
    px = X(s.x[keep])
    py = np.clip(Y(s.y[keep]), -_FAR, _FAR)
    who = f'class="m{s.slot}" data-name="{escape(s.name)}"'
    band = ""
    if s.low is not None and s.high is not None and np.isfinite(s.low).all():
        edge = np.concatenate([Y(s.high[keep]), Y(s.low[keep])[::-1]]).clip(-_FAR, _FAR)
        around = path(np.concatenate([px, px[::-1]]), edge)
        band = f'<path {who} d="{around}Z" style="fill:{colour(s.slot)};fill-opacity:.14"/>'
    style = "1.1;stroke-dasharray:2 3" if s.broken else f"1.9{dash(s.slot)}"
    paint = f"fill:none;stroke-linejoin:round;stroke:{colour(s.slot)};stroke-width:{style}"
    curve = f'<path d="{path(px, py)}" style="{paint}"/>'
    if not s.broken:
        return _Drawn(band, f"<g {who}>", curve, mark(s.slot, float(px[-1]), float(py[-1]), 3.6))
    x = float(px[-1])
    y = float(np.clip(py[-1], box.top + 4, box.bottom - 4))
    cross = f'<path d="M{x - 3.5:.1f},{y - 3.5:.1f}l7,7m0,-7l-7,7" style="stroke:{colour(s.slot)};stroke-width:1.8"/>'
    return _Drawn(band, f'<g {who} data-broken="1">', curve, cross)


def _y_span(series: Sequence[Line], kind: str, log: bool) -> tuple[float, float, bool]:
    """Low and high of the vertical axis, and whether some data lies below a logarithmic one."""
    y = np.concatenate([s.y for s in series])
    bands = [b for s in series if s.low is not None and s.high is not None for b in (s.low, s.high)]
    edges = np.concatenate([y, *(b[np.isfinite(b)] for b in bands)])
    y = y[np.isfinite(y)]
    edges = edges[np.isfinite(edges)]
    floored = False
    if log:
        floored = bool((y <= 0).any())
        y = np.log10(y[y > 0])
        edges = np.log10(edges[edges > 0])
    if not len(y):
        return (0.1, 1.0, floored) if log else (0.0, 1.0, False)
    room = 0.5 * (float(y.max() - y.min()) or abs(float(y.max())) or 1.0)
    low, high = span(np.clip(edges, y.min() - room, y.max() + room), kind if not log else "number")
    if log:
        return 10.0 ** max(low, -300.0), 10.0 ** min(high, 300.0), floored
    if y.min() >= 0 and low < 0:
        low = 0.0
    return low, high, False


def _legend_rows(series: Sequence[Line], width: Real) -> list[list[Line]]:
    """The lines in rows that fit into ``width`` px, one line per name."""
    rows: list[list[Line]] = []
    room = 0.0
    for s in {s.name: s for s in series}.values():
        if not rows or room < _entry_width(s):
            rows.append([])
            room = width
        rows[-1].append(s)
        room -= _entry_width(s)
    return rows


def _legend(rows: Sequence[Sequence[Line]]) -> list[str]:
    out = []
    for row, entries in enumerate(rows):
        x = 8.0
        y = HEIGHT + 6 + 18 * row
        for s in entries:
            out.append(f'<g class="m{s.slot}">{mark(s.slot, x + 5, y, 4)}{text(x + 14, y + 4, s.name)}</g>')
            x += _entry_width(s)
    return out


def _entry_width(s: Line) -> float:
    return 26 + CHAR * len(s.name)
