"""The runs of a page, with the statistics that several sections use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...storage.result import Result
from ..document import Cell
from ..numbers import (
    MethodSummary,
    Paired,
    aggregate,
    base_of,
    by_method,
    final,
    in_use,
    paired,
    primary,
)
from ..table import told_apart
from ..targets import Goal


@dataclass(frozen=True)
class Comparison:
    """Runs of several methods and their statistics.

    Attributes:
        groups: Runs by method, in order of first appearance.
        base: The method from which differences are taken; empty without runs.
        metric: The metric that runs are compared by.
        summaries: One per method, in the order of ``groups``.
        pairs: Differences of ``metric`` from ``base``, by method.
        best: The method with the best mean, and methods that paired differences do not distinguish from it.
    """

    results: list[Result]
    groups: dict[str, list[Result]]
    base: str
    metric: str
    summaries: list[MethodSummary]
    pairs: dict[str, Paired]
    best: set[str]
    goal: Goal | None = None

    @classmethod
    def of(cls, results: Sequence[Result], base: str | None, goal: Goal | None = None) -> Comparison:
        """Raises RecipeError for an unknown ``base``, or two runs of one method and seed."""
        results = list(results) if goal is None else goal.with_costs(results)
        groups = by_method(results)
        base = base_of(groups, base)
        metric = primary(results)
        pairs = {p.method: p for p in paired(results, base, metric)}
        return cls(list(results), groups, base, metric, aggregate(results), pairs, told_apart(results, metric), goal)

    @property
    def personal(self) -> bool:
        """Whether a method leaves its clients with their own models."""
        return any("server_loss" in row for r in self.results for row in r.clients)

    @property
    def coinciding(self) -> list[list[str]]:
        """Groups of methods whose runs have the same figures in every round of every seed."""
        groups: dict[object, list[str]] = {}
        for method, runs in self.groups.items():
            figures = [(r.seed, tuple(_figures(r, self.metric))) for r in sorted(runs, key=lambda r: r.seed)]
            groups.setdefault(tuple(figures), []).append(method)
        return [methods for methods in groups.values() if len(methods) > 1]

    @property
    def coincidence(self) -> str:
        """A sentence on the methods that coincide; empty if none do."""
        return " ".join(
            f"{listed(methods)} coincide: every round of every seed has the same figures."
            for methods in self.coinciding
        )

    @property
    def slots(self) -> dict[str, int]:
        """The number of each method, which fixes its colour and its marker."""
        return {m: k for k, m in enumerate(self.groups)}

    def name(self, method: str) -> Cell:
        """A cell with the method's key and name."""
        return Cell(method, slot=self.slots[method])


def _figures(r: Result, metric: str) -> list[tuple[float | None, ...]]:
    """The loss and the compared figure, row by row, and at the end."""
    names = ("loss", in_use(r, metric))
    return [*(tuple(row.get(m) for m in names) for row in r.history), (final(r, metric),)]


def listed(names: Sequence[str]) -> str:
    """Names as text: "A, B and C"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
