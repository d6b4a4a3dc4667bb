"""Krum and multi-Krum.

**Reference**: Blanchard, El Mhamdi, Guerraoui & Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent", NeurIPS 2017, section 4 (Krum) and the end of section 6 (multi-Krum).

**Checked against**: byzfl 0.0.11, whose score counts a − f − 1 neighbours; the paper's and this one count a − f − 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from ..contract import TooFewReplies, at_least
from .rule import NOTHING, Combined, Context, Rows, Rule, Share, byzantine_among, squared_distances


def ranked(rows: Rows, f: int) -> Int[Tensor, " a"]:
    """Rows by their score, the best first.

    s(i) is the sum of ‖x_i − x_j‖² over the a − f − 2 rows j ≠ i that are nearest to x_i. Two rows that are each
    other's only neighbour have the same score, and so have all rows that occur often enough. If rows differ only by a
    rounding error, the one with the smaller distance to its a − f nearest rows comes first. We count no further rows:
    they could be Byzantine, and their distance has no bound.
    """
    nearest = squared_distances(rows).sort(1).values
    near = nearest[:, : len(rows) - f].sum(1)
    s = nearest[:, 1 : len(rows) - f - 1].sum(1)
    unit = (1e-9 * near.median()).clamp(min=torch.finfo(torch.float64).tiny)
    order = (near / unit).round().sort(stable=True).indices
    return order[(s / unit).round()[order].sort(stable=True).indices]


@dataclass(frozen=True)
class Krum(Rule):
    """Krum: the single reply that has the smallest distances to its nearest replies. It costs O(a²d).

    Attributes:
        byzantine: f/a, the share of Byzantine clients that it tolerates. It needs a ≥ 2f + 3 replies.
    """

    byzantine: Share

    def least(self, a: int) -> int:
        """2f + 3."""
        return 2 * byzantine_among(self, a) + 3

    def __call__(self, rows: Rows, context: Context = NOTHING) -> Combined:
        """x_i of the smallest s(i)."""
        return rows[int(ranked(rows, self.check(len(rows), context))[0])]


@dataclass(frozen=True)
class MultiKrum(Rule):
    """The mean of the m replies with Krum's best scores. It costs O(a²d).

    Attributes:
        byzantine: f/a, the share of Byzantine clients that it tolerates. It needs a ≥ 2f + 3 replies.
        keep: m, the number of replies to average; default None: a − f.
    """

    byzantine: Share
    keep: Annotated[int, at_least(1)] | None = None

    def least(self, a: int) -> int:
        """2f + 3."""
        return 2 * byzantine_among(self, a) + 3

    def __call__(self, rows: Rows, context: Context = NOTHING) -> Combined:
        """The mean of x_i over the m smallest s(i)."""
        a = len(rows)
        f = self.check(a, context)
        m = a - f if self.keep is None else self.keep
        if m > a - f:
            raise TooFewReplies(
                f"{self!r} averages {m} of {a} replies, but {f} of them may be Byzantine: set keep= to at most {a - f}"
            )
        return rows[ranked(rows, f)[:m].sort().values].mean(0)
