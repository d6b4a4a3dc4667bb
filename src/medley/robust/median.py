"""Coordinate-wise median.

**Reference**: Yin, Chen, Kannan & Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
ICML 2018, Definition 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from .rule import NOTHING, Combined, Context, Rows, Rule, median


@dataclass(frozen=True)
class Median(Rule):
    """The median of each coordinate. It is within the range of the honest values if fewer than half of the replies are
    Byzantine.
    """

    def __call__(self, rows: Rows, context: Context = NOTHING) -> Combined:
        """g_k = med(x_1k, ..., x_ak), the mean of the middle two if their number is even."""
        return median(rows)
