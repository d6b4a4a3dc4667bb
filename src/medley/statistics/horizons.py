"""Figures of a Kaplan-Meier curve: mean time up to a horizon (RMST), and times at which survival falls to a level.

**Reference**: Uno et al., J. Clin. Oncol. 32, 2014, for the restricted mean survival time, with the variance of Klein &
Moeschberger, "Survival Analysis", 2003, section 4.5; Brookmeyer & Crowley, Biometrics 38, 1982, for the intervals of
quantiles, by the bands of log −log that `Curves.frame` has.

A curve's frame is all that is read, so nothing further leaves a site.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..contract import RecipeError
from ..contract.text import shown
from .extra import needed


class Restricted(NamedTuple):
    """A restricted mean survival time, and its standard error."""

    mean: float
    se: float


def restricted_mean(frame: Any, until: float) -> Restricted:
    """The area under a curve up to a time, from its frame of survival and standard errors by time of an event."""
    times = frame.index.to_numpy(float)
    inside = times <= until
    S = frame["survival"].to_numpy(float)[inside]
    steps = np.diff([0.0, *times[inside], until])
    area = steps * np.append(1.0, S)
    later = area[::-1].cumsum()[::-1][1:]  # the area from each event on
    with np.errstate(invalid="ignore", divide="ignore"):
        greenwood = np.square(frame["se"].to_numpy(float)[inside] / S)
    jumps = np.diff(np.where(S > 0, greenwood, 0.0), prepend=0.0)
    return Restricted(float(area.sum()), float(np.sqrt((later**2 * jumps)[S > 0].sum())))


def time_at(times: np.ndarray, survival: np.ndarray, level: float) -> float:
    """The first of these times at which survival is at or below a level; infinite if it never is."""
    low = np.flatnonzero(survival <= level + 1e-12)
    return float(times[low[0]]) if len(low) else np.inf


def rmst_table(curves: Any, until: float, alpha: float) -> Any:
    """The table of `Curves.rmst`."""
    from scipy.stats import norm

    z = norm.isf(alpha / 2)
    means = list[Restricted]()
    for group, last in zip(curves.groups, _last(curves), strict=True):
        if not 0 < until <= last * (1 + 1e-12):
            raise RecipeError(
                f"rmst(until={until:g}): give a time above 0 and up to {last:g}, until when rows of "
                f"{shown(group or 'all')} were at risk",
                "until",
            )
        means.append(restricted_mean(curves.frame(group, alpha), until))
    lines = [(r.mean, r.se, r.mean - z * r.se, r.mean + z * r.se, np.nan) for r in means]
    for r in means[1:]:
        gap = r.mean - means[0].mean
        se = float(np.hypot(r.se, means[0].se))
        p = float(2 * norm.sf(abs(gap) / se)) if se else np.nan
        lines.append((gap, se, gap - z * se, gap + z * se, p))
    names = [*curves.groups, *(f"{g} - {curves.groups[0]}" for g in curves.groups[1:])]
    return needed("pandas").DataFrame(lines, names, columns=["rmst", "se", "lower", "upper", "p"])


def quantile_table(curves: Any, share: float, alpha: float) -> Any:
    """The table of `Curves.quantile`."""
    if not 0 < share < 1:
        raise RecipeError(f"quantile({share}): give the share of rows with an event, between 0 and 1", "share")
    lines = []
    for group in curves.groups:
        frame = curves.frame(group, alpha)
        times = frame.index.to_numpy(float)
        bands = frame[["survival", "lower", "upper"]].to_numpy(float).T
        bands = np.where(np.isnan(bands), bands[0], bands)  # at 0 a band has no width
        lines.append([time_at(times, band, 1 - share) for band in bands])
    return needed("pandas").DataFrame(lines, [*curves.groups], columns=["time", "lower", "upper"])


def _last(curves: Any) -> list[float]:
    """The last time of each group at which rows are at risk; the curve's end if the last of them have the event."""
    out = []
    for d, n in zip(curves.deaths, curves.at_risk, strict=True):
        k = int(np.flatnonzero(n > 0)[-1]) if (n > 0).any() else 0
        out.append(curves.analysis.until if n[k] > 0 and d[k] >= n[k] else float(curves.analysis.grid[k]))
    return out
