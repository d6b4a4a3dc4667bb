"""Federations with a known optimum: heterogeneous quadratics and logistic problems.

Each quadratic ½(x − c_i)ᵀA_i(x − c_i) is written as least squares on generated rows. So every method, batch size and
engine that works on data also works here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..contract import RecipeError, Settings, Vec
from ..runtime import streams
from .linear import LeastSquares, Linear, Logistic


@dataclass(frozen=True)
class Synthetic(Settings):
    """A federation with a known optimum of f = Σ p_i f_i.

    Attributes:
        problem: the model that the clients share.
        clients: (X [n_i, d], y [n_i]) of each client.
        x_star, f_star: the minimiser [d] and the minimum of f.
    """

    problem: Linear
    clients: list[tuple[Tensor, Tensor]]
    x_star: Vec
    f_star: float

    @property
    def p(self) -> Vec:
        """p_i = n_i / Σ n_j of each client [clients]."""
        sizes = torch.tensor([len(y) for _, y in self.clients], dtype=torch.float64)
        return sizes / sizes.sum()


def synthetic_quadratics(
    clients: int = 10,
    d: int = 10,
    low: float = 0.5,
    high: float = 5.0,
    spread: float = 1.0,
    rows: tuple[int, int] | None = None,
    seed: int = 0,
) -> Synthetic:
    """Least squares: f_i = ½(x − c_i)ᵀA_i(x − c_i), where each client has its own A_i and c_i.

    Args:
        clients: the number of clients.
        d: the dimension.
        low, high: the eigenvalues of A_i are log-uniform in [low, high]; its eigenvectors are a random rotation.
        spread: standard deviation of the coordinates of the minimisers c_i ~ N(0, spread²).
        rows: the fewest and the most rows of a client. Each client's number is drawn uniformly between them, and is at
            least d, so that the p_i differ. By default 2d to 6d.
        seed: the seed of the stream "quadratics".
    """
    rng = streams.rng(seed, "quadratics")
    fewest, most = rows or (2 * d, 6 * d)
    if most < max(fewest, d):
        raise RecipeError(
            f"synthetic_quadratics(rows={rows}, d={d}): rows= is the fewest and the most rows of a client; the second "
            "number must be at least the first, and at least d",
            "rows",
        )
    pairs = []
    H = np.zeros((d, d))
    b = np.zeros(d)
    total = 0
    for _ in range(clients):
        n = int(rng.integers(max(fewest, d), most + 1))
        V, _ = np.linalg.qr(rng.normal(size=(d, d)))
        Q, _ = np.linalg.qr(rng.normal(size=(n, d)))
        lam = np.exp(rng.uniform(np.log(low), np.log(high), d))
        X = np.sqrt(n) * (Q * np.sqrt(lam)) @ V.T
        c = rng.normal(0, spread, d)
        pairs.append((torch.from_numpy(X), torch.from_numpy(X @ c)))
        H = H + X.T @ X
        b = b + X.T @ X @ c
        total = total + n
    x = np.linalg.solve(H, b)
    f = sum(float(((X.numpy() @ x - y.numpy()) ** 2).sum()) / 2 for X, y in pairs) / total
    return Synthetic(LeastSquares(), pairs, torch.from_numpy(x), f)


def synthetic_logistic(
    clients: int = 10,
    d: int = 10,
    mu: float = 0.1,
    rows: tuple[int, int] = (20, 80),
    spread: float = 1.0,
    seed: int = 0,
) -> Synthetic:
    """Binary logistic regression in which each client has its own labelling rule and feature mean.

    A client's rows are N(m_i, I)/√d with m_i ~ N(0, spread²/4). Its labels are the signs of a noisy linear rule: the
    common rule plus N(0, spread²). Newton's method finds x* to machine precision.

    Args:
        clients: the number of clients.
        d: the dimension.
        mu: μ of the ridge (μ/2)‖x‖².
        rows: the fewest and the most rows of a client. Each client's number is drawn uniformly between them.
        spread: how much clients differ, as above.
        seed: the seed of the stream "logistic".
    """
    rng = streams.rng(seed, "logistic")
    common = rng.normal(size=d)
    pairs = []
    for _ in range(clients):
        n = int(rng.integers(rows[0], rows[1] + 1))
        X = (rng.normal(size=(n, d)) + 0.5 * spread * rng.normal(size=d)) / np.sqrt(d)
        rule = common + spread * rng.normal(size=d)
        y = np.where(X @ rule + 0.3 * rng.normal(size=n) > 0, 1.0, -1.0)
        pairs.append((torch.from_numpy(X), torch.from_numpy(y)))
    problem = Logistic(mu=mu)
    X_all = torch.cat([X for X, _ in pairs])
    y_all = torch.cat([y for _, y in pairs])
    f = problem.ready(X_all, y_all, None, None, "cpu").bind(X_all, y_all)
    x = torch.zeros(d, dtype=torch.float64)
    for _ in range(100):
        step = torch.linalg.solve(f.hessian(x), f.grad(x))
        x = x - step
        if float(step.norm()) < 1e-14 * max(1.0, float(x.norm())):
            break
    return Synthetic(problem, pairs, x, f.loss(x))
