"""Plots as SVG text: lines with bands, dots, histograms, heat maps, partitions. No library, no file, no network.

A figure stands alone, and takes a page's colours where it stands in one: colours are CSS variables ``--c0`` to
``--c7`` with the light palette as fallback, everything else is the surrounding text's colour. A method keeps its slot
(colour and marker) in every figure; the marker says what the colour says, for those who don't see the colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float, Int, Shaped

from .numbers import thin
from .units import FORMATS, Real, plus_minus

LIGHT = ("#1355c6", "#b93f04", "#00a78e", "#903976", "#b48d00", "#5581bc", "#212229", "#68036a")
"""Searched for from the Okabe-Ito hues: far apart in OKLab under normal, protan, deutan and tritan vision."""

DARK = ("#2573fa", "#cd5c1f", "#00ce79", "#c48fd7", "#ffe638", "#c1d4ff", "#ffffe4", "#8c6a91")
"""The same on a dark ground."""

_MARKS = (
    "M-1,0A1,1 0 1 1 1,0A1,1 0 1 1 -1,0Z",
    "M-.9-.9H.9V.9H-.9Z",
    "M0-1.15L1.1,.85H-1.1Z",
    "M0-1.3L1.15,0L0,1.3L-1.15,0Z",
    "M0,1.15L1.1-.85H-1.1Z",
    "M-.4-1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z",
    "M0-1.25L1.2-.37L.74,1.05H-.74L-1.2-.37Z",
    "M-1.2-.65L-.65-1.2L0-.55L.65-1.2L1.2-.65L.55,0L1.2,.65L.65,1.2L0,.55L-.65,1.2L-1.2,.65L-.55,0Z",
)

Numbers = Float[np.ndarray, "..."]
"""An array of any shape."""

_CHAR = 6.1
"""A character's width in px at the 11.5 px that figures are set in; an estimate on the wide side."""


class Markup(str):
    """HTML or SVG text that may go into a page as it is; whatever came from users in it is escaped."""

    __slots__ = ()


@dataclass(frozen=True)
class Line:
    """A curve, with ``low`` and ``high`` in a band; ``broken`` is a run that ended early: thin, ending in a cross."""

    name: str
    slot: int
    x: Float[np.ndarray, " k"]
    y: Float[np.ndarray, " k"]
    low: Float[np.ndarray, " k"] | None = None
    high: Float[np.ndarray, " k"] | None = None
    broken: bool = False


@dataclass(frozen=True)
class Dots:
    """A row of a dot plot: ``values`` filled, ``other`` hollow, the means of both as ticks joined by a line."""

    name: str
    slot: int
    values: Sequence[Real]
    other: Sequence[Real] = ()


@dataclass(frozen=True)
class Axis:
    """From data in [low, high] to pixels in [start, end], linear or logarithmic."""

    low: Real
    high: Real
    start: Real
    end: Real
    kind: str = "number"
    log: bool = False

    def __call__(self, v: Numbers | Real) -> Numbers:
        """Pixels; what is not positive lies at the low end of a logarithmic axis."""
        a, b, u = self.low, self.high, np.asarray(v, dtype=np.float64)
        if self.log:
            a, b, u = math.log10(a), math.log10(b), np.log10(np.maximum(u, a))
        return np.asarray(self.start + (u - a) / (b - a) * (self.end - self.start))

    @property
    def scale(self) -> tuple[float, str]:
        """The unit that ticks are written in: its size and name."""
        if self.kind == "percent":
            return 0.01, "%"
        units = {
            "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
            "seconds": ((172800.0, "d"), (5400.0, "h"), (90.0, "min"), (0.0, "s")),
        }.get(self.kind, ())
        for size, name in units:
            if self.high >= size:
                return {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}.get(name, size), name
        return 1.0, ""

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """About ``most`` round values and their text."""
        if self.log:
            return _log_ticks(self.low, self.high, most)
        size = self.scale[0]
        rough = (self.high - self.low) / size / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= rough * 0.8)
        if self.kind == "count":
            step = max(step, 1.0)
        first, last = math.ceil(self.low / size / step - 1e-9), math.floor(self.high / size / step + 1e-9)
        places = max(0, -math.floor(math.log10(step) + 1e-9))
        return [(k * step * size, _tick(k * step, places)) for k in range(first, last + 1)]


