"""A meta-analysis: its pooling against published figures and matrices, its fits against those of one site."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley import recipe
from medley.report import forest
from medley.statistics import Rules, Study, Withheld
from medley.statistics.meta import pool
from support.hospitals import NAMES, patients, sites
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0)

BCG = (
    [4, 119, 11, 128], [6, 300, 29, 274], [3, 228, 11, 209], [62, 13536, 248, 12619], [33, 5036, 47, 5761],
    [180, 1361, 372, 1079], [8, 2537, 10, 619], [505, 87886, 499, 87892], [29, 7470, 45, 7232], [17, 1699, 65, 1600],
    [186, 50448, 141, 27197], [5, 2493, 3, 2338], [27, 16886, 29, 17825],
)  # fmt: skip
"""Vaccinated with and without tuberculosis, and not vaccinated, in 13 trials (Colditz et al., JAMA 271, 1994)."""


def near(a: Any, b: Any, rel: float = 1e-8) -> None:
    assert np.asarray(a, dtype=float) == pytest.approx(np.asarray(b, dtype=float), rel=rel, abs=1e-12)


def risks() -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the trials' relative risks, with their errors."""
    a, b, c, d = np.array(BCG, dtype=float).T
    return np.log(a / (a + b) / (c / (c + d))), np.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))


def restricted(t: float, y: np.ndarray, se: np.ndarray) -> float:
    """The restricted likelihood at τ² = t, by matrices."""
    V, one = np.diag(se**2 + t), np.ones((len(y), 1))
    W = np.linalg.inv(V)
    P = W - W @ one @ np.linalg.inv(one.T @ W @ one) @ one.T @ W
    return float(-0.5 * (np.linalg.slogdet(V)[1] + np.linalg.slogdet(one.T @ W @ one)[1] + y @ P @ y))


def test_pooling_has_the_published_figures_of_thirteen_trials() -> None:
    """metafor's manual: τ² 0.3132, Q 152.2330, −0.7145 with 0.1798; by fixed effects −0.4303 with 0.0405."""
    p = pool(*risks())
    found = (p.tau2, p.Q, p.random, p.random_se, p.fixed, p.fixed_se)
    assert [round(v, 4) for v in found] == [0.3132, 152.2330, -0.7145, 0.1798, -0.4303, 0.0405]


@pytest.mark.parametrize(
    ("tau2", "published"),
    [("REML", (0.3132, -0.7145, 0.1798)), ("DL", (0.3088, -0.7141, 0.1787)), ("PM", (0.3181, -0.7150, 0.1809))],
)
def test_each_variance_between_sites_has_the_published_figures(tau2: Any, published: Any) -> None:
    """Viechtbauer, J. Stat. Softw. 36, 2010, and metafor's manual: the 13 trials, by each estimator of τ²."""
    p = pool(*risks(), tau2)
    assert tuple(round(v, 4) for v in (p.tau2, p.random, p.random_se)) == published


@pytest.mark.parametrize(("tau2", "there"), [("DL", "chi2"), ("PM", "iterated")])
@pytest.mark.parametrize("seed", range(4))
def test_moment_estimates_are_statsmodels(tau2: Any, there: str, seed: int) -> None:
    meta = pytest.importorskip("statsmodels.stats.meta_analysis")
    g = np.random.default_rng(seed)
    k = int(g.integers(3, 12))
    se = g.uniform(0.05, 0.5, k)
    y = g.normal(0, se) + g.normal(0, [0.4, 0.6, 1.0, 3.0][seed], k)
    other = meta.combine_effects(y, se**2, method_re=there, use_t=True, atol=1e-10)
    mine = pool(y, se, tau2)
    near([mine.tau2, mine.random, mine.random_se], [other.tau2, other.mean_effect_re, other.sd_eff_w_re], 1e-7)
    near(mine.knapp_se, other.sd_eff_w_re_hksj, 1e-7)
    assert mine.tau2 > 0
    alike = pool(np.full(k, 0.5), se, tau2)  # statsmodels has a τ² below 0 then, and no error
    near([alike.tau2, alike.random_se], [0.0, alike.fixed_se])


