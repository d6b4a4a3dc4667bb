"""Descriptions over sites are those of pandas and SciPy on all rows together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study, TableOne
from medley.statistics.describe import Grid, ends, quantile
from support.hospitals import patients, sites
from support.pairs import crossed, quick

NUMBERS = ("age", "bmi", "stay", "visits", "pressure")


def described(by: str = "", cut: str = "turns", **how: Any) -> TableOne:
    return Study(sites(patients(), cut), **how).describe([*NUMBERS, "ward", "C(died)"], by=by)


@pytest.mark.parametrize(("cut", "rows"), quick(2, crossed(["turns", "blocks", "age"], [1, 5, 20])))
def test_numbers_are_those_of_pandas(cut: str, rows: int) -> None:
    frame, found = patients(), described("sex", cut, rules=Rules(rows=rows))
    for name in NUMBERS:
        for group in ("", "F", "M"):
            x, cell = frame[frame["sex"] == group][name] if group else frame[name], found.cells[name][group]
            if cell.n is None or cell.quantiles is None:
                assert rows == 20  # a site has too few of one sex to part them
                continue
            assert cell.n == len(x)
            assert cell.mean == pytest.approx(x.mean(), rel=1e-13)
            assert cell.sd == pytest.approx(x.std(), rel=1e-12)
            for q, (value, error) in cell.quantiles.items():
                assert abs(value - x.quantile(q)) <= error
                assert error < 0.4 * x.std() or rows == 20


def test_the_error_of_quantiles_without_rules_is_a_bin() -> None:
    cell = described(rules=Rules(rows=1)).cells["pressure"][""]
    assert cell.quantiles is not None
    assert max(error for _, error in cell.quantiles.values()) < 24 * (cell.sd or 0) / 1024
    assert described().cells["pressure"][""].mean == cell.mean


@pytest.mark.slow
def test_categories_and_tests() -> None:
    frame, found = patients(), described("sex")
    there = frame.groupby("sex")["ward"].value_counts()
    for group in ("F", "M"):
        assert found.cells["ward"][group].counts == {w: there[group, w] for w in "abc"}
    a, b = (frame[frame["sex"] == g] for g in "FM")
    t, mine = scipy.stats.ttest_ind(a["stay"], b["stay"], equal_var=False), found.test("stay")
    assert mine is not None
    assert mine == pytest.approx((t.statistic, t.df, t.pvalue), rel=1e-9)
    table = np.array([[(g["ward"] == w).sum() for w in "abc"] for g in (a, b)])
    c, mine = scipy.stats.chi2_contingency(table, correction=False), found.test("ward")
    assert mine == pytest.approx((c.statistic, c.dof, c.pvalue), rel=1e-9)
    three = Study(sites(frame)).describe(["age"], by="ward").test("age")
    f = scipy.stats.f_oneway(*(frame[frame["ward"] == w]["age"] for w in "abc"))
    assert three is not None
    assert (three.statistic, three.pvalue) == pytest.approx((f.statistic, f.pvalue), rel=1e-9)


def test_missing_values() -> None:
    frame = patients()
    frame.loc[frame.index[:90], "age"] = np.nan
    frame.loc[frame.index[:90], "ward"] = None
    found = Study(sites(frame)).describe(["age", "ward"])
    assert (found.cells["age"][""].n, found.cells["age"][""].missing) == (810, 90)
    assert found.cells["ward"][""].missing == 90
    frame.loc[frame.index[:90], "age"] = 60.0
    frame.loc[frame.index[0], "age"] = np.nan
    found = Study(sites(frame)).describe(["age"])
    assert found.cells["age"][""].missing is None  # one row: never 0, nor 1
    assert found.cells["age"][""].n == 899


def test_a_table_one() -> None:
    found = described("sex")
    frame = found.frame()
    assert [*frame.columns] == ["all (n = 900)", *(f"{g} (n = {(patients()['sex'] == g).sum()})" for g in "FM"), "p"]
    age = patients()["age"]
    assert frame.loc["age, mean (SD)"].iloc[0] == f"{age.mean():.1f} ({age.std():.1f})"
    dead = patients()["died"].sum()
    assert frame.loc["  1, n (%)"].iloc[0] == f"{dead} ({dead / 9:.1f})"
    assert "quantiles to within: age ±" in found.summary()
    assert r"age, mean (SD) & " in found.latex()
    assert found.cost.exchanges == 4


def test_a_constant_and_an_empty_column() -> None:
    frame = patients()
    frame["one"], frame["none"] = 7.0, np.nan
    cells = Study(sites(frame)).describe(["one", "none"]).cells
    assert (cells["one"][""].mean, cells["one"][""].sd) == (7.0, 0.0)
    value, error = (cells["one"][""].quantiles or {})[0.5]
    assert abs(value - 7) <= error < 1e-4
    assert (cells["none"][""].n, cells["none"][""].mean) == (0, None)


def test_quantiles_hold_for_any_merger() -> None:
    """Over many samples and least numbers, NumPy's quantile lies between the ends."""
    g = np.random.default_rng(1)
    for least in (1, 3, 10):
        for _ in range(50):
            x = np.round(g.normal(0, 1, g.integers(30, 200)), 1)
            grid = Grid(-5, -400, 800)
            found = ends(x[:20], grid, least) + ends(x[20:], grid, least)
            for q in (0.1, 0.5, 0.9):
                value, error = quantile(found, grid, q, len(x))
                assert abs(value - np.quantile(x, q)) <= error
    assert quantile(ends(np.full(9, 1e6), Grid(0, -4, 8), 1), Grid(0, -4, 8), 0.5, 9)[1] == np.inf  # an outer bin


