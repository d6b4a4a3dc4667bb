"""Fits over sites are those of statsmodels on all rows together."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study, Weights, Withheld, rounding
from medley.statistics.levels import sketched, union
from support.hospitals import NAMES, patients, sites
from support.pairs import crossed, quick

REFERENCE = Path(__file__).parent / "reference.json"
"""What statsmodels and lifelines say of the made-up patients; `python tests/statistics/reference.py` writes it."""

FITS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gaussian": ("pressure ~ age + C(sex)", "gaussian", {}),
    "weighted": ("pressure ~ age + C(sex)", "gaussian", {"weights": "weight"}),
    "binomial": ("died ~ age + C(sex) + C(ward)", "binomial", {}),
    "interaction": ("died ~ age * C(sex) + log(bmi) + I(age**2)", "binomial", {}),
    "poisson": ("visits ~ age + C(ward)", "poisson", {"exposure": "years"}),
    "offset": ("visits ~ age", "poisson", {"offset": "weight"}),
    "gamma": ("stay ~ age + C(ward)", "gamma", {}),
    "gamma, log": ("stay ~ age + C(ward)", "gamma", {"link": "log"}),
    "negative binomial": ("falls ~ age + C(sex)", "negative_binomial", {}),
    "negative binomial, α = 1": ("falls ~ age + C(sex)", "negative_binomial", {"alpha": 1.0}),
}

OPEN = Rules(rows=1, events=1, parameters=1.0)

FIGURES = ("llf", "deviance", "null_deviance", "pearson_chi2", "aic", "bic", "df_resid", "scale")


@pytest.fixture(scope="module")
def reference() -> Any:
    return json.loads(REFERENCE.read_text(encoding="utf-8"))


def near(a: Any, b: Any, rel: float = 1e-8) -> None:
    assert np.asarray(a, dtype=float) == pytest.approx(np.asarray(b, dtype=float), rel=rel, abs=1e-12)


@pytest.mark.parametrize(("name", "by"), quick(7, crossed(FITS, ["turns", "blocks", "age"])))
def test_a_fit_is_statsmodels_to_8_digits(name: str, by: str, reference: Any) -> None:
    formula, family, how = FITS[name]
    rules = Rules() if by == "turns" else Rules(rows=1, events=1, parameters=1.0)
    fit = Study(sites(patients(), by), rules=rules).glm(formula, family, **how)
    there = reference["glm"][name]
    names = {k: k.replace(" ** ", "**") for k in fit.params.index}
    assert {*names.values()} == {*there["params"]}
    near([*fit.params], [there["params"][names[k]] for k in fit.params.index])
    near([*fit.bse], [there["bse"][names[k]] for k in fit.params.index])
    near([*fit.pvalues], [there["pvalues"][names[k]] for k in fit.params.index], 1e-6)
    near(fit.conf_int().to_numpy(), [there["conf_int"][names[k]] for k in fit.params.index])
    for figure in FIGURES:
        if (value := there.get(figure)) is not None:
            near(getattr(fit, figure), value)
    assert fit.exchanges <= (20 if name == "negative binomial" else 8)
    assert fit.nobs == 900


@pytest.mark.parametrize("cov", quick(1, ["HC0", "HC1", "HC3", "cluster"]))
def test_robust_errors_are_those_of_the_textbook(cov: str, reference: Any) -> None:
    study = Study(sites(patients()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = study.glm("pressure ~ age + C(sex)", cov=cov)
        odds = study.glm("died ~ age + C(sex)", "binomial", cov=cov)
    there = reference["robust"]
    near([*fit.bse], [there["ols"][cov][k] for k in fit.params.index])
    near([*odds.bse], [there["logit"][cov][k] for k in odds.params.index])
    assert odds.exchanges <= 8


@pytest.mark.parametrize(("outcome", "family"), [("ill", "binomial"), ("visits", "poisson"), ("cost", "gamma")])
def test_a_site_that_ends_its_own_steps_early_gives_the_same_fit(
    outcome: str, family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    g = np.random.default_rng(0)
    x = g.normal(size=(2, 200))
    mean = np.exp(0.3 * x - 0.2)
    parts = {"x": x, "ill": 1 * (g.random((2, 200)) < mean / 4), "visits": g.poisson(mean), "cost": g.gamma(3, mean)}
    data = {f"site {k}": pd.DataFrame({name: v[k] for name, v in parts.items()}) for k in range(2)}
    fits = []
    for least in (rounding.CONVERGED, 0.0):  # no change is smaller than 0, so that all eight steps are made
        monkeypatch.setattr(rounding, "CONVERGED", least)
        fits.append(Study(data).glm(f"{outcome} ~ x", family))
    np.testing.assert_allclose(fits[0].b, fits[1].b, rtol=1e-12)
    np.testing.assert_allclose(fits[0].covariance, fits[1].covariance, rtol=1e-12)


def test_few_clusters_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="clustered by 6 sites are too small.*below 30 clusters"):
        Study(sites(patients())).glm("pressure ~ age", cov="cluster")


@pytest.mark.parametrize("how", [{}, {"sites": "fixed"}])
def test_clusters_whose_scores_are_0_are_refused(how: Any) -> None:
    made = sites(patients()) if how else {"Bern": patients()}
    with pytest.raises(md.RecipeError, match=r"glm\(cov='cluster'\): .*single site.*give cov='HC1' or 'HC3'"):
        Study(made).glm("pressure ~ 1" if how else "pressure ~ age", cov="cluster", **how)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_an_error_names_the_site_and_not_its_number() -> None:
    made = sites(patients())
    made["Basel"] = made["Basel"].assign(age=made["Basel"]["age"] * 1e100)
    with pytest.raises(
        md.BadData, match=r"^Basel, row 0, column 'age': .* is too large for float32; use another unit$"
    ):
        Study(made, rules=OPEN).glm("pressure ~ age")


@pytest.mark.slow
def test_effects_of_sites() -> None:
    frame = patients()
    frame["place"] = np.array(NAMES)[np.arange(len(frame)) % 6]
    a = Study(sites(frame)).glm("pressure ~ age", sites="fixed")
    b = Study(sites(frame)).glm("pressure ~ age + C(place)")
    near([*a.params], [*b.params])
    assert "C(site)[T.Bern]" in a.params
    assert "C(site)[T.Basel]" not in a.params  # the first by name


@pytest.mark.rounded
def test_sites_of_many_rows() -> None:
    """The bits of 20,000 rows were a power of two beyond floating point: an outcome of 0 and 1 failed at such sites."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=40_000), "treated": rng.integers(0, 2, 40_000)})
    frame["months"] = rng.exponential(size=40_000).round(2)
    frame["died"] = (rng.random(40_000) < 1 / (1 + np.exp(-frame["x"]))).astype(int)
    study = Study({"A": frame[:20_000], "B": frame[20_000:]})
    assert study.glm("died ~ x", "binomial").params["x"] == pytest.approx(1.0, abs=0.05)
    weights = Weights("treated ~ x")
    assert abs(study.glm("died ~ treated", "binomial", weights=weights).params["treated"]) < 0.1
    assert abs(study.cox("months ~ treated", "died", weights=weights).params["treated"]) < 0.1


