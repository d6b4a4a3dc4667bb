"""Every run, seed by seed, and the settings."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...storage.as_json import plain, shown_seed
from ...storage.result import Result
from ..document import Cell, details, fitted, table, text
from ..figures import Markup
from ..numbers import final, last_round
from ..table import headline, named
from ..text import kind_of
from ..units import DASH, FORMATS, column, count, plural
from .compared import in_rates
from .comparison import Comparison

MANY = 5
"""With more methods than this, settings have no columns: each method has a row."""

_COSTS = ("rounds", "exchanges", "up", "down", "virtual time", "wall")

_LONG = ("scaling.mean", "scaling.deviation")
"""Settings meant for programs: a number for each feature."""


def runs(c: Comparison) -> list[Markup]:
    """One row per run, folded up; runs that did not end well are shown above."""
    names = headline(c.results)
    head = ["method", "seed", *(named(m, c.results) for m in names), *_COSTS, "ended"]
    ordered = [*itertools.chain.from_iterable(c.groups.values())]
    spent = zip(
        column("bytes", [final(r, "bytes_up") for r in ordered]),
        column("bytes", [final(r, "bytes_down") for r in ordered]),
        column("seconds", [final(r, "seconds") or math.nan for r in ordered]),
        column("seconds", [final(r, "wall") for r in ordered]),
        strict=True,
    )
    rows = [_row(c, r, names, costs) for r, costs in zip(ordered, spent, strict=True)]
    bad = [row for row, r in zip(rows, ordered, strict=True) if not r.status.ok]
    cut = len(head) if bad else len(head) - 1
    every = fitted(head[:cut], [row[:cut] for row in rows], 2)
    title = f"{plural(len(rows), 'run')}, seed by seed"
    folded = [details(title if k == 0 else f"{title}, further columns", t) for k, t in enumerate(every)]
    if not bad:
        return [text("Every run ended as planned.", "note"), *folded]
    title = f"{len(bad)} of {plural(len(rows), 'run')} ended early; figures are from the last evaluation before that."
    return [*fitted(head, bad, 2, title), *folded]


def _row(c: Comparison, r: Result, names: list[str], costs: Sequence[str]) -> list[str | Cell]:
    ends = {m: final(r, m) for m in names}
    after = f": {r.status.message}" if r.status.message else ""
    return [
        c.name(r.method),
        shown_seed(r.seed, r.settings),
        *(FORMATS[kind_of(m)](v) for m, v in ends.items()),
        count(last_round(r)),
        count(final(r, "exchanges")),
        *costs,
        Cell(r.status.outcome, mood="ok" if r.status.ok else "bad", after=after),
    ]


def settings(c: Comparison, settings_of_run: Mapping[str, Any] | None) -> list[Markup]:
    """Settings that differ between methods, and settings that all share; ``settings_of_run`` has further ones."""
    flat = {
        # A level named after its method would keep the same setting of two methods apart.
        m: [
            {
                k.replace(f".{m}.", "."): v
                for k, v in flattened(in_rates(r.settings)).items()
                if k not in _LONG and not (k == "seed" and shown_seed(r.seed, r.settings) != str(r.seed))
            }
            for r in group
        ]
        for m, group in c.groups.items()
    }
    common = flattened(dict(settings_of_run or {}))
    differing = {}
    tables = itertools.chain.from_iterable(flat.values())
    for key in dict.fromkeys(itertools.chain.from_iterable(tables)):
        cells = [", ".join(dict.fromkeys(f.get(key, DASH) for f in some)) for some in flat.values()]
        if len(set(cells)) == 1:
            common[key] = cells[0]
        else:
            differing[key] = cells
    out: list[Markup] = []
    if differing:
        rows = table(["setting", *c.groups], [[k, *v] for k, v in differing.items()], style="settings")
        if len(c.groups) > MANY:
            lists = [
                "; ".join(f"{k} = {v[at]}" for k, v in differing.items() if v[at] != DASH) for at in c.slots.values()
            ]
            rows = table(
                ["method", "settings"], [list(row) for row in zip(c.groups, lists, strict=True)], style="settings"
            )
        out.append(details(f"{plural(len(differing), 'setting')} that differ between methods", rows))
    if common:
        rows = table(["setting", "value"], [[k, v] for k, v in common.items()], style="settings")
        out.append(details(f"{plural(len(common), 'setting')} that all share", rows))
    return out


def flattened(settings: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings as text by dotted key: {"a": {"b": 1}} is {"a.b": "1"}."""
    return _flatten(json.loads(json.dumps(settings, default=plain)), "")


def _flatten(value: Any, at: str) -> dict[str, str]:
    if isinstance(value, dict) and value:
        out: dict[str, str] = {}
        for k, v in value.items():
            out |= _flatten(v, f"{at}.{k}" if at else str(k))
        return out
    if not at:
        return {}
    return {at: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
