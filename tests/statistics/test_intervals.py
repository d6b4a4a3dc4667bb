"""Cox's model with strata, late entries, several rows of a patient, and clustered errors is that of R on all rows."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study, Weights, Withheld
from medley.statistics.risksets import AtRisk, without_noise
from support.intervals import FITS, PARTITIONS, intervals, tables
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0)
FULL: dict[str, Any] = {"entry": "start", "strata": "ward", "cluster": "patient"}


@pytest.fixture(scope="module")
def rows() -> Any:
    return intervals()


@pytest.fixture(scope="module")
def reference() -> Any:
    return json.loads((Path(__file__).parent / "reference_r.json").read_text(encoding="utf-8"))


def near(a: Any, b: Any, rel: float = 1e-8) -> None:
    assert np.asarray(a, dtype=float) == pytest.approx(np.asarray(b, dtype=float), rel=rel, abs=1e-12)


@pytest.mark.parametrize(("part", "name"), quick(8, [(part, name) for part in PARTITIONS for name in FITS]))
def test_fits_are_those_of_r(part: str, name: str, rows: Any, reference: Any) -> None:
    formula, how = FITS[name]
    fit = Study(tables(rows, "patient", part), rules=OPEN).cox(formula, "event", **how)
    there = reference["fits"][f"made, {name}: {part}"]
    near([*fit.params], there["params"])
    near([*fit.bse], there["bse"])
    near(fit.llf, there["llf"])
    assert fit.nobs == there["n"] == len(rows)


def test_fits_of_data_sets_of_r_and_lifelines_are_near_r(reference: Any) -> None:
    """What `reference_r.py` found where R is."""
    assert len(reference["apart"]) == 75
    assert max(reference["apart"].values()) < 1e-9


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("strata", [False, True])
def test_risk_sets_are_those_row_by_row(late: bool, strata: bool) -> None:
    g = np.random.default_rng(1)
    n = 37
    time, v = g.integers(3, 12, n).astype(float), g.normal(size=(n, 2))
    entry = g.integers(0, 3, n) + (time - 3) * (g.random(n) < 0.5)
    stratum = g.integers(0, 4, n) if strata else np.zeros(n, int)
    at = AtRisk.of(time, entry if late else None, stratum if strata else None)
    last = entry if late else np.full(n, -1.0)
    for i in range(n):
        there = (last < time[i]) & (time >= time[i]) & (stratum == stratum[i])
        near(at.sums(v)[at.place[i]], v[there].sum(0), 1e-12)
        near(at.most(v[:, 0])[at.place[i]], v[there, 0].max(), 1e-12)
    by_place = g.normal(size=(at.k, 2))
    of_place = {int(p): i for i, p in enumerate(at.place)}
    for i in range(n):
        mine = [p for p, j in of_place.items() if stratum[j] == stratum[i] and last[i] < time[j] <= time[i]]
        assert at.over(by_place)[i] == pytest.approx(by_place[mine].sum(0), abs=1e-12)


def test_sums_of_a_few_are_exact_beside_large_ones() -> None:
    """A difference of two sums of all rows would have no digits left."""
    at = AtRisk.of(np.array([1.0, 2.0, 5.0]), np.array([0.0, 1.0, 4.0]))
    assert at.sums(np.array([1e-20, 1e-20, 1e20])).tolist() == [1e-20, 1e-20, 1e20]


def test_names_of_clusters_are_a_sites_own(rows: Any) -> None:
    made = tables(rows, "patient", "turns", 2)
    plain = Study(made).cox("stop ~ age", "event", cluster="patient")
    made["site1"] = made["site1"].assign(patient=lambda f: "P" + (f["patient"] // 2).astype(str))
    near(plain.bse, Study(made).cox("stop ~ age", "event", cluster="patient").bse)


def test_times_that_differ_by_rounding_are_equal() -> None:
    a, b = without_noise(np.array([0.3, 64 + 19 / 12]), np.array([0.1 + 0.2, 65 + 7 / 12]))
    assert a.tolist() == b.tolist()
    assert without_noise(np.array([1.0, 1.001]))[0].tolist() == [1.0, 1.001]
    assert len(set(without_noise(np.array([1e-12, 2e-12]))[0])) == 2  # in whatever unit


@pytest.mark.slow
def test_a_column_of_hospitals_as_strata_is_hospitals_as_sites(rows: Any) -> None:
    """Also with weights by treatment, whose errors know that they were estimated, and with clusters."""
    g = np.random.default_rng(2)
    first = rows.groupby("patient").first().reset_index()
    first["treated"] = (g.random(len(first)) < 1 / (1 + np.exp(-0.05 * (first["age"] - 60)))).astype(int)
    first["hospital"] = first["patient"] % 3
    first["house"] = first["patient"] // 3 % 40 * 3 + first["hospital"]
    apart = {str(k): f for k, f in first.groupby("hospital")}
    weights = Weights("treated ~ age")
    for how in ({"weights": weights}, {"weights": weights, "cluster": "house"}, {"cluster": "house", "entry": "start"}):
        one = Study({"all": first}, rules=OPEN).cox("stop ~ treated", "event", strata="hospital", **how)
        many = Study(apart, rules=OPEN).cox("stop ~ treated", "event", **how)
        near([*one.params, *one.bse, one.llf], [*many.params, *many.bse, many.llf])
    alone = first.assign(house=first["patient"])  # a cluster of each row
    a, b = (
        Study({"all": alone}, rules=OPEN).cox("stop ~ treated", "event", weights=weights, cluster=c)
        for c in ("", "house")
    )
    near(b.bse, a.bse)


def test_intervals_that_are_cut_in_two_change_nothing(rows: Any) -> None:
    import pandas as pd

    long = rows[rows["stop"] - rows["start"] > 1]
    cut = (long["start"] + 0.5).round(1)
    both = pd.concat([rows.drop(long.index), long.assign(stop=cut, event=0), long.assign(start=cut)])
    a, b = (
        Study(tables(f, "patient", "turns"), rules=OPEN).cox("stop ~ age + dose", "event", **FULL) for f in (rows, both)
    )
    near([*a.params, *a.bse, a.llf], [*b.params, *b.bse, b.llf])
    assert len(both) > 1.4 * len(rows)


@pytest.mark.rounded
@pytest.mark.parametrize("name", quick(1, ["all", "late entry", "two strata and late entry", "rows of a patient"]))
def test_rounded_fits_are_near_those_of_all_rows(name: str) -> None:
    formula, how = FITS[name]
    made = tables(intervals(600), "patient", "turns", 2)
    near_by = Study(made).cox(formula, "event", **how)
    exact = Study(made, rules=Rules(exact=True)).cox(formula, "event", **how)
    assert np.abs((near_by.params - exact.params) / exact.bse).max() < 0.03
    assert np.abs(near_by.bse / exact.bse - 1).max() < 0.03
    spent = near_by.disclosure["bits"]
    assert (spent < [f["patient"].nunique() for f in made.values()]).all()


@pytest.mark.slow
def test_secure_sums_of_intervals(rows: Any) -> None:
    made = tables(rows, "patient", "turns")
    a, b = (
        Study(made, secure=s).cox("stop ~ age + C(sex)", "event", **FULL)
        for s in (None, md.SecureSum(bits=64, bound=2.0**40))
    )
    near([*b.params, *b.bse], [*a.params, *a.bse], 1e-6)


@pytest.mark.slow
def test_a_site_and_a_stratum_without_events_do_not_matter(rows: Any) -> None:
    made = tables(rows, "patient", "turns")
    made["site1"] = made["site1"].assign(event=0)
    made["site0"] = made["site0"].assign(event=lambda f: f["event"] * (f["ward"] != "b"))
    ask = lambda s: s.cox("stop ~ age + dose", "event", **FULL)
    fit = ask(Study(made))
    made["site0"] = made["site0"][made["site0"]["ward"] != "b"]
    rest = ask(Study(made).without("site1"))
    near([*fit.params, *fit.bse, fit.llf], [*rest.params, *rest.bse, rest.llf])
    said = fit.summary()
    for text in ("stratified by site and ward", "3 × strata", "Errors clustered by:", "Entry:"):
        assert text in said


def test_rows_with_missing_times_strata_or_clusters_are_left_out_and_counted(rows: Any) -> None:
    gaps = rows.astype({"start": float, "patient": float})
    gaps.loc[gaps["patient"] == 30, "start"] = np.nan
    gaps.loc[gaps["patient"] == 60, "ward"] = None
    gaps.loc[gaps["patient"] == 90, "patient"] = np.nan
    fit = Study({"Bern": gaps}).cox("stop ~ age", "event", **FULL)
    gone = rows["patient"].isin([30, 60, 90])
    assert fit.rows[0, 1] == gone.sum()
    same = Study({"Bern": rows[~gone]}).cox("stop ~ age", "event", **FULL)
    near([*fit.params, *fit.bse], [*same.params, *same.bse])


def test_a_direction_without_an_end_is_found_within_strata(rows: Any) -> None:
    """Within each ward the one with the event has the largest value of all at risk, and over wards not."""
    alike = rows.assign(
        rank=-rows["stop"].rank() * rows["event"] - 2000 * (1 - rows["event"]) + 9000 * (rows["ward"] == "a")
    )
    with pytest.raises(md.MedleyError, match="separation by rank"):
        Study({"Bern": alike}, rules=OPEN).cox("stop ~ rank", "event", entry="start", strata="ward")


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"cuts": [5, 9], "strata": "ward"}, r"cuts=..., strata=...\): only fits with a baseline for each site have"),
        ({"cuts": [5, 9], "entry": "start"}, r"cuts=..., entry=...\): .* leave one out"),
        ({"cuts": [5, 9], "cluster": "patient"}, r"cuts=..., cluster=...\): .* leave one out"),
        (
            {"weights": Weights("sex ~ age"), "entry": "start", "cluster": "patient"},
            "of one row for each patient; leave",
        ),
        ({"strata": "age"}, "age has two roles; strata=, entry= and cluster= are columns of their own"),
        ({"entry": "event"}, "event has two roles"),
        ({"strata": ["ward", "patient"], "cluster": "patient"}, "patient has two roles"),
    ],
)
def test_what_cannot_be_combined_is_refused(how: dict[str, Any], match: str, rows: Any) -> None:
    with pytest.raises(md.RecipeError, match=match):
        Study({"Bern": rows}).cox("stop ~ age", "event", **how)


def test_intervals_that_are_none_are_refused_and_others_logged(rows: Any, caplog: Any) -> None:
    said = "Bern: a row is at risk after start and until stop, and in some rows start is not before stop; correct"
    for start in (rows["stop"], rows["stop"] + 1, rows["start"].where(rows["patient"] != 7, np.inf)):
        with pytest.raises(md.BadData, match=said if start.max() < np.inf else "Bern"):
            Study({"Bern": rows.assign(start=start)}).cox("stop ~ age", "event", entry="start")
    with pytest.raises(md.BadData, match="Bern has no column 'begin'"):
        Study({"Bern": rows}).cox("stop ~ age", "event", entry="begin")
    with caplog.at_level(logging.WARNING):
        Study({"Bern": rows}).cox("stop ~ age", "event", entry="start", cluster="patient")
        assert "overlap" not in caplog.text
        Study({"Bern": rows.assign(start=0.0)}).cox("stop ~ age", "event", entry="start", cluster="patient")
    assert (
        "Bern: intervals from start to stop of one patient overlap, so that it is at risk several times" in caplog.text
    )


def test_what_only_one_baseline_has_is_refused_for_strata(rows: Any) -> None:
    fit = Study({"Bern": rows}).cox("stop ~ age", "event", **FULL)
    with pytest.raises(md.RecipeError, match="a separate baseline for each site"):
        fit.zph()
    flat = rows.assign(of_ward=(rows["ward"] == "a") * 1)
    with pytest.raises(md.BadData, match=r"within each site and stratum, all rows at risk .* alike in of_ward, .*out$"):
        Study({"Bern": flat}).cox("stop ~ age + of_ward", "event", strata="ward")


def test_patients_are_counted_and_not_rows(rows: Any) -> None:
    """Twenty rows of four patients are four."""
    few = rows[rows["patient"] < 4]
    many = few.loc[few.index.repeat(20)].assign(start=lambda f: f["start"] + np.arange(len(f)) * 1e-3)
    with pytest.raises(Withheld, match="different values of patient are fewer than 5 rows"):
        Study({"Bern": many}).cox("stop ~ age", "event", cluster="patient")


@pytest.mark.rounded
def test_a_fit_says_how_much_sites_do_not_tell(caplog: Any) -> None:
    """One patient has nearly all of what is told of a column, and her event is not."""
    g = np.random.default_rng(3)
    made = intervals(300).assign(lab=lambda f: np.exp(g.normal(0, 0.4, len(f))))
    made.loc[made.index[made["patient"] == 17][-1], "lab"] = 15.0
    ask = lambda right, rules: Study({"Bern": made}, rules=rules).cox(f"stop ~ {right}", "event", entry="start")
    with caplog.at_level(logging.WARNING):
        plain = ask("log(lab)", Rules())
        assert "coefficients may be off" not in caplog.text
        ask("lab", Rules())
    assert np.abs(plain.params - ask("log(lab)", Rules(exact=True)).params).max() < 0.03 * plain.bse.max()
    assert re.search(r"coefficients may be off by about 1\.0 of their standard errors", caplog.text)


def test_a_stratum_and_a_late_entry_of_one_patient_with_many_rows_are_withheld() -> None:
    made = intervals(60)
    many = made.loc[made.index.repeat(np.where(made["patient"] == 7, 8, 1))]
    own = many["patient"] == 7
    late = many["stop"].min() + 1
    rows = many.assign(own=1 * own, start=late * own, stop=many["stop"] + 20 * own)
    for how, match in (({"strata": "own"}, "a value of own has"), ({"entry": "start"}, "late entry by start has")):
        assert Study({"Bern": rows}).cox("stop ~ age", "event", **how).nobs == len(rows)  # there are enough rows
        with pytest.raises(Withheld, match=match):
            Study({"Bern": rows}).cox("stop ~ age", "event", cluster="patient", **how)
