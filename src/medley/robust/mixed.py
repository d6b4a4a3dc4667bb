"""Nearest-neighbour mixing (NNM) before another fold.

**Reference**: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot & Stephan, "Fixing by Mixing: A Recipe for Optimal
Byzantine ML under Heterogeneity", AISTATS 2023, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..contract.errors import RecipeError
from ..runtime.handed import handed
from .rule import NOTHING, Fold, Folded, Rows, Share, Told, liars_among, squared_distances


def mix(rows: Rows, f: int) -> Rows:
    """y_i, the mean of the a − f rows that are nearest to x_i, itself among them. It costs O(a²d)."""
    a = len(rows)
    # Stable, so that the lower of two ids wins where distances are equal.
    nearest = squared_distances(rows).sort(dim=1, stable=True).indices[:, : a - f]
    W = torch.zeros(a, a, dtype=rows.dtype, device=rows.device).scatter_(1, nearest, 1 / (a - f))
    return W @ rows


@dataclass(frozen=True)
class Mixed(Fold):
    """Another fold of the replies' nearest-neighbour means. Unequal clients come nearer to each other by it.

    Attributes:
        fold: The fold that follows.
        liars: f/a, the share of liars that it bears.
    """

    fold: Fold
    liars: Share

    remembers, root_client, least = handed("fold", "remembers", "root_client", "least")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.fold, Mixed):
            raise RecipeError("Mixed(fold=...): it mixes already; give the fold itself", "fold")

    @property
    def name(self) -> str:
        """ "NNM-" and the fold's name."""
        return f"NNM-{self.fold.name}"

    def __call__(self, rows: Rows, told: Told = NOTHING) -> Folded:
        """The fold of y_1, ..., y_a. A root's reply is neither mixed nor anybody's neighbour."""
        f, root = liars_among(self, len(rows)), told.root
        if root is None:
            return self.fold(mix(rows, f), told)
        others = torch.cat([rows[:root], rows[root + 1 :]])
        if len(others):
            others = mix(others, liars_among(self, len(others)))
        return self.fold(torch.cat([others[:root], rows[root : root + 1], others[root:]]), told)
