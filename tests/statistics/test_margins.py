"""Average predictions, slopes and predictions of single rows: those of statsmodels on all rows together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley import recipe
from medley.statistics import Rules, Study, Withheld
from medley.statistics.analysis import packed, tensor
from medley.statistics.margins import Chosen, Margins
from medley.statistics.study import Sites
from support.hospitals import patients, sites
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0)


def near(a: Any, b: Any, rel: float = 1e-8) -> None:
    assert np.asarray(a, dtype=float) == pytest.approx(np.asarray(b, dtype=float), rel=rel, abs=1e-11)


FITS: dict[str, tuple[str, str, dict[str, str]]] = {
    "binomial": ("died ~ age + C(sex) + C(ward)", "binomial", {}),
    "poisson": ("visits ~ age + C(sex)", "poisson", {"exposure": "years"}),
    "gaussian": ("pressure ~ age * C(sex)", "gaussian", {}),
    "gamma": ("stay ~ age + C(sex)", "gamma", {"link": "log"}),
}


def there(name: str, frame: Any) -> Any:
    sm = pytest.importorskip("statsmodels.api")
    smf = pytest.importorskip("statsmodels.formula.api")
    formula, family, how = FITS[name]
    L = sm.families.links
    families = {
        "binomial": sm.families.Binomial(), "poisson": sm.families.Poisson(), "gaussian": sm.families.Gaussian(),
        "gamma": sm.families.Gamma(L.Log()),
    }  # fmt: skip
    exposure = {"exposure": frame["years"]} if how.get("exposure") else {}
    return smf.glm(formula, frame, family=families[family], **exposure).fit(
        tol=1e-14, maxiter=100, tol_criterion="params"
    )


def averages(fit: Any, frame: Any, column: str, value: Any) -> tuple[float, np.ndarray]:
    """The average prediction of a statsmodels fit with a column set to a value, and its slopes by the parameters."""
    import pandas as pd
    from formulaic import model_matrix

    kinds = {c: pd.Categorical(frame[c], categories=sorted(frame[c].unique())) for c in ("sex", "ward")}
    rows = frame.assign(**kinds)
    kind = kinds[column].categories if column in kinds else None
    rows = rows.assign(**{column: value if kind is None else pd.Categorical([value] * len(frame), categories=kind)})
    X = model_matrix(fit.model.formula.split("~")[1], rows)[[*fit.params.index]].to_numpy()
    offset = getattr(fit.model, "exposure", None)
    offset = 0.0 if offset is None else offset
    eta = X @ fit.params.to_numpy() + offset
    return float(fit.family.link.inverse(eta).mean()), fit.family.link.inverse_deriv(eta) @ X / len(X)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "by"), [*((name, "turns") for name in FITS), ("binomial", "blocks"), ("binomial", "age"), ("gamma", "age")]
)
def test_averages_and_predictions_are_those_of_all_rows_together(name: str, by: str) -> None:
    frame = patients()
    formula, family, how = FITS[name]
    study = Study(sites(frame, by), rules=OPEN)
    other = there(name, frame)
    cov = other.cov_params().to_numpy()
    for column, values in (("sex", ()), ("age", (40, 60.0, 75))):
        found = study.margins(formula, family, of=column, values=values, **how)
        each = [averages(other, frame, column, v) for v in values or ("F", "M")]
        J = np.array([g for _, g in each])
        near(found.b, [m for m, _ in each])
        near(found.covariance, J @ cov @ J.T)
        gap = found.contrasts()
        near(gap.b, np.diff([m for m, _ in each])[:1] if column == "sex" else [m - each[0][0] for m, _ in each[1:]])
        near(gap.bse.iloc[0] ** 2, (J[1] - J[0]) @ cov @ (J[1] - J[0]))
        ratio = found.contrasts(ratio=True)
        near(ratio.frame(exp=True)["exp(coef)"].iloc[0], each[1][0] / each[0][0])
        g = J[1] / each[1][0] - J[0] / each[0][0]
        near(ratio.bse.iloc[0] ** 2, g @ cov @ g)
    new = frame.head(5)
    exposure = {"exposure": new["years"]} if how.get("exposure") else {}
    rows = other.get_prediction(new, **exposure).summary_frame()
    near(found.fit.predict(new).to_numpy(), rows.to_numpy())
    assert (found.nobs, found.fit.nobs) == (900, 900)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["turns", "blocks", "age"])
def test_slopes_are_statsmodels_marginal_effects(by: str) -> None:
    smf = pytest.importorskip("statsmodels.formula.api")
    frame = patients()
    study = Study(sites(frame, by), rules=OPEN)
    for formula, family, model in (
        ("died ~ age + C(sex) + bmi", "binomial", smf.logit),
        ("visits ~ age + C(sex) + bmi", "poisson", smf.poisson),
    ):
        other = model(formula, frame).fit(disp=0, tol=1e-14, maxiter=100, method="newton")
        effects = other.get_margeff(dummy=True).summary_frame()
        for column, line in (("age", "age"), ("bmi", "bmi"), ("sex", "C(sex)[T.M]")):
            found = study.margins(formula, family, of=column)
            found = found.contrasts() if column == "sex" else found
            near(found.b[0], effects.loc[line, "dy/dx"])
            near(found.bse.iloc[0], effects.loc[line, "Std. Err."])
            near(found.conf_int().iloc[0], effects.loc[line, ["Conf. Int. Low", "Cont. Int. Hi."]])


@pytest.mark.parametrize(
    ("formula", "derivative"),
    [
        ("pressure ~ age + I(age**2)", lambda f, b: b["age"] + 2 * b["I(age ** 2)"] * f["age"]),
        ("pressure ~ log(age) + bmi", lambda f, b: b["log(age)"] / f["age"]),
        ("pressure ~ age*bmi", lambda f, b: b["age"] + b["age:bmi"] * f["bmi"]),
        ("pressure ~ age*C(sex)", lambda f, b: b["age"] + b["age:C(sex)[T.M]"] * (f["sex"] == "M")),
        (
            "pressure ~ sqrt(age) + I(age*bmi)",
            lambda f, b: b["sqrt(age)"] / 2 / f["age"] ** 0.5 + b["I(age * bmi)"] * f["bmi"],
        ),
    ],
)  # fmt: skip
def test_a_slope_is_the_mean_of_derivatives(formula: str, derivative: Any) -> None:
    frame = patients()
    found = Study(sites(frame), rules=Rules(exact=True)).margins(formula, of="age")
    near(found.b[0], derivative(frame, found.fit.params).mean())
    assert found.names == ["slope of age"]


def test_averages_over_some_rows_and_of_robust_and_weighted_fits() -> None:
    frame = patients()
    study = Study(sites(frame), rules=Rules(exact=True))
    found = study.margins("died ~ age + C(sex)", "binomial", of="sex", over="ward == 'a'", cov="HC1")
    rows = frame[frame["ward"] == "a"]
    each = [found.fit.predict(rows.assign(sex=v)) for v in ("F", "M")]
    near(found.b, [e["mean"].mean() for e in each])
    assert found.nobs == len(rows)
    assert "with ward == 'a' at 6 sites" in found.summary()
    assert found.fit.cov_type == "HC1"
    falls = study.margins("falls ~ age + C(sex)", "negative_binomial", of="sex")
    near(falls.b, [falls.fit.predict(frame.assign(sex=v))["mean"].mean() for v in ("F", "M")])


@pytest.mark.slow
def test_under_secure_sums_units_do_not_matter() -> None:
    frame = patients().assign(far=lambda f: 1e9 + 86400 * f["age"], small=lambda f: 1e-9 * f["pressure"])
    secure = md.SecureSum(bits=64, bound=2.0**40)
    for formula, family, of in (
        ("died ~ far + C(sex)", "binomial", "far"),
        ("small ~ age + C(sex)", "gaussian", "sex"),
    ):
        plain, masked = (
            Study(sites(frame), rules=Rules(exact=True), secure=s).margins(formula, family, of=of)
            for s in (None, secure)
        )
        near(masked.b / plain.b, np.ones(len(plain.b)), 2e-6)
        near(masked.bse / plain.bse, np.ones(len(plain.b)), 2e-6)


def test_a_recipe_has_margins() -> None:
    text = (
        '[[study]]\nkind = "margins"\nformula = "died ~ age + C(sex)"\nfamily = "binomial"\nof = "age"\n'
        "values = [50, 70]\n"
    )
    (analysis,) = recipe.loads(text).analyses()
    assert analysis == Margins("died ~ age + C(sex)", "binomial", of="age", values=(50, 70))
    found = Study(sites(patients())).run(analysis)
    assert found.names == ["age=50", "age=70"]
    assert "age=70 - age=50" in found.summary()
    assert "exp" not in found.latex()


EDGES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no column": ({"of": ""}, md.RecipeError, r"margins\(of=''\): name a column on the right of .*: age, sex"),
    "another column": ({"of": "bmi"}, md.RecipeError, "of='bmi'"),
    "the outcome": ({"of": "died"}, md.RecipeError, "of='died'"),
    "text for a number": ({"of": "age", "values": ("old",)}, md.RecipeError, "age has numbers, and 'old' is none"),
    "an unknown category": ({"of": "sex", "values": ("X",)}, md.RecipeError, "'X'"),
    "infinite": ({"of": "age", "values": (np.inf,)}, md.RecipeError, "values.*each a finite number"),
    "twice": ({"of": "age", "values": (50, 50)}, md.RecipeError, "each once"),
    "many": ({"of": "age", "values": tuple(range(21))}, md.RecipeError, "at most 20"),
    "no mean": (
        {"of": "age", "values": (5000,), "formula": "stay ~ age + C(sex)", "family": "gamma", "link": "inverse"},
        md.BadData,
        "no mean is possible there; give other values",
    ),
    "weights by treatment": (
        {"of": "sex", "weights": md.statistics.Weights("died ~ age")},
        md.RecipeError,
        "read the coefficient of glm",
    ),
    "over nobody": ({"of": "sex", "over": "age > 500"}, Withheld, "over='age > 500'|where='age > 500'"),
    "over a few": ({"of": "sex", "over": "age > 88"}, Withheld, "where='age > 88'"),
    "over all but a few": ({"of": "sex", "over": "age < 88"}, Withheld, "where='age < 88'"),
}


@pytest.mark.parametrize("name", quick(5, EDGES))
def test_edges_have_a_sentence(name: str) -> None:
    how, error, match = EDGES[name]
    with pytest.raises(error, match=match):
        Study(sites(patients()), rules=Rules(exact=True)).margins(
            **{"formula": "died ~ age + C(sex)", "family": "binomial"} | how
        )


def test_predictions_have_a_sentence() -> None:
    frame = patients()
    fit = Study(sites(frame), rules=Rules(exact=True)).glm("died ~ log(age) + C(sex)", "binomial")
    rows = frame.head(3)
    for bad, match in (
        (rows.drop(columns="age"), "no column 'age'"),
        (rows.assign(sex="X"), "sex has 'X', and the fit has F, M"),
        (rows.assign(age=[50.0, np.nan, 60.0]), "row 1 has a missing value"),
        (rows.assign(age=0.0), r"log\(age\) is not finite"),
    ):
        with pytest.raises(md.BadData, match=match):
            fit.predict(bad)
    fixed = Study(sites(frame), rules=Rules(exact=True)).glm("died ~ age", "binomial", sites="fixed")
    with pytest.raises(md.RecipeError, match="each site has an effect of its own"):
        fixed.predict(rows)


def test_chosen_coefficients_do_not_tell_a_patient() -> None:
    """A server that chooses β to have one patient's mean, and the others' 0, or another column's values, is refused."""
    frame = patients(120)
    oldest = float(frame["age"].max())
    study = Study({"Bern": frame})
    analysis = Margins("died ~ age + C(sex)", "binomial", of="age", values=(50.0,))
    me = Sites(study.sites)(0, 1)
    point = {"terms": packed({"sex": ["F", "M"]}), "rows": 120, "mean": 0.3, "bread": tensor([]), "alpha": 0.0}
    ask = lambda b, values, **how: analysis.averages(
        me, Chosen(**{**point, **how}, b=tensor(b), root=tensor(np.eye(3)), values=packed(values))
    )
    analysis.averages(me, Chosen(**point, b=tensor([-3, 0.04, 0]), root=tensor(np.eye(3)), values=packed([50.0])))
    with pytest.raises(md.contract.WireError, match="values that are not in this analysis"):
        ask([-3, 0.04, 0], [51.0])
    slopes = Margins("died ~ age + C(sex)", "binomial", of="age")
    for steep in (2.0, 8.0, 15.0):
        b = tensor([-steep * (oldest - 0.5), steep, 0])
        with pytest.raises(Withheld, match="fewer than 5 rows decide"):
            slopes.averages(me, Chosen(**point, b=b, root=tensor(np.eye(3))))
    sexes = Margins("died ~ age + C(sex)", "binomial", of="sex")
    for steep in (2.0, 8.0, -8.0):
        b = tensor([-steep * (oldest - 0.5), steep, 0])
        with pytest.raises((Withheld, md.BadData)):
            sexes.averages(me, Chosen(**point, b=b, root=tensor(np.eye(3)), values=packed(["F", "M"])))


def test_averages_do_not_tell_of_the_one_patient_with_three_things() -> None:
    """Few combinations of categories would be determined by the sums of averages, so each of them needs five rows."""
    frame = patients(240)
    g = np.random.default_rng(1)
    frame = frame.assign(a=g.integers(0, 2, 240), b=g.integers(0, 2, 240), c=g.integers(0, 2, 240))
    one = (frame["a"] == 1) & (frame["b"] == 1) & (frame["c"] == 1)
    frame = frame[~one | (one.cumsum() == 1)]
    with pytest.raises(Withheld, match="a value of combination"):
        Study({"Bern": frame}).margins("died ~ C(a) + C(b) + C(c)", "binomial", of="a")
