"""Fits and tables at their edges: units, places, categories and weights, against values computed independently."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import optimize, special

import medley as md

pytest.importorskip("formulaic")

import pandas as pd

from medley.statistics import Rules, Study
from support.pairs import crossed, quick

OPEN = Rules(rows=1, events=1, parameters=1.0, pooled=True)

N = 240


def study(rows: Any, rules: Rules = OPEN) -> Study:
    """Three sites of unequal sizes."""
    site = np.minimum(np.arange(len(rows)) % 5, 2)
    return Study({name: rows[site == k] for k, name in enumerate(("Bern", "Chur", "Zug"))}, rules=rules)


def rows(seed: int = 0) -> Any:
    g = np.random.default_rng(seed)
    x, ward, year = g.normal(size=N), g.choice(["a", "b", "c"], N), g.integers(2010, 2025, N) * 1.0
    mean = np.exp(0.4 + 0.5 * x)
    return pd.DataFrame(
        {
            "x": x,
            "ward": ward,
            "year": year,
            "grade": g.integers(1, 4, N),
            "died": 1.0 * (g.random(N) < 1 / (1 + np.exp(0.5 - x))),
            "falls": g.poisson(mean * g.gamma(1.5, 1 / 1.5, N)) * 1.0,
            "stay": g.gamma(0.8, mean / 0.8),
            "pay": 3 + 0.3 * x + g.normal(0, 0.5, N),
            "w": g.integers(0, 3, N) * 1.0,
        }
    )


def newton(X: np.ndarray, y: np.ndarray, family: str) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and standard errors of all rows, of logistic or linear regression."""
    b = np.zeros(X.shape[1])
    for _ in range(200 if family == "binomial" else 3):
        mu = special.expit(X @ b) if family == "binomial" else X @ b
        H = (X.T * (mu * (1 - mu) if family == "binomial" else np.ones(len(y)))) @ X
        step = np.linalg.solve(H, X.T @ (y - mu))
        b = b + step / max(1.0, np.abs(X @ step).max() / 5)
    scale = 1.0 if family == "binomial" else ((y - X @ b) ** 2).sum() / (len(y) - X.shape[1])
    return b, np.sqrt(np.diag(np.linalg.inv(H)) * scale)


PLACES: dict[str, Callable[[Any], np.ndarray]] = {
    "x + 1e3": lambda d: 1e3 + d["x"],
    "x + 1e5": lambda d: 1e5 + d["x"],
    "x + 1e6": lambda d: 1e6 + d["x"],
    "x - 1e6": lambda d: d["x"] - 1e6,
    "days as yyyymmdd": lambda d: 20240000.0 + 100 * (1 + np.arange(N) % 12) + 1 + np.arange(N) % 28,
    "seconds since 1970": lambda d: 1.7e9 + 86400 * (d["x"] % 1),
    "nanoseconds since 1970": lambda d: 1.7e18 + 1e9 * np.floor(1e5 * d["x"]),
    "years": lambda d: d["year"],
    "1e-12 x": lambda d: 1e-12 * d["x"],
    "1e12 x": lambda d: 1e12 * d["x"],
}


@pytest.mark.parametrize(("place", "family"), crossed(PLACES, ["binomial", "gaussian"]))
def test_a_column_far_from_0_has_8_digits(place: str, family: str) -> None:
    d = rows().assign(z=lambda d: PLACES[place](d))
    y = (d["died"] if family == "binomial" else d["pay"]).to_numpy()
    fit = study(d.assign(y=y)).glm("y ~ z + C(ward)", family)
    z = d["z"].to_numpy()
    size = np.abs(z - z.mean()).max()
    X = np.column_stack([np.ones(N), (z - z.mean()) / size, d["ward"] == "b", d["ward"] == "c"]).astype(float)
    b, se = newton(X, y, family)
    assert fit.params["z"] * size == pytest.approx(b[1], rel=1e-8)
    assert fit.bse["z"] * size == pytest.approx(se[1], rel=1e-8)
    assert fit.params["C(ward)[T.c]"] == pytest.approx(b[3], rel=1e-8)
    assert fit.params["Intercept"] == pytest.approx(b[0] - b[1] * z.mean() / size, rel=1e-8)


