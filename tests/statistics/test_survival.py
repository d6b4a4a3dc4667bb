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
from medley.statistics.analysis import packed, tensor
from medley.statistics.curves import merged
from medley.statistics.risksets import AtRisk
from medley.statistics.scoring import BAD, Point, Unfit
from medley.statistics.study import Sites
from medley.statistics.survival import curve, partial
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
        _, slope, bend = partial(X, AtRisk.of(time), event, b, ties)
        for j, e in enumerate(np.eye(3)):
            (up, a, _), (down, c, _) = (partial(X, AtRisk.of(time), event, b + k * h * e, ties) for k in (1, -1))
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


def test_times_are_moved_to_the_mean_of_steps_of_the_least_number() -> None:
    counts, moved, _ = merged(np.array([[2, 1, 0, 4, 0, 1], [0, 0, 9, 0, 0, 0]]), np.arange(6.0), 3)
    assert counts.tolist() == [[3, 0, 0, 5, 0, 0], [0, 0, 9, 0, 0, 0]]  # 0, 0, 1 are at 0, and 3, 3, 3, 3, 5 at 3
    assert moved == 1 + 2
    assert merged(np.array([[1, 1, 0], [0, 0, 0]]), np.arange(3.0), 5)[0].tolist() == [
        [2, 0, 0],
        [0, 0, 0],
    ]  # which is withheld


@pytest.mark.parametrize("seed", quick(1, [7, 8, 9, 10, 11]))
def test_curves_under_rules_are_near_those_of_all_rows(seed: int) -> None:
    """Times that are moved to the mean of their step bend neither the curve nor the log-rank test to one side."""
    rows = sites(patients(seed=seed))
    plain, safe = (
        Study(rows, rules=rules).kaplan_meier("months", "event", unit=0.1, until=20.0, by="sex")
        for rules in (OPEN, Rules())
    )
    assert plain.moved == {"F": 0.0, "M": 0.0}
    assert safe.deaths.sum() == plain.deaths.sum()
    assert set(np.unique(safe.deaths)) & {1.0, 2.0, 3.0, 4.0} == set()
    left = safe.at_risk[:, :-1] - safe.at_risk[:, 1:] - safe.deaths[:, :-1]
    assert set(np.unique(left)) & {1.0, 2.0, 3.0, 4.0} == set()
    for k, group in enumerate(("F", "M")):
        at = np.arange(0.5, 12, 0.5)
        gaps = []
        for found in (plain, safe):
            curve = found.frame(group)["survival"]
            gaps.append(np.append(1.0, curve)[np.searchsorted(curve.index, at, side="right")])
        assert abs(np.mean(gaps[1] - gaps[0])) < 0.01
        assert np.abs(gaps[1] - gaps[0]).max() < 0.1
        assert 0.3 < safe.moved[group] < 0.6  # months
        mean = [f.deaths[k] @ np.arange(201) / f.deaths[k].sum() for f in (plain, safe)]
        assert mean[1] == pytest.approx(mean[0], abs=0.2)  # fiftieths of a month
    assert safe.logrank().statistic == pytest.approx(plain.logrank().statistic, rel=0.1)
    said = safe.summary()
    assert f"F (times moved by {safe.moved['F']:.2g} on average)" in said
    assert f"log-rank of these times: {safe.logrank().statistic:.2f}, df = 1, p = " in said


def test_groups_without_events_do_not_differ() -> None:
    found = Study(sites(patients().assign(event=0))).kaplan_meier("months", "event", unit=0.1, until=20.0, by="sex")
    assert found.logrank() == (0.0, 1, 1.0)
    assert "p = 1.000" in found.summary()


def test_steps_have_the_larger_of_the_least_numbers_of_rows_and_of_events() -> None:
    found = Study(sites(patients()), rules=Rules(rows=12)).kaplan_meier("months", "event", unit=0.1, until=20.0)
    assert found.deaths[found.deaths > 0].min() >= 12
    with pytest.raises(Withheld, match="Bern withholds the curve of all: too few events or censored rows"):
        Study({"Bern": patients(25)}, rules=Rules(events=13)).kaplan_meier("months", "event", unit=0.1, until=20.0)