@pytest.mark.parametrize("tau2", ["REML", "DL", "PM"])
def test_a_prediction_interval_covers_another_site(tau2: Any) -> None:
    """Of 600 made-up studies of 12 sites, as many as it says: 95 %, within four standard errors."""
    from scipy.stats import t

    g = np.random.default_rng(5)
    inside = 0
    for _ in range(600):
        se = g.uniform(0.1, 0.3, 12)
        p = pool(g.normal(1.0, 0.5, 12) + g.normal(0, se), se, tau2)
        half = t.isf(0.025, 10) * np.sqrt(p.tau2 + p.random_se**2)
        inside += abs(g.normal(1.0, 0.5) - p.random) < half
    assert abs(inside / 600 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 600)


def test_a_prediction_interval_needs_three_sites() -> None:
    made = sites(patients())
    for names, tau2 in ((NAMES, "PM"), (NAMES[:2], "DL")):
        found = Study({name: made[name] for name in names}).meta("pressure ~ age", tau2=tau2)
        table = found.table("age")
        assert f"random effects by {tau2}" in found.summary()
        if len(names) == 2:
            assert "prediction" not in table.index
            continue
        p = found.pools["age"]
        near(table.loc["prediction", "upper"], p.random + 2.7764451051977987 * np.sqrt(p.tau2 + p.random_se**2))
        near(found.heterogeneity.loc["age", "tau2"], p.tau2)
    with pytest.raises(md.RecipeError, match=r"tau2.*'DL'"):
        Study(made).meta("pressure ~ age", tau2="dl")


@pytest.mark.parametrize("seed", range(8))
def test_tau_has_the_largest_restricted_likelihood(seed: int) -> None:
    g = np.random.default_rng(seed)
    k = int(g.integers(2, 9))
    se = g.uniform(0.05, 0.5, k)
    y = g.normal(0, se) + g.normal(0, g.choice([0.0, 0.3, 2.0]), k)
    p = pool(y, se)
    best = restricted(p.tau2, y, se)
    for t in [*np.linspace(0, 5, 400), *(p.tau2 * np.array([0.999, 1.001]))]:
        assert restricted(float(t), y, se) <= best + 1e-9
    W, one = np.diag(1 / (se**2 + p.tau2)), np.ones((k, 1))  # Hartung and Knapp's error, by a weighted regression
    e = np.sqrt(W) @ (y - p.random)
    near(p.knapp_se**2, e @ e / (k - 1) * np.linalg.inv(one.T @ W @ one)[0, 0])


@pytest.mark.parametrize("se", [0.3, 1.092, 1.634])
def test_one_estimate_is_its_own_pool(se: float) -> None:
    """Rounding gave its restricted likelihood a slope for some errors, and the search for τ² did not end."""
    found = pool(np.array([0.3]), np.array([se]))
    near([found.random, found.random_se, found.tau2], [0.3, se, 0.0])


def test_fixed_effects_and_heterogeneity_are_statsmodels() -> None:
    meta = pytest.importorskip("statsmodels.stats.meta_analysis")
    y, se = risks()
    there, mine = meta.combine_effects(y, se**2), pool(y, se)
    near([mine.fixed, mine.fixed_se, mine.Q], [there.mean_effect_fe, there.sd_eff_w_fe, there.q])
    near(1 - 12 / mine.Q, there.i2)


@pytest.mark.parametrize(
    ("formula", "how"),
    quick(
        1,
        [
            ("died ~ age + C(sex) + C(ward)", {"family": "binomial"}),
            ("pressure ~ age + C(sex)", {"cov": "HC3"}),
            ("visits ~ age", {"family": "poisson", "exposure": "years"}),
            ("falls ~ age", {"family": "negative_binomial"}),
            ("months ~ age + C(sex)", {"event": "event"}),
        ],
    ),
)
def test_own_fits_are_those_of_each_site_alone(formula: str, how: Any) -> None:
    rows = sites(patients())
    found = Study(rows).meta(formula, **how)
    for name, frame in rows.items():
        study = Study({name: frame})
        alone = study.cox(formula, **how) if "event" in how else study.glm(formula, **how)
        names = [k for k in alone.params.index if k != "alpha"]
        near([*found.by_site.loc[name]], [*alone.params[names]])
        near([*found.by_site_se.loc[name]], [*alone.bse[names]])
    y, se = found.by_site["age"], found.by_site_se["age"]
    w = 1 / se**2
    near(found.fixed.params["age"], (w * y).sum() / w.sum())
    near(found.fixed.bse["age"], w.sum() ** -0.5)
    h = found.heterogeneity.loc["age"]
    near(h["Q"], (w * (y - found.fixed.params["age"]) ** 2).sum())
    assert (h["sites"], h["df"]) == (6, 5)
    assert found.cost.exchanges == 2
    assert found.left_out == {}
    assert [*found.rows] == [150] * 6