@pytest.mark.parametrize("formula", ["y ~ year + I(year**2)", "y ~ x + year + x:year", "y ~ 0 + C(ward) + far"])
def test_columns_that_are_nearly_combinations(formula: str) -> None:
    d = rows().assign(far=lambda d: 1e6 + d["x"])
    d["y"] = d["died"]
    c, one = (d["year"] - 2017).to_numpy(), np.ones(N)
    x, dummies = d["x"].to_numpy(), [1.0 * (d["ward"] == w) for w in "abc"]
    centred = {"y ~ year + I(year**2)": [one, c, c**2], "y ~ x + year + x:year": [one, x, c, x * c]}
    b, se = newton(np.column_stack(centred.get(formula, [*dummies, x])), d["y"].to_numpy(), "binomial")
    fit = study(d).glm(formula, "binomial")
    assert fit.params.iloc[-1] == pytest.approx(b[-1], rel=1e-7)
    assert fit.bse.iloc[-1] == pytest.approx(se[-1], rel=1e-7)


def test_true_combinations_are_named() -> None:
    d = rows().assign(far=lambda d: 1e6 + d["x"], also=lambda d: 7 * d["x"] + 3, one=1e9)
    d["sum"], d["half"] = d["x"] + d["pay"], (0.5 * d["x"]).astype(np.float32)
    for right, said in {
        "far + also": "also is a combination of .*far",
        "x + pay + sum": "sum is a combination of x, pay over all sites",
        "x + one": "one is a combination of Intercept",
        "x + half": "half is a combination of x",
        "C(ward) + C(ward, contr.treatment('b'))": r"C\(ward, contr.treatment\('b'\)\)\[T.a\] is a combination of",
    }.items():
        with pytest.raises(md.BadData, match=f"collinear: {said}"):
            study(d).glm(f"died ~ {right}", "binomial")


def gamma_at_most(y: np.ndarray, mu: np.ndarray) -> float:
    """The gamma's log-likelihood at the most likely dispersion."""
    ll = lambda t: (
        -np.sum(
            np.exp(t) * t + (np.exp(t) - 1) * np.log(y) - np.exp(t) * (np.log(mu) + y / mu) - special.gammaln(np.exp(t))
        )
    )
    return -float(optimize.minimize_scalar(ll, bounds=(-5, 8), method="bounded", options={"xatol": 1e-12}).fun)


@pytest.mark.parametrize("seed", quick(2, range(8)))
def test_a_gamma_is_tested_at_the_most_likely_dispersions(seed: int) -> None:
    d = rows(seed).iloc[:60]
    larger, smaller = (study(d).glm(f"stay ~ {r}", "gamma", link="log") for r in ("x + pay", "x"))
    y, one = d["stay"].to_numpy(), np.ones(len(d))
    means = [
        np.exp(np.column_stack([one, *(d[c] for c in names)]) @ fit.params.to_numpy())
        for fit, names in ((larger, ["x", "pay"]), (smaller, ["x"]))
    ]
    right = 2 * (gamma_at_most(y, means[0]) - gamma_at_most(y, means[1]))
    assert larger.lr_test(smaller).statistic == pytest.approx(right, rel=1e-6, abs=1e-8)
    assert larger.llnull == pytest.approx(study(d).glm("stay ~ 1", "gamma", link="log").llf, rel=1e-8)


@pytest.mark.parametrize("seed", quick(2, range(8)))
def test_the_null_model_of_a_negative_binomial_has_its_own_alpha(seed: int) -> None:
    d = rows(seed)
    fit = study(d).glm("falls ~ x", "negative_binomial")
    y, mu = d["falls"].to_numpy(), d["falls"].mean()

    def ll(t: float) -> float:
        r = np.exp(-t)
        return -float(
            np.sum(special.gammaln(y + r) - special.gammaln(r) - special.gammaln(y + 1))
            + np.sum(special.xlogy(y, mu / (r + mu))) - N * r * np.log1p(mu / r)
        )  # fmt: skip

    right = -optimize.minimize_scalar(ll, bounds=(-8, 4), method="bounded", options={"xatol": 1e-12}).fun
    assert fit.llnull == pytest.approx(right, rel=1e-9)
    assert fit.llnull == pytest.approx(study(d).glm("falls ~ 1", "negative_binomial").llf, rel=1e-9)