def test_curves_of_some_of_the_same_rows_are_withheld() -> None:
    study = Study(sites(patients()))
    study.kaplan_meier("months", "event", unit=0.1, until=20.0, by="sex")
    with pytest.raises(Withheld, match="Bern withholds the group 'a' of months: a curve of some of these rows"):
        study.kaplan_meier("months", "event", unit=0.1, until=20.0, by="ward")
    with pytest.raises(Withheld, match="a curve of some of these rows"):
        study.kaplan_meier("months", "event", unit=0.2, until=20.0, by="sex")


ALIKE = "collinear: {}all rows at risk when an event occurs are alike in {}, so that the effect belongs to the baseline"


@pytest.mark.parametrize(
    ("right", "cuts", "match"),
    [
        ("age + teaching", (), ALIKE.format("within each site, ", "teaching") + ".*or share one baseline"),
        ("age + beds + income", (), ALIKE.format("within each site, ", "beds and income")),
        ("age + C(unit)", (), ALIKE.format("within each site, ", r"C\(unit\)\[T.x\]")),
        ("age + one", (6.0, 20.0), ALIKE.format("", "one")),
        ("age + days", (), "collinear: days is a combination of age, up to a constant for each site"),
        ("days + late", (6.0, 20.0), "collinear: late is a combination of days, up to a constant over all sites"),
        ("0 + C(sex)", (), r"collinear: C\(sex\)\[M\] is a combination of C\(sex\)\[F\]"),
    ],
)
def test_a_column_without_an_effect_of_its_own_is_refused(right: str, cuts: tuple[float, ...], match: str) -> None:
    frame = patients()
    k = np.arange(len(frame)) % 6
    frame = frame.assign(teaching=1.0 * (k == 0), beds=100.1 + 31 * k, income=61.7 - 3.3 * k, one=61.2)
    frame = frame.assign(unit=np.where(k == 5, "icu", "x"), days=frame["age"] * 365.25, late=frame["age"] + 1e5)
    with pytest.raises(Unfit, match=match):
        Study(sites(frame)).cox(f"months ~ {right}", "event", cuts=cuts)


def test_a_column_that_only_a_common_baseline_or_no_site_can_fit() -> None:
    frame = patients().assign(teaching=1.0 * (np.arange(900) % 6 == 0), days=lambda f: 12 * f["age"])
    assert "teaching" in Study(sites(frame)).cox("months ~ age + teaching", "event", cuts=[6, 20]).names
    with pytest.raises(md.BadData, match="no site sent its own fit"):
        Study(sites(frame)).meta("months ~ age + days", event="event")


def test_without_events_there_is_nothing_to_explain() -> None:
    with pytest.raises(Unfit, match="event is 0 at all sites"):
        Study(sites(patients().assign(event=0))).cox("months ~ age", "event")


@pytest.mark.parametrize("cuts", [(), (6.0, 20.0)])
def test_a_column_may_be_far_from_0(cuts: tuple[float, ...]) -> None:
    frame = patients()
    g = np.random.default_rng(3)
    year = g.normal(0, 3, len(frame)).round()
    time, end = g.exponential(6 * np.exp(-0.4 * year)), g.exponential(20, len(frame))
    frame = frame.assign(event=1 * (time <= end), months=np.minimum(time, end).round(2) + 0.01)
    ask = lambda v: Study(sites(frame.assign(year=year + v)), rules=OPEN).cox("months ~ year", "event", cuts=cuts)
    far, near_0 = ask(2015), ask(0)
    near(*([*fit.params, *fit.bse, fit.llf] for fit in (far, near_0)))
    if cuts:
        near(far.zph().to_numpy(), near_0.zph().to_numpy(), 1e-6)
        at = np.exp(-2015 * far.params["year"])  # the hazard of the year 0
        near(far.baseline_hazard["hazard"], near_0.baseline_hazard["hazard"] * at)


