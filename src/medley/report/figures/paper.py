"""Curves as PDF for a paper, drawn by Matplotlib: fonts are embedded, and text stays text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from .axes import Axis, span
from .lines import Line
from .palette import LIGHT

MARKERS = "os^Dvp*X"
"""Markers by slot, as close to the page's markers as Matplotlib allows."""


def pdf(
    series: Sequence[Line],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    x: str,
    y: str,
    log: bool | Literal["x", "y", "xy"],
) -> bytes:
    """The figure of `lines`, 3.4 by 2.6 inches, the width of a column. It takes the same arguments as `lines`."""
    import matplotlib  # an extra
    from matplotlib.figure import Figure

    def unit(kind: str, values: Sequence[Any]) -> tuple[float, str]:
        numbers = np.concatenate(values) if values else np.empty(0)
        numbers = numbers[np.isfinite(numbers)]
        return Axis(*span(numbers, kind, tight=True), 0, 1, kind).scale if len(numbers) else (1.0, "")

    (sx, ux), (sy, uy) = unit(x, [s.x for s in series]), unit(y, [s.y for s in series])
    style = {"pdf.fonttype": 42, "font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(3.4, 2.6), layout="constrained")
        axes = figure.add_subplot()
        for s in series:
            colour = LIGHT[s.slot % len(LIGHT)]
            dashes = ":" if s.broken else "--" if s.slot >= len(LIGHT) else "-"
            axes.plot(
                s.x / sx,
                s.y / sy,
                dashes,
                color=colour,
                marker="x" if s.broken else MARKERS[s.slot % len(MARKERS)],
                markevery=[-1],
                markersize=4,
                linewidth=1.2,
                label=None if s.broken else s.name,
            )
            if s.low is not None and s.high is not None and np.isfinite(s.low).all():
                axes.fill_between(s.x / sx, s.low / sy, s.high / sy, color=colour, alpha=0.14, linewidth=0)
        axes.set_xlabel(f"{xlabel} [{ux}]" if ux else xlabel)
        axes.set_ylabel(f"{ylabel} [{uy}]" if uy else ylabel)
        if log in ("x", "xy"):
            axes.set_xscale("log")
        if log is True or log in ("y", "xy"):
            axes.set_yscale("log")
        axes.legend(frameon=False, fontsize=7)
        out = io.BytesIO()
        figure.savefig(out, format="pdf", metadata={"Title": title, "CreationDate": None})
    return out.getvalue()
