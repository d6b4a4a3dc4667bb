"""Nearest-neighbour mixing (NNM) before another aggregation rule.

**Reference**: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot & Stephan, "Fixing by Mixing: A Recipe for Optimal
Byzantine ML under Heterogeneity", AISTATS 2023, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..contract.errors import RecipeError
from ..runtime.forwarded import forwarded
from .rule import NOTHING, Combined, Context, Rows, Rule, Share, squared_distances


def mix(rows: Rows, f: int) -> Rows:
    """y_i, the mean of the a − f rows nearest to x_i, including x_i itself. It costs O(a²d)."""
    a = len(rows)
    # Stable, so that the lower of two ids wins if distances are equal.
    nearest = squared_distances(rows).sort(dim=1, stable=True).indices[:, : a - f]
    W = torch.zeros(a, a, dtype=rows.dtype, device=rows.device).scatter_(1, nearest, 1 / (a - f))
    return W @ rows


@dataclass(frozen=True)
class Mixed(Rule):
    """Mixes each reply with its nearest neighbours, which brings unequal clients closer; then applies another rule.

    Attributes:
        rule: The rule to apply afterwards.
        byzantine: f/a, the share of Byzantine clients that it tolerates.
    """

    rule: Rule
    byzantine: Share

    remembers, root_client = forwarded("rule", "remembers", "root_client")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.rule, Mixed):
            raise RecipeError("Mixed(rule=...): that rule already mixes; pass the inner rule itself", "rule")

    @property
    def name(self) -> str:
        """ "NNM-" and the rule's name."""
        return f"NNM-{self.rule.name}"

    def least(self, a: int) -> int:
        """The fewest replies: 2f + 1, or what the inner rule needs if that is more."""
        return max(super().least(a), self.rule.least(a))

    def __call__(self, rows: Rows, context: Context = NOTHING) -> Combined:
        """The rule's vector of y_1, ..., y_a. A root's reply is not mixed, and is nobody's neighbour."""
        root = context.root
        if root is None:
            return self.rule(mix(rows, self.check(len(rows), context)), context)
        others = torch.cat([rows[:root], rows[root + 1 :]])
        if len(others):
            others = mix(others, self.check(len(others), context))
        return self.rule(torch.cat([others[:root], rows[root : root + 1], others[root:]]), context)