def colour(slot: int) -> str:
    """The CSS colour of a slot: the page's variable, else the light palette's."""
    return f"var(--c{slot % len(LIGHT)},{LIGHT[slot % len(LIGHT)]})"


def mark(slot: int, x: Real = 0.0, y: Real = 0.0, r: Real = 4.0, hollow: bool = False) -> Markup:
    """The marker of a slot."""
    paint = f"fill:none;stroke:{colour(slot)};stroke-width:{1.3 / r:.2f}" if hollow else f"fill:{colour(slot)}"
    return Markup(
        f'<path d="{_MARKS[slot % len(_MARKS)]}" transform="translate({x:.1f},{y:.1f}) scale({r:g})" style="{paint}"/>'
    )


def swatch(slot: int) -> Markup:
    """A legend's key: a short line and the slot's marker."""
    size = 'viewBox="0 0 24 14" width="24" height="14"'
    line = f'<path d="M1,7H23" style="stroke:{colour(slot)};stroke-width:2{_dash(slot)}"/>'
    return Markup(f'<svg class="key" {size} aria-hidden="true">{line}{mark(slot, 12, 7)}</svg>')


def lines(
    series: Sequence[Line],
    *,
    title: str,
    xlabel: str = "round",
    ylabel: str = "",
    x: str = "count",
    y: str = "number",
    log: bool = False,
    legend: bool = True,
    width: int = 380,
    height: int = 250,
) -> Markup:
    """Curves with their bands. ``x`` and ``y`` name the kinds of the axes: count, bytes, seconds, percent or number.

    The vertical axis spans the means, and the bands within half as much again: a band of two seeds may be far wider.
    On a logarithmic axis what is not positive is drawn at the bottom edge, and the figure says so.
    """
    whole = [s for s in series if not s.broken and len(s.x)] or [s for s in series if len(s.x)]
    if not whole:
        return _figure(width, 60, title, "Nothing to draw.", _text(width / 2, 34, "no figures to draw", "middle"))
    rows = _legend_rows(series, width - 16) if legend else []
    box = _Box(52, 24 if ylabel else 10, width - 16, height - 40)
    X = Axis(*_span(np.concatenate([s.x for s in series]), x, tight=True), box.left, box.right, x)
    low, high, floored = _y_span(whole, y, log)
    Y = Axis(low, high, box.bottom, box.top, y, log)
    bands, curves = [], []
    for s in sorted(series, key=lambda s: not s.broken):
        keep = thin(len(s.x), 400)
        if not len(keep):
            continue
        px, py = X(s.x[keep]), np.clip(Y(s.y[keep]), -1e4, 1e4)
        who = f'class="m{s.slot}" data-name="{escape(s.name)}"'
        if s.low is not None and s.high is not None and np.isfinite(s.low).all():
            edge = np.concatenate([Y(s.high[keep]), Y(s.low[keep])[::-1]]).clip(-1e4, 1e4)
            path = _path(np.concatenate([px, px[::-1]]), edge)
            bands.append(f'<path {who} d="{path}Z" style="fill:{colour(s.slot)};fill-opacity:.14"/>')
        style = "1.1;stroke-dasharray:2 3" if s.broken else f"1.9{_dash(s.slot)}"
        paint = f"fill:none;stroke-linejoin:round;stroke:{colour(s.slot)};stroke-width:{style}"
        path = f'<path d="{_path(px, py)}" style="{paint}"/>'
        ex, ey = float(px[-1]), float(np.clip(py[-1], box.top + 4, box.bottom - 4))
        end = (
            f'<path d="M{ex - 3.5:.1f},{ey - 3.5:.1f}l7,7m0,-7l-7,7" style="stroke:{colour(s.slot)};stroke-width:1.8"/>'
            if s.broken
            else mark(s.slot, ex, float(py[-1]), 3.6)
        )
        curves.append((f'<g {who} data-broken="1">' if s.broken else f"<g {who}>", path, end))
    plot = "".join(bands) + "".join(f"{g}{path}</g>" for g, path, _ in curves)
    body = [
        _frame(X, Y, box, xlabel, ylabel),
        # A nested svg clips, and needs no id.
        f'<svg x="{box.left}" y="{box.top}" width="{box.right - box.left}" height="{box.bottom - box.top}" '
        f'viewBox="{box.left} {box.top} {box.right - box.left} {box.bottom - box.top}">{plot}</svg>',
        "".join(f"{g}{end}</g>" for g, _, end in curves),
    ]
    if floored:
        body.append(_text(box.right - 2, box.bottom - 5, "zero and below lie on the bottom edge", "end", 9.5))
    for row, entries in enumerate(rows):
        at = 8.0
        for s in entries:
            here = height + 6 + 18 * row
            body.append(f'<g class="m{s.slot}">{mark(s.slot, at + 5, here, 4)}{_text(at + 14, here + 4, s.name)}</g>')
            at += _entry_width(s)
    desc = "; ".join(
        f"{s.name} {'breaks off' if s.broken else 'ends'} at {FORMATS[y](float(s.y[-1]))}" for s in series if len(s.x)
    )
    data = (
        f'class="plot" data-x="{X.low:.9g} {X.high:.9g} {box.left} {box.right} {x}" '
        f'data-y="{Y.low:.9g} {Y.high:.9g} {box.bottom} {box.top} {y} {int(log)}" data-xlabel="{escape(xlabel)}"'
    )
    tall = height + 18 * len(rows)
    return _figure(width, tall, title, f"{ylabel or title} over {xlabel}: {desc}.", "".join(body), data)


