"""The first lines of a page, and its table of results."""

from __future__ import annotations

import math

from ...storage.directions import higher_is_better
from ..document import Cell, fitted, text
from ..figures import Markup, interval
from ..numbers import MethodSummary, Paired, Stat, directions, is_share, paired, reached_by_most, status_of
from ..table import caption, costs, goal_text, headline, named
from ..targets import COLUMNS
from ..text import beyond, difference, impossible, unsure, worth, worths
from ..units import DASH, column
from .comparison import Comparison, listed


def lede(c: Comparison) -> list[Markup]:
    """Whether a method stands out, the best one, its difference from the base, and runs that did not end well."""
    sentences = _best(c)
    if c.coincidence:
        sentences.append(c.coincidence)
    for method, runs in c.groups.items():
        if not all(r.status.ok for r in runs):
            sentences.append(f"{method}: {status_of(runs)}.")
    for method, runs in c.groups.items():
        waits = next((r.settings["waits as"] for r in runs if "waits as" in r.settings), None)
        if waits:
            sentences.append(f"{method} waited for every reply, which makes it {waits}: give it a ReplyPolicy.")
    return [text(" ".join(sentences), "lede")]


def _best(c: Comparison) -> list[str]:
    if c.goal is not None and c.metric not in COLUMNS:
        return [f"No run reached {goal_text(c.goal)}."]
    ran = [s for s in c.summaries if s[c.metric].n]
    if not ran:
        return ["No run finished."]
    sign = 1 if higher_is_better(c.metric, directions(c.results)) else -1
    best = max(ran, key=lambda s: (reached_by_most(s, c.metric), sign * s[c.metric].mean))
    figure = _soonest(c, best) if c.goal is not None else _highest(c, best, "highest" if sign > 0 else "lowest")
    twins = next((of for of in c.coinciding if best.method in of), [])
    rivals = [m for m in c.groups if m in c.best - {best.method, *twins}]
    first = [best.method, *(t for t in twins if t != best.method)]
    unpaired = [m for m in _unpaired(c, best) if m not in first]
    sentences = [*_at_a_glance(c, best, first, rivals, unpaired), figure]
    pair = c.pairs.get(best.method)
    if all(s[c.metric].sd == 0 for s in ran):
        sentences.append("All seeds have the same figures.")
    elif pair and pair.n and best.method not in twins[1:]:
        sentences.append(_against(pair))
    if c.goal is not None:
        sentences += _cheapest(c, best)
    return sentences


def _unpaired(c: Comparison, best: MethodSummary) -> list[str]:
    """Methods that reach a target as well as the best one, but share fewer than two seeds with it."""
    pairs = {p.method: p.n for p in paired(c.results, best.method, c.metric)}
    share = reached_by_most(best, c.metric)
    measured = [s for s in c.summaries if s[c.metric].n and reached_by_most(s, c.metric) == share]
    return [s.method for s in measured if pairs.get(s.method, 2) < 2]


def _at_a_glance(
    c: Comparison, best: MethodSummary, first: list[str], rivals: list[str], unpaired: list[str]
) -> list[str]:
    """The first sentence: a method that stands out, none, or too few seeds to decide; nothing for a single method.

    Args:
        first: The best method, and the methods that coincide with it.
        rivals: Methods that paired differences do not distinguish from it.
        unpaired: Methods that share fewer than two seeds with it.
    """
    if len(first) == len(c.groups):
        return []
    if best[c.metric].n < 2:
        return ["One seed cannot tell luck from merit."]
    if unpaired:
        verb = "shares" if len(first) == 1 else "share"
        return [f"No method stands out: {listed(first)} {verb} fewer than two seeds with {listed(unpaired)}."]
    if not rivals:
        return [f"{listed(first)} {'stands' if len(first) == 1 else 'stand'} out."]
    if len(first) + len(rivals) == len(c.groups):
        if any(map(unsure, paired(c.results, best.method, c.metric))):
            return ["These seeds do not tell the methods apart: a difference that all of them have has no interval."]
        return ["No method stands out: the differences by seed are within their 95 % intervals."]
    few = rivals if len(rivals) <= 4 else [f"{len(rivals)} of the other {len(c.groups) - len(first)}"]
    verb = "leads" if len(first) == 1 else "lead"
    return [f"{listed(first)} {verb}, though these seeds do not tell it from {listed(few)}."]


def _highest(c: Comparison, best: MethodSummary, which: str) -> str:
    name = named(c.metric, c.results)
    on = "" if len(best.used) == best.n else f", over the {len(best.used)} of {best.n} seeds that it finished"
    words = f"has the {which} mean {name}:" if len(c.summaries) > 1 else f"ends at {name}"
    return f"{best.method} {words} {_worth(c, best, c.metric)}{on}."


def _soonest(c: Comparison, best: MethodSummary) -> str:
    """The method that needed least to reach the target."""
    assert c.goal is not None
    first = "soonest" if c.metric == "seconds_to_target" else "in the fewest rounds"
    costs = [f"{_worth(c, best, m)} {_COSTS[m]}".rstrip() for m in headline(c.results)]
    where = "" if len(c.summaries) < 2 else f" {first}"
    seeds = f"{best[c.metric].n} of {best.n} seeds"
    return f"{best.method} reached {goal_text(c.goal)}{where}: {', '.join(costs)}, on {seeds}."


