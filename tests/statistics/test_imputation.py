"""Multiple imputation: against the same draws by numpy, and mice's figures of Rubin's rules; who may ask for it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.runtime.streams import rng
from medley.statistics import Imputed, PooledFit, Rules, Study, Withheld
from medley.statistics.imputation import filled
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0)
COLUMNS = ["x", "sex", "smokes", "y"]


def rows(n: int, seed: int) -> pd.DataFrame:
    """Rows of which about a third lack x or smokes, the more often the larger y is."""
    g = np.random.default_rng(seed)
    x, sex = g.normal(5, 2, n), g.choice(["F", "M"], n)
    smokes = 1.0 * (g.random(n) < 1 / (1 + np.exp(-(x - 5) / 2)))
    y = x + smokes + (sex == "M") + g.normal(size=n)
    frame = pd.DataFrame({"x": x, "sex": sex, "smokes": smokes, "y": y})
    late = 1 / (1 + np.exp(-(y - 6) / 2))
    frame.loc[g.random(n) < 0.6 * late, "x"] = np.nan
    frame.loc[g.random(n) < 0.6 * late, "smokes"] = np.nan
    return frame


def study(rules: Rules = OPEN, n: int = 60, lacks: str = "x smokes", **how: Any) -> Study:
    full = {"x": 5.0, "smokes": 1.0}
    fill = {c: v for c, v in full.items() if c not in lacks}
    return Study({name: rows(n, k).fillna(fill) for k, name in enumerate(("Bern", "Chur", "Zug"))}, rules=rules, **how)


def design(frame: pd.DataFrame, *columns: str) -> np.ndarray:
    return np.column_stack(
        [np.ones(len(frame)), *[1.0 * (frame[c] == "M") if c == "sex" else frame[c] for c in columns]]
    )


def logistic(X: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    b = np.zeros(X.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-X @ b))
        H = (X * (p * (1 - p))[:, None]).T @ X
        b = b + np.linalg.solve(H, X.T @ (t - p))
    return b, np.linalg.inv(H)


def cells(imputed: Imputed, k: int) -> dict[str, pd.DataFrame]:
    completed = filled(imputed.study, imputed._models, imputed._draws[k])
    return {site.name: site.frame for site in completed.sites.values()}


def test_numbers_are_drawn_as_by_numpy_and_nothing_else_changes():
    asked = study(lacks="x")
    imputed = asked.impute(["x", "smokes", "y"], m=2, seed=3)
    every = pd.concat([asked.data[c] for c in asked.names])
    seen = every[every.x.notna()]
    X = design(seen, "smokes", "y")
    V = np.linalg.inv(X.T @ X)
    b = V @ X.T @ seen.x.to_numpy()
    nu = len(seen) - 3
    s2 = ((seen.x - X @ b) ** 2).sum() / nu
    for k in range(2):
        g = rng(3, "impute", "x", k, 1)
        wide = np.sqrt(nu / g.chisquare(nu))
        drawn = b + wide * np.linalg.cholesky(V * s2) @ g.standard_normal(3)
        for name, frame in cells(imputed, k).items():
            was = asked.data[name]
            lack = was.x.isna().to_numpy()
            u = rng(3, "impute", "x", name, k, 1).standard_normal(lack.sum())
            np.testing.assert_allclose(frame.x[lack], design(was[lack], "smokes", "y") @ drawn + wide * np.sqrt(s2) * u)
            pd.testing.assert_frame_equal(frame[~lack], was[~lack])
    assert imputed.counts.x.to_dict() == {name: int(asked.data[name].x.isna().sum()) for name in asked.names}
    assert imputed.iterations == 1
    assert imputed.models == {"x": "x ~ smokes + y"}


def test_two_categories_are_drawn_as_by_numpy():
    asked = study(lacks="smokes")
    imputed = asked.impute(COLUMNS, m=2, seed=3)
    every = pd.concat([asked.data[c] for c in asked.names])
    seen = every[every.smokes.notna()]
    b, V = logistic(design(seen, "x", "sex", "y"), seen.smokes.to_numpy())
    drawn = b + np.linalg.cholesky(V) @ rng(3, "impute", "smokes", 1, 1).standard_normal(4)
    for name, frame in cells(imputed, 1).items():
        was = asked.data[name][asked.data[name].smokes.isna()]
        p = 1 / (1 + np.exp(-design(was, "x", "sex", "y") @ drawn))
        u = rng(3, "impute", "smokes", name, 1, 1).random(len(was))
        np.testing.assert_array_equal(frame.smokes[was.index], 1.0 * (u < p))


def test_a_chain_uses_what_it_has_drawn_and_its_fits_are_combined():
    asked = study()
    one = asked.impute(COLUMNS, m=2, iterations=1, seed=1)
    assert one.models == {"x": "x ~ C(sex) + smokes + y", "smokes": "smokes ~ x + C(sex) + y"}
    every = [pd.concat([*cells(one, k).values()]) for k in range(2)]
    assert not every[0].isna().any().any()
    assert not every[0].equals(every[1])
    fit = one.glm("y ~ x + smokes")
    b = [np.linalg.lstsq(design(f, "x", "smokes"), f.y, rcond=None)[0] for f in every]
    np.testing.assert_allclose(fit.b, np.mean(b, 0))
    np.testing.assert_allclose(fit.between, np.cov(np.array(b).T))
    assert "Visits of a column" in fit.summary()
    assert str(fit.imputed.x["Zug"]) in fit.summary()
    drawn = every[0][pd.concat([*asked.data.values()]).x.isna().to_numpy()]
    assert np.corrcoef(drawn.x, drawn.y)[0, 1] > 0.3


@pytest.mark.slow
def test_the_same_seed_has_the_same_bits_and_the_order_of_sites_changes_only_rounding():
    asked = study()
    one = asked.impute(COLUMNS, m=2, iterations=2, seed=1)
    again = study().impute(COLUMNS, m=2, iterations=2, seed=1)
    short = study().impute(COLUMNS, m=2, iterations=1, seed=1)
    turned = Study({name: asked.data[name] for name in reversed(asked.names)}, rules=OPEN)
    other = turned.impute(COLUMNS, m=2, iterations=2, seed=1)
    for name in asked.names:
        assert cells(one, 1)[name].equals(cells(again, 1)[name])
        assert not cells(one, 1)[name].equals(cells(short, 1)[name])
        pd.testing.assert_frame_equal(cells(one, 1)[name], cells(other, 1)[name])
    assert one.glm("y ~ x").b.tolist() == again.glm("y ~ x").b.tolist()


def test_a_secret_of_the_study_is_the_seed():
    one, other = study(lacks="x"), study(lacks="x")
    first = one.impute(["x", "y"], m=2)
    assert cells(first, 0)["Bern"].equals(cells(one.impute(["x", "y"], m=2), 0)["Bern"])
    assert not cells(first, 0)["Bern"].equals(cells(other.impute(["x", "y"], m=2), 0)["Bern"])


def test_rubins_rules_are_those_of_mice():
    """mice 3.15: pool.scalar(c(1.2, .7, 1.9, 1.1), c(.2, .3, .25, .22), n = 39, k = 2), and of four ones."""
    b, u = [1.2, 0.7, 1.9, 1.1], [0.2, 0.3, 0.25, 0.22]
    fits = [
        SimpleNamespace(names=["a", "c"], b=np.array([v, 1.0]), covariance=np.diag([w, 1.0]), nobs=39)
        for v, w in zip(b, u, strict=True)
    ]
    fit = PooledFit(fits, pd.DataFrame({"x": [7]}, ["Bern"]), 5, 0)
    figures = [fit.b[0], fit.bse["a"] ** 2, fit.df["a"], fit.fmi["a"]]
    assert figures == pytest.approx([1.225, 0.5539583333, 5.8698935823, 0.6609480525], rel=1e-9)
    assert fit.df["c"] == pytest.approx(35.14648088, rel=1e-9)
    from scipy.stats import t

    half = t.isf(0.025, fit.df["a"]) * fit.bse["a"]
    assert fit.conf_int().loc["a"].tolist() == pytest.approx([fit.b[0] - half, fit.b[0] + half])
    assert fit.pvalues["a"] == pytest.approx(2 * t.sf(fit.b[0] / fit.bse["a"], fit.df["a"]))
    assert "P>|t|" in fit.frame()
    assert "fmi" in fit.latex()


KINDS: dict[str, Any] = {
    "texts": (np.array(["no", "yes"], object), None, "smokes"),
    "booleans": (pd.array([False, True], dtype="boolean"), pd.NA, "smokes"),
    "whole numbers": (pd.array([0, 1], dtype="Int64"), pd.NA, "smokes"),
    "two codes": (np.array([1.0, 2.0]), np.nan, "C(smokes)"),
}


@pytest.mark.parametrize("kind", quick(1, [*KINDS]))
def test_two_categories_in_any_code_have_the_draws_of_zeros_and_ones(kind: str):
    values, missing, written = KINDS[kind]
    plain = study(lacks="smokes")
    codes = {name: frame.smokes for name, frame in plain.data.items()}
    coded = {
        name: plain.data[name].assign(smokes=[missing if np.isnan(v) else values[int(v)] for v in code])
        for name, code in codes.items()
    }
    mine = Study(coded, rules=OPEN).impute(["x", written, "y"], m=2, seed=3)
    want = plain.impute(["x", "smokes", "y"], m=2, seed=3)
    for name in plain.names:
        got = cells(mine, 0)[name].smokes
        assert [*got] == [values[int(v)] for v in cells(want, 0)[name].smokes]
    np.testing.assert_allclose(mine.glm("y ~ C(smokes)").b, want.glm("y ~ C(smokes)").b)


@pytest.mark.slow
def test_a_formula_gives_a_model_and_sites_may_have_effects():
    imputed = study().impute(["x ~ y + C(site)", "smokes", "y"], m=2, iterations=2, seed=1)
    assert imputed.models == {"x": "x ~ y + C(site)", "smokes": "smokes ~ x + y"}
    other = study().impute(["x ~ y", "smokes ~ x + y", "y"], m=2, iterations=2, seed=1, sites="fixed")
    assert other.models == {"x": "x ~ y + C(site)", "smokes": "smokes ~ x + y + C(site)"}
    assert "smokes ~ x + y + C(site)" in str(other)


@pytest.mark.slow
def test_each_analysis_with_coefficients_is_combined():
    g = np.random.default_rng(5)
    timed = {
        k: v.assign(time=g.exponential(np.exp(-v.y / 9)).round(2) + 0.1, died=1, grade=g.integers(0, 3, len(v)))
        for k, v in study().data.items()
    }
    imputed = Study(timed, rules=OPEN).impute(["x", "sex", "smokes", "y", "time", "grade"], m=3, iterations=2)
    assert imputed.cox("time ~ x + C(sex)", "died").names == ["x", "C(sex)[T.M]"]
    assert imputed.ordinal("grade ~ x").names == ["x", "0|1", "1|2"]
    averages = imputed.margins("smokes ~ x + C(sex)", "binomial", of="sex")
    assert averages.names == ["sex=F", "sex=M"]
    assert (averages.fmi > 0).all()
    assert imputed.glm("smokes ~ x", "binomial", where="sex == 'M'").nobs < imputed.glm("smokes ~ x", "binomial").nobs


def test_a_column_that_had_no_part_is_named(caplog: pytest.LogCaptureFixture) -> None:
    imputed = asked_of(["x", "smokes"], m=2)
    imputed.glm("y ~ smokes")  # nothing that was imputed
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
    imputed.glm("y ~ x")
    assert "glm: y had no part in the imputation" in caplog.text


def lacking(count: int, column: str = "x") -> dict[str, pd.DataFrame]:
    """Sites of complete rows, but for the first rows of Bern."""
    whole = {
        name: rows(60, k).assign(x=np.arange(60) % 7 + 0.5, smokes=np.arange(60) % 2.0)
        for k, name in enumerate(("Bern", "Chur"))
    }
    whole["Bern"].loc[: count - 1, column] = np.nan
    return whole


def asked_of(columns: Any = ("x", "smokes", "y"), data: Any = None, rules: Rules = OPEN, **how: Any) -> Any:
    return Study(lacking(20) if data is None else data, rules=rules).impute([*columns], **how)


def changed(name: str, change: Any, lack: str = "x") -> dict[str, pd.DataFrame]:
    return {site: frame.assign(**{name: change(frame)}) for site, frame in lacking(20, lack).items()}


half = lambda v: v.y.where(v.y > 5)
coded = lambda v: v.x.where(v.x.isna(), 1 + v.smokes)
alone = lambda v: np.where(v.x.isna(), "c", np.where(v.y > 5, "a", "b"))


def separated() -> dict[str, Any]:
    """All who are old are ill, as far as is known."""
    return {
        site: f.assign(old=f.index % 2, ill=((f.index % 2 == 1) | (f.y > f.y.median())).astype(float).mask(f.x.isna()))
        for site, f in lacking(20).items()
    }


REFUSED: list[tuple[Any, Any, str]] = [
    (lambda: Study({"Bern": None}).impute(["x"]), md.RecipeError, "the rows are on other machines"),
    (lambda: asked_of(rules=Rules()), md.RecipeError, "Bern rounds its sums, and 20 imputations of them"),
    (lambda: asked_of(m=1), md.RecipeError, r"impute\(m=1\): give a whole number, 2 or more"),
    (lambda: asked_of(iterations=0), md.RecipeError, "1 or more"),
    (lambda: Study(lacking(20), rules=OPEN).impute("x"), md.RecipeError, "give a list of columns"),
    (lambda: asked_of(["smokes", "y"]), md.RecipeError, "no row lacks any of them"),
    (lambda: asked_of(["x", "x ~ y"]), md.RecipeError, "each column once"),
    (lambda: asked_of(["x"]), md.RecipeError, "its effects would shrink; name all columns of the analysis, .*'x ~ 1'"),
    (lambda: asked_of(["x", "unknown"]), md.BadData, "Bern has no column 'unknown'"),
    (
        lambda: asked_of(["smokes ~ x"], changed("x", half, "smokes")),
        md.RecipeError,
        "rows of Bern lack x; name",
    ),
    (
        lambda: asked_of(data=changed("x", lambda v: v.x * 0 + 3)),
        md.RecipeError,
        "x has one value, 3, wherever it is",
    ),
    (lambda: asked_of(data=changed("x", lambda v: v.x * np.nan)), md.RecipeError, "x has no value at any site"),
    (
        lambda: asked_of(["C(ill)", "y", "old"], separated()),
        md.Stalled,
        r"the model of ill, .*separation by old.*give ill a model without it",
    ),
    (lambda: asked_of(data=lacking(60)), md.BadData, "Bern has no value of x, and other sites' models"),
    (lambda: asked_of(["C(x)", "y"]), md.RecipeError, "x has 7 categories, and Medley imputes two"),
    (lambda: asked_of(["x", "y"], changed("x", coded)), md.RecipeError, r"write C\(x\), or recode to 0 and 1"),
    (lambda: asked_of(rules=Rules(id="x", rows=1)), md.RecipeError, "x says who a row is of"),
    (lambda: asked_of(m=2).glm("y ~ x", where="x > 3"), md.RecipeError, r"glm\(where=...\): x is imputed"),
    (lambda: asked_of(m=2).run(None), md.RecipeError, "give an analysis"),
    (
        lambda: asked_of(["x", "ward", "y"], changed("ward", alone)),
        md.BadData,
        "ward has a category of which each row lacks x",
    ),
]


@pytest.mark.rounded
@pytest.mark.parametrize(("ask", "error", "message"), REFUSED)
def test_what_cannot_be_imputed_is_said(ask: Any, error: Any, message: str):
    with pytest.raises(error, match=message):
        ask()


def test_a_refusal_names_the_categories_and_the_imputed_column_and_its_remedy_works() -> None:
    """Thirteen of 200 rows lack a number: with and without them, the ill and male differ by fewer than five."""
    g = np.random.default_rng(3)
    frames = {}
    for name in ("Bern", "Chur"):
        frame = pd.DataFrame({"age": g.normal(60, 9, 200), "bmi": g.normal(27, 4, 200), "sex": ["F", "M"] * 100})
        frame["ill"] = [1, 0, 0, 1, 0, 1, 1, 0] * 25
        frame.loc[[*range(4, 70, 6), 1, 3], "bmi"] = np.nan  # of eleven women and two men
        frames[name] = frame
    rules = Rules(exact=True)
    imputed = Study(frames, rules=rules).impute(["age", "bmi", "sex", "ill"], m=2)
    formula = "ill ~ age + bmi + C(sex)"
    with pytest.raises(Withheld) as caught:
        imputed.glm(formula, family="binomial")
    what, remedy = str(caught.value).split("; merge categories, ")
    assert what == (
        "Bern withholds: the categories of C(sex)[T.M], together with what has left before, would reveal something "
        "about fewer than 5 rows (bmi is imputed in 13: few, by category)"
    )
    assert "complete=['bmi']" in remedy
    assert Study(frames, rules=rules, complete=["bmi"]).glm(formula, family="binomial").nobs == 374
