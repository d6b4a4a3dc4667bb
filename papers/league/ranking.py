"""Statistics of the league: ranks, the tests of Friedman and Nemenyi, Holm's correction, wins, breadth of lr.

A method's figure on a federation is a merit, of which a larger one is better; a run that diverged has −inf.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

Merits = Mapping[str, Mapping[str, Sequence[float]]]
"""Merits by federation, method and seed."""


def score(merits: Sequence[float]) -> float:
    """The mean over seeds; −inf where a run diverged."""
    return float(np.mean(merits)) if all(map(math.isfinite, merits)) else -math.inf


def ranks(merits: Merits, methods: Sequence[str]) -> np.ndarray:
    """Ranks [federations, methods] by the mean over seeds, 1 for the best; equal ones share their mean rank.

    A method with a diverged seed is behind all without one, and before those with more of them.
    """
    out = []
    for by_method in merits.values():
        keys = []
        for name in methods:
            fine = [m for m in by_method[name] if math.isfinite(m)]
            keys.append((len(fine) - len(by_method[name]), float(np.mean(fine)) if fine else -math.inf))
        order = {key: k for k, key in enumerate(sorted(set(keys), reverse=True))}
        out.append(stats.rankdata([order[key] for key in keys]))
    return np.array(out)


def friedman(table: np.ndarray) -> tuple[float, float]:
    """Friedman's χ² and its p, of ranks [federations, methods]; nan where there are fewer than 3 methods."""
    if table.shape[1] < 3 or table.shape[0] < 2:
        return math.nan, math.nan
    test = stats.friedmanchisquare(*table.T)
    return float(test.statistic), float(test.pvalue)


def nemenyi(methods: int, federations: int, alpha: float = 0.05) -> float:
    """The critical difference of mean ranks, q_α √(k(k+1)/(6N)) (Demšar, JMLR 2006, section 3.2.2)."""
    q = float(stats.studentized_range.ppf(1 - alpha, methods, 1e6)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * federations))


def intervals(table: np.ndarray, draws: int = 4000) -> np.ndarray:
    """95 % intervals of mean ranks [methods, 2], by a bootstrap over federations."""
    g = np.random.default_rng(0)
    means = table[g.integers(0, len(table), (draws, len(table)))].mean(1)
    return np.percentile(means, [2.5, 97.5], axis=0).T


def cliques(mean_ranks: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """Groups of methods within the critical difference, as first and last position in the order of mean ranks."""
    order = sorted(mean_ranks)
    groups: list[tuple[int, int]] = []
    for i in range(len(order)):
        j = max(k for k in range(i, len(order)) if order[k] - order[i] <= difference)
        if j > i and (not groups or j > groups[-1][1]):
            groups.append((i, j))
    return groups


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: with p sorted ascending, max over j ≤ i of (m − j + 1) p_j, at most 1; nan of nan.

    A nan counts as no comparison: it changes no other.
    """
    order = sorted((i for i in range(len(p)) if not math.isnan(p[i])), key=lambda i: p[i])
    out = [math.nan] * len(p)
    worst = 0.0
    for rank, i in enumerate(order):
        worst = max(worst, (len(order) - rank) * p[i])
        out[i] = min(1.0, worst)
    return out


def paired(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """The mean of a − b over seeds and its two-sided p by Student's t.

    Where a seed is lost, p is that of Fisher's exact test of how many either side lost, and the difference ±inf: of
    five seeds, four lost on one side alone have p = .048, one has 1. Equal differences have the p of a sign test, 1/16
    for five seeds, or 1 if they are 0.
    """
    lost = [sum(not math.isfinite(v) for v in side) for side in (a, b)]
    if any(lost):
        exact = stats.fisher_exact([lost, [len(a) - lost[0], len(b) - lost[1]]])
        return math.inf * (lost[1] - lost[0]) if lost[0] != lost[1] else 0.0, float(exact.pvalue)
    d = np.subtract(a, b)
    if np.ptp(d) <= 1e-12 * max(1.0, float(np.abs(d).max())):
        return float(d.mean()), 1.0 if d.mean() == 0 else min(1.0, 2.0 ** (1 - len(d)))
    return float(d.mean()), float(stats.ttest_rel(a, b).pvalue)


@dataclass(frozen=True)
class Duel:
    """A method against its rival on one federation: the mean difference of merits, and Holm's p over federations."""

    federation: str
    rival: str
    difference: float
    p: float

    @property
    def outcome(self) -> str:
        """ "win" or "loss" where p is below 0.05, else "tie"."""
        return "tie" if not self.p < 0.05 else "win" if self.difference > 0 else "loss"


def duels(merits: Merits, method: str, rivals: Mapping[str, str]) -> list[Duel]:
    """The method against the rival of each federation; p-values are corrected over federations."""
    pairs = [(f, rival, *paired(merits[f][method], merits[f][rival])) for f, rival in rivals.items()]
    adjusted = holm([p for *_, p in pairs])
    return [Duel(f, rival, d, p) for (f, rival, d, _), p in zip(pairs, adjusted, strict=True)]


def breadth(grid: Mapping[str, Sequence[float]], margin: float) -> dict[str, float]:
    """The share of a method's values of lr whose validation merit is within ``margin`` of the best of all methods."""
    best = max((m for merits in grid.values() for m in merits), default=-math.inf)
    return {name: float(np.mean([m >= best - margin for m in merits])) for name, merits in grid.items() if len(merits)}