def strip(rows: Sequence[Dots], *, title: str, xlabel: str = "", x: str = "percent", width: int = 520) -> Markup:
    """A dot plot, one row a method and one dot a seed (or client); a row without values says so."""
    left = min(max((_CHAR * len(_short(r.name)) for r in rows), default=0) + 34, 0.42 * width)
    values = np.array([v for r in rows for v in (*r.values, *r.other) if math.isfinite(v)], dtype=np.float64)
    box = _Box(left, 8, width - 18, 8 + 26 * max(len(rows), 1))
    X = Axis(*_span(values if len(values) else np.array([0.0, 1.0]), x), box.left, box.right, x)
    body, said = [_frame(X, None, box, xlabel, "")], []
    for k, row in enumerate(rows):
        y = box.top + 26 * k + 13
        parts = [mark(row.slot, 9, y, 4), _text(20, y + 4, _short(row.name))]
        some = [[v for v in group if math.isfinite(v)] for group in (row.values, row.other)]
        means = [float(np.mean(v)) for v in some if v]
        if len(means) == 2:
            a, b = (float(X(m)) for m in means)
            parts.append(
                f'<path d="M{a:.1f},{y}H{b:.1f}" style="stroke:{colour(row.slot)};stroke-opacity:.45;stroke-width:2"/>'
            )
        for group, hollow in zip(some, (False, True), strict=True):
            paint = f"fill:none;stroke:{colour(row.slot)}" if hollow else f"fill:{colour(row.slot)};fill-opacity:.55"
            keep = thin(len(group), 400)
            parts += [f'<circle cx="{float(X(group[i])):.1f}" cy="{y}" r="3.4" style="{paint}"/>' for i in keep]
        for m in means:
            parts.append(f'<path d="M{float(X(m)):.1f},{y - 8}v16" style="stroke:{colour(row.slot)};stroke-width:2"/>')
        if not means:
            parts.append(_text(box.left + 6, y + 4, "no run came to its end", size=10.5))
        body.append(f'<g class="m{row.slot}">{"".join(parts)}</g>')
        said.append(f"{row.name}: {' and '.join(FORMATS[x](m) for m in means) or 'nothing'}")
    return _figure(width, box.bottom + 34, title, f"Means: {'; '.join(said)}.", "".join(body))


