"""A table of clients that are the same in every run, such as hospitals: rows and the figure of each method."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from ...storage.history import Row
from ...storage.result import Result
from ..document import Cell, fitted
from ..figures import Markup
from ..numbers import last_clients, usable
from ..text import kind_of
from ..units import DASH, FORMATS
from .comparison import Comparison

MOST = 60
"""With more clients than this there is no table."""


def sites(c: Comparison) -> list[Markup]:
    """The table; none if clients are drawn again for every seed, lack their own test rows, or are too many."""
    runs = [r for r in c.results if usable(r) and r.clients]
    if not runs or not all(same_clients(r) for r in runs):
        return []
    last = {id(r): {int(row["client"]): row for row in last_clients(r)} for r in runs}
    ids = sorted(set().union(*last.values()))
    by_client = itertools.chain.from_iterable(clients.values() for clients in last.values())
    columns = set().union(*by_client)
    figure = next((name for name in (c.metric, "accuracy", "test_loss") if name in columns), None)
    if figure is None or len(ids) > MOST:
        return []
    names = runs[0].client_names
    groups = {m: [last[id(r)] for r in of if id(r) in last] for m, of in c.groups.items()}
    groups = {m: of for m, of in groups.items() if of}
    form = FORMATS[kind_of(figure)]
    rows: list[list[str | Cell]] = []
    for i in ids:
        first = next(of[i] for of in last.values() if i in of)
        name = names[i] if i < len(names) else f"client {i}"
        cells = [_mean(of, i, figure) for of in groups.values()]
        sizes = [f"{first[k]:,.0f}" if k in first else DASH for k in ("rows", "test_rows")]
        rows.append([name, *sizes, *(form(v) if math.isfinite(v) else DASH for v in cells)])
    label = "accuracy" if figure == "accuracy" else figure.replace("_", " ")
    note = f"Each method's {label} on the client's own test rows after the last round, mean over seeds."
    return fitted(["client", "rows", "test rows", *groups], rows, 3, note)


def same_clients(r: Result) -> bool:
    """Whether client i is the same with every seed."""
    return bool(r.client_names) or str(r.settings.get("partition", "")).endswith("clients' own data")


def _mean(seeds: Sequence[dict[int, Row]], i: int, figure: str) -> float:
    values = [rows[i][figure] for rows in seeds if i in rows and figure in rows[i]]
    return float(np.mean(values)) if values else math.nan