def test_coefficients_that_go_too_far_are_no_numbers_that_are_not_finite() -> None:
    X, time = np.arange(12.0)[:, None], np.arange(12.0, 0.0, -1)
    found = partial(X, AtRisk.of(time), np.ones(12, bool), np.array([1e4]), "efron")
    assert curve(found, 0.0, 12.0).sums[BAD] == 1
    cox, me = md.statistics.Cox("months ~ age", "event", cuts=(6.0, 20.0)), Study({"Bern": patients()}, rules=OPEN)
    point = Point(packed({}), tensor([1e3]), tensor([]), 0.0, 1.0, 900)
    assert not cox.leaving(Sites(me.sites)(0, 1), point).counts.any()  # the server sees that rows are missing


def test_events_and_times_that_are_none_are_refused() -> None:
    with pytest.raises(
        md.BadData, match="Bern: times in months must be at least 0, and events in visits must be 0 or 1"
    ):
        Study(sites(patients())).cox("months ~ age", "visits")
    with pytest.raises(
        md.BadData, match="Bern, column 'sex': it is not a number; recode it there as numbers, an event as 0 and 1"
    ):
        Study(sites(patients())).cox("months ~ age", "sex")
    with pytest.raises(md.BadData, match="event is 0 at all sites in the rows that others outlive"):
        Study(sites(patients().assign(event=0))).cox("months ~ age", "event")
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


# One baseline for all sites, from sums at cuts.

FINE = tuple(np.round(np.arange(0.1, 20, 0.1), 1).tolist())


