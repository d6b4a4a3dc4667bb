"""Final figures over clients and over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...storage.result import Result
from ..document import figure, figures, text
from ..figures import Dots, Markup, strip
from ..numbers import final, usable
from ..table import named, one_is_a_tenth, streamed
from ..text import kind_of
from .comparison import Comparison

_KINDS = (
    ("personal_accuracy_{}", "accuracy of clients' models", "percent"),
    ("client_accuracy_{}", "accuracy of clients", "percent"),
    ("client_accuracy_{}_estimate", "estimated accuracy of clients", "percent"),
    ("client_test_loss_{}", "test loss of clients", "number"),
)
"""Figures over clients: name, label and kind of axis."""


def spread(c: Comparison) -> list[Markup]:
    """Dot plots over clients, if their accuracy was measured, and over seeds, if there are several."""
    # If clients have their own models, figures of the server's model at clients would say little.
    kinds = _KINDS[:1] if c.personal and _has_spread(c, _KINDS[0][0]) else _KINDS[1:]
    charts = [_over_clients(c, *kind) for kind in kinds if _has_spread(c, kind[0])]
    if len({r.seed for r in c.results}) > 1:
        rows = [Dots(m, c.slots[m], _ends(c, c.metric, runs)) for m, runs in c.groups.items()]
        kind = kind_of(c.metric)
        label = named(c.metric, c.results)
        name = f"Over seeds: {label}"
        charts.append(figure(strip(rows, title=name, xlabel=label, x=kind), name))
    return [figures(charts, "two"), text("One dot per seed; vertical strokes are means.", "note")] if charts else []


def _has_spread(c: Comparison, stem: str) -> bool:
    worst = stem.format("worst")
    return any(_ends(c, worst, runs) for runs in c.groups.values())


def _over_clients(c: Comparison, stem: str, label: str, kind: str) -> Markup:
    mean = stem.format("mean")
    worst = stem.format("worst")
    rows = [Dots(m, c.slots[m], _ends(c, mean, runs), _ends(c, worst, runs)) for m, runs in c.groups.items()]
    least = "worst client" if all(map(one_is_a_tenth, c.results)) else "worst tenth"
    name = f"Over clients: the mean (filled) and the {least} (hollow){', estimates' if 'estimate' in stem else ''}"
    label += ", last task" if streamed(c.results) else ""
    return figure(strip(rows, title=name, xlabel=label, x=kind), name)


def _ends(c: Comparison, metric: str, runs: Sequence[Result]) -> list[float]:
    return [v for v in (final(r, metric) for r in runs if usable(r)) if math.isfinite(v)]