@pytest.mark.parametrize("cov", ["HC0", "HC1", "cluster"])
def test_robust_errors_of_a_negative_binomial_have_the_score_of_alpha(cov: Any) -> None:
    d = rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = study(d).glm("falls ~ x", "negative_binomial", cov=cov)
    y, X, site = d["falls"].to_numpy(), np.column_stack([np.ones(N), d["x"]]), np.minimum(np.arange(N) % 5, 2)

    def each(v: np.ndarray) -> np.ndarray:
        r, mu = 1 / v[2], np.exp(X @ v[:2])
        return special.gammaln(y + r) - special.gammaln(r) + special.xlogy(y, mu / (r + mu)) - r * np.log1p(mu / r)

    at, h, unit = np.array([*fit.params[:2], fit.alpha]), 1e-4, np.eye(3)
    S = np.stack([(each(at + h * u) - each(at - h * u)) / (2 * h) for u in unit], 1)
    far = lambda u, v: each(at + h * (u + v)).sum() - each(at + h * (u - v)).sum()
    H = np.array([[(far(u, v) - far(-u, v)) / (4 * h * h) for v in unit] for u in unit])
    G = S if cov != "cluster" else np.stack([S[site == k].sum(0) for k in range(3)])
    factor = {"HC0": 1.0, "HC1": N / (N - 3), "cluster": 3 / 2 * (N - 1) / (N - 3)}[cov]
    right = np.sqrt(np.diag(factor * np.linalg.inv(H) @ G.T @ G @ np.linalg.inv(H)))
    assert fit.bse.to_numpy() == pytest.approx(right, rel=1e-5)