@pytest.mark.rounded
def test_the_likelihood_ratio_test_at_small_sites() -> None:
    """A site's grid is as wide as the number of coefficients wants it: two fits' means differ, and not the data."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 90, 300), "sex": rng.choice([*"fm"], 300)})
    frame["ward"] = rng.choice([*"abc"], 300)
    frame["died"] = (rng.random(300) < 1 / (1 + np.exp((55 - frame["age"]) / 20))).astype(int)
    cut = {name: slice(k * 100, (k + 1) * 100) for k, name in enumerate(NAMES[:3])}
    study = Study({name: frame[rows] for name, rows in cut.items()})
    larger, smaller = (study.glm(f, "binomial") for f in ("died ~ age + C(sex) + C(ward)", "died ~ age"))
    assert larger._mean != smaller._mean
    assert larger.lr_test(smaller).df == 3
    other = Study({name: frame.assign(died=1 - frame["died"])[rows] for name, rows in cut.items()})
    with pytest.raises(md.RecipeError, match="they differ in the data"):
        larger.lr_test(other.glm("died ~ age", "binomial"))


@pytest.mark.slow
def test_the_likelihood_ratio_test(reference: Any) -> None:
    study = Study(sites(patients()))
    larger, smaller = (study.glm(f, "binomial") for f in ("died ~ age + C(ward)", "died ~ age"))
    found = larger.lr_test(smaller)
    near(found.statistic, reference["lr_test"]["statistic"])
    near(found.pvalue, reference["lr_test"]["pvalue"])
    assert found.df == 2
    with pytest.raises(md.RecipeError, match="want the larger one first"):
        smaller.lr_test(larger)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"where": "sex == 'F'"}, "they differ in where, rows; give both the same; a study's complete="),
        ({"weights": "weight"}, "they differ in weights; give"),
        ({"offset": "weight"}, "they differ in offset; give"),
        ({"exposure": "years"}, "they differ in exposure; give"),
        ({"link": "identity"}, "they differ in link; give"),
        ({"family": "negative_binomial", "alpha": 1.0}, "they differ in family, alpha; give"),
        ({"formula": "falls ~ age"}, "they differ in outcome; give"),
        ({"formula": "visits ~ bmi"}, "they differ in rows; give"),  # 1 row lacks the age, another the bmi
        ({"formula": "visits ~ sqrt(years)"}, "'visits ~ sqrt.years.' fits better than 'visits ~ age"),
        (
            {"data": lambda frame: frame.assign(visits=frame["visits"] + (frame["age"] > 60))},
            "differ in the data; give",
        ),
        ({"data": lambda frame: frame[frame["ward"] != "a"]}, "they differ in rows; give"),
    ],
)
def test_a_likelihood_ratio_of_what_cannot_be_compared_is_refused(how: Any, match: str) -> None:
    frame = patients()
    if how.get("formula") == "visits ~ bmi":
        frame.loc[frame.index[0], "age"] = frame.loc[frame.index[6], "bmi"] = np.nan
    other = how.pop("data", lambda frame: frame)(frame)
    larger = Study(sites(frame), rules=OPEN).glm("visits ~ age + C(ward)", "poisson")
    smaller = Study(sites(other), rules=OPEN).glm(**{"formula": "visits ~ age", "family": "poisson", **how})
    with pytest.raises(md.RecipeError, match=match):
        larger.lr_test(smaller)


def test_tables_of_a_fit() -> None:
    fit = Study(sites(patients())).glm("died ~ age + C(sex)", "binomial")
    text = fit.summary()
    assert "Generalized Linear Model Regression Results" in text
    assert "No. Observations:" in text
    assert "C(sex)[T.M]" in text
    assert fit.frame(exp=True).loc["age", "exp(coef)"] == pytest.approx(np.exp(fit.params["age"]))
    assert r"C(sex)[T.M] &" in fit.latex()
    assert fit.latex().startswith(r"\begin{tabular}{lrrrrrr}")
    assert r"& $<$0.001 &" in fit.latex(digits=2)
    assert "& std err &" in fit.latex()
    assert "exp(coef) & std err of coef &" in fit.latex(exp=True)


def test_the_ledger_has_each_exchange() -> None:
    study = Study(sites(patients()))
    fit = study.glm("died ~ age", "binomial")
    assert [e.method for e in study.ledger][::6] == ["agree", "begin", *["score"] * (fit.exchanges - 2)]
    assert fit.bytes_up == study.ledger.up
    score = next(e for e in study.ledger if e.method == "score")
    assert score.up == 8 * (2 + 3 + 13)  # the card's p + t + 13


def test_missing_values_are_counted_by_site() -> None:
    frame = patients()
    frame.loc[frame.index[:60], "age"] = np.nan
    fit = Study(sites(frame, "blocks")).glm("pressure ~ age")
    assert fit.rows_by_site["missing"].to_dict() == {"Bern": 60, **dict.fromkeys(NAMES[1:], 0)}
    assert fit.nobs == 840
    assert "left out for missing values: 60 at Bern" in fit.summary()
    again = Study(sites(frame, "blocks"), complete=["age"]).glm("pressure ~ age")
    near([*again.params], [*fit.params], 1e-12)
    assert again.rows_by_site.loc["Bern", "incomplete"] == 60


# Awkward sites: the right answer, or a sentence that names the site and the column.


def with_site(change: Any) -> dict[str, Any]:
    made = {name: rows.copy() for name, rows in sites(patients()).items()}
    change(made["Chur"])
    return made


def pooled(made: dict[str, Any]) -> Study:
    import pandas as pd

    return Study({"all": pd.concat(made.values())}, rules=Rules(rows=1, events=1, parameters=1.0))


def changes() -> Iterator[tuple[str, Any, str, str]]:
    def ward(frame: Any) -> None:
        frame.loc[frame.index[:30], "ward"] = "only here"

    def single(frame: Any) -> None:
        frame["died"] = 1

    def none(frame: Any) -> None:
        frame["died"] = 0

    def constant(frame: Any) -> None:
        frame["age"] = 70.0

    yield "a category that one site has", ward, "died ~ age + C(ward)", "binomial"
    yield "a single class", single, "died ~ age + C(sex)", "binomial"
    yield "no events", none, "died ~ age + C(sex)", "binomial"
    yield "a constant column", constant, "died ~ age + C(sex)", "binomial"
    yield "a column that is collinear within a site", constant, "pressure ~ age + C(sex)", "gaussian"


@pytest.mark.parametrize(
    ("change", "formula", "family"), quick(1, [c[1:] for c in changes()]), ids=[c[0] for c in changes()]
)
def test_an_awkward_site_does_not_matter(change: Any, formula: str, family: str) -> None:
    made = with_site(change)
    a, b = Study(made).glm(formula, family), pooled(made).glm(formula, family)
    near([*a.params], [*b.params])
    near([*a.bse], [*b.bse])


def test_three_rows_are_withheld_and_named() -> None:
    made = {**sites(patients()), "Chur": patients().iloc[:3]}
    with pytest.raises(Withheld, match=r"Chur withholds: .* fewer than 5 rows.*study.without\('Chur'\)"):
        Study(made).glm("died ~ age", "binomial")
    assert Study(made).without("Chur").glm("died ~ age", "binomial").nobs == 750
    assert Study(made, rules=Rules(rows=1, events=1, parameters=1.0)).glm("died ~ age", "binomial").nobs == 753


def test_an_outcome_that_its_columns_give_is_said() -> None:
    frame = patients()
    frame["twice"] = 2 * frame["age"]
    with pytest.raises(md.Stalled, match="the columns give the outcome without error"):
        Study(sites(frame), rules=Rules(rows=1, exact=True)).glm("twice ~ age")


def test_separation_is_named() -> None:
    frame = patients()
    frame.loc[frame["ward"] == "c", "died"] = 1
    with pytest.raises(md.Stalled, match=r"separation by C\(ward\)\[T.c\]: each of the rows"):
        Study(sites(frame)).glm("died ~ age + C(ward)", "binomial")
    frame = patients()
    frame["died"] = (frame["age"] > 60).astype(int)
    with pytest.raises(md.Stalled, match=r"separation by age: outcomes are told apart without error"):
        Study(sites(frame), rules=Rules(rows=1)).glm("died ~ age + C(sex)", "binomial")
    with pytest.raises((Withheld, md.Stalled), match="separat"):
        Study(sites(frame)).glm("died ~ age + C(sex)", "binomial")


def test_collinearity_is_named() -> None:
    frame = patients()
    frame["months_old"] = 12 * frame["age"]
    with pytest.raises(md.BadData, match="collinear: months_old is a combination of age over all sites"):
        Study(sites(frame)).glm("pressure ~ age + months_old")
    frame["one"] = 1.0
    with pytest.raises(md.BadData, match="collinear: one is a combination of Intercept"):
        Study(sites(frame)).glm("pressure ~ age + one")


@pytest.mark.parametrize(
    ("family", "value", "terms"),
    [("binomial", 1, "age + C(sex)"), ("gaussian", 0, "age"), ("gaussian", 7.3, "age + C(sex)"), ("gamma", 3, "age")],
)
def test_an_outcome_of_one_value_is_said_first(family: Any, value: float, terms: str) -> None:
    with pytest.raises(md.BadData, match=r"^stay has one value at all sites: there is nothing to explain$"):
        Study(sites(patients().assign(stay=value))).glm(f"stay ~ {terms}", family)


@pytest.mark.parametrize(
    ("formula", "how", "error", "match"),
    [
        (
            "sex ~ age",
            {},
            md.BadData,
            "^Bern, column 'sex': it is not a number; recode it there as numbers, an event as 0 and 1$",
        ),
        ("C(sex) ~ age", {}, md.RecipeError, r"instead of 'C\(sex\)', compute .*, and recode text to 0 and 1; "),
        ("died ~ agee", {}, md.BadData, "Bern has no column 'agee'. Did you mean 'age'"),
        ("died ~ age + sex", {}, md.BadData, r"Bern, column 'sex': it is not a number.*write C\(sex\)"),
        ("died + age", {}, md.RecipeError, "write the outcome, ~"),
        ("died ~ __import__('os').system('true')", {}, md.RecipeError, "cannot be read"),
        ("died ~ eval('1')", {}, md.RecipeError, "is not understood"),
        ("died ~ I(age > 90)", {}, md.RecipeError, "is not understood; a formula has columns"),
        ("died ~ age", {"family": "binomia"}, md.RecipeError, "Did you mean 'binomial'"),
        (
            "died ~ age",
            {"family": "poisson", "link": "logit"},
            md.RecipeError,
            "family='poisson' takes log and identity",
        ),
        (
            "age ~ bmi",
            {"family": "binomial"},
            md.BadData,
            r"^Bern: the outcomes of family=.binomial. are 0 and 1, or True and False, and age has others$",
        ),
        ("died ~ age", {"where": "age +"}, md.RecipeError, "write comparisons of a column"),
        ("died ~ age", {"where": "age.real > 3"}, md.BadData, "no column 'age.real'"),
        ("pressure ~ age", {"exposure": "years"}, md.RecipeError, "is for a log link"),
    ],
)
def test_what_cannot_be_fitted_is_said(formula: str, how: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Study(sites(patients())).glm(formula, **how)


@pytest.mark.slow
def test_conditions() -> None:
    frame = patients()
    study = Study(sites(frame))
    for where, rows in {
        "age >= 60": frame["age"] >= 60,
        "age >= 60 and sex == 'F'": (frame["age"] >= 60) & (frame["sex"] == "F"),
        "ward in ['a', 'b'] or age < 50": frame["ward"].isin(["a", "b"]) | (frame["age"] < 50),
    }.items():
        assert Study(sites(frame)).glm("pressure ~ bmi", where=where).nobs == rows.sum()
    assert study.glm("pressure ~ bmi").nobs == 900


def test_categories_of_all_sites_are_found_in_a_sum() -> None:
    names = [f"Kategorie {k} äöü" for k in range(40)]
    tables = [sketched(names[k : k + 25], "here") for k in range(0, 16, 3)]
    found = union(np.sum(tables, axis=0), "ward")
    assert {*found} == {*names}
    assert found[names[20]] == sum(k <= 20 < k + 25 for k in range(0, 16, 3))
    with pytest.raises(md.BadData, match=r"C\(ward\) has more than about 64 categories"):
        union(sketched([f"k{k}" for k in range(200)], "here"), "ward")
    with pytest.raises(md.BadData, match="more than 40 bytes"):
        sketched(["x" * 41], "here")


@pytest.mark.slow
def test_one_process_and_several_have_the_same_bits() -> None:
    a = Study(sites(patients())).glm("died ~ age + C(sex)", "binomial")
    b = Study(sites(patients()), transport=md.transports.Processes(workers=2)).glm("died ~ age + C(sex)", "binomial")
    assert [*a.params] == [*b.params]
    assert [*a.bse] == [*b.bse]


@pytest.mark.slow
def test_secure_sums_are_the_same_within_their_resolution() -> None:
    plain = Study(sites(patients())).glm("died ~ age + C(sex) + C(ward)", "binomial")
    study = Study(sites(patients()), secure=md.SecureSum(bits=64, bound=2.0**40))
    masked = study.glm("died ~ age + C(sex) + C(ward)", "binomial")
    near([*masked.params], [*plain.params], 1e-6)
    near([*masked.bse], [*plain.bse], 1e-6)
    near(masked.llf, plain.llf, 1e-8)
    assert "secure keys" in {e.method for e in study.ledger}
