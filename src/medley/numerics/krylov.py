"""Linear systems H p = g, and H's diagonal, from products with H alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ..contract.types import Vec
from ..runtime.streams import generator

Product = Callable[[Vec], Vec]
"""v -> H v, H symmetric and positive semi-definite."""


def conjugate_gradients(product: Product, g: Vec, steps: int, tol: float = 0.0) -> Vec:
    """p ≈ H⁻¹g from p = 0 by conjugate gradients.

    Args:
        product: v -> Hv.
        g: right-hand side [d].
        steps: the most products.
        tol: stops at ‖g − Hp‖ ≤ tol·‖g‖.

    Also stops if H is singular in the search direction; the p from before that is still a descent direction.
    """
    p = torch.zeros_like(g)
    r = g
    v = r
    rr = float(r @ r)
    goal = tol * math.sqrt(rr)
    for _ in range(steps):
        if math.sqrt(rr) <= goal:
            break
        Hv = product(v)
        vHv = float(v @ Hv)
        if vHv <= 1e-12 * float(v.norm() * Hv.norm()):  # 0 up to rounding
            break
        a = rr / vHv
        p = p + a * v
        r = r - a * Hv
        before = rr
        rr = float(r @ r)
        v = r + (rr / before) * v
    return p


def richardson(product: Product, g: Vec, steps: int, alpha: float) -> Vec:
    """p ≈ H⁻¹g by ``steps`` of p ← p − α(Hp − g) from p = g [d], one product each.

    Converges for 0 < α < 2/λ_max(H), with the factor max|1 − αλ| per step.
    """
    p = g
    for _ in range(steps):
        p = p - alpha * (product(p) - g)
    return p


def hutchinson(product: Product, like: Vec, probes: int, seed: int) -> Vec:
    """H's diagonal [d], estimated as the mean of v ⊙ Hv over ``probes`` vectors v of random signs.

    Args:
        like: gives shape, dtype and device [d].
        seed: seed of the signs, so that all clients use the same ones if their estimates are compared.

    Hutchinson, "A Stochastic Estimator of the Trace of the Influence Matrix", Comm. Stat. Simul. Comput. 1989.
    """
    total = torch.zeros_like(like)
    rng = generator(seed, "hutchinson")
    for _ in range(probes):
        v = torch.randint(0, 2, like.shape, generator=rng, dtype=like.dtype).to(like).mul_(2).sub_(1)
        total += v * product(v)
    return total.div_(probes)
