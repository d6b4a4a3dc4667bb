"""Survival over sites is that of statsmodels and lifelines on all rows together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study, Withheld
from medley.statistics.survival import merged, partial
from support.hospitals import patients, sites
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0)


@pytest.fixture(scope="module")
def reference() -> Any:
    return json.loads((Path(__file__).parent / "reference.json").read_text(encoding="utf-8"))


def near(a: Any, b: Any, rel: float = 1e-8) -> None:
    assert np.asarray(a, dtype=float) == pytest.approx(np.asarray(b, dtype=float), rel=rel, abs=1e-12)


@pytest.mark.parametrize("ties", quick(1, ["efron", "breslow"]))
def test_cox_is_statsmodels_stratified_by_site(ties: Any, reference: Any) -> None:
    fit = Study(sites(patients())).cox("months ~ age + C(sex)", "event", ties=ties)
    there = reference["cox"][ties]
    near([*fit.params], there["params"])
    near([*fit.bse], there["bse"])
    near(fit.llf, there["llf"])
    assert fit.exchanges <= 8
    assert fit.frame(exp=True).loc["age", "exp(coef)"] == pytest.approx(np.exp(there["params"][0]))
    assert "Cox regression, stratified by site" in fit.summary()


def test_the_partial_likelihoods_slopes_are_its_differences() -> None:
    g = np.random.default_rng(0)
    X, time, event = g.normal(size=(30, 3)), g.integers(1, 8, 30).astype(float), g.random(30) < 0.6
    b, h = np.array([0.2, -0.4, 0.1]), 1e-5
    for ties in ("efron", "breslow"):
        _, slope, bend = partial(X, time, event, b, ties)
        for j, e in enumerate(np.eye(3)):
            (up, a, _), (down, c, _) = (partial(X, time, event, b + k * h * e, ties) for k in (1, -1))
            assert slope[j] == pytest.approx((up - down) / (2 * h), rel=1e-6, abs=1e-8)
            assert bend[j] == pytest.approx((c - a) / (2 * h), rel=1e-5, abs=1e-8)


def test_curves_are_those_of_lifelines(reference: Any) -> None:
    found = Study(sites(patients()), rules=OPEN).kaplan_meier("months", "event", unit=0.1, until=20.0, by="sex")
    for group, there in reference["kaplan_meier"].items():
        frame = found.frame(group)
        near([*frame.index], there["time"], 1e-12)
        for name in ("at_risk", "events", "survival", "lower", "upper"):
            near(frame[name].to_numpy(), there[name], 1e-12)
    near(found.logrank().statistic, reference["logrank"]["statistic"], 1e-11)
    near(found.logrank().pvalue, reference["logrank"]["pvalue"], 1e-9)


def test_times_are_rounded_up_until_steps_have_their_least_numbers() -> None:
    plain, safe = (
        Study(sites(patients()), rules=rules).kaplan_meier("months", "event", unit=0.1, until=20.0)
        for rules in (OPEN, Rules(events=5, rows=5))
    )
    assert safe.deaths.sum() == plain.deaths.sum()
    assert set(np.unique(safe.deaths)) & {1.0, 2.0, 3.0, 4.0} == set()
    late = plain.deaths.cumsum() - safe.deaths.cumsum()
    assert late.min() > -5 * 6  # a site's last few come to its last step
    assert 0 < late.max() < 10 * 6
    assert merged(np.array([[1, 1, 0], [0, 0, 0]]), (5, 5)) is None
    assert merged(np.array([[3, 4, 1], [9, 0, 0]]), (5, 5)).tolist() == [[0, 8, 0], [0, 9, 0]]  # type: ignore[union-attr]


def test_curves_of_some_of_the_same_rows_are_withheld() -> None:
    study = Study(sites(patients()))
    study.kaplan_meier("months", "event", unit=0.1, until=20.0, by="sex")
    with pytest.raises(Withheld, match="Bern withholds the group 'a' of months: a curve of some of these rows"):
        study.kaplan_meier("months", "event", unit=0.1, until=20.0, by="ward")
    with pytest.raises(Withheld, match="a curve of some of these rows"):
        study.kaplan_meier("months", "event", unit=0.2, until=20.0, by="sex")


def test_events_and_times_that_are_none_are_refused() -> None:
    with pytest.raises(md.BadData, match="Bern: want times months of at least 0, and events visits of 0 and 1"):
        Study(sites(patients())).cox("months ~ age", "visits")
    with pytest.raises(md.RecipeError, match="unit"):
        Study(sites(patients())).kaplan_meier("months", "event", unit=0.0, until=20.0)


@pytest.mark.slow
def test_a_site_without_events_does_not_matter() -> None:
    made = sites(patients())
    made["Chur"] = made["Chur"].assign(event=0)
    fit = Study(made).cox("months ~ age", "event")
    rest = Study(made).without("Chur").cox("months ~ age", "event")
    near([*fit.params], [*rest.params])
    assert fit.nobs == rest.nobs + 150


@pytest.mark.slow
def test_secure_sums_of_survival() -> None:
    secure = md.SecureSum(bits=64, bound=2.0**40)
    a, b = (Study(sites(patients()), secure=s).cox("months ~ age + C(sex)", "event") for s in (None, secure))
    near([*b.params], [*a.params], 1e-6)
    k, m = (Study(sites(patients()), secure=s).kaplan_meier("months", "event", 0.1, 20.0) for s in (None, secure))
    assert np.array_equal(k.deaths, m.deaths)
    assert np.array_equal(k.at_risk, m.at_risk)
