"""Histograms of gradients by node, column and bin, and the best splits that they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

SMALLEST = 1e-6
"""A gain that XGBoost does not take for one either."""

FULL = 2.0**-49
"""The finest step of a sum, as a share of the most that it can be, with room for rows of clients that come later."""

JUMP = 0.7
"""Under Poisson's loss a leaf moves the logarithm of a rate by no more than this before shrinkage, as in XGBoost."""


def unit_of(loss: str, exponents: np.ndarray, rows: int) -> float:
    """The step to which gradients are rounded, a power of two, so that the sum over all rows is exact in any order.

    Args:
        exponents: how many targets have each exponent, from `exponents_of`
        rows: of all clients
    """
    top = int(np.flatnonzero(exponents).max(initial=0)) - OFFSET if loss in ("squared", "poisson") else 0
    return float(2.0 ** (top + 4) * max(FULL * 2.0 ** int(np.ceil(np.log2(max(rows, 1)))), 2.0**-40))


NOISY_JUMP = 1.0
"""The same if sums have noise, which may leave a Σh of about 0 under any Σg."""

PUBLIC = 2.0**-24
"""The step of gradients between −1 and 1 if the number of rows is not asked: sums of 500 million rows are exact."""

BENDS = {"logistic": 0.25, "softmax": 0.5}
"""The largest second derivative of each loss whose gradients are between −1 and 1."""

OFFSET = 150
"""The place of the exponent 0 among those of float32."""

EXPONENTS = 300
"""Exponents of float32's numbers, those below its normal numbers among them."""


def exponents_of(y: np.ndarray) -> np.ndarray:
    """How many targets have each exponent e, 2ᵉ⁻¹ ≤ |y| < 2ᵉ, int32 [300]; those beyond float32's are at its ends."""
    places = np.clip(np.frexp(y.astype(np.float64))[1] + OFFSET, 0, EXPONENTS - 1)
    return np.bincount(places, minlength=EXPONENTS).astype(np.int32)


def rounded(v: np.ndarray, unit: float) -> np.ndarray:
    """Numbers as multiples of ``unit``."""
    return np.rint(v / unit) * unit


def base_of(loss: str, sums: np.ndarray, rows: int) -> np.ndarray:
    """The outputs before the first tree [outputs]: those of a model without columns; 0 for softmax.

    Args:
        sums: Σy, or the rows of each class
    """
    if loss == "softmax":
        return np.zeros(len(sums))
    if loss == "logistic":
        # Half a row more of either class, so that clients of one class have a finite logarithm.
        return np.log((sums[1:] + 0.5) / (sums[:1] + 0.5)) if sums.min() == 0 else np.log(sums[1:] / sums[:1])
    mean = sums[:1] / rows
    return mean if loss == "squared" else np.log(np.maximum(mean, 0.5 / rows))


