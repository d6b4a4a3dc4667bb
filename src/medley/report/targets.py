"""Costs of reaching a target: rounds, exchanges, bytes and virtual seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..storage.directions import COSTS, higher_is_better
from ..storage.result import Result
from .units import Real

COLUMNS = {
    "rounds_to_target": "round",
    "exchanges_to_target": "exchanges",
    "bytes_to_target": "bytes",
    "seconds_to_target": "seconds",
}
"""Final figures that say what a target cost, and their columns in a history; "bytes" is up and down together."""


@dataclass(frozen=True)
class Goal:
    """A target.

    Attributes:
        values: Values by metric; the first one reached counts.
        over: Number of last evaluations whose mean is compared with a value; default 1.
        metrics: Directions of a user's metrics; default none.
    """

    values: Mapping[str, Real]
    over: int = 1
    metrics: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, results: Sequence[Result], target: Mapping[str, Real] | Goal | None = None, over: int | None = None
    ) -> Goal | None:
        """The goal ``target``, by default the target that the runs' settings share; None without any."""
        if not results or isinstance(target, Goal):
            return target if isinstance(target, Goal) else None
        runs = [r.settings.get("run") for r in results]
        targets = [run if isinstance(run, Mapping) else {} for run in runs]
        if target is None and all(run.get("target") == targets[0].get("target") for run in targets):
            target = targets[0].get("target")
        figures = {name: value for name, value in (target or {}).items() if name not in COSTS}
        if not figures:
            return None
        return cls(figures, over or targets[0].get("target_over") or 1, results[0].settings.get("metrics") or {})

    def reached(self, result: Result) -> dict[str, Real] | None:
        """The first row of a run that reached it, with ``bytes`` (up and down) added; None if none did."""
        for k, row in enumerate(result.history):
            last = result.history[max(0, k + 1 - self.over) : k + 1]
            if len(last) == self.over and any(self._is_met(m, v, last) for m, v in self.values.items()):
                return {**row, "bytes": row.get("bytes_down", math.nan) + row.get("bytes_up", math.nan)}
        return None

    def _is_met(self, metric: str, value: Real, last: Sequence[Mapping[str, Real]]) -> bool:
        mean = sum(row.get(metric, math.nan) for row in last) / len(last)
        return mean >= value if higher_is_better(metric, self.metrics) else mean <= value

    def with_costs(self, results: Sequence[Result]) -> list[Result]:
        """The same runs. A run that reached it also has its costs among the final figures."""
        out = []
        for r in results:
            row = self.reached(r)
            costs = {} if row is None else {name: row[c] for name, c in COLUMNS.items() if c in row}
            out.append(replace(r, summary={**r.summary, **costs}))
        return out


def with_target(
    results: Sequence[Result], target: Mapping[str, Real] | None = None, over: int | None = None
) -> list[Result]:
    """Runs with the costs of reaching their target among their final figures; same arguments as `Goal.of`."""
    goal = Goal.of(results, target, over)
    return list(results) if goal is None else goal.with_costs(results)


def cost_of_target(metrics: set[str], seconds: bool) -> str | None:
    """The figure by which runs with a target are compared: virtual seconds if time passes, else rounds."""
    if "rounds_to_target" not in metrics:
        return None
    return "seconds_to_target" if seconds and "seconds_to_target" in metrics else "rounds_to_target"
