"""Who waited for whom in a deployed run: a row for each client over time, drawn from the run's events."""

from __future__ import annotations

import math
from bisect import bisect_right
from pathlib import Path
from typing import Any

from ..contract.errors import WireError
from ..contract.place import name_of, naming
from ..storage import events, run_view
from .figures.axes import Axis, frame
from .figures.palette import colour
from .figures.svg import CHAR, Box, Markup, figure, rule, short, text

ROW = 26  # px
WIDTH = 860  # px

KINDS = (("a method's request, until its answer is here", 0, 1.0), ("an evaluation", 1, 1.0), ("waits", 6, 0.12))
"""Words of the legend, slot of the colour, and opacity."""

Visit = tuple[float, float, bool, bool]
"""When a client was asked, when its answer came or the picture ends, whether to evaluate, and whether it came late."""


def timeline(folder: Path, seconds: float | None = None, start: float = 0.0) -> Markup:
    """The picture of a deployed run, an SVG figure.

    A bar reaches from the request to the answer's arrival, with the messages' way there and back. It ends with the word
    "late" if an exchange ended meanwhile.

    Args:
        folder: the run's
        seconds: how many to draw; default all
        start: the first second, from the run's first request

    Raises WireError if the folder has no times, because its run was in one process.
    """
    happened = events.read(folder)
    visits, zero, last = _visits(happened)
    if not visits:
        raise WireError(f"{folder} has no times of requests and answers: only runs on nodes record them")
    high = min(last, start + (seconds or last))
    names = {c.client: c.name for c in run_view.view(folder).clients if c.name}
    with naming(names):
        rows = {i: name_of(i) for i in sorted(visits)}
    left = 20 + CHAR * max(len(short(r)) for r in rows.values())
    box = Box(left, 30, WIDTH - 92, 36 + ROW * len(rows))
    X = Axis(start, high, box.left, box.right, "number")
    ends = [e["at"] - zero for e in happened if e["event"] == "round"]
    body = [frame(X, None, box, "seconds", ""), _legend(box.left)]
    body += [rule(float(X(t)), box.top, float(X(t)), box.bottom, 0.8) for t in ends if start <= t <= high]
    told = []
    for k, (i, name) in enumerate(rows.items()):
        shown = [(max(a, start), min(b, high), e, late) for a, b, e, late in visits[i] if b > start and a < high]
        busy = sum(b - a for a, b, *_ in shown) / (high - start)
        told.append(f"{name} {busy:.0%} at work")
        y = box.top + 4 + ROW * k
        body.append(text(8, y + 14, short(name)) + text(box.right + 8, y + 14, f"{busy:.0%} at work"))
        body.append(_bar(box.left, box.right, y + 7, 4, 6, 0.12))
        body += [_bar(float(X(a)), float(X(b)), y, 18, int(e), 1.0, late) for a, b, e, late in shown]
    title = f"Who waited for whom, {high - start:.0f} seconds"
    return figure(WIDTH, box.bottom + 38, title, "; ".join(told) + ". A vertical line ends a round.", "".join(body))


def _visits(happened: list[dict[str, Any]]) -> tuple[dict[int, list[Visit]], float, float]:
    """The visits of each client in seconds since the first request, that time, and the seconds to the last event."""
    found = [e for e in happened if e["event"] == "visits"]
    if not found:
        return {}, 0.0, 0.0
    zero = min(at for e in found for at, _ in e["visits"].values())
    last = max(e["at"] for e in happened) - zero
    ends = [*sorted(e["at"] - zero for e in happened if e["event"] == "exchange"), math.inf]
    out = dict[int, dict[float, Visit]]()
    for e in found:
        for i, (at, came) in e["visits"].items():
            until = math.inf if came is None else came - zero
            late = came is not None and ends[bisect_right(ends, at - zero)] < until - 0.2
            out.setdefault(int(i), {})[at] = at - zero, until, e["kind"] == "evaluate", late
    return {i: _closed(sorted(by_time.values()), last) for i, by_time in out.items()}, zero, last


def _closed(visits: list[Visit], last: float) -> list[Visit]:
    """A client's visits in order, of which one without an answer ends with the next request, or with the picture."""
    nexts = [*(at for at, *_ in visits[1:]), last]
    pairs = zip(visits, nexts, strict=True)
    return [(at, end if until == math.inf else until, e, late) for (at, until, e, late), end in pairs]


def _bar(a: float, b: float, y: float, height: float, slot: int, opacity: float, late: bool = False) -> str:
    """A bar from a to b in px; one of a late answer says so."""
    width = max(b - a - 0.6, 0.8)
    paint = f"fill:{colour(slot)};fill-opacity:{opacity:g}"
    bar = f'<rect x="{a:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="1.5" style="{paint}"/>'
    word = f'<text x="{b - 5:.1f}" y="{y + 13:.1f}" text-anchor="end" font-size="10" fill="#fff">late</text>'
    return bar + word * (late and width > 34)


def _legend(x: float) -> str:
    parts = []
    for words, slot, opacity in KINDS:
        height = 12 if opacity == 1.0 else 4
        parts.append(_bar(x, x + 18, 12 - height / 2, height, slot, opacity) + text(x + 24, 16, words))
        x += 44 + CHAR * len(words) * 0.93
    return "".join(parts) + rule(x, 6, x, 18, 0.8) + text(x + 6, 16, "a round ends")