def histogram(
    values: Shaped[np.ndarray, " n"], *, title: str, xlabel: str = "", x: str = "count", width: int = 380
) -> Markup:
    """How many of ``values`` lie in each of at most 24 bins of equal width."""
    v = np.asarray(values, dtype=np.float64)
    if not len(v):
        return _figure(width, 60, title, "Nothing to draw.", _text(width / 2, 34, "no figures to draw", "middle"))
    low, high = float(v.min()), float(v.max())
    bins = int(min(24, max(1, math.ceil(2 * len(v) ** (1 / 3))))) if high > low else 1
    if x == "count":
        # Whole numbers: bins of one whole width, edges between whole numbers, or some bins would hold more values.
        step = max(1, math.ceil((high - low + 1) / bins))
        edges = low - 0.5 + step * np.arange(math.ceil((high - low + 1) / step) + 1)
    else:
        edges = np.linspace(low, high, bins + 1) if high > low else np.array([low - 0.5, low + 0.5])
    counts, edges = np.histogram(v, edges)
    box = _Box(44, 24, width - 16, 178)
    X = Axis(float(edges[0]), float(edges[-1]), box.left, box.right, x)
    Y = Axis(0.0, 1.08 * max(int(counts.max()), 1), box.bottom, box.top, "count")
    bars = "".join(
        f'<path d="M{a + 0.7:.1f},{box.bottom}V{float(Y(float(c))):.1f}H{max(b - 0.7, a + 1):.1f}V{box.bottom}Z"/>'
        for a, b, c in zip(X(edges[:-1]), X(edges[1:]), counts, strict=True)
        if c
    )
    body = _frame(X, Y, box, xlabel, "clients") + f'<g style="fill:{colour(0)};fill-opacity:.7">{bars}</g>'
    text = f"{len(v)} values from {FORMATS[x](low)} to {FORMATS[x](high)}, median {FORMATS[x](float(np.median(v)))}."
    return _figure(width, 218, title, text, body)


def partition(
    sizes: Int[np.ndarray, " n"],
    counts: Int[np.ndarray, "n C"] | None = None,
    labels: Sequence[object] | None = None,
    *,
    title: str = "Who holds what",
    width: int = 760,
) -> Markup:
    """Rows per client as bars and, with ``counts``, per client and label as bubbles whose area is the count.

    At most 100 clients and 40 labels are drawn, evenly sampled; the figure says so where it leaves some out.
    """
    n, C = len(sizes), 0 if counts is None else counts.shape[1]
    who, what = thin(n, 100), thin(C, 40)
    names = [str(labels[j]) if labels is not None and j < len(labels) else str(j) for j in what]
    left = 14 + max(26.0, _CHAR * max((len(_short(s, 12)) for s in names), default=0))
    cell = 16.0 if len(what) <= 20 else 11.0
    bars = _Box(left, 22, width - 12, 22 + 56)
    field = _Box(left, bars.bottom + 8, width - 12, bars.bottom + 8 + cell * len(what))
    column = (bars.right - bars.left) / max(len(who), 1)
    centres = bars.left + column * (np.arange(len(who)) + 0.5)
    top = Axis(0.0, float(max(int(sizes.max()) if n else 1, 1)), bars.bottom, bars.top)
    body = [_text(left, 12, "rows held"), _text(left - 6, bars.top + 8, FORMATS["count"](top.high), "end", 10)]
    wide = max(min(column - 1, 22), 0.8)
    body.append(
        f'<g style="fill:{colour(0)};fill-opacity:.7">'
        + "".join(
            f'<path d="M{x - wide / 2:.1f},{bars.bottom}V{float(top(float(sizes[i]))):.1f}h{wide:.1f}V{bars.bottom}Z"/>'
            for x, i in zip(centres, who, strict=True)
        )
        + "</g>"
    )
    if counts is not None and C:
        most = max(int(counts.max()), 1)
        r = 0.48 * min(cell, 2 * column)
        for k, name in enumerate(names):
            y = field.top + cell * (k + 0.5)
            body.append(_rule(field.left, y, field.right, y))
            if cell > 11 or k % 2 == 0:
                body.append(_text(left - 6, y + 3.5, _short(name, 12), "end", 10))
        body.append(f'<g style="fill:{colour(0)};fill-opacity:.78">')
        for x, i in zip(centres, who, strict=True):
            for k, j in enumerate(what):
                if counts[i, j]:
                    size = max(r * math.sqrt(counts[i, j] / most), 0.6)
                    body.append(f'<circle cx="{x:.1f}" cy="{field.top + cell * (k + 0.5):.1f}" r="{size:.1f}"/>')
        body.append("</g>")
    for k in range(0, len(who), next(step for step in (1, 2, 5, 10) if len(who) <= 12 * step)):
        body.append(_text(float(centres[k]), field.bottom + 15, str(who[k]), "middle", 10))
    left_out = [f"{len(a)} of {k} {b}" for a, k, b in ((who, n, "clients"), (what, C, "labels")) if len(a) < k]
    said = f"client ({', '.join(left_out)} drawn, evenly sampled)" if left_out else "client"
    body.append(_text((bars.left + bars.right) / 2, field.bottom + 31, said, "middle"))
    if C:
        body.append(_text(10, (field.top + field.bottom) / 2, "label", "middle", rotate=True))
    spread = f", {int(sizes.min())} to {int(sizes.max())} a client" if n else ""
    text = f"{n} clients, {C or 'no'} labels, {int(sizes.sum())} rows{spread}."
    return _figure(width, field.bottom + 40, title, text, "".join(body))