def test_a_gaussian_meta_analysis_of_one_variance_is_the_pooled_fit() -> None:
    """Fixed effects of one mean, weighted by rows, are the mean of all rows."""
    frame = patients()
    frame["visit"] = np.where(np.arange(len(frame)) // 6 % 2 == 0, 1.0, -1.0)
    found = Study(sites(frame)).meta("visit ~ 1")
    near(found.fixed.params["Intercept"], 0.0)
    assert found.heterogeneity.loc["Intercept", "I2"] == 0


@pytest.mark.slow
def test_a_table_and_a_forest_plot_have_the_pooled_fit_beside() -> None:
    study = Study(sites(patients()))
    found = study.meta("died ~ age + C(sex)", "binomial")
    fit = study.glm("died ~ age + C(sex)", "binomial")
    table = found.table("C(sex)[T.M]", fit, exp=True)
    combined = ["fixed effects", "random effects", "Hartung-Knapp", "prediction"]
    assert [*table.index] == [*NAMES, *combined, "all rows together"]
    near(table["weight"].iloc[:6].sum(), 1.0)
    near(table.loc["all rows together", "estimate"], np.exp(fit.params["C(sex)[T.M]"]))
    near(table.loc["all rows together", ["lower", "upper"]], np.exp(fit.conf_int().loc["C(sex)[T.M]"]))
    by_site, se = (frame.loc["Bern", "C(sex)[T.M]"] for frame in (found.by_site, found.by_site_se))
    near(table.loc["Bern", "upper"], np.exp(by_site + 1.959963984540054 * se))
    assert abs(found.random.params["age"] - fit.params["age"]) < fit.bse["age"]
    svg = forest(table, title="Men & women", null=1.0, xlabel="odds ratio")
    assert svg.count("<title>") == 12
    assert "Men &amp; women" in svg
    assert f"{table['estimate'].iloc[0]:.2f} [" in svg
    assert "Hartung-Knapp" in svg
    assert "%" in svg
    alike = forest(table[["estimate", "lower", "upper"]], title="Men & women", null=None)  # nothing was combined
    assert "%" not in alike.replace("100%", "")
    assert alike.count("h12.0") == len(table)
    with pytest.raises(md.RecipeError, match="'agee'"):
        found.table("agee")


def test_sites_without_a_fit_of_their_own_are_named() -> None:
    made = {name: rows.copy() for name, rows in sites(patients()).items()}
    made["Chur"] = made["Chur"].iloc[:3]
    made["Zug"]["died"] = 1
    made["Thun"] = made["Thun"][made["Thun"]["ward"] != "a"]  # the base
    made["Genf"] = made["Genf"][made["Genf"]["ward"] != "c"]
    found = Study(made, rules={"Chur": OPEN}).meta("died ~ age + C(ward)", "binomial")
    assert {name: why.partition(":")[0] for name, why in found.left_out.items()} == {
        name: "it has no fit" for name in ("Chur", "Thun", "Zug")
    }
    assert "left out: Zug: it has no fit: its columns are collinear, its outcomes are separated or" in found.summary()
    assert found.left_out["Thun"] == "it has no fit: none of its rows has the base of a category"
    assert np.isnan(found.by_site.loc["Genf", "C(ward)[T.c]"])
    assert found.heterogeneity["sites"].to_dict() == {"Intercept": 3, "age": 3, "C(ward)[T.b]": 3, "C(ward)[T.c]": 2}
    alone = Study({"Genf": made["Genf"]}).glm("died ~ age + C(ward)", "binomial")
    near([*found.by_site.loc["Genf"].dropna()], [*alone.params])


@pytest.mark.parametrize(
    ("right", "lacking"),
    [
        ("C(ward)", ["a"]),
        ("C(ward, contr.treatment('b'))", ["b"]),
        ("age + C(ward, contr.treatment(base='c'))", ["c"]),
        ("0 + C(ward)", []),
        ("0 + C(sex) + C(ward)", ["a"]),
        ("age:C(ward)", []),
        ("age*C(ward)", ["a"]),
    ],
)
def test_only_a_site_without_the_base_of_the_formula_is_left_out(right: str, lacking: list[str]) -> None:
    frame = patients()
    made = {f"without {v}": frame[frame["ward"] != v] for v in "abc"}
    found = Study(made, rules=OPEN).meta(f"pressure ~ {right}")
    assert [*found.left_out] == [f"without {v}" for v in lacking]
    for name in made.keys() - found.left_out.keys():
        alone = Study({name: made[name]}, rules=OPEN).glm(f"pressure ~ {right}")
        near([*found.by_site.loc[name].dropna().sort_index()], [*alone.params.sort_index()])


@pytest.mark.slow
def test_a_site_withholds_a_fit_of_its_own() -> None:
    made = sites(patients())
    rules = {"Chur": Rules(parameters=0.01), "Zug": Rules(parameters=0.01, pooled=True), "Bern": Rules(events=60)}
    found = Study(made, rules=rules).meta("died ~ age + C(sex) + C(ward)", "binomial")
    assert found.left_out == dict.fromkeys(("Bern", "Chur", "Zug"), "its rules withhold its own fit")
    assert found.rows["Chur"] == 0
    assert found.by_site.loc["Chur"].isna().all()
    with pytest.raises(md.BadData, match=r"no site sent its own fit \(Bern: its rules withhold"):
        Study(made, rules=Rules(parameters=0.01)).meta("died ~ age", "binomial")


def test_a_fit_of_other_rows_is_refused_after_a_meta_analysis_and_before() -> None:
    """The difference of two sites' own fits would tell of few rows, as that of two sums does."""
    frame = patients()
    where = f"age < {frame['age'].max()}"
    study = Study({"Bern": frame})
    study.meta("pressure ~ age")
    with pytest.raises(Withheld, match="Bern withholds: where="):
        study.glm("pressure ~ age", where=where)
    study = Study({"Bern": frame})
    study.glm("pressure ~ age")
    with pytest.raises(Withheld, match="Bern withholds: where="):
        study.meta("pressure ~ age", where=where)
    frame = patients().iloc[:60].assign(top=np.where(np.arange(60) == 7, 1.0, 0.0))
    for formula in ("pressure ~ top", "pressure ~ 0 + age:C(top)"):
        with pytest.raises(md.BadData, match=r"its rules withhold its own fit|a value of top has fewer"):
            Study({"Bern": frame}).meta(formula)


def test_secure_sums_hide_what_a_meta_analysis_shows() -> None:
    with pytest.raises(md.RecipeError, match="shows each site's own fit, and secure sums hide it"):
        Study(sites(patients()), secure=md.SecureSum()).meta("died ~ age", "binomial")
    text = '[[study]]\nkind = "meta"\nformula = "died ~ age"\nfamily = "binomial"\n'
    (analysis,) = recipe.loads(text).analyses()
    assert analysis == md.statistics.Meta("died ~ age", "binomial")
    with pytest.raises(md.RecipeError, match="secure sums hide it"):
        recipe.loads(text + "[secure]\nbits = 64\n").analyses()


@pytest.mark.parametrize("how", [{"family": "gamma", "link": "logit"}, {"cov": "cluster"}, {"family": "binomia"}])
def test_settings_that_no_fit_has_are_refused(how: Any) -> None:
    with pytest.raises(md.RecipeError, match=r"link|cov|family"):
        Study(sites(patients())).meta("stay ~ age", **how)
