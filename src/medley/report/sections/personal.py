"""Each client's accuracy with the model that it uses, and its gain over the base method's or the server's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...storage.result import Row
from ..document import Cell, figure, figures, table
from ..figures import Dots, Markup, strip
from ..numbers import last_clients, usable
from .comparison import Comparison

Key = tuple[int, int]
"""(seed, client)."""

FIGURES = (("accuracy", "percent", 1.0), ("test_loss", "number", -1.0))
"""Figures of clients, the kind of their axis, and the sign with which more is better; the first there is counts."""


class Gains(NamedTuple):
    """Figures of one method's clients.

    Attributes:
        own: of the model that a client uses, by seed and client
        gain: the better it is than the reference's, where both are there
        new: clients that never took part
    """

    own: dict[Key, float]
    gain: dict[Key, float]
    new: frozenset[Key]


def personal(c: Comparison) -> list[Markup]:
    """A table and dot plots of the clients; none where no method leaves clients models of their own."""
    if not c.personal:
        return []
    tables = {
        m: {(r.seed, int(row["client"])): row for r in runs if usable(r) for row in last_clients(r)}
        for m, runs in c.groups.items()
    }
    for name, kind, sign in FIGURES:
        if any(name in row for rows in tables.values() for row in rows.values()):
            return _drawn(c, tables, name, kind, sign)
    return []


def _drawn(c: Comparison, tables: Mapping[str, Mapping[Key, Row]], name: str, kind: str, sign: float) -> list[Markup]:
    others = len(tables) > 1
    base = {key: row[name] for key, row in tables.get(c.base, {}).items() if name in row} if others else {}
    found = {m: _gains(rows, name, base, sign) for m, rows in tables.items()}
    over = f"over {c.base}" if base else "over the server's model"
    label = "accuracy" if name == "accuracy" else "test loss"
    own = [Dots(m, c.slots[m], list(g.own.values())) for m, g in found.items() if g.own]
    gaining = [m for m, g in found.items() if g.gain and not (base and m == c.base)]
    drawn = [Dots(m, c.slots[m], list(found[m].gain.values())) for m in gaining]
    titles = f"Clients' own test rows: {label} of the model in use", f"Gain {over} of each client"
    drawn_at = [
        figure(strip(own, title=titles[0], xlabel=label, x=kind), titles[0]),
        figure(strip(drawn, title=titles[1], xlabel=f"gain in {label}", x=kind), titles[1]),
    ]
    worst = "lowest" if sign > 0 else "highest"
    head = ["", label, f"{worst} tenth", f"mean gain {over}", "clients that gain", "new clients"]
    rows = [
        _row(c.name(m), g._replace(gain={} if base and m == c.base else g.gain), sign, kind)
        for m, g in found.items()
        if g.own
    ]
    note = (
        "One dot a client and seed; upright strokes are means, each client counting alike. The last column is the mean "
        "of clients that never took part."
    )
    return [table(head, rows, note), figures(drawn_at, "two")]


def _gains(rows: Mapping[Key, Row], name: str, base: Mapping[Key, float], sign: float) -> Gains:
    own = {key: row[name] for key, row in rows.items() if name in row}
    reference = base or {key: row[f"server_{name}"] for key, row in rows.items() if f"server_{name}" in row}
    gain = {key: sign * (value - reference[key]) for key, value in own.items() if key in reference}
    return Gains(own, gain, frozenset(key for key in own if rows[key].get("took_part", 1) == 0))


def _row(method: Cell, g: Gains, sign: float, kind: str) -> list[str | Cell]:
    shown, plus = ("{:.1%}", "{:+.1%}") if kind == "percent" else ("{:.4g}", "{:+.4g}")
    values = np.sort(sign * np.array(list(g.own.values()))) * sign
    gains = np.array(list(g.gain.values()))
    new = [g.own[key] for key in g.new]
    better = f"{int((gains > 0).sum())} of {len(gains)}" if len(gains) else "–"
    return [
        method,
        shown.format(values.mean()),
        shown.format(values[: max(1, round(len(values) / 10))].mean()),
        plus.format(gains.mean()) if len(gains) else "–",
        better,
        shown.format(np.mean(new)) if new else "–",
    ]
