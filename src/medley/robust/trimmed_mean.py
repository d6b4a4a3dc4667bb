"""Coordinate-wise trimmed mean.

**Reference**: Yin, Chen, Kannan & Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
ICML 2018, Definition 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from .rule import NOTHING, Combined, Context, Rows, Rule, Share, trimmed


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """The mean of each coordinate without its ⌈βa⌉ smallest and ⌈βa⌉ largest values.

    Attributes:
        byzantine: β, the share of Byzantine clients that it tolerates. It needs a ≥ 2⌈βa⌉ + 1 replies.
    """

    byzantine: Share

    def __call__(self, rows: Rows, context: Context = NOTHING) -> Combined:
        """g_k = (1/((1−2β)a)) Σ_{x ∈ U_k} x, where U_k are the values of coordinate k that remain after trimming."""
        return trimmed(rows, self.check(len(rows), context))
