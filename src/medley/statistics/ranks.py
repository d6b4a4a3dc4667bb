"""Rank tests and standardised differences between groups, from figures that have left the sites already.

A histogram's row lies somewhere in the bins of its merger, so that a statistic of ranks lies between two numbers: the
rows of one group as far up as their bins allow and all others as far down, and the other way round. Where a bin is one
whole number, its rows are tied, and the two numbers meet.

**Reference**: Mann & Whitney, Annals of Mathematical Statistics 18, 1947; Kruskal & Wallis, JASA 47, 1952, both with
their corrections for ties as SciPy's; Yang & Dalton, "A unified approach to measuring the effect size between two
groups", SAS Global Forum 2012, for categories.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

MOST_GROUPS = 10
"""Up to this number of groups the largest statistic is looked for among all corners of what ranks allow."""


class RankTest(NamedTuple):
    """A test by ranks.

    Attributes:
        name: Mann-Whitney or Kruskal-Wallis
        statistic, pvalue: the least and the largest that all rows may have
        middle: statistic and p-value if the rows whose order is open are tied: the likely ones
    """

    name: str
    statistic: tuple[float, float]
    pvalue: tuple[float, float]
    middle: tuple[float, float]


def rank_test(ends: Sequence[np.ndarray], single: np.ndarray) -> RankTest:
    """Mann and Whitney's test of two groups, with a correction for continuity, or Kruskal and Wallis' of more.

    Args:
        ends: for each group, its rows by the first and by the last bin in which they may be [2, bins]
        single: whether all rows in a bin have one value [bins]
    """
    n = np.array([e[0].sum() for e in ends])
    everyone = np.sum(ends, axis=0)
    N = float(n.sum())
    U = np.array([_wins(e, everyone - e, single) for e in ends])  # least and largest [groups, 2]
    ties = _ties(everyone, single)
    if ties[0] >= N**3 - N:
        return RankTest("no test, one value", (np.nan, np.nan), (1.0, 1.0), (np.nan, 1.0))
    if len(ends) == 2:
        return _mann_whitney(U[0], n, ties)
    from scipy.stats import chi2

    away = U + (n * (n + 1) / 2 - n * (N + 1) / 2)[:, None]
    factor = 12 / (N * (N + 1))
    corrected = [1 - t / (N**3 - N) for t in ties]
    least, most = _squares(away, n)
    H = factor * least / corrected[0], factor * most / corrected[1] if corrected[1] > 0 else np.inf
    middle = factor * float((away.mean(1) ** 2 / n).sum()) / corrected[0]
    p = chi2.sf([H[1], H[0], middle], len(ends) - 1).tolist()
    return RankTest("Kruskal-Wallis", H, (p[0], p[1]), (middle, p[2]))


def _squares(away: np.ndarray, n: np.ndarray) -> tuple[float, float]:
    """The least and the largest Σ d²/n of deviations d between two numbers each [groups, 2] that add up to 0."""
    low, high = away.T
    of: Callable[[np.ndarray], float] = lambda d: float((d**2 / n).sum())
    if len(n) > MOST_GROUPS:
        return of(np.clip(0.0, low, high)), of(np.abs(away).max(1))
    ends = [-1e3 * np.abs(away).max(), 1e3 * np.abs(away).max()]
    for _ in range(200):
        half = sum(ends) / 2
        ends[int(np.clip(half * n, low, high).sum() > 0)] = half
    corners = [0.0]
    for free in range(len(n)):  # in a corner all but one are at an end
        for at in itertools.product((0, 1), repeat=len(n) - 1):
            d = np.insert(np.delete(away, free, 0)[range(len(at)), at], free, 0.0)
            d[free] = -d.sum()
            if low[free] - 1e-6 <= d[free] <= high[free] + 1e-6:
                corners.append(of(d))
    return of(np.clip(ends[0] * n, low, high)) * (1 - 1e-12), max(corners) * (1 + 1e-12)


def _mann_whitney(U: np.ndarray, n: np.ndarray, ties: tuple[float, float]) -> RankTest:
    """The test of the first group's U, between two numbers, with sums of t³ − t between two others."""
    from scipy.stats import norm

    N, middle = float(n.sum()), n[0] * n[1] / 2
    away = np.abs(U - middle)
    nearest = 0.0 if U[0] <= middle <= U[1] else away.min()
    wide, narrow = (np.sqrt(max(n[0] * n[1] / 12 * (N + 1 - t / (N * (N - 1))), 0.0)) for t in ties)
    z = [(away.max() - 0.5) / narrow if narrow > 0 else np.inf, (nearest - 0.5) / wide]
    z.append((abs(U.mean() - middle) - 0.5) / wide)
    p = [min(1.0, 2 * float(norm.sf(v))) for v in z]
    return RankTest("Mann-Whitney", (float(U[0]), float(U[1])), (p[0], p[1]), (float(U.mean()), p[2]))


def _wins(mine: np.ndarray, others: np.ndarray, single: np.ndarray) -> tuple[float, float]:
    """The least and the largest number of pairs in which a row of mine is above one of the others, ties as a half."""
    below = np.cumsum(others, axis=1) - others
    least = mine[0] @ (below[1] + np.where(single, 0.5, 0.0) * others[1])
    most = mine[1] @ (below[0] + np.where(single, 0.5, 1.0) * others[0])
    return float(least), float(most)


def _ties(ends: np.ndarray, single: np.ndarray) -> tuple[float, float]:
    """The least and the largest that the sum of t³ − t over values can be, t being the rows that have a value."""
    first, last = np.cumsum(ends, axis=1)
    known = np.where(single, np.maximum(last - (first - ends[0]), 0.0), 0.0)
    possible = np.sort(first - (last - ends[1]))[::-1]  # rows that may be in a bin
    used = np.minimum(possible, np.maximum(ends[0].sum() - (np.cumsum(possible) - possible), 0.0))
    return float((known**3 - known).sum()), float((used * (possible**2 - 1)).sum())


def difference(cells: Sequence[Any]) -> float | None:
    """The largest standardised difference between two of these groups' cells; None if a figure is withheld.

    Of numbers it is the difference of the means over the root of the mean variance; of categories Mahalanobis' distance
    of the shares.
    """
    if len(cells) < 2:
        return None
    if cells[0].counts is not None:
        counts = [[*c.counts.values(), c.unnamed] for c in cells]
        if any(v is None for row in counts for v in row) or not all(sum(row) for row in counts):
            return None
        shares = [np.array(row, float) / sum(row) for row in counts]
        return max(_distance(a, b) for a, b in itertools.combinations(shares, 2))
    if any(c.n is None or c.sd is None for c in cells):
        return None
    pairs = itertools.combinations([(c.mean, c.sd) for c in cells], 2)
    apart = [(abs(m - o), np.sqrt((s**2 + t**2) / 2)) for (m, s), (o, t) in pairs]
    return max(float(d / s) if s else (np.inf if d else 0.0) for d, s in apart)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Mahalanobis' distance of shares a and b [k] under the mean of both groups' covariances."""
    S = (np.diag(a + b) - np.outer(a, a) - np.outer(b, b)) / 2
    inverse = np.linalg.pinv(S, rcond=1e-10, hermitian=True)
    off = (a - b) - S @ (inverse @ (a - b))  # shares that vary in no group
    return float(np.sqrt((a - b) @ inverse @ (a - b))) if np.abs(off).max() < 1e-9 else float("inf")
