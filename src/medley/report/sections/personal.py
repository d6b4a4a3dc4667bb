"""Each client's accuracy with the model it uses, and its gain over the base method's or the server's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...storage.history import Row
from ..document import Cell, figure, figures, table
from ..figures import Dots, Markup, strip
from ..numbers import last_clients, usable
from ..table import named
from ..units import DASH, FORMATS, Format, count
from .comparison import Comparison

Key = tuple[int, int]
"""(seed, client)."""

FIGURES = (("accuracy", "percent", 1.0), ("test_loss", "number", -1.0))
"""Figures of clients, the kind of their axis, and the sign of an improvement; the first that exists counts."""


class Gains(NamedTuple):
    """Figures of one method's clients, by seed and client.

    Attributes:
        own: figures of the model that a client uses
        rows: its test rows
        gain: the improvement over the reference's, if both exist
        new: clients that never took part
    """

    own: dict[Key, float]
    rows: dict[Key, float]
    gain: dict[Key, float]
    new: frozenset[Key]

    @property
    def mean(self) -> float:
        """The mean over seeds of the figure over all clients' rows, as in the table of results."""
        seeds = {seed for seed, _ in self.own}
        sums = [
            (sum(n * v for n, v in of), sum(n for n, _ in of))
            for of in ([(self.rows[k], v) for k, v in self.own.items() if k[0] == seed] for seed in seeds)
        ]
        return sum(s / n for s, n in sums if n) / len(seeds)

    @property
    def gaining(self) -> str:
        """Number of clients that gain, as a mean over seeds."""
        seeds = len({seed for seed, _ in self.gain})
        return f"{count(sum(v > 0 for v in self.gain.values()) / seeds)} of {count(len(self.gain) / seeds)}"


def personal(c: Comparison) -> list[Markup]:
    """A table and dot plots of the clients; none if no method leaves clients with their own models."""
    if not c.personal:
        return []
    tables = {
        m: {(r.seed, int(row["client"])): row for r in runs if usable(r) for row in last_clients(r)}
        for m, runs in c.groups.items()
    }
    for name, kind, sign in FIGURES:
        if any(name in row for rows in tables.values() for row in rows.values()):
            return _dots(c, tables, name, kind, sign)
    return []


def _dots(c: Comparison, tables: Mapping[str, Mapping[Key, Row]], name: str, kind: str, sign: float) -> list[Markup]:
    others = len(tables) > 1
    base = {key: row[name] for key, row in tables.get(c.base, {}).items() if name in row} if others else {}
    gains = {m: _gains(rows, name, base, sign) for m, rows in tables.items()}
    if base:
        gains[c.base] = gains[c.base]._replace(gain={})
    over = f"over {c.base}" if base else "over the server's model"
    label = "accuracy" if name == "accuracy" else "test loss"
    change = "points" if kind == "percent" else kind
    series = [Dots(m, c.slots[m], list(g.own.values()), centre=g.mean) for m, g in gains.items() if g.own]
    gaining = [Dots(m, c.slots[m], list(g.gain.values())) for m, g in gains.items() if g.gain]
    titles = f"Clients' own test rows: {label} of the model in use", f"Gain {over} of each client"
    dots = [
        figure(strip(series, title=titles[0], xlabel=label, x=kind), titles[0]),
        figure(strip(gaining, title=titles[1], xlabel=f"gain in {label}", x=change), titles[1]),
    ]
    head = ["", named(c.metric, c.results), f"median client's gain {over}", "clients that gain", "new clients"]
    rows = [_row(c.name(m), g, FORMATS[kind], FORMATS[change]) for m, g in gains.items() if g.own]
    note = (
        "The first figure is the one in the results, and the vertical stroke on the left: over the test rows of all "
        "clients, mean over seeds. One dot per client and seed; the stroke on the right is the mean over "
        "clients. Clients that gain are a mean over seeds. The last column is the mean of clients that never took part."
    )
    return [table(head, rows, note), figures(dots, "two")]


def _gains(rows: Mapping[Key, Row], name: str, base: Mapping[Key, float], sign: float) -> Gains:
    values = {key: row[name] for key, row in rows.items() if name in row}
    reference = base or {key: row[f"server_{name}"] for key, row in rows.items() if f"server_{name}" in row}
    gain = {key: sign * (value - reference[key]) for key, value in values.items() if key in reference}
    sizes = {key: rows[key].get("test_rows", 1.0) for key in values}
    return Gains(values, sizes, gain, frozenset(key for key in values if rows[key].get("took_part", 1) == 0))


def _row(method: Cell, g: Gains, form: Format, change: Format) -> list[str | Cell]:
    gained = [change(float(np.median(list(g.gain.values())))), g.gaining] if g.gain else [DASH, DASH]
    new = [g.own[key] for key in g.new]
    return [method, form(g.mean), *gained, form(float(np.mean(new))) if new else DASH]
