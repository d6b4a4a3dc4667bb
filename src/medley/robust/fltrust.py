"""FLTrust: replies are weighted by how well they agree with a reply that the server makes from its own root set.

**Reference**: Cao, Fang, Liu & Gong, "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS 2021,
eq. (2) to (4) and Algorithm 2.

**Departures**: the root set is one client of the federation, which the server itself holds. So any exchange of any
method has a root reply, and the root's bytes are counted as a client's. If no reply agrees with the root's, the result
is the root's own reply; the paper has no rule for this case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from ..contract import TooFewReplies, at_least
from ..contract.place import name_of
from .rule import NOTHING, Combined, Context, Rows, Rule, distances, products


@dataclass(frozen=True)
class FLTrust(Rule):
    """Σ_i TS_i·(‖g₀‖/‖g_i‖)·g_i/Σ_i TS_i over all replies except the root's, with TS_i = max(0, cos(g_i, g₀)).

    Attributes:
        root: The id of the client whose rows are the server's root set. It takes part in every round.
    """

    root: Annotated[int, at_least(0)]

    @property
    def root_client(self) -> int:
        """The client that holds the root set."""
        return self.root

    def __call__(self, rows: Rows, context: Context = NOTHING) -> Combined:
        """The mean, eq. (4), of replies scaled to the root's norm, eq. (3), weighted by ReLU-clipped cosines, eq.
        (2)."""
        if context.root is None:
            raise TooFewReplies(f"{self!r}: {name_of(self.root)}, which holds the root set, did not reply")
        g0 = rows[context.root]
        others = torch.cat([rows[: context.root], rows[context.root + 1 :]])
        norms = distances(others, torch.zeros_like(g0))
        norm0 = float(g0.double().norm())
        tiny = torch.finfo(torch.float64).tiny
        cosines = products(others, g0) / (norms * norm0).clamp(min=tiny)
        trust = cosines.clamp(min=0)
        if not float(trust.sum()) > 0:
            return g0
        weight = trust / trust.sum() * norm0 / norms.clamp(min=tiny)
        return weight.to(rows.dtype) @ others
