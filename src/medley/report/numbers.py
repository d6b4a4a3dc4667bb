"""Statistics of final figures over seeds: means, their intervals, paired differences.

Intervals are 95 % Student t-intervals over seeds. A run that diverged or was interrupted is counted, listed and left
out of every mean. Each statistic holds its number of seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from ..contract.errors import RecipeError
from ..numerics.intervals import Z
from ..storage.directions import higher_is_better
from ..storage.history import Row
from ..storage.result import Result
from .targets import COLUMNS, cost_of_target
from .units import Real

EQUAL = 1e-9
"""Figures are equal if their spread is at most this share of their size."""

COSTS = ("exchanges", "bytes_down", "bytes_up", "seconds", "wall")
"""Cumulative columns: exchanges, bytes down and up, virtual seconds and wall seconds since the start of the run."""

_LEDGER = {"exchanges": "exchanges", "bytes_down": "down", "bytes_up": "up"}


@dataclass(frozen=True)
class Stat:
    """A mean over seeds with its 95 % t-interval.

    Attributes:
        mean: Nan for no seed.
        sd: Standard deviation (n - 1); nan for fewer than two seeds.
        half: Half-width of the interval, t(0.975; n - 1) sd / √n; nan for fewer than two seeds. If all seeds have the
            same figure it is 0, and says nothing: see `equal`.
        values: The seeds' figures, in their order.
    """

    mean: Real
    sd: Real
    half: Real
    n: int
    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Iterable[Real]) -> Stat:
        """The statistic of the finite numbers among ``values``, one per seed."""
        v = np.array([x for x in values if math.isfinite(x)], dtype=np.float64)
        n = len(v)
        if n == 0:
            return cls(math.nan, math.nan, math.nan, 0)
        sd = float(v.std(ddof=1)) if n > 1 else math.nan
        return cls(float(v.mean()), sd, t95(n) * sd / math.sqrt(n), n, tuple(v.tolist()))

    @property
    def equal(self) -> bool:
        """Whether several seeds have the same figure, up to rounding: an interval cannot be estimated from them."""
        return self.n > 1 and self.sd <= EQUAL * max(map(abs, self.values), default=0.0)

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half


@dataclass(frozen=True)
class MethodSummary:
    """One method over its seeds.

    Attributes:
        seeds: All seeds that were run.
        used: The seeds that ran to their end.
        metrics: Final figures by name, over the seeds in ``used``.
        status: One sentence on how the runs ended.
    """

    method: str
    seeds: tuple[int, ...]
    used: tuple[int, ...]
    metrics: Mapping[str, Stat]
    status: str

    @property
    def n(self) -> int:
        """Number of seeds that were run."""
        return len(self.seeds)

    def __getitem__(self, metric: str) -> Stat:
        """A final figure; a Stat over no seeds if there is none."""
        return self.metrics.get(metric, Stat.of(()))


@dataclass(frozen=True)
class Paired:
    """Differences of two methods, seed by seed.

    Attributes:
        diff: ``method`` minus ``base``, over the seeds that both finished.
        wins: Number of these seeds on which ``method`` was better.
        rows: Number of test rows behind an accuracy; 0 if it is not known, and for other figures.
    """

    method: str
    base: str
    metric: str
    diff: Stat
    wins: int
    rows: int = 0

    @property
    def n(self) -> int:
        """Number of seeds that both finished."""
        return self.diff.n

    @property
    def least(self) -> float:
        """The least half-width of a difference d over s seeds that share n test rows, since other test rows would give
        another d; 0 if n is not known.

        Two methods that differ by d differ on a share of at least |d| of the rows. So the variance of d is at least
        |d|(1 − |d|) / (n s): McNemar's, if the better method is right on each of these rows.
        """
        d = min(abs(self.diff.mean), 1.0)
        return Z * math.sqrt(d * (1 - d) / (self.rows * self.n)) if self.rows and self.n else 0.0

    @property
    def half(self) -> float:
        """Half-width of the 95 % interval, at least `least`; nan if it cannot be estimated, see `Stat.equal`."""
        return math.nan if self.diff.equal or self.n < 2 else max(self.diff.half, self.least)

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero; False if there is none."""
        return abs(self.diff.mean) > self.half


