"""Costs: rounds, exchanges, bytes and time, in all and up to a target."""

from __future__ import annotations

import math

from ..document import Cell, heading, table
from ..figures import Markup
from ..numbers import aggregate, directions
from ..table import NAMES, costs, goal_text, streamed
from ..targets import COLUMNS, Goal
from ..text import worths
from ..units import column, count
from .comparison import Comparison


def cost(c: Comparison) -> list[Markup]:
    """Costs of whole runs, and of reaching the base's final mean if there is no other target."""
    head = ["method", "rounds", "exchanges", "up", "down", "a round", "virtual time", "wall"]
    rows: list[list[str | Cell]] = []
    sent = [(s["bytes_up"].mean + s["bytes_down"].mean) / (s["rounds"].mean or math.nan) for s in c.summaries]
    for s, each, (up, down, *times) in zip(c.summaries, column("bytes", sent), costs(c.summaries), strict=True):
        rows.append([c.name(s.method), count(s["rounds"].mean), count(s["exchanges"].mean), up, down, each, *times])
    note = "Means over the seeds that ran to their end. Bytes are payloads; evaluation is left out."
    parts: list[Markup] = [table(head, rows, note)]
    goal = None if c.goal is not None else _goal(c)
    return parts if goal is None else [*parts, *_reached(c, goal, f", where {c.base} ended on average")]


def _goal(c: Comparison) -> Goal | None:
    """The base's final mean; None if it cannot serve as a target."""
    # In a stream, another task's row may reach it earlier.
    if len(c.groups) < 2 or streamed(c.results):
        return None
    goal = next(s[c.metric] for s in c.summaries if s.method == c.base)
    if not goal.n or not any(c.metric in row for r in c.results for row in r.history):
        return None
    return Goal({c.metric: goal.mean}, metrics=directions(c.results))


def _reached(c: Comparison, goal: Goal, where: str) -> list[Markup]:
    names = [m for m in COLUMNS if m != "seconds_to_target" or any(s["seconds"].mean > 0 for s in c.summaries)]
    head = ["method", "reached on", *(NAMES[m].removesuffix(" to target") for m in names)]
    rows: list[list[str | Cell]] = []
    sums = aggregate(goal.with_costs(c.results))
    columns = [worths([s[m] for s in sums], m) for m in names]
    for s, *cells in zip(sums, *columns, strict=True):
        rows.append([c.name(s.method), f"{s['rounds_to_target'].n} of {s.n} seeds", *cells])
    note = "Means over the seeds that reached it; compare them only between methods with equally many such seeds."
    return [heading(f"What it took to reach {goal_text(goal)}{where}"), table(head, rows, note)]
