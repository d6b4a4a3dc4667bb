"""Splines with public knots: those of formulaic on all rows together, and what knots may tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study, Withheld
from medley.statistics.formulas import parsed
from support.hospitals import patients, sites

OPEN = Rules(rows=1, events=1, parameters=1.0)
KNOTS = "knots=[45, 60, 75], lower_bound=0, upper_bound=130"
NATURAL = "cr(age, knots=[52, 60, 68], lower_bound=45, upper_bound=75)"


def near(a: Any, b: Any, rel: float = 1e-8) -> None:
    assert np.asarray(a, dtype=float) == pytest.approx(np.asarray(b, dtype=float), rel=rel, abs=1e-11)


def design(text: str, frame: Any) -> Any:
    """formulaic's own design; of ``cr`` without the first column, which the intercept has."""
    from formulaic import model_matrix

    X = model_matrix(text, frame)
    return X.drop(columns=[c for c in X.columns if c.startswith("cr") and c.endswith("[1]")])


def test_gaussian_fits_are_least_squares_on_formulaics_columns() -> None:
    frame = patients()
    for by in ("turns", "blocks", "age"):
        for term in (f"bs(age, {KNOTS})", NATURAL):
            fit = Study(sites(frame, by), rules=OPEN).glm(f"pressure ~ {term} + C(sex)")
            X = design(f"{term} + C(sex)", frame)
            b = np.linalg.lstsq(X.to_numpy(), frame["pressure"].to_numpy(), rcond=None)[0]
            near(fit.params[[*X.columns]], b, 1e-7)
            near(fit.predict(frame.head())["mean"], X.head().to_numpy() @ b)


@pytest.mark.slow
@pytest.mark.parametrize("term", [f"bs(age, {KNOTS})", NATURAL])
@pytest.mark.parametrize("by", ["turns", "blocks", "age"])
def test_logistic_and_cox_fits_are_statsmodels(term: str, by: str) -> None:
    sm = pytest.importorskip("statsmodels.api")
    frame = patients()
    study = Study(sites(frame, by), rules=OPEN)
    X = design(f"{term} + C(sex)", frame)
    fit = study.glm(f"died ~ {term} + C(sex)", "binomial")
    there = sm.GLM(frame["died"], X, family=sm.families.Binomial()).fit(tol=1e-14, maxiter=100, tol_criterion="params")
    near(fit.params[[*X.columns]], there.params, 1e-7)
    near(fit.bse[[*X.columns]], there.bse, 1e-7)
    near(fit.deviance, there.deviance)
    site = np.concatenate([np.full(len(rows), k) for k, rows in enumerate(sites(frame, by).values())])
    rows = np.concatenate([rows.index for rows in sites(frame, by).values()])
    months, event, Z = frame["months"].to_numpy()[rows], frame["event"].to_numpy()[rows], X.to_numpy()[rows, 1:]
    cox = study.cox(f"months ~ {term} + C(sex)", "event")
    other = sm.PHReg(months, Z, status=event, strata=site, ties="efron")
    there = other.fit(disp=0, method="bfgs", gtol=1e-7, maxiter=2000)
    near(cox.llf, there.llf)
    at, other = ((Z - Z[0]) @ b for b in (cox.params[[*X.columns[1:]]].to_numpy(), there.params))
    np.testing.assert_allclose(at, other, atol=1e-4)


def test_sites_agree_on_knots() -> None:
    frame = patients(3000)
    study = Study(sites(frame), rules=Rules(exact=True))
    term = study.spline("age", 3)
    spline = parsed(f"y ~ {term}").splines[0]
    assert np.abs(np.array(spline.knots) - frame["age"].quantile([0.25, 0.5, 0.75]).to_numpy()).max() < 2
    assert spline.lower < frame["age"].min() < frame["age"].max() < spline.upper
    fit = study.glm(f"pressure ~ {term} + C(sex)")
    assert len(fit.params) == 8
    natural = parsed(f"y ~ {study.spline('age', 3, 'cr')}").splines[0]
    assert (natural.kind, len(natural.knots)) == ("cr", 3)
    slope = study.margins(f"pressure ~ {term} + C(sex)", of="age")
    one = slope.fit.predict(frame.assign(age=frame["age"] + 1e-4))["mean"].mean()
    near(slope.b[0], (one - slope.fit.predict(frame.assign(age=frame["age"] - 1e-4))["mean"].mean()) / 2e-4, 1e-5)
    masked = Study(sites(frame), rules=Rules(exact=True), secure=md.SecureSum(bits=64, bound=2.0**40))
    near(masked.glm(f"pressure ~ {term} + C(sex)").params, fit.params, 1e-4)