def gradients(loss: str, F: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """∂l/∂F and ∂²l/∂F² of each row [n, outputs]; None where the second is 1. NumPy's exp gives a row the same bits
    wherever the row stands.
    """
    if loss == "squared":
        return F - y[:, None], None
    if loss == "logistic":
        p = 1 / (1 + np.exp(-np.clip(F, -80, 80)))
        return p - y[:, None], p * (1 - p)
    if loss == "softmax":
        e = np.exp(F - F.max(1, keepdims=True))
        total = e[:, :1].copy()
        for k in range(1, e.shape[1]):
            total += e[:, k : k + 1]
        p = e / total
        g = p.copy()
        g[np.arange(len(y)), y.astype(np.intp)] -= 1
        return g, 2 * p * (1 - p)  # as XGBoost has it
    mean = np.exp(np.clip(F, -80, 80))
    return mean - y[:, None], mean * np.exp(JUMP)


def histograms(
    codes: np.ndarray, widths: Sequence[int], slot: np.ndarray, slots: int, weights: Sequence[np.ndarray | None]
) -> list[np.ndarray]:
    """Sums of each weight by slot, column and bin, [slots, Σ widths] each; None counts rows.

    Args:
        codes: the bin of each value [columns, n]
        widths: the number of each column's bins
        slot: the histogram that a row belongs to [n]; −1 for none
    """
    rows = np.flatnonzero(slot >= 0)
    if len(rows) < len(slot):
        slot = slot[rows]
        codes = codes[:, rows]
        weights = [None if w is None else w[rows] for w in weights]
    out = [np.empty((slots, sum(widths)), np.int64 if w is None else np.float64) for w in weights]
    index = np.empty(len(slot), np.intp)
    first = 0
    for column, width in zip(codes, widths, strict=True):
        np.add(slot * width, column, out=index, casting="unsafe")
        for table, w in zip(out, weights, strict=True):
            table[:, first : first + width] = np.bincount(index, w, slots * width).reshape(slots, width)
        first += width
    return out


class Sums(NamedTuple):
    """Σg, Σh and the number of rows, arrays of one shape."""

    g: np.ndarray
    h: np.ndarray
    n: np.ndarray

    def at(self, index: Any) -> Sums:
        """Some of them."""
        return Sums(self.g[index], self.h[index], self.n[index])

    def less(self, other: Sums) -> Sums:
        """The differences, which are exact."""
        return Sums(self.g - other.g, self.h - other.h, self.n - other.n)

    def step(self, growth: Growth) -> np.ndarray:
        """A node's best output −G/(H + λ), within what it may be; 0 where nothing bends."""
        bend = np.maximum(self.h, 0) + growth.ridge  # noisy sums may be below 0
        step: np.ndarray = np.divide(-self.g, bend, out=np.zeros_like(self.g), where=bend > 0)
        step = np.clip(step, -growth.jump, growth.jump)
        return step

    def score(self, growth: Growth) -> np.ndarray:
        """By how much a node's best output lowers twice the loss: G²/(H + λ) if nothing limits that output."""
        bend = np.maximum(self.h, 0) + growth.ridge  # noisy sums may be below 0
        if growth.jump < np.inf:
            step = self.step(growth)
            limited: np.ndarray = -step * (2 * self.g + bend * step)
            return limited
        score: np.ndarray = np.divide(self.g * self.g, bend, out=np.zeros_like(self.g), where=bend > 0)
        return score


@dataclass(frozen=True, eq=False)
class Splits:
    """The best split of each of some nodes, arrays [nodes].

    Attributes:
        column: −1 where none is worth it
        line: the place of its threshold among the column's lines
        left: sums of the rows that go left
        missing: whether rows without the value go left
        total: sums of all rows
    """

    column: np.ndarray
    line: np.ndarray
    gain: np.ndarray
    left: Sums
    missing: np.ndarray
    total: Sums

    def among(self, columns: np.ndarray) -> Splits:
        """The same splits, of a table that had only these columns."""
        return replace(self, column=np.where(self.column < 0, -1, columns[self.column]))

    @property
    def right(self) -> Sums:
        """Sums of the rows that go right."""
        return self.total.less(self.left)


@dataclass(frozen=True)
class Growth:
    """What a split must reach; see `medley.Boost` for the settings.

    Attributes:
        jump: the most that a leaf may move an output before shrinkage
    """

    ridge: float
    min_gain: float
    min_child_weight: float
    min_rows: int
    jump: float


@dataclass(frozen=True, eq=False)
class Bins:
    """Where the bins of each column are in a flat histogram.

    Attributes:
        sizes: the lines between the bins of each column
        missing: whether each column has a further bin, of missing values
    """

    sizes: np.ndarray
    missing: bool

    @property
    def widths(self) -> np.ndarray:
        """The number of bins of each column [columns]."""
        widths: np.ndarray = self.sizes + 1 + self.missing
        return widths

    def levelled(self, flat: np.ndarray) -> np.ndarray:
        """A noisy histogram [nodes, Σ widths] whose columns have one total: the nearest one, by least squares."""
        totals = np.add.reduceat(flat, np.cumsum(self.widths) - self.widths, axis=1)
        total = (totals / self.widths).sum(1, keepdims=True) / (1 / self.widths).sum()
        levelled: np.ndarray = flat + np.repeat((total - totals) / self.widths, self.widths, axis=1)
        return levelled

    def table(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A histogram [nodes, Σ widths] as [nodes, columns, bins], and the part of missing values [nodes, columns]."""
        first = np.cumsum(self.widths) - self.widths
        bins = np.arange(int(self.sizes.max(initial=0)) + 1)
        inside = bins <= self.sizes[:, None]
        present = np.where(inside, flat[:, np.where(inside, first[:, None] + bins, 0)], 0)
        return present, flat[:, first + self.sizes + 1] if self.missing else np.zeros_like(present[:, :, 0])


def best_splits(flat: Sums, bins: Bins, growth: Growth) -> Splits:
    """The best split of each node; of equal ones that of the first column, then of the first line.

    Args:
        flat: sums [nodes, Σ widths] over the rows of each node
    """
    tables = [bins.table(t) for t in flat]
    present = Sums(*(t for t, _ in tables))
    missing = Sums(*(t for _, t in tables))
    total = Sums(*(t.sum(-1) + m for t, m in tables)).at((slice(None), 0))
    left = Sums(*(np.cumsum(t, 2)[:, :, :-1, None] for t in present))
    absent = missing.at((..., None, None))
    both = Sums(*(np.concatenate([a, a + m], 3) for a, m in zip(left, absent, strict=True)))
    right = total.at((slice(None), None, None, None)).less(both)
    gain = both.score(growth) + right.score(growth) - total.score(growth)[:, None, None, None]
    fits = (np.arange(left.n.shape[2]) < bins.sizes[:, None])[None, :, :, None]
    for side in (both, right):
        fits = fits & (side.h >= growth.min_child_weight) & (side.n >= growth.min_rows)
    gain = np.where(fits, gain, -np.inf).reshape(len(total.n), -1)
    best = gain.argmax(1) if gain.shape[1] else np.zeros(len(gain), np.intp)
    node = np.arange(len(best))
    top = gain[node, best] if gain.shape[1] else np.full(len(gain), -np.inf)
    worth = (top > SMALLEST) & (top > growth.min_gain)
    column, line, side_of_missing = np.unravel_index(best, both.n.shape[1:])
    chosen = both.at((node, column, line, side_of_missing))
    none_missing = missing.n[node, column] == 0
    return Splits(
        np.where(worth, column, -1),
        line,
        np.where(worth, top, 0.0),
        chosen,
        np.where(none_missing, 2 * chosen.n > total.n, side_of_missing == 1),
        total,
    )
