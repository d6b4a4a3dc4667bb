"""ECADO's server: the circuit at its steady state, in closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ...contract import RecipeError, Vec
from ..chunks import spans


def steady_state(
    S: Vec, D: Sequence[Vec], G: Float[Tensor, " a"], I: Sequence[Vec], chunk: int | None = None
) -> tuple[Vec, Vec, list[Vec]]:
    """The node's move dx [d], the sum of currents [d] and the currents at rest, a vectors [d].

    x_c + dx = (Σ G_i y_i − S)/Σ G_i, and I_i ← I_i + G_i(x_c + dx − y_i): the limit of ever longer backward-Euler steps
    with the client states held still.

    Args:
        S: sum of all currents [d]
        D: y_i − x_c, a vectors [d]
        G: conductances [a]
        I: the clients' currents, a vectors [d]
        chunk: coordinates at a time; default None: as many as fit the cache

    Raises RecipeError if the lists differ in length, and for conductances that are not positive in total.
    """
    for name, value in (("D", D), ("I", I)):
        if len(value) != len(G):
            raise RecipeError(f"steady_state(): {len(G)} conductances, but {len(value)} rows of {name}", name)
    g = G.tolist()
    total = math.fsum(g)
    if not total > 0:
        raise RecipeError(f"steady_state(G={g}): give at least one client a conductance above 0", "G")
    dx = torch.empty_like(S)
    rest = torch.empty_like(S)
    new = [*map(torch.empty_like, I)]
    pull = [gi / total for gi in g]
    for c in spans(S.numel(), S.device, chunk):
        u = torch.mul(S[c], -1 / total, out=dx[c])
        for row, alpha in zip(D, pull, strict=True):
            u.add_(row[c], alpha=alpha)
        torch.mul(u, -0.0, out=rest[c])
        for gi, row, before, after in zip(g, D, I, new, strict=True):
            torch.add(before[c], u, alpha=gi, out=after[c]).add_(row[c], alpha=-gi)
    return dx, rest, new