def usable(result: Result) -> bool:
    """Whether a run's final figures enter means: it neither diverged nor was interrupted, and it has a row."""
    return result.status.outcome not in ("diverged", "interrupted") and bool(result.history)


def by_method(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Runs by method, in order of first appearance.

    Raises RecipeError if two runs have the same method and seed, because then they cannot be told apart.
    """
    groups: dict[str, list[Result]] = {}
    methods = set()
    for r in results:
        if (r.method, r.seed) in methods:
            raise RecipeError(
                f"two results are both {r.method!r} with seed {r.seed}: give them different names "
                "(Result.method), or report them separately",
                "method",
            )
        methods.add((r.method, r.seed))
        groups.setdefault(r.method, []).append(r)
    return groups


_IN_USE = {
    "personal_loss": "loss",
    "personal_test_loss": "test_loss",
    "personal_accuracy": "accuracy",
    "personal_accuracy_mean": "client_accuracy_mean",
    "personal_accuracy_worst": "client_accuracy_worst",
}
"""Figures of the models that clients use, and what they are called if all use the server's model."""


def in_use(result: Result, metric: str) -> str:
    """The column for a figure of clients' models; if all clients use the server's model, the server model's column."""
    has_server_rows = any("server_loss" in row for row in result.clients)
    return metric if has_server_rows else _IN_USE.get(metric, metric)


def final(result: Result, metric: str) -> float:
    """A run's final figure, from the evaluation of its model, by default the last; nan if it has none.

    Costs come from the ledger, which knows every delivery. Any other figure comes from that evaluation's row, or if the
    row lacks it, from ``summary[metric]``.
    """
    if metric in _LEDGER and len(result.ledger):
        return float(getattr(result.ledger, _LEDGER[metric]))
    if metric == "rounds":
        return float(last_round(result))
    sources: list[Mapping[str, Any]] = [result.evaluation, result.summary]
    metric = in_use(result, metric)
    return next((float(s[metric]) for s in sources if _is_number(s.get(metric))), math.nan)


def last_clients(result: Result) -> list[Row]:
    """The rows of a run's clients after the last round in which they were measured."""
    end = max((row["round"] for row in result.clients), default=0)
    return [row for row in result.clients if row["round"] == end]


def last_round(result: Result) -> int:
    """The last round with an evaluation or a delivery; 0 without either."""
    rounds = [int(row["round"]) for row in result.history[-1:] if "round" in row]
    last = result.ledger.since(max(0, len(result.ledger) - 1))
    return max(rounds + [e.round for e in last], default=0)


def directions(results: Sequence[Result]) -> dict[str, str]:
    """Directions of the user's metrics, "higher" or "lower", by name."""
    out: dict[str, str] = {}
    for r in results:
        metrics = r.settings.get("metrics")
        out |= metrics if isinstance(metrics, Mapping) else {}
    return out


def is_share(metric: str) -> bool:
    """Whether a metric lies in [0, 1] and is shown in per cent."""
    return "accuracy" in metric or metric in ("acc", "learn", "fgt", "attack_success")


def reached_by_most(summary: MethodSummary, metric: str) -> float:
    """The share of a method's seeds that reached the target, if runs are compared by its costs; else 1."""
    return summary[metric].n / max(summary.n, 1) if metric in COLUMNS else 1.0


def metrics_of(results: Sequence[Result]) -> list[str]:
    """Names of all numbers in the runs' last rows, summaries and ledgers, costs included; "rounds" comes first."""
    names: dict[str, None] = {}
    for r in results:
        for row in r.history[-1:]:
            names.update(dict.fromkeys(k for k, v in row.items() if _is_number(v)))
        names.update(dict.fromkeys(k for k, v in r.summary.items() if _is_number(v) and not k.startswith("tail_")))
        names.update(dict.fromkeys(_LEDGER if len(r.ledger) else ()))
    names.pop("round", None)
    return ["rounds", *names]


def primary(results: Sequence[Result]) -> str:
    """The metric that runs are compared by.

    It is the cost of reaching a target, see `targets.cost_of_target`, if any run has one. Otherwise it is the first
    that exists of acc (streams), personal_accuracy and personal_test_loss (clients with their own models), gap (if the
    optimal loss is known), accuracy, test_loss and loss.
    """
    available = set(metrics_of(results))
    cost = cost_of_target(available, any(final(r, "seconds_to_target") > 0 for r in results))
    if cost:
        return cost
    order = ("acc", "personal_accuracy", "personal_test_loss", "gap", "accuracy", "test_loss")
    return next((m for m in order if m in available), "loss")


def aggregate(results: Sequence[Result]) -> list[MethodSummary]:
    """Each method's final figures over its seeds, in order of first appearance.

    Raises RecipeError if two runs have the same method and seed.
    """
    names = metrics_of(results)
    out = []
    for method, runs in by_method(results).items():
        ran = [r for r in runs if usable(r)]
        seeds = tuple(r.seed for r in runs)
        used = tuple(r.seed for r in ran)
        stats = {m: Stat.of(final(r, m) for r in ran) for m in names}
        out.append(MethodSummary(method, seeds, used, stats, status_of(runs)))
    return out


def status_of(runs: Sequence[Result]) -> str:
    """How one method's runs ended: "finished on 5 seeds", or e.g. "diverged after round 37 on 1 of 5 seeds".

    The round is the last one on record; the round in which a run diverged left no row.
    """
    ends: dict[str, list[Result]] = {}
    for r in runs:
        ends.setdefault(r.status.outcome, []).append(r)
    if list(ends) == ["finished"]:
        return "finished" if len(runs) == 1 else f"finished on {len(runs)} seeds"
    parts = []
    for outcome, some in ends.items():
        if outcome == "finished":
            continue
        text = "reached its target" if outcome == "target" else outcome
        if outcome != "target":
            rounds = [last_round(r) for r in some]
            first = min(rounds)
            last = max(rounds)
            text += f" after round {first}" if first == last else f" after rounds {first} to {last}"
        parts.append(text if len(runs) == 1 else f"{text} on {len(some)} of {len(runs)} seeds")
    return "; ".join(parts)


def paired(results: Sequence[Result], base: str | None = None, metric: str | None = None) -> list[Paired]:
    """Differences between every other method and a base, seed by seed; whatever a seed does to all methods cancels.

    Args:
        results: Runs, at most one per method and seed.
        base: The method with which the others are compared; default the first.
        metric: The figure compared; default `primary`.

    Raises RecipeError if there is no method ``base``, or two runs have the same method and seed.
    """
    groups = by_method(results)
    base = base_of(groups, base)
    metric = metric or primary(results)
    ends = {m: {r.seed: final(r, metric) for r in runs if usable(r)} for m, runs in groups.items()}
    sign = 1.0 if higher_is_better(metric, directions(results)) else -1.0
    out = []
    for method in groups:
        if method == base:
            continue
        d = [ends[method][s] - ends[base][s] for s in sorted(ends[method].keys() & ends[base].keys())]
        rows = test_rows([*groups[method], *groups[base]], metric)
        out.append(Paired(method, base, metric, Stat.of(d), sum(sign * x > 0 for x in d), rows))
    return out


def test_rows(results: Iterable[Result], metric: str) -> int:
    """The number of test rows behind an accuracy of these runs; 0 if they differ, and for other figures."""
    counts = {r.settings.get("test_rows", 0) for r in results if r.settings.get("evaluate_on", "test") == "test"}
    return int(counts.pop()) if metric in ("accuracy", "personal_accuracy") and len(counts) == 1 else 0


def base_of(groups: Iterable[str], base: str | None) -> str:
    """``base``, or the first of ``groups`` if it is None. Raises RecipeError for an unknown method."""
    names = list(groups)
    if base is None or not names:
        return names[0] if names else ""
    if base not in names:
        raise RecipeError.unknown(base, names, "this comparison")
    return base


def t95(n: int) -> float:
    """The 97.5 % quantile of Student's t with n - 1 degrees of freedom; nan for n below 2."""
    return float(scipy.stats.t.ppf(0.975, n - 1)) if n > 1 else math.nan


def _is_number(v: object) -> bool:
    return isinstance(v, int | float | np.number) and not isinstance(v, bool)
