"""The small federations of FedNorton's tests, and its rounds by a slow, plain computation from the card."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

import medley as md
from medley.problems import Synthetic
from support.oracles import quadratic_parts, walk

N = 5
LR = [0.02, 0.1, 0.05, 0.08, 0.03]
STEPS = [1, 4, 2, 3, 7]
"""Clients, their learning rates and their steps. No two have the same time T_i."""

TOY = md.problems.synthetic_quadratics(clients=N, d=3, seed=4)
EIGHT = md.problems.synthetic_quadratics(clients=8, d=6, seed=5)
UNEQUAL = {"lr": md.distributions.Uniform(0.02, 0.1), "epochs": md.distributions.Integers(1, 10)}
WHERE = ["server", "client"]
"""Who keeps the flows."""

COHORTS = [(0, 1, 2, 3, 4), (1, 3), (0, 2, 4), (4,), (0, 1, 3), (2, 3, 4), (0, 1, 2, 3, 4), (1, 2)]
"""Who takes part, round by round."""


def card(
    toy: Synthetic, x: Tensor, cohorts: Iterable[Sequence[int]], lr: Sequence[float], steps: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    """(x, x̂) after every round of FedNorton on quadratics, line by line as its card has it; no reply is late."""
    H, b, p = quadratic_parts(toy)
    J = torch.zeros(len(H), len(x), dtype=x.dtype)
    v = torch.zeros_like(x)
    read = x
    rho = 1.0
    last = rise = way = 0.0
    age = -1.0
    out = []
    for A in cohorts:
        S = p @ J
        f = len(A) / len(H)
        share = sum(float(p[i]) for i in A)
        T_i = {i: lr[i] * steps[i] for i in A}
        after = J.clone()
        for i in A:
            n = rho * (J[i] - S)
            after[i] = n - walk(H[i], b[i], x, lr[i], steps[i], shift=-n) / T_i[i]
        S1 = p @ after
        T = share / sum(float(p[i]) / T_i[i] for i in A)
        u = torch.zeros_like(x)
        for i in A:
            lasting = rho * math.sqrt(T * T_i[i]) + (1 - rho) * math.sqrt(T * last)
            u += p[i] / share * (lasting * (S + after[i] - J[i]) + (1 - rho) * math.sqrt(T * last) * (J[i] - S))
        rise = rise / 2 + float((S1 - S) @ v) / f
        way = way / 2 + float(v @ v)
        h = max(0.0, rise / way) if way > 0 else 0.0
        age = (age + 1) * (1 - max(0.0, float(S1 @ v / (S1.norm() * v.norm())))) if v.any() else 0.0
        one = len(A) == 1 < len(H)
        beta0 = 0.0 if one else f * age / (age + 3)
        noise = min(1.0, float((S1 - S).norm() / S1.norm()) ** 2 / (2 * f))
        v = -u if one else min(beta0, 1 - noise / 2) * v - u - 2 * T * S1 / (1 + 2 * T * h)
        x = x + v
        read = read + math.sqrt(f * (1 - beta0)) * (x - read)
        changed = sum(float(p[i] * (after - J)[i].square().sum()) for i in A)
        size = sum(float(p[i] * after[i].square().sum()) for i in A)
        rho = rho if one else max(0.0, 1 - changed / size / 2)
        last = T
        J = after
        out.append((x, read))
    return out