def heat(
    matrix: Float[np.ndarray, "r c"],
    *,
    title: str,
    xlabel: str = "",
    ylabel: str = "",
    rows: Sequence[object] | None = None,
    columns: Sequence[object] | None = None,
    kind: str = "percent",
    slot: int = 0,
) -> Markup:
    """A matrix as shaded cells with their values, from 0 (or the least, if less) to the greatest; nan stays blank."""
    R, C = matrix.shape
    cell_w, cell_h, left, top = 46, 28, 48, 30
    finite = matrix[np.isfinite(matrix)]
    low = min(float(finite.min()), 0.0) if len(finite) else 0.0
    high = float(finite.max()) if len(finite) and finite.max() > low else low + 1.0
    width, height = left + C * cell_w + 10, top + R * cell_h + 34
    body = []
    for i in range(R):
        name = str(rows[i]) if rows is not None else str(i + 1)
        body.append(_text(left - 6, top + cell_h * (i + 0.5) + 4, _short(name, 6), "end", 10))
        for j in range(C):
            v = float(matrix[i, j])
            if not math.isfinite(v):
                continue
            # Half opacity at most: text keeps its contrast on either ground.
            shade = 0.04 + 0.46 * (v - low) / (high - low)
            x, y = left + cell_w * j, top + cell_h * i
            text = f"{100 * v:.1f}" if kind == "percent" else FORMATS[kind](v)
            body.append(
                f'<rect x="{x}" y="{y}" width="{cell_w - 1.5}" height="{cell_h - 1.5}" rx="2" '
                f'style="fill:{colour(slot)};fill-opacity:{shade:.3f}"/>'
                + _text(x + cell_w / 2 - 1, y + cell_h / 2 + 3, text, "middle", 10.5, strong=True)
            )
    for j in range(C):
        name = str(columns[j]) if columns is not None else str(j + 1)
        body.append(_text(left + cell_w * (j + 0.5) - 1, top + R * cell_h + 12, _short(name, 7), "middle", 10))
    body.append(_text(left + C * cell_w / 2, top + R * cell_h + 27, xlabel, "middle"))
    body.append(_text(12, top + R * cell_h / 2, ylabel, "middle", rotate=True))
    body.append(_text(left, 18, title, strong=True))
    text = (
        f"{R} by {C}, from {FORMATS[kind](float(finite.min()))} to {FORMATS[kind](high)}."
        if len(finite)
        else "No values."
    )
    return _figure(width, height, title, text, "".join(body))


def interval(mean: Real, half: Real, low: Real, high: Real, slot: int, share: bool = False) -> Markup:
    """A table cell's picture: a mean and its interval on [low, high], with a rule at zero."""
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


@dataclass(frozen=True)
class _Box:
    left: Real
    top: Real
    right: Real
    bottom: Real


def _figure(width: Real, height: Real, title: str, desc: str, body: str, data: str = "") -> Markup:
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" font-family="system-ui,sans-serif" font-size="11.5" {data}>'
        f"<title>{escape(title)}</title><desc>{escape(desc)}</desc>{body}</svg>"
    )


def _frame(X: Axis, Y: Axis | None, box: _Box, xlabel: str, ylabel: str) -> str:
    parts = []
    across = max(2, int((box.right - box.left) / 55))
    for v, text in X.ticks(across):
        x = float(X(v))
        parts.append(_text(x, box.bottom + 15, text, "middle", 10.5))
        parts.append(_rule(x, box.bottom, x, box.bottom + 4, 0.5) if Y else _rule(x, box.top, x, box.bottom))
    if Y:
        for v, text in Y.ticks(max(2, int((box.bottom - box.top) / 34))):
            y = float(Y(v))
            parts.append(_text(box.left - 7, y + 3.7, text, "end", 10.5) + _rule(box.left, y, box.right, y))
    parts.append(_rule(box.left, box.bottom, box.right, box.bottom, 0.5))
    unit, over = X.scale[1], Y.scale[1] if Y else ""
    if xlabel or unit:
        parts.append(
            _text((box.left + box.right) / 2, box.bottom + 31, f"{xlabel} [{unit}]" if unit else xlabel, "middle")
        )
    if ylabel:
        parts.append(_text(box.left - 7, 12, f"{ylabel} [{over}]" if over else ylabel, size=11.5, strong=True))
    return "".join(parts)