def overlapping(gap: float) -> Any:
    x = np.sort(np.random.default_rng(3).normal(size=N))
    x[N // 2] = x[N // 2 - 1] + gap
    y = 1.0 * (np.arange(N) >= N // 2)
    y[[N // 2 - 1, N // 2]] = 1.0, 0.0
    return pd.DataFrame({"x": x, "y": y})


@pytest.mark.parametrize("gap", [0.1, 1e-2, 1e-3])
def test_two_overlapping_rows_have_a_maximum(gap: float) -> None:
    d = overlapping(gap)
    fit = study(d).glm("y ~ x", "binomial")
    X = np.column_stack([np.ones(N), d["x"]])
    score = X.T @ (d["y"] - special.expit(X @ fit.params.to_numpy()))
    assert np.sqrt(score @ fit.cov_params().to_numpy() @ score) < 1e-8
    assert fit.params["x"] > 5


def separated() -> dict[str, tuple[Any, str, str, str]]:
    d = rows()
    base = d.assign(y=np.where(d["ward"] == "a", 0, d["died"]), n=np.where(d["ward"] == "a", 0, d["falls"]))
    both = d.assign(half=np.where(d["x"] > 0, "p", "q"))
    both["y"] = np.where((both["ward"] == "b") & (both["half"] == "p"), 1, both["died"])
    return {
        "complete": (d.assign(y=1 * (d["x"] > 0.2)), "y ~ x", "binomial", "by x:"),
        "complete, far": (d.assign(y=1 * (d["x"] > 0.2), x=1e5 + d["x"]), "y ~ x", "binomial", "by x:"),
        "base": (base, "y ~ C(ward) + x", "binomial", r"by C\(ward\)\[a\] \(the base\): none of the rows"),
        "named base": (base, "y ~ C(ward, contr.treatment('a'))", "binomial", r"\[a\] \(the base\)"),
        "base of counts": (base, "n ~ C(ward) + x", "poisson", r"by C\(ward\)\[a\] \(the base\)"),
        "another": (base, "y ~ C(ward, contr.treatment('b')) + x", "binomial", r"\[T.a\]: none of the rows"),
        "each": (base.assign(y=1 - base["y"]), "y ~ C(ward) + x", "binomial", r"\[a\] \(the base\): each of"),
        "a pair of categories": (both, "y ~ C(ward) * C(half)", "binomial", r"by C\(ward\)\[T.b\]"),
    }


@pytest.mark.parametrize("name", separated())
def test_separation_is_claimed_where_there_is_no_maximum(name: str) -> None:
    d, formula, family, match = separated()[name]
    with pytest.raises(md.Stalled, match=f"separation .*{match}"):
        study(d).glm(formula, family)


def test_the_edge_of_a_log_binomial_is_no_separation() -> None:
    d = rows()
    d["y"] = np.where(d["ward"] == "b", 1.0, d["died"])
    with pytest.raises(md.Stalled, match=r"means above 1.*family='poisson' with cov='HC1'") as e:
        study(d).glm("y ~ C(ward)", "binomial", link="log")
    assert "separation" not in str(e.value)
    ratio = study(d).glm("y ~ C(ward)", "poisson", cov="HC1")  # the remedy
    shares = d.groupby("ward")["y"].mean()
    assert np.exp(ratio.params["C(ward)[T.b]"]) == pytest.approx(shares["b"] / shares["a"], rel=1e-8)
    g = np.random.default_rng(1)
    d["y"] = 1.0 * (g.random(N) < np.exp(-1.5 + 0.25 * d["x"].clip(-2, 2)))
    fit = study(d).glm("y ~ x", "binomial", link="log")
    y, X = d["y"].to_numpy(), np.column_stack([np.ones(N), d["x"]])
    mu = np.exp(X @ fit.params.to_numpy())
    assert X.T @ ((y - mu) / (1 - mu)) == pytest.approx([0, 0], abs=1e-6)


@pytest.mark.parametrize("split", quick(3, [0, 1, 5, 2, 3, 4, 6, 7]))
def test_a_fit_does_not_depend_on_the_split(split: int) -> None:
    """Sites whose own first steps overflow, are separated, or have a single row."""
    d = rows()
    d["tiny"] = np.where(np.arange(N) % 7 == 0, 1e-8, 1.0) * d["stay"]
    order = np.argsort(d["x" if split < 4 else "tiny"].to_numpy()) if split % 2 else np.arange(N)
    cut = np.split(order, [1, 3, 5 + split, N // 2])
    sites = Study({f"S{k}": d.iloc[at] for k, at in enumerate(cut)}, rules=OPEN)
    whole = Study({"all": d}, rules=OPEN)
    for formula, family, how in (("died ~ x + C(ward)", "binomial", {}), ("tiny ~ x", "gamma", {"link": "log"})):
        a, b = (s.glm(formula, family, **how) for s in (sites, whole))
        assert a.params.to_numpy() == pytest.approx(b.params.to_numpy(), rel=1e-8)
        assert a.bse.to_numpy() == pytest.approx(b.bse.to_numpy(), rel=1e-8)


FITS = [("gaussian", "identity"), ("gaussian", "log"), ("gamma", "log"), ("gamma", "inverse")]


@pytest.mark.parametrize(("scale", "kind"), crossed([1e-12, 1.0, 1e12], FITS))
def test_units_of_the_outcome_do_not_matter(scale: float, kind: Any) -> None:
    d, (family, link) = rows(), kind
    y = (d["pay"] + 2 if family == "gaussian" else d["stay"] + 0.1) * scale
    formula = "y ~ C(ward)" if link == "inverse" else "y ~ x"
    fit, plain = (study(d.assign(y=v)).glm(formula, family, link=link) for v in (y, y / scale))
    factor = {"identity": 1 / scale, "inverse": scale, "log": 1.0}[link]
    assert fit.params.iloc[1] * factor == pytest.approx(plain.params.iloc[1], rel=1e-8)
    assert fit.bse.iloc[1] * factor == pytest.approx(plain.bse.iloc[1], rel=1e-8)


def test_rows_of_weight_0_are_left_out() -> None:
    d = rows()
    fit, without = (study(v).glm("pay ~ x + C(ward)", weights="w") for v in (d, d[d["w"] > 0]))
    assert fit.nobs == without.nobs == (d["w"] > 0).sum()
    W, X = d["w"].to_numpy(), np.column_stack([np.ones(N), d["x"], d["ward"] == "b", d["ward"] == "c"]).astype(float)
    right = np.linalg.solve((X.T * W) @ X, X.T @ (W * d["pay"]))
    assert fit.params.to_numpy() == pytest.approx(right, rel=1e-10)
    assert fit.llf == pytest.approx(without.llf, rel=1e-10)


@pytest.mark.parametrize("base", ["2", "base=2", "'2'", "2.0"])
def test_a_base_may_be_a_number(base: str) -> None:
    fit = study(rows()).glm(f"pay ~ C(grade, contr.treatment({base}))")
    means = rows().groupby("grade")["pay"].mean()
    assert fit.params.to_numpy() == pytest.approx([means[2], means[1] - means[2], means[3] - means[2]], rel=1e-10)
    assert fit.params.index[1] == f"C(grade, contr.treatment({base}))[T.1]"


def test_a_skewed_column_of_a_cox_fit_is_named_and_its_logarithm_works() -> None:
    g = np.random.default_rng(1)
    x = g.normal(size=600)
    d = pd.DataFrame({"lab": np.exp(1.2 * x), "t": g.exponential(np.exp(-0.3 * np.exp(1.2 * x))) + 0.001, "e": 1})
    with pytest.raises(md.statistics.Withheld, match="lab does most of it: if it is skewed, take its logarithm"):
        study(d, Rules()).cox("t ~ lab", "e")
    assert study(d, Rules()).cox("t ~ log(lab)", "e").nobs == 600


def test_a_cox_model_without_a_maximum_is_named_and_years_may_be_squared() -> None:
    g = np.random.default_rng(2)
    d = rows().assign(t=g.permutation(N) + 1.0, e=1.0)
    early = d.assign(o=1.0 * (d["t"] < 100))
    with pytest.raises(md.Stalled, match="separation by o:"):
        study(early).cox("t ~ o + x", "e")
    far = study(d).cox("t ~ year + I(year**2)", "e")
    near = study(d.assign(year=d["year"] - 2017)).cox("t ~ year + I(year**2)", "e")
    assert far.params.iloc[1] == pytest.approx(near.params.iloc[1], rel=1e-7)
    assert far.bse.iloc[1] == pytest.approx(near.bse.iloc[1], rel=1e-7)
    tests = [
        study(d.assign(year=d["year"] - less))
        .cox("t ~ year + I(year**2)", "e", cuts=[50, 250])
        .zph()
        .loc["GLOBAL", "chi2"]
        for less in (0, 2017)
    ]
    assert tests[0] == pytest.approx(tests[1], rel=1e-6)


# Tables that are keyed by names.


def listed() -> Any:
    g = np.random.default_rng(4)
    columns = {
        "smoker": ["no", "yes"], "diabetes": ["no", "yes"], "icu": [0, 1], "ward": ["all", "p", "smoker"],
        "missing": ["(not named)", "no"],
    }  # fmt: skip
    d = pd.DataFrame(
        {
            c: g.choice(np.array(v, dtype=object), N, p=[0.6, *[0.4 / (len(v) - 1)] * (len(v) - 1)])
            for c, v in columns.items()
        }
    )
    return d.assign(age=g.normal(60, 9, N), note=[f"seen {k}" for k in range(N)], sex=g.choice(["F", "M"], N))


def test_each_column_of_a_table_has_its_own_counts() -> None:
    d = listed()
    columns = ["smoker", "diabetes", "C(icu)", "ward", "missing", "age"]
    table = study(d, Rules()).describe(columns, by="sex")
    for text in (table.summary().splitlines(), table.latex().splitlines()):
        heading, counts = "", dict[str, dict[str, int]]()
        for line in text:
            cells = [c.strip() for c in line.replace(r"\\", "").split("&" if "&" in line else "  ") if c.strip()]
            if cells and cells[0].removesuffix(", n (%)").removesuffix(r", n (\%)") != cells[0]:
                level = cells[0].split(", n (")[0]
                counts.setdefault(heading, {})[level] = int(cells[1].split(" ")[0])
            elif cells and cells[0] in d.columns:
                heading = cells[0]
        for name in ("smoker", "diabetes", "icu", "ward", "missing"):
            right = d[name].astype(str).value_counts().to_dict()
            assert counts[name] == right, name
            assert table.cells[name][""].counts == right


def test_free_text_is_said_to_have_no_categories() -> None:
    d = listed()
    table = study(d, Rules()).describe(["note", "age"], by="sex")
    assert table.frame().loc["  (not named), n (%)"].iloc[0] == f"{N} (100.0)"
    assert "(not named): in note, rows of categories that have too few rows at each site, as free" in table.summary()
    rare = d["smoker"].copy()
    rare.iloc[2:11:5], rare.iloc[3:14:5] = "rarely", "once"  # three and two rows, at the third site
    table = study(d.assign(smoker=rare), Rules()).describe(["smoker"])
    assert table.cells["smoker"][""].unnamed == (~rare.isin(["yes", "no"])).sum() == 5
    assert table.frame().loc["  (not named), n (%)"].iloc[0] == "5 (2.1)"
    with pytest.raises(md.RecipeError, match=r"you named age both as numbers and in C\(\); name it once"):
        study(d, Rules()).describe(["age", "C(age)"])


@pytest.mark.parametrize(("unit", "until"), [(30.4, 365.0), (7.0, 365.0), (1.0, 99.5), (400.0, 365.0), (30.0, 360.0)])
def test_a_curve_ends_at_until(unit: float, until: float) -> None:
    g = np.random.default_rng(5)
    d = pd.DataFrame({"t": g.uniform(1, 730, N), "d": 1 * (g.random(N) < 0.6), "g": g.choice(["a", "b"], N)})
    curves = study(d).kaplan_meier("t", "d", unit=unit, until=until, by="g")
    for name, part in d.groupby("g"):
        frame, inside = curves.frame(name), part[(part["d"] == 1) & (part["t"] <= until)]
        assert frame["events"].sum() == len(inside)
        assert frame.index[-1] <= until
        up = np.minimum(np.ceil(part["t"] / unit - 1e-9) * unit, until)  # each time, rounded up
        survival = 1.0
        for time, row in frame.iterrows():
            dead = np.isclose(up, time) & (part["d"] == 1) & (part["t"] <= until)
            survival *= 1 - dead.sum() / (up >= time - 1e-9).sum()
            assert row["survival"] == pytest.approx(survival, rel=1e-12)


def test_small_numbers_are_printed_and_no_spread_is_said(caplog: pytest.LogCaptureFixture) -> None:
    x = np.arange(40.0)
    sites = {s: pd.DataFrame({"x": 1e-5 * (x + k), "tiny": 1e-12 * (x + k), "z": 0.0 * x}) for k, s in enumerate("AB")}
    study = Study(sites, rules=Rules(rows=1, events=1))
    pooled = np.concatenate([f["x"] for f in sites.values()])
    text = study.describe(["x", "z"]).summary()
    assert f"{pooled.mean():.2g} ({pooled.std(ddof=1):.2g})" in text
    assert "SD 0: in z," in text
    masked = Study(sites, rules=Rules(rows=1, events=1), secure=md.SecureSum(bits=64, bound=2.0**40))
    assert f"{1e-7 * pooled.mean():.2g} ({1e-7 * pooled.std(ddof=1):.2g})" in masked.describe(["tiny"]).summary()
    study.prepare(["z: standardise"])
    assert "prepare: z has no spread" in caplog.text


@pytest.mark.parametrize(
    ("call", "given", "message"),
    [
        ("glm", (), 'glm(): give formula=, "died ~ age'),
        ("meta", (), 'meta(): give formula=, "died ~ age'),
        ("cox", (), "cox(): give formula=, the time and what explains it"),
        ("cox", ("t ~ x",), "cox(): give event=, the column that is 1 if the event occurred"),
        ("kaplan_meier", ("t", "d"), "kaplan_meier(): give unit=, the width of the grid of times"),
        ("pca", (), "pca(): give columns=, numeric columns, at least two"),
        ("run", (), "study.run(analysis=None): give an analysis, such as statistics.PCA(columns="),
        ("run", ("glm",), "study.run(analysis='glm'): give an analysis"),
    ],
)
def test_a_missing_argument_is_named_with_its_meaning(call: str, given: tuple[str, ...], message: str) -> None:
    with pytest.raises(md.RecipeError) as error:
        getattr(study(rows()), call)(*given)
    assert str(error.value).startswith(message)