def test_names_need_no_change() -> None:
    """A column may be called cr, and one with a dot has a spline."""
    frame = patients().rename(columns={"age": "at.entry", "bmi": "cr"})
    fit = Study(sites(frame), rules=OPEN).glm(f"pressure ~ bs(at.entry, {KNOTS})")
    assert fit.names[1].startswith("bs(at.entry, knots=")
    assert [*Study(sites(frame), rules=OPEN).glm("pressure ~ cr").names] == ["Intercept", "cr"]


@pytest.mark.parametrize(
    ("term", "match"),
    [
        ("bs(age)", "write a spline with its knots in ascending order"),
        ("bs(age, df=4)", r"study.spline\('age', 3\) has one"),
        ("bs(age, knots=[60, 50], lower_bound=0, upper_bound=130)", "ascending order"),
        ("bs(age, knots=[50], lower_bound=60, upper_bound=130)", "within its bounds"),
        ("bs(age, knots=[], lower_bound=0, upper_bound=130)", "ascending order"),
        ("bs(age + bmi, knots=[50], lower_bound=0, upper_bound=130)", "is not understood"),
        ("bs(age, knots=__import__('os'), lower_bound=0, upper_bound=130)", "is not understood"),
        (f"bs(age, {KNOTS}, degree=1)", "is not understood"),
        (f"bs(age, {KNOTS}):bmi", "a spline stands alone"),
        ("cc(age, knots=[50], lower_bound=0, upper_bound=130)", "is not understood"),
    ],
)
def test_other_splines_have_a_sentence(term: str, match: str) -> None:
    with pytest.raises(md.RecipeError, match=match):
        Study(sites(patients())).glm(f"pressure ~ {term}")


def test_edges_have_a_sentence() -> None:
    made = sites(patients())
    study = Study(made, rules=Rules(exact=True))
    with pytest.raises(md.BadData, match="age has values beyond 40 and 80, the bounds of its spline; give wider ones"):
        study.glm("pressure ~ bs(age, knots=[60], lower_bound=40, upper_bound=80)")
    with pytest.raises(md.BadData, match=r"one value|collinear|0 in each row"):
        Study({k: v.assign(x=3.0) for k, v in made.items()}, rules=OPEN).glm(
            "pressure ~ bs(x, knots=[2], lower_bound=0, upper_bound=9)"
        )
    for how, match in (({"knots": 0}, "1 to 20"), ({"kind": "cc"}, "'bs' or 'cr'"), ({"knots": 21}, "1 to 20")):
        with pytest.raises(md.RecipeError, match=match):
            study.spline("age", **how)
    with pytest.raises(md.RecipeError, match="several knots would be at one value"):
        study.spline("visits", 12)
    with pytest.raises(Withheld, match="a site withholds its quantiles"):
        Study(made, rules=Rules(quantiles=False)).spline("age")


def test_knots_around_a_patient_are_refused() -> None:
    """Between knots near a patient's age, the column would be that patient's, and the sum with it the outcome."""
    frame = patients(600).assign(age=lambda f: f["age"] + np.arange(600) / 1000)
    middle, oldest = np.sort(frame["age"])[[300, -2]].round(4).tolist()
    for knots in ([oldest], [middle - 0.0005, middle + 0.0005], [60, oldest]):
        with pytest.raises(Withheld, match="Bern withholds"):
            Study({"Bern": frame}).glm(f"pressure ~ bs(age, knots={knots}, lower_bound=0, upper_bound=150)")


def test_a_second_set_of_knots_is_refused() -> None:
    """Many fits with knots that move a little are equations for each patient between them."""
    frame = patients(600).assign(age=lambda f: f["age"] + np.arange(600) / 1000)
    study = Study({"Bern": frame})
    for _ in range(2):
        study.glm(f"pressure ~ bs(age, {KNOTS})")
    study.glm(f"pressure ~ bs(age, {KNOTS}) + C(sex)")
    with pytest.raises(Withheld, match=r"age with other knots has left before; give the same: knots=\[45, 60"):
        study.glm(f"pressure ~ bs(age, {KNOTS.replace('45', '46')})")


def test_events_between_knots_are_counted() -> None:
    frame = patients(600).assign(age=lambda f: f["age"] + np.arange(600) / 1000)
    young = frame["age"] < 45
    frame["died"] = np.where(young, young.cumsum() % 20 == 1, frame["died"]).astype(int)
    assert frame["died"][young].sum() == 4
    with pytest.raises(Withheld, match="fewer than 5 events"):
        Study({"Bern": frame}).glm(f"died ~ bs(age, {KNOTS})", "binomial")
