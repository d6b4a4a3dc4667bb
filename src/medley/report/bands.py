"""Trajectories of one run, and their mean and band over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from ..contract.errors import RecipeError
from ..storage.result import Result
from .numbers import by_method, t95, usable

Curve = Float64[np.ndarray, " k"]

# Runs differ in length, so no name ties their lengths together.
Trajectory = tuple[Float64[np.ndarray, " _"], Float64[np.ndarray, " _"]]


@dataclass(frozen=True)
class Band:
    """A mean trajectory over seeds and its pointwise 95 % t-band.

    Attributes:
        x: Abscissae [k].
        mean: Mean over seeds [k].
        low: Lower edge of the band [k]; nan for one seed.
        high: Upper edge of the band [k]; nan for one seed.
    """

    x: Curve
    mean: Curve
    low: Curve
    high: Curve
    n: int


def column(result: Result, name: str) -> Curve:
    """One column of a history [k], nan if a row lacks it; "bytes" is up and down together."""
    if name == "bytes":
        return np.asarray(column(result, "bytes_down") + column(result, "bytes_up"))
    return np.array([row.get(name, np.nan) for row in result.history], dtype=np.float64)


def curve(result: Result, x: str, y: str) -> tuple[Curve, Curve]:
    """Columns ``x`` and ``y`` of the rows in which both are finite; ``x`` never decreases."""
    at = column(result, x)
    v = column(result, y)
    both = np.isfinite(at) & np.isfinite(v)
    return np.maximum.accumulate(at[both]), v[both]


def band(results: Sequence[Result], x: str = "round", y: str = "loss", log: bool = False, points: int = 400) -> Band:
    """Mean and pointwise 95 % t-band of ``y`` over ``x``, within the range of ``x`` that all usable runs cover.

    Over rounds, the abscissae are the rounds that all runs have evaluated. Over quantities that differ between seeds
    (bytes, seconds), each run is linearly interpolated on one grid.

    Args:
        results: Runs of one method; runs that diverged or were interrupted are left out.
        x: Column of the abscissa; default "round". "bytes" is up and down together.
        y: Column of the ordinate; default "loss".
        log: Whether mean and band are of log10(y), so that the mean is geometric; default False. A number that is not
            positive then counts as the smallest positive one.
        points: Most points returned, evenly thinned, keeping the last; default 400.

    Raises RecipeError if ``results`` come from several methods.
    """
    groups = by_method(results)
    if len(groups) > 1:
        raise RecipeError(
            f"band() is for one method, but these results are of {', '.join(groups)}: separate them with by_method()",
            "results",
        )
    curves = [c for c in (curve(r, x, y) for r in results if usable(r)) if len(c[0])]
    if not curves:
        nothing = np.empty(0)
        return Band(nothing, nothing, nothing, nothing, 0)
    if log:
        positive = np.concatenate([v[v > 0] for _, v in curves])
        floor = positive.min() if len(positive) else 1.0
        curves = [(at, np.log10(np.maximum(v, floor))) for at, v in curves]
    grid, Y = _rounds(curves) if x == "round" else _interpolated(curves, points)
    keep = thin(len(grid), points)
    grid = grid[keep]
    Y = Y[:, keep]
    n = len(curves)
    mean = Y.mean(0)
    half = t95(n) * Y.std(0, ddof=1) / math.sqrt(n) if n > 1 else np.full(len(grid), math.nan)
    low = mean - half
    high = mean + half
    if log:
        mean, low, high = (np.power(10.0, np.clip(v, -300, 300)) for v in (mean, low, high))
    return Band(grid, mean, low, high, n)


def _rounds(curves: Sequence[Trajectory]) -> tuple[Curve, Float64[np.ndarray, "n k"]]:
    """The abscissae that all n curves have, and the ordinates there."""
    grid = curves[0][0]
    for at, _ in curves[1:]:
        grid = np.intersect1d(grid, at)
    return grid, np.stack([v[np.searchsorted(at, grid)] for at, v in curves])


def _interpolated(curves: Sequence[Trajectory], points: int) -> tuple[Curve, Float64[np.ndarray, "n k"]]:
    """At most ``points`` abscissae within the range that all n curves cover, and the ordinates there."""
    grid = curves[0][0]
    if all(np.array_equal(at, grid) for at, _ in curves):
        return grid, np.stack([v for _, v in curves])
    low = max(at[0] for at, _ in curves)
    high = min(at[-1] for at, _ in curves)
    k = min(points, max(len(at) for at, _ in curves))
    grid = np.linspace(low, high, k) if low <= high else np.empty(0)
    return grid, np.stack([np.interp(grid, at, v) for at, v in curves])


def thin(n: int, points: int) -> Int64[np.ndarray, " k"]:
    """Indices of at most ``points`` of n, evenly spread, first and last included."""
    return np.arange(n) if n <= points else np.unique(np.linspace(0, n - 1, points).round().astype(np.int64))
