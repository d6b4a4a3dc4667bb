"""Learning curves, over rounds, bytes and virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ...storage.result import Result
from ..bands import band, column, curve
from ..document import figure, figures, legend, text
from ..figures import Line, Markup, lines
from ..numbers import directions, final, in_use, is_share, usable
from ..table import NAMES, named
from .comparison import Comparison

AXES = (
    ("round", "round", "count"),
    ("bytes", "bytes sent, up and down", "bytes"),
    ("seconds", "virtual time", "seconds"),
)
"""Column, label and kind of each abscissa."""

_LOG: dict[tuple[bool, bool], bool | Literal["x", "xy"]] = {
    (False, False): False,
    (True, False): True,
    (False, True): "x",
    (True, True): "xy",
}
"""The logarithmic axes of a figure, by whether the ordinate and the abscissa need one."""

PERSONAL = ("personal_accuracy", "personal_test_loss", "personal_loss")
"""Figures of the models in use, if clients have their own."""


def curves(c: Comparison) -> list[Markup]:
    """A row of figures per metric, a figure per axis; none if no metric has two rows."""
    present = {m for m in NAMES for r in c.results if len(curve(r, "round", m)[0]) > 1}
    metrics_shown = (
        ["accuracy", "attack_success", "gap", "loss"] if "accuracy" in present else ["gap", "loss", "test_loss"]
    )
    if c.personal:  # nobody uses the server's model
        metrics_shown = [m for m in PERSONAL if m in present or any(math.isfinite(final(r, m)) for r in c.results)]
        metrics_shown = [m for m in metrics_shown if m != "personal_test_loss" or metrics_shown[0] == m]
        present |= set(metrics_shown)
    custom = directions(c.results)
    metrics_shown += [m for m in custom if any(len(curve(r, "round", m)[0]) > 1 for r in c.results)]
    metrics = [m for m in metrics_shown if m in present or m in custom]
    axes = [axis for axis in AXES if any(_moves(r, axis[0], metrics) for r in c.results)]
    if not metrics or not axes:
        return []
    rows = [figures([figure(_figure(c, metric, *axis)) for axis in axes]) for metric in metrics]
    if "epsilon" in present:
        extra = [_figure(c, "epsilon", *AXES[0]), _figure(c, metrics[0], "epsilon", "ε", "number")]
        rows.append(figures([figure(svg) for svg in extra]))
    note = ""
    if any(len(r) > 1 for r in c.groups.values()):
        note = "Curves are means over seeds; bands are pointwise 95 % t-intervals, left out if they hide the curves. "
    note += "Click a method to hide it."
    if c.personal:
        note += " Figures are for the model that each client uses, over all of the client's rows."
        if not all(any(in_use(r, m) in row for row in r.history for m in PERSONAL) for r in c.results):
            note += " A single point: the models were measured only at the end; run(clients_every=5) draws a curve."
    if c.coincidence:
        note += f" {c.coincidence} Their curves lie on top of each other."
    if not all(usable(r) for r in c.results):
        note += " Thin dotted lines that end in a cross are runs that ended early."
    return [legend(c.slots), *rows, text(note, "note")]


def _figure(c: Comparison, metric: str, x: str, xlabel: str, kind: str) -> Markup:
    return lines(**pictured(c, metric, x, xlabel, kind), legend=False)


def pictured(c: Comparison, metric: str, x: str, xlabel: str, kind: str) -> dict[str, Any]:
    """The curves of a metric over a column ``x``, as arguments of `medley.report.figures.lines`."""
    log = metric == "gap" or _decades(c.results, metric)
    series = _series(c, x, metric, log)
    bands = _helpful(_series(c, "round", metric, log), log) and _helpful(series, log)
    ylabel = named(metric, c.results, "current")
    return {
        "series": series if bands else [replace(s, low=None, high=None) for s in series],
        "title": f"{ylabel} over {xlabel}",
        "xlabel": xlabel,
        "ylabel": ylabel,
        "x": kind,
        "y": "percent" if is_share(metric) else "number",
        "log": _LOG[log, x != "round" and _squeezed(series)],
    }


def _series(c: Comparison, x: str, metric: str, log: bool) -> list[Line]:
    out = []
    for method, runs in c.groups.items():
        y = in_use(runs[0], metric)
        # A figure is 312 px wide: more points than that would only add bytes.
        b = band(runs, x, y, log=log, points=300)
        if b.n:
            edges = (b.low, b.high) if b.n > 1 else (None, None)
            out.append(Line(method, c.slots[method], b.x, b.mean, *edges))
        elif ends := [(column(r, x)[-1], final(r, metric)) for r in runs if usable(r)]:
            at, v = np.mean(ends, axis=0)
            if math.isfinite(at + v):
                out.append(Line(method, c.slots[method], np.array([at]), np.array([v])))
        for r in runs:
            if not usable(r):
                at, v = curve(r, x, in_use(r, metric))
                if len(at):
                    out.append(Line(method, c.slots[method], at, v, broken=True))
    return out


def _squeezed(series: Sequence[Line]) -> bool:
    """Whether one method's costs squeeze half of the methods into less than a tenth of a linear axis."""
    ends = sorted(float(s.x[-1]) for s in series if not s.broken and len(s.x))
    return len(ends) > 1 and ends[-1] > 10 * ends[(len(ends) - 1) // 2]


def _helpful(series: Sequence[Line], log: bool) -> bool:
    """Whether the curves stay visible under the bands: together the bands are no wider than the range of the means."""
    banded = [s for s in series if s.low is not None and s.high is not None and np.isfinite(s.low).all()]
    if not banded:
        return False
    scale = np.log10 if log else np.asarray
    with np.errstate(divide="ignore", invalid="ignore"):
        extent = np.ptp(np.concatenate([scale(s.y) for s in banded]))
        wide = [float(np.median(scale(s.high) - scale(s.low))) for s in banded]  # type: ignore[arg-type]
    return sum(wide) <= float(extent)


def _moves(r: Result, x: str, metrics: Sequence[str]) -> bool:
    return any(bool((curve(r, x, in_use(r, m))[0] > 0).any()) for m in metrics)


def _decades(results: Sequence[Result], metric: str) -> bool:
    """Whether a metric is positive and spans so much that a linear axis would hide its end."""
    values = np.concatenate([curve(r, "round", in_use(r, metric))[1] for r in results if usable(r)] or [np.empty(0)])
    return len(values) > 0 and bool(values.min() > 0) and bool(values.max() > 30 * values.min())