def _cheapest(c: Comparison, best: MethodSummary) -> list[str]:
    """The methods that needed least of another cost, one sentence per method."""
    costs_by_method: dict[str, list[tuple[str, str]]] = {}
    for m in headline(c.results)[1:]:
        share = reached_by_most(best, c.metric)
        least = min((s for s in c.summaries if reached_by_most(s, m) == share), key=lambda s: s[m].mean, default=best)
        if least.method != best.method and least[m].mean < best[m].mean:
            costs_by_method.setdefault(least.method, []).append((m.removesuffix("_to_target"), _worth(c, least, m)))
    return [
        f"{method} took the fewest {' and '.join(what for what, _ in costs)}: {', '.join(much for _, much in costs)}."
        for method, costs in costs_by_method.items()
    ]


def _worth(c: Comparison, s: MethodSummary, metric: str) -> str:
    """A figure in the format of its column."""
    return worth(s[metric], metric, beyond([other[metric] for other in c.summaries], metric))


def _against(p: Paired) -> str:
    if not any(p.diff.values):
        return f"On every seed {p.base} has the same figure."
    words = f"Seed by seed that is {difference(p)} against {p.base}, better on {p.wins} of {p.n}"
    if unsure(p):
        return f"{words}; all seeds have the same difference, so no interval can be estimated."
    if p.n > 1 and not p.clear:
        return f"{words}; the interval contains zero, so these seeds do not tell the two apart."
    return f"{words}."


_COSTS = {
    "rounds_to_target": "rounds",
    "exchanges_to_target": "exchanges",
    "bytes_to_target": "",
    "seconds_to_target": "of virtual time",
}


def results(c: Comparison) -> list[Markup]:
    """Final figures, differences from the base, costs and status, one row per method."""
    names = headline(c.results)
    low, high = _span(c)
    target = c.metric in COLUMNS
    all_finished = all(r.status.ok for r in c.results)
    lucky = any(s[c.metric].sd > 0 for s in c.summaries)
    head = ["method", *(named(m, c.results) for m in names)]
    if c.pairs:
        head[2:2] = [f"against {c.base}", "", *(["better on"] if lucky else [])]
    columns = [worths([s[m] for s in c.summaries], m) for m in names]
    rows: list[list[str | Cell]] = []
    for s, *cells in zip(c.summaries, *columns, strict=True):
        first, *others = cells
        row: list[str | Cell] = [c.name(s.method), Cell(first, strong=s.method in c.best), *others]
        if c.pairs:
            row[2:2] = _difference(c.pairs.get(s.method), low, high, c.slots[s.method])[: 3 if lucky else 2]
        if target:
            row.insert(1, f"{s[c.metric].n} of {s.n}")
        rows.append(row)
    if target:
        head.insert(1, "reached on")
    note = caption(c.results)
    guess = _guess(c)
    if guess:
        note += f" {guess}"
    if c.best:
        note += f" Bold: the best mean {named(names[0], c.results)}, and what paired differences cannot tell from it."
    keep = min(len(head), 2 + target + (2 + lucky if c.pairs else 0))
    ends = [[] if all_finished else [_ended(s)] for s in c.summaries]
    ended = [] if all_finished else ["ended"]
    both = [s["bytes_up"].mean + s["bytes_down"].mean for s in c.summaries]
    wide = [
        [*row, sent, spent[2], *end]
        for row, sent, spent, end in zip(rows, column("bytes", both), costs(c.summaries), ends, strict=True)
    ]
    # Costs have their own table: they are shown here too if there is room.
    tables = [] if target else fitted([*head, "bytes sent", "virtual time", *ended], wide, keep, note)
    if len(tables) == 1:
        return tables
    return fitted([*head, *ended], [[*row, *end] for row, end in zip(rows, ends, strict=True)], keep, note)


def _guess(c: Comparison) -> str:
    """The accuracy of answering every test row with the commonest label, if all runs have the same rows."""
    majorities = {tuple(r.settings.get("test_majority", ())) for r in c.results}
    is_shown = any("accuracy" in m for m in headline(c.results)) and len(majorities) == 1
    majority = majorities.pop() if is_shown else ()
    return (
        f"The commonest label, {majority[0]}, is right on {100 * majority[1]:.1f} % of the test rows."
        if majority
        else ""
    )


def _span(c: Comparison) -> tuple[float, float]:
    """The range of the pictures of differences, zero included."""
    diffs = [p.diff if not impossible(p) else Stat.of([p.diff.mean]) for p in c.pairs.values() if p.n]
    # An interval of two seeds may dwarf the differences themselves: the picture ends at four times the largest.
    far = 4 * max((abs(d.mean) for d in diffs), default=0.0) or 1.0
    ends = [0.0, *(v for d in diffs for v in (d.low, d.mean, d.high) if math.isfinite(v))]
    ends += [v for p in c.pairs.values() if p.half > p.diff.half for v in (p.diff.mean - p.half, p.diff.mean + p.half)]
    low = max(min(ends), -far)
    high = min(max(ends), far)
    room = 0.05 * (high - low) or 1.0
    return low - room, high + room


def _difference(p: Paired | None, low: float, high: float, slot: int) -> list[str | Cell]:
    """Three cells: the difference, its picture, the number of seeds on which the method was better."""
    if p is None:
        return ["base", "", ""]
    if not p.n:
        return [DASH, "", DASH]
    picture = interval(p.diff.mean, math.nan if impossible(p) else p.half, low, high, slot, is_share(p.metric))
    return [difference(p), picture, f"{p.wins} of {p.n}"]


def _ended(s: MethodSummary) -> Cell:
    complete = len(s.used) == s.n and "stalled" not in s.status
    return Cell(s.status, mood="ok" if complete else "bad")
