"""Accuracy on the tasks of a stream."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float64

from ..document import Cell, figure, figures, heading, legend, table, text
from ..figures import Line, Markup, lines
from ..numbers import usable
from ..units import DASH
from .comparison import Comparison


def tasks(c: Comparison) -> list[Markup]:
    """The mean over the tasks so far, and each method's accuracy on every task after every task."""
    tables = list[Markup]()
    over = []
    for method, runs in c.groups.items():
        matrices = [_matrix(r.summary["matrix"]) for r in runs if usable(r) and r.summary.get("matrix") is not None]
        matrices = [a for a in matrices if a.shape == matrices[0].shape]
        if matrices:
            # nan (tasks not seen yet) is nan in every seed, so a plain mean keeps it.
            mean = np.mean(matrices, axis=0)
            slot = c.slots[method]
            so_far = np.array([np.nanmean(row[: s + 1]) for s, row in enumerate(mean)])
            over.append(Line(method, slot, np.arange(1.0, len(so_far) + 1), so_far))
            rows: list[list[str | Cell]] = [
                [f"after task {k}", *(_shaded(v, slot) for v in row)] for k, row in enumerate(mean.tolist(), 1)
            ]
            tables += [heading(method), table(["", *(f"on {k} [%]" for k in range(1, mean.shape[1] + 1))], rows)]
    if not tables:
        return []
    name = "mean accuracy on the tasks so far"
    svg = lines(over, title=name, xlabel="tasks learnt", ylabel=name, y="percent", legend=False)
    return [legend(c.slots), figures([figure(svg)]), *tables, text("Means over seeds.", "note")]


def _shaded(share: float, slot: int) -> Cell:
    """A cell whose background gets darker with the accuracy; at half opacity text keeps its contrast."""
    return Cell(DASH) if math.isnan(share) else Cell(f"{100 * share:.1f}", slot, shade=0.04 + 0.46 * share)


def _matrix(value: Any) -> Float64[np.ndarray, "r c"]:
    rows = value.tolist() if hasattr(value, "tolist") else value
    out = np.full((len(rows), max(map(len, rows), default=0)), math.nan)
    for i, row in enumerate(rows):
        out[i, : len(row)] = [math.nan if v is None else float(v) for v in row]
    return out