@pytest.mark.slow
def test_secure_sums_of_a_description() -> None:
    plain, masked = described("sex"), described("sex", secure=md.SecureSum(bits=64, bound=2.0**40))
    for name in NUMBERS:
        for g in ("", "F", "M"):
            a, b = plain.cells[name][g], masked.cells[name][g]
            assert (a.n, a.missing) == (b.n, b.missing)
            assert b.mean == pytest.approx(a.mean, rel=1e-7)
            assert b.sd == pytest.approx(a.sd, rel=1e-6)
    assert plain.cells["ward"] == masked.cells["ward"]


def test_columns_by_default_are_all_but_the_sites() -> None:
    assert "site" not in Study(sites(patients()[["age", "ward"]])).describe().cells
    with pytest.raises(md.BadData, match="Bern has no column 'agee'"):
        Study(sites(patients())).describe(["agee"])
    with pytest.raises(md.RecipeError, match="give numbers between 0 and 1"):
        Study(sites(patients())).describe(["age"], quantiles=[50.0])


def test_a_site_may_keep_its_quantiles() -> None:
    frames = sites(patients())
    kept = {name: Rules(quantiles=False) for name in frames}
    cell = Study(frames, rules=kept).describe(["age"]).cells["age"][""]
    assert cell.quantiles is None
    assert cell.mean == Study(frames).describe(["age"]).cells["age"][""].mean


SPELT: dict[str, dict[str, Any]] = {
    "'F' at 1, 'Female' at 1, 'M' at 1, 'Male' at 1, 'f' at 1, 'm' at 1": {
        "Basel": str.lower, "Chur": {"F": "Female", "M": "Male"}.get,
    },
    "'0' at 1, '1' at 1, 'F' at 2, 'M' at 2": {"Chur": lambda v: int(v == "M")},
    "'F' at 2, 'M' at 2, 'f' at 1, 'm' at 1": {"Chur": str.lower},
    "": {"Chur": lambda v: f" {v}\t"},
}  # fmt: skip
"""What the log says, by how sites spell a column."""


@pytest.mark.parametrize("analysis", ["glm", "describe", "by", "prepare"])
@pytest.mark.parametrize("said", SPELT)
def test_categories_that_may_be_spellings_are_warned_of(said: str, analysis: str, caplog: Any) -> None:
    rows = dict([*sites(patients()).items()][:3])
    for name, spell in SPELT[said].items():
        rows[name] = rows[name].assign(sex=rows[name]["sex"].map(spell))
    study = Study(rows)
    if analysis == "glm":
        study.glm("pressure ~ age + C(sex)", sites="" if said else "fixed")
    elif analysis == "prepare":
        study.prepare(["sex: encode", "ward: encode"])
    else:
        study.describe(["age", "ward"], by="sex") if analysis == "by" else study.describe(["age", "ward", "C(sex)"])
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(told) == bool(said)
    if said:
        assert told[0].startswith(f"sex: {said} of 3 sites; if two of these categories are spellings of one, recode")
