"""A logistic regression over six sites in NumPy alone, beside the study's: how much of its time is the arithmetic.

    python benchmarks/bare_study.py [--repeats 100]

The script does for each site what a study's default rules have it compute: columns read from the frame once; copies of
rows; the sizes of categories; few rows by sets, leverage and dominance; orthonormal directions of the design, a digest
of each, and the outcome's sums on a grid; the site's own steps; and scores, information and dominance at each common
step. It has no messages, no check of what it is given, no register, one family and one formula. Its coefficients are
those of the study. CPU time, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from medley.statistics.rounding import CONVERGED, WIDEST
from medley.statistics.site import DOMINANT, SHARE, share_of

NAMES = ["Intercept", "a", "b", "c", "d", "C(s)[T.v]", "C(s)[T.w]"]
LEAST = 5


class Rows(NamedTuple):
    """A site's design [n, p], its columns' squares [p, n], and Xᵀ y from rounded sums [p]."""

    X: np.ndarray
    squares: np.ndarray
    Xy: np.ndarray
    total: float


def digest(values: np.ndarray) -> str:
    """A digest of a sum's coefficients."""
    return blake2b(np.rint(values / np.abs(values).max() * 1e8).tobytes(), digest_size=8).hexdigest()


def few(sets: list[np.ndarray]) -> bool:
    """Whether one of the kinds of rows that these sets tell apart has few rows."""
    places = 2.0 ** np.arange(len(sets))
    counts = np.bincount((places @ np.array(sets)).astype(int))
    return bool((counts[counts > 0] < LEAST).any())


def read(frame: Any) -> Rows:
    """A site's rows, once all that a study checks of them is checked."""
    columns = {c: frame[c].to_numpy() for c in "abcd"}
    y = frame["died"].to_numpy(float)
    codes, kinds = pd.factorize(frame["s"])
    assert len(pd.factorize(columns["a"])[1]) == len(frame)  # no copies
    assert not any(np.isnan(v).any() for v in columns.values())
    assert (codes >= 0).all()
    assert (np.bincount(codes) >= LEAST).all()
    v, w = (codes == {k: i for i, k in enumerate(kinds)}[level] for level in "vw")
    n = len(y)
    X = np.ascontiguousarray(np.column_stack([np.ones(n), *columns.values(), v, w]))
    scaled = X / np.abs(X).max(0)
    assert np.square(scaled).sum(1).max() < 0.5 * np.linalg.eigvalsh(scaled.T @ scaled)[0]  # no row decides alone
    for x in columns.values():
        assert len(np.unique(x[:40])) > 20
        assert (LEAST - 1) * np.ptp(x) ** 2 < 0.99 * DOMINANT * n * x.var()
    event = y > 0
    every = np.ones(n, bool)
    for sets in ([every], [every, v, w], [event, v & event, w & event], [~event, v & ~event, w & ~event]):
        assert not few(sets)
    Q = np.zeros((n, 0))
    for column in X.T:
        rest = column
        for _ in range(3):
            rest = rest - Q @ (Q.T @ rest)
        Q = np.column_stack([Q, rest / np.linalg.norm(rest)])
    keys = {digest(q): 0.0 for q in Q.T} | {digest(x): 0.0 for x in X.T[[0, 5, 6]]}
    assert len(keys) <= Q.shape[1] + 3
    a = Q.T @ y
    rest = y - Q @ a
    spread = max(np.sqrt(rest @ rest / n), 1e-4 * y.std())
    step = 2.0 ** np.ceil(np.log2(share_of(n / 2 / len(a), SHARE, WIDEST) * spread))
    Xy = (Q.T @ X).T @ (np.rint(a / step) * step)
    return Rows(X, np.square(np.ascontiguousarray(X.T)), Xy, float(Xy[0]))


def mean(eta: np.ndarray) -> np.ndarray:
    """The logistic function."""
    small = np.exp(-np.abs(eta))
    return np.where(eta < 0, small, 1.0) / (1 + small)


def dominated(r: Rows, weight: np.ndarray) -> bool:
    """Whether few rows decide a weighted sum of squares."""
    shares = weight * r.squares
    return bool((LEAST - 1) * (shares.max(1) / shares.sum(1)).max() >= 0.99 * DOMINANT)


def own(r: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The site's part of the first weighted regression: its information and right side, at its own fit."""
    share = r.total / len(r.X)
    mu = np.full(len(r.X), share)
    eta = np.log(mu / (1 - mu))
    converged = False
    while True:
        weight = mu * (1 - mu)
        H = r.X.T @ (weight[:, None] * r.X)
        right = r.X.T @ (weight * eta) + (r.Xy - r.X.T @ mu)
        if converged:
            break
        before = mu
        eta = r.X @ np.linalg.lstsq(H, right, rcond=None)[0]
        mu = mean(eta)
        converged = bool((np.abs(mu - before) < CONVERGED * mu).all())
    assert not dominated(r, weight)
    return H, right


def score(r: Rows, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """The site's score, information and log-likelihood at b."""
    mu = mean(r.X @ b)
    weight = mu * (1 - mu)
    assert not dominated(r, weight)
    digest(mu)
    return r.Xy - r.X.T @ mu, r.X.T @ (weight[:, None] * r.X), float(b @ r.Xy + np.log1p(-mu).sum())


def bare(frames: dict[str, Any]) -> np.ndarray:
    """The coefficients of all sites' rows."""
    sites = [read(frame) for frame in frames.values()]
    firsts = [own(r) for r in sites]
    b = np.linalg.solve(sum(H for H, _ in firsts), sum(right for _, right in firsts))
    for _ in range(3):  # as many as the study's exchanges
        parts = [score(r, b) for r in sites]
        b = b + np.linalg.solve(sum(H for _, H, _ in parts), sum(g for g, _, _ in parts))
    return b


def main() -> None:
    """Print both times, and how far apart the coefficients are."""
    from targets import frames, study

    import medley as md

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100)
    repeats = parser.parse_args().repeats
    sites = frames()
    fit = md.statistics.Study(sites).glm("died ~ a + b + c + d + C(s)", "binomial")
    apart = np.abs(bare(sites) - fit.params[NAMES].to_numpy()).max()
    print(f"coefficients differ by {apart:.1g} at most")
    ways: dict[str, Callable[[], Any]] = {"study": study(), "bare NumPy": lambda: bare(sites)}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, run in ways.items():
            began = time.process_time()
            run()
            times[way].append(1e3 * (time.process_time() - began))
    for way, of in times.items():
        print(f"{way}: {statistics.median(of):.1f} CPU ms ({min(of):.1f}-{max(of):.1f})")


if __name__ == "__main__":
    main()
