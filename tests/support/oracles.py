"""Slow, separate computations that the methods' tests compare with, and the federations they do it on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import medley as md
from medley.contract import pytree
from medley.contract.algorithm import Algorithm
from medley.problems import Synthetic
from medley.storage import checkpoint


def federation(toy: Synthetic, participation: float | None = None, **pace: Any) -> md.Federation:
    """Full batches unless told otherwise."""
    return md.Federation(
        toy.problem,
        clients=toy.clients,
        f_star=toy.f_star,
        pace=md.scenarios.Pace(**{"batch": None} | pace),
        participation=participation,
    )


def digits(clients: int = 6, **pace: Any) -> md.Federation:
    """A small network on 300 digits with mini-batches."""
    data = md.datasets.digits()
    return md.Federation(
        md.problems.Network(md.models.mlp(64, 10, hidden=[16])),
        clients=[(X, y) for X, y in zip(data.X[:300].chunk(clients), data.y[:300].chunk(clients), strict=True)],
        classes=10,
        pace=md.scenarios.Pace(**{"lr": 0.1, "batch": 16} | pace),
    )


def run(method: Any, fed: md.Federation, rounds: int, **options: Any) -> md.Result:
    return md.run(method, fed, rounds, progress=False, **options)


def error(result: md.Result, x_star: Tensor) -> float:
    """‖x − x*‖/‖x*‖."""
    return float((result.x - x_star).norm() / x_star.norm())


def quadratic_parts(toy: Synthetic) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """H_i, b_i and p of f_i = ½xᵀH_i x − b_iᵀx + const."""
    H = [X.T @ X / len(y) for X, y in toy.clients]
    b = [X.T @ y / len(y) for X, y in toy.clients]
    return H, b, toy.p


def walk(
    H: Tensor, b: Tensor, x: Tensor, lr: float, steps: int, mu: float = 0.0, shift: Tensor | float = 0.0
) -> Tensor:
    """y − x after ``steps`` of y ← y − lr·(Hy − b + mu(y − x) + shift)."""
    y = x.clone()
    for _ in range(steps):
        y = y - lr * (H @ y - b + mu * (y - x) + shift)
    return y - x


def walks(toy: Synthetic, x: Tensor, lr: Sequence[float], steps: Sequence[int]) -> list[Tensor]:
    """Every client's displacement."""
    H, b, _ = quadratic_parts(toy)
    return [walk(H[i], b[i], x, lr[i], steps[i]) for i in range(len(H))]


def mean(values: Sequence[Tensor], weights: Sequence[float] | Tensor) -> Tensor:
    total = sum(float(w) for w in weights)
    out = torch.zeros_like(values[0])
    for w, v in zip(weights, values, strict=True):
        out = out + float(w) / total * v
    return out


def states(method: Algorithm[Any, Any], fed: md.Federation, rounds: int, folder: Path, **options: Any) -> Any:
    """(server, memories by client) at the end of a run, read from its checkpoint."""
    run(method, fed, rounds, checkpoint=folder, eval_every=rounds, **options)
    x = torch.zeros(1, dtype=torch.float64)
    saved = checkpoint.load(folder, pytree.dataclasses_in(type(method.start(x)), method.memory))
    return saved["server"], saved["memories"]
