"""The problems of the SHED paper's section 6 that can be had: who holds which rows, and the optimum.

Names are ``fm-iid``, ``fm``, ``fmB-iid``, ``fmB``, ``w8a``, ``msd-iid``, ``msd``, ``news-iid``, ``news``, and the small
``breast`` and ``digits`` of scikit-learn; without ``-iid`` agents differ. ``fm`` is Fashion-MNIST on its 300 principal
components, one class against the others; the paper does not say whether the mean was removed, which decides how
ill-conditioned the problem is: in ``fm`` it was, in ``fmB`` it was not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits

import medley as md
from medley.runtime import streams

TARGET = 1
AGENTS = 28
COMPONENTS = 300
Part = tuple[np.ndarray, np.ndarray]


@cache
def fashion(centred: bool) -> tuple[np.ndarray, np.ndarray]:
    data = md.datasets.fashion_mnist()
    X = data.X.reshape(len(data.X), -1).double().numpy()
    X = X / X.max()
    mean = X.mean(0)
    _, V = np.linalg.eigh((X - mean).T @ (X - mean))
    V = V[:, ::-1][:, :COMPONENTS]
    return (X - mean * centred) @ V, data.y.numpy()


def fm(seed: int, iid: bool, centred: bool) -> list[Part]:
    """28 agents, each with 200 rows of the target class and 200 of one other class, or of all others alike."""
    X, y = fashion(centred)
    rng = streams.rng(seed, "fm")
    left = {c: list(rng.permutation(np.flatnonzero(y == c))) for c in range(10)}
    others = [c for c in range(10) if c != TARGET]
    parts = []
    for i in range(AGENTS):
        mix = [others[(i * 200 + k) % 9] for k in range(200)] if iid else [others[i % 9]] * 200
        rows = [left[TARGET].pop() for _ in range(200)] + [left[c].pop() for c in mix]
        parts.append((X[rows], (y[rows] == TARGET).astype(float)))
    return parts


@cache
def w8a_rows() -> tuple[np.ndarray, np.ndarray]:
    data = md.datasets.w8a()
    return data.X.double().numpy(), data.y.numpy()


def breast(seed: int) -> list[Part]:
    """10 agents that hold consecutive rows in the order of feature 0: one partition, whatever the seed."""
    del seed
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    return [(X[r], y[r].astype(float)) for r in np.array_split(np.argsort(X[:, 0]), 10)]


def digits(seed: int) -> list[Part]:
    """9 agents, each with 19 rows of the digit 1 and 19 of one other digit: fewer rows than features."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)  # that of the reference counts
    left = {c: list(rng.permutation(np.flatnonzero(y == c))) for c in range(10)}
    parts = []
    for c in (c for c in range(10) if c != TARGET):
        rows = [left[TARGET].pop() for _ in range(19)] + [left[c].pop() for _ in range(19)]
        parts.append((X[rows] / 16, (y[rows] == TARGET).astype(float)))
    return parts


def w8a(seed: int) -> list[Part]:
    """60 agents of 700 to 900 rows whose share of positives is Beta(0.3, 0.3(1 − p)/p)."""
    X, y = w8a_rows()
    rng = streams.rng(seed, "w8a")
    positive, negative = (rng.permutation(np.flatnonzero(y == c)) for c in (1, 0))
    sizes = rng.integers(700, 901, 60)
    p = y.mean()
    counts = np.round(sizes * rng.beta(0.3, 0.3 * (1 - p) / p, 60))
    counts = np.floor(counts * min(1.0, len(positive) / counts.sum())).astype(int)
    parts = []
    for n, k in zip(sizes, counts, strict=True):
        rows = np.concatenate([positive[:k], negative[: n - k]])
        positive = positive[k:]
        negative = negative[n - k :]
        parts.append((X[rows], y[rows].astype(float)))
    return parts


def table(data: md.datasets.Dataset, agents: int, seed: int, iid: bool) -> list[Part]:
    """A regression, features and targets in [0, 1]; equal parts at random, or every value of y a part of its own."""
    X = data.X.double().numpy()
    y = data.y.double().numpy()
    X = (X - X.min(0)) / np.maximum(np.ptp(X, 0), 1e-300)
    y = (y - y.min()) / np.ptp(y)
    if iid:
        rows = np.array_split(streams.rng(seed, "rows").permutation(len(y)), agents)
    elif "year" in data.keys:
        rows = [np.flatnonzero(data.keys["year"] == year) for year in np.unique(data.keys["year"])]
    else:
        rows = np.array_split(np.argsort(y, kind="stable"), agents)
    return [(X[r], y[r]) for r in rows]


SETTINGS: dict[str, tuple[Callable[[int], list[Part]], type]] = {
    "fm-iid": (lambda seed: fm(seed, True, True), md.problems.Logistic),
    "fm": (lambda seed: fm(seed, False, True), md.problems.Logistic),
    "fmB-iid": (lambda seed: fm(seed, True, False), md.problems.Logistic),
    "fmB": (lambda seed: fm(seed, False, False), md.problems.Logistic),
    "w8a": (w8a, md.problems.Logistic),
    "breast": (breast, md.problems.Logistic),
    "digits": (digits, md.problems.Logistic),
    "msd-iid": (lambda seed: table(md.datasets.msd_years(), 20, seed, True), md.problems.LeastSquares),
    "msd": (lambda seed: table(md.datasets.msd_years(), 20, seed, False), md.problems.LeastSquares),
    "news-iid": (lambda seed: table(md.datasets.online_news(), 30, seed, True), md.problems.LeastSquares),
    "news": (lambda seed: table(md.datasets.online_news(), 30, seed, False), md.problems.LeastSquares),
}


@cache
def parts_of(name: str, seed: int) -> list[Part]:
    if name not in SETTINGS:
        raise md.RecipeError.unknown(name, SETTINGS, "papers/shed")
    return SETTINGS[name][0](seed)


@cache
def optimum(name: str, mu: float, seed: int) -> float:
    """f* by Newton's method on all rows to ‖∇f‖ ≤ 1e-13."""
    X, y = (torch.from_numpy(np.concatenate(c)) for c in zip(*parts_of(name, seed), strict=True))
    problem = SETTINGS[name][1](mu=mu)
    f = problem.ready(X, y, None, None, "cpu").bind(X, problem.targets(y, None))
    return f.loss(minimum(f))


def federation(name: str, mu: float, seed: int, **means: object) -> md.Federation:
    """The agents of one partition, with f*."""
    parts = parts_of(name, seed)
    return md.Federation(SETTINGS[name][1](mu=mu), clients=parts, f_star=optimum(name, mu, seed), **means)


def minimum(f) -> torch.Tensor:
    x = torch.zeros(f.d, dtype=torch.float64)
    g = None
    for _ in range(100):
        g = f.grad(x)
        if float(g.norm()) <= 1e-13:
            break
        step = torch.linalg.solve(f.hessian(x), g)
        eta = 1.0
        loss = f.loss(x)
        while eta > 1e-8 and f.loss(x - eta * step) > loss - 0.1 * eta * float(step @ g) + 1e-15:
            eta /= 2
        x = x - eta * step
    return x
