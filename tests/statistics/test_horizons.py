"""Restricted means and quantiles of survival, against lifelines, and against the times themselves."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study
from support.hospitals import patients, sites
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0)


def near(a: Any, b: Any, rel: float = 1e-8) -> None:
    assert np.asarray(a, dtype=float) == pytest.approx(np.asarray(b, dtype=float), rel=rel, abs=1e-12, nan_ok=True)


def by_hand(time: np.ndarray, event: np.ndarray, until: float) -> tuple[float, float]:
    """The mean and its error from single rows, event by event."""
    at = np.unique(time[event == 1])
    n = np.array([(time >= t).sum() for t in at])
    d = np.array([((time == t) & (event == 1)).sum() for t in at])
    S = np.cumprod(1 - d / n)
    curve = lambda t: 1.0 if t < at[0] else float(S[np.searchsorted(at, t, side="right") - 1])
    corners = np.array([0.0, *at[at < until], until])
    area = [(b - a) * curve(a) for a, b in itertools.pairwise(corners)]
    left = [sum(area[k + 1 :]) for k in range(len(area) - 1)]
    parts = [A**2 * d / (n * (n - d)) for A, d, n in zip(left, d, n, strict=False) if n > d]
    return sum(area), float(np.sqrt(sum(parts)))


@pytest.mark.parametrize("by", quick(1, ["turns", "blocks", "age"]))
@pytest.mark.parametrize("seed", quick(1, [7, 8, 9]))
def test_means_and_medians_are_those_of_lifelines(by: str, seed: int) -> None:
    lifelines = pytest.importorskip("lifelines")
    from lifelines.utils import median_survival_times, qth_survival_time, restricted_mean_survival_time

    frame = patients(seed=seed)
    curves = Study(sites(frame, by), rules=OPEN).kaplan_meier("months", "event", unit=0.1, until=20.0, by="sex")
    means = curves.rmst(9.0)
    medians = curves.quantile()
    thirds = curves.quantile(1 / 3)
    for sex, rows in frame.groupby("sex"):
        there = lifelines.KaplanMeierFitter().fit(rows["months"], rows["event"])
        near(means.loc[sex, "rmst"], restricted_mean_survival_time(there, t=9.0))
        near(medians.loc[sex, "time"], there.median_survival_time_)
        near(thirds.loc[sex, "time"], qth_survival_time(2 / 3, there.survival_function_))
        ends = median_survival_times(there.confidence_interval_).to_numpy().ravel()
        near(medians.loc[sex, ["lower", "upper"]], ends)
        mean, se = by_hand(rows["months"].to_numpy().round(1), rows["event"].to_numpy(), 9.0)
        near(means.loc[sex, ["rmst", "se"]], [mean, se])
    gap = means.loc["M - F"]
    near(gap["rmst"], means.loc["M", "rmst"] - means.loc["F", "rmst"])
    near(gap["se"] ** 2, (means["se"][:2] ** 2).sum())
    assert 0 < gap["p"] < 1


@pytest.mark.slow
def test_medians_are_those_of_statsmodels() -> None:
    surv = pytest.importorskip("statsmodels.duration.survfunc")
    frame = patients()
    curves = Study(sites(frame), rules=OPEN).kaplan_meier("months", "event", unit=0.1, until=20.0)
    there = surv.SurvfuncRight(frame["months"].round(1), frame["event"])
    near(curves.quantile().loc["", "time"], there.quantile(0.5))
    low, high = there.quantile_ci(0.5, method="cloglog")
    assert -1e-9 <= low - curves.quantile().loc["", "lower"] < 0.2  # it excludes the end
    assert abs(curves.quantile().loc["", "upper"] - high) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_under_rules_means_are_within_how_far_times_moved(seed: int) -> None:
    frame = sites(patients(seed=seed))
    plain, safe = (
        Study(frame, rules=rules).kaplan_meier("months", "event", unit=0.1, until=20.0, by="sex")
        for rules in (OPEN, Rules(exact=False))
    )
    gap = (safe.rmst(9.0)["rmst"] - plain.rmst(9.0)["rmst"]).abs()
    for sex in ("F", "M"):
        assert gap[sex] < safe.moved[sex]
        assert abs(safe.quantile().loc[sex, "time"] - plain.quantile().loc[sex, "time"]) < 3 * safe.moved[sex]
    near(safe.rmst(9.0)["se"], plain.rmst(9.0)["se"], 0.1)


def test_under_secure_sums_they_are_the_same() -> None:
    frame = sites(patients())
    secure = md.SecureSum(bits=64, bound=2.0**40)
    plain, masked = (
        Study(frame, secure=s).kaplan_meier("months", "event", unit=0.1, until=20.0, by="sex") for s in (None, secure)
    )
    near(masked.rmst(9.0), plain.rmst(9.0), 1e-9)
    near(masked.quantile(), plain.quantile(), 1e-9)
    assert "medians\n" in masked.summary()


def test_edges_of_curves() -> None:
    """Without events a mean is its horizon and there is no median; beyond the last row at risk there is no mean."""
    frame = patients()
    ask: Any = lambda rows, **how: Study(sites(rows), rules=OPEN).kaplan_meier(
        "months", "event", unit=0.1, until=20.0, **how
    )
    none = ask(frame.assign(event=0))
    near(none.rmst(5.0).loc["", ["rmst", "se", "lower", "upper"]], [5.0, 0.0, 5.0, 5.0])
    assert np.isinf(none.quantile().loc[""]).all()
    assert "inf" in none.summary()
    every = ask(frame.assign(event=1))
    time = frame["months"].to_numpy().round(1)
    near(every.rmst(20.0).loc["", "rmst"], np.minimum(time, 20.0).mean())  # without censoring it is a mean
    near(every.rmst(20.0).loc["", "se"], np.minimum(time, 20.0).std() / np.sqrt(len(time)))
    same = ask(frame.assign(event=1, months=4.0))
    near(same.quantile().loc[""], [4.0, 4.0, 4.0])
    near(same.rmst(9.0).loc["", ["rmst", "se"]], [4.0, 0.0])
    last = float(frame["months"].max())
    longest = frame.assign(event=np.where(frame["months"] == last, 0, frame["event"]))
    for until in (0.0, -1.0, last + 0.3):
        with pytest.raises(md.RecipeError, match=rf"rmst\(until=.*above 0 and up to {last:g}, until when rows of all"):
            ask(longest).rmst(until)
    ask(longest).rmst(last)
    for share in (0.0, 1.0):
        with pytest.raises(md.RecipeError, match="between 0 and 1"):
            none.quantile(share)