def _text(
    x: Real, y: Real, text: str, anchor: str = "start", size: Real = 11.5, strong: bool = False, rotate: bool = False
) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if rotate else ""
    faint = "" if strong else ' fill-opacity=".72"'
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}" fill="currentColor"{faint}{turn}>'
        f"{escape(text)}</text>"
    )


def _rule(x0: Real, y0: Real, x1: Real, y1: Real, opacity: Real = 0.13) -> str:
    return f'<path d="M{x0:.1f},{y0:.1f}L{x1:.1f},{y1:.1f}" stroke="currentColor" stroke-opacity="{opacity}"/>'


def _path(x: Float[np.ndarray, " k"], y: Float[np.ndarray, " k"]) -> str:
    return "M" + " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))


def _dash(slot: int) -> str:
    return ";stroke-dasharray:7 3" if slot % (2 * len(LIGHT)) >= len(LIGHT) else ""


def _short(name: str, most: int = 26) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _entry_width(s: Line) -> float:
    return 26 + _CHAR * len(s.name)


def _legend_rows(series: Sequence[Line], width: Real) -> list[list[Line]]:
    rows: list[list[Line]] = []
    room = 0.0
    for s in {s.name: s for s in series}.values():
        if not rows or room < _entry_width(s):
            rows.append([])
            room = width
        rows[-1].append(s)
        room -= _entry_width(s)
    return rows


def _span(v: Float[np.ndarray, " k"], kind: str, tight: bool = False) -> tuple[float, float]:
    low, high = float(v.min()), float(v.max())
    if high <= low:
        pad = abs(low) * 0.1 or 1.0
        return (low, low + pad) if tight else (low - pad, low + pad)
    if tight:
        return (0.0 if 0 <= low < 0.2 * high else low), high
    pad = 0.06 * (high - low)
    a, b = low - pad, high + pad
    return (max(a, -0.01), min(b, 1.01)) if kind == "percent" else (a, b)


def _y_span(series: Sequence[Line], kind: str, log: bool) -> tuple[float, float, bool]:
    """Low and high of the vertical axis, and whether something lies below a logarithmic one."""
    y = np.concatenate([s.y for s in series])
    bands = [b for s in series if s.low is not None and s.high is not None for b in (s.low, s.high)]
    edges = np.concatenate([y, *(b[np.isfinite(b)] for b in bands)])
    y, edges = y[np.isfinite(y)], edges[np.isfinite(edges)]
    if log:
        floored, y, edges = bool((y <= 0).any()), np.log10(y[y > 0]), np.log10(edges[edges > 0])
        if not len(y):
            return 0.1, 1.0, floored
    if not len(y):
        return 0.0, 1.0, False
    room = 0.5 * (float(y.max() - y.min()) or abs(float(y.max())) or 1.0)
    low, high = _span(np.clip(edges, y.min() - room, y.max() + room), kind if not log else "number")
    if log:
        return 10.0 ** max(low, -300.0), 10.0 ** min(high, 300.0), floored
    if y.min() >= 0 and low < 0:
        low = 0.0
    return low, high, False


def _log_ticks(low: Real, high: Real, most: int) -> list[tuple[float, str]]:
    a, b = math.log10(low), math.log10(high)
    stride = max(1, math.ceil((b - a) / most))
    exponents = [k for k in range(math.ceil(a - 1e-9), math.floor(b + 1e-9) + 1) if k % stride == 0]
    plain = a > -3.01 and b < 4.01
    ticks = [(10.0**k, f"{10.0**k:g}" if plain else "10" + str(k).translate(_SUPERSCRIPT)) for k in exponents]
    if len(ticks) < 3:
        between = [m * 10.0**k for k in range(math.floor(a), math.ceil(b)) for m in (1, 2, 5)]
        ticks = [(v, f"{v:g}") for v in between if low <= v <= high]
    if len(ticks) < 2:
        ticks = [(v, f"{v:.3g}") for v in (low, math.sqrt(low * high), high)]
    return ticks


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _tick(v: Real, places: int) -> str:
    return f"{v:,.{places}f}".replace("-", "−")