def rounded(cuts: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns, times rounded up to cuts, and events of all patients; those beyond the last are censored there."""
    frame = patients()
    X = np.column_stack([frame["age"], frame["sex"] == "M"]).astype(float)
    months = frame["months"].to_numpy()
    time = np.array([min((c for c in cuts if c >= t - 1e-9), default=np.inf) for t in months])
    return X, np.minimum(time, cuts[-1]), (frame["event"] == 1).to_numpy() & np.isfinite(time)


def by_rows(
    cuts: tuple[float, ...], b: np.ndarray, ties: str, g: Any
) -> tuple[np.ndarray, np.ndarray, dict[float, float]]:
    """Score and information of β and of θ, under β + θ g(t), and the hazard by time; row by row."""
    X, time, event = rounded(cuts)
    r, p = np.exp(X @ b), X.shape[1]
    U, info, hazard = np.zeros(2 * p), np.zeros((2 * p, 2 * p)), dict.fromkeys(cuts, 0.0)
    for t in np.unique(time[event]):
        Z, dead = np.hstack([X, X * g(t)]), event & (time == t)
        U += Z[dead].sum(0)
        for i in range(d := int(dead.sum())):
            w = r * (time >= t) * (1 - (i / d) * dead * (ties == "efron"))
            mean = w @ Z / w.sum()
            U, info = U - mean, info + (Z.T * w) @ Z / w.sum() - np.outer(mean, mean)
            hazard[float(t)] += 1 / w.sum()
    return U, info, hazard


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_cox_with_one_baseline_is_that_of_all_rows(ties: Any, reference: Any) -> None:
    fit = Study(sites(patients()), rules=OPEN).cox("months ~ age + C(sex)", "event", ties=ties, cuts=FINE)
    there = reference["cox"][f"{ties}, pooled"]
    near([*fit.params], there["params"])
    near([*fit.bse], there["bse"])
    near(fit.llf, there["llf"])
    assert fit.exchanges <= 8
    assert "one baseline for all sites" in fit.summary()


@pytest.mark.parametrize("cuts", [FINE, (6.0, 15.0)])
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_baseline_and_proportional_hazards_are_those_row_by_row(ties: Any, cuts: tuple[float, ...]) -> None:
    fit = Study(sites(patients()), rules=OPEN).cox("months ~ age + C(sex)", "event", ties=ties, cuts=cuts)
    b = fit.params.to_numpy()
    _, time, event = rounded(cuts)
    km, left = dict[float, float](), 1.0
    for t in cuts:
        km[t] = 1 - left
        left *= 1 - (event & (time == t)).sum() / max((time >= t).sum(), 1)
    for transform, g in {"identity": float, "log": np.log, "km": km.__getitem__}.items():
        U, info, hazard = by_rows(cuts, b, ties, g)
        assert np.abs(U[:2]).max() < 1e-6
        found = fit.zph(transform)
        for j in range(2):
            at = [0, 1, 2 + j]
            near(found.loc[fit.names[j], "chi2"], U[at] @ np.linalg.solve(info[np.ix_(at, at)], U[at]), 1e-6)
        near(found.loc["GLOBAL", "chi2"], U @ np.linalg.solve(info, U), 1e-6)
        assert [*found["df"]] == [1, 1, 2]
    near(fit.baseline_hazard["hazard"].to_numpy(), [hazard[t] for t in cuts], 1e-7)
    near(fit.baseline_hazard["survival"].to_numpy()[-1], np.exp(-sum(hazard.values())), 1e-7)


def test_an_effect_that_changes_over_time_is_found() -> None:
    frame = patients()
    late = (frame["months"] > 5) & (frame["sex"] == "M")
    frame.loc[late & (np.arange(900) % 3 > 0), "event"] = 0  # men's hazard falls
    found = Study(sites(frame), rules=OPEN).cox("months ~ age + C(sex)", "event", cuts=FINE).zph()
    assert found.loc["C(sex)[T.M]", "p"] < 0.001 < found.loc["age", "p"]


def test_cuts_are_under_the_rules_of_a_fit_of_their_own() -> None:
    made = sites(patients())
    fit = Study(made).cox("months ~ age + C(sex)", "event", cuts=[6, 20])
    near([*fit.params], [*Study(made, rules=OPEN).cox("months ~ age + C(sex)", "event", cuts=[6, 20]).params])
    with pytest.raises(Withheld, match=r"Bern withholds: .* fewer than 5 events.* until 3: give fewer cuts"):
        Study(made).cox("months ~ age + C(sex)", "event", cuts=[3, 6, 20])
    with pytest.raises(Withheld, match=r"parameters of \d+ rows .* until 2: give fewer cuts"):
        Study(made, rules=Rules(parameters=0.03, pooled=True)).cox("months ~ age + C(sex)", "event", cuts=[2, 20])


@pytest.mark.parametrize("first", [(6.0, 20.0), (6.5, 20.0), ()])
def test_other_cuts_and_curves_of_the_same_rows_are_withheld(first: tuple[float, ...]) -> None:
    """The difference of two sums until 6 and 6.5 would be of the few rows in between."""
    study = Study(sites(patients()))
    ask = lambda cuts: study.cox("months ~ age", "event", cuts=cuts)
    ask(first) if first else study.kaplan_meier("months", "event", unit=0.1, until=20.0)
    with pytest.raises(Withheld, match="the times of months: a curve of some of these rows has left before"):
        ask((6.2, 20.0))
    if first:
        assert ask(first).nobs == 900  # again the same
        with pytest.raises(Withheld, match="a curve of some of these rows"):
            study.kaplan_meier("months", "event", unit=0.1, until=20.0)


def test_secure_sums_of_one_baseline() -> None:
    secure = md.SecureSum(bits=64, bound=2.0**40)
    a, b = (Study(sites(patients()), secure=s).cox("months ~ age", "event", cuts=[6, 20]) for s in (None, secure))
    near([*b.params], [*a.params], 1e-5)


def test_what_has_no_cuts_has_no_common_baseline() -> None:
    fit = Study(sites(patients())).cox("months ~ age", "event")
    for ask in (lambda: fit.baseline_hazard, fit.zph):
        with pytest.raises(
            md.RecipeError, match=r"a separate baseline for each site; for one baseline give times, cox\(cuts="
        ):
            ask()
    for cuts in ([3, 2], [0, 1], [2, 2]):
        with pytest.raises(md.RecipeError, match="give times above 0, in ascending order"):
            Study(sites(patients())).cox("months ~ age", "event", cuts=cuts)
