"""Mixed models across sites are those of all rows in one place, by a likelihood with a whole covariance matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import medley as md
from medley.statistics import Rules, Study, Withheld

pd = pytest.importorskip("pandas")
pytest.importorskip("formulaic")

OPEN = Rules(rows=1, events=1, parameters=1.0, exact=True)


def frames(seed: int = 0, sites: int = 3, patients: int = 8, visits: int = 5, ragged: bool = False) -> dict[str, Any]:
    """Sites with patients who have visits; effects differ by site and by patient."""
    rng = np.random.default_rng(seed)
    out = {}
    for k in range(sites):
        n = patients + k
        count = rng.integers(1, visits + 3, n) if ragged else np.full(n, visits)
        p = np.repeat(np.arange(n), count)
        t = np.concatenate([np.arange(c, dtype=float) for c in count])
        x = rng.normal(size=n)[p]
        b = rng.normal(0, [8.0, 2.0], (n, 2)) + rng.normal(0, [6.0, 1.0], 2)
        y = 50 + b[p, 0] + (3 + b[p, 1]) * t + 2 * x + rng.normal(0, 4, len(p))
        out[f"site {k}"] = pd.DataFrame({"y": y, "t": t, "x": x, "p": [f"{k}-{i}" for i in p]}).sample(
            frac=1.0, random_state=k
        )
    return out


def whole(data: dict[str, Any]) -> Any:
    return pd.concat([f.assign(site=name) for name, f in data.items()], ignore_index=True)


def likelihood(fit: Any, data: dict[str, Any], X: np.ndarray, covariances: dict[str, Any]) -> tuple[float, Any, Any]:
    """−2 times the (restricted) log-likelihood of all rows at these covariances, and its coefficients and errors."""
    rows = whole(data)
    V = fit.scale * np.eye(len(rows))
    for group, of in covariances.items():
        A = np.column_stack([np.ones(len(rows)) if c == "Intercept" else rows[c] for c in of.columns])
        same = rows[group].to_numpy()[:, None] == rows[group].to_numpy()
        V = V + same * (A @ of.to_numpy() @ A.T)
    inverse = np.linalg.inv(V)
    y, H = rows["y"].to_numpy(), X.T @ inverse @ X
    b = np.linalg.solve(H, X.T @ inverse @ y)
    left = y - X @ b
    out = np.linalg.slogdet(V)[1] + left @ inverse @ left + len(y) * np.log(2 * np.pi)
    if fit.mixed.reml:
        out += np.linalg.slogdet(H)[1] - X.shape[1] * np.log(2 * np.pi)
    return float(out), b, np.sqrt(np.diag(np.linalg.inv(H)))


RANDOM = [
    "(1 | p)",
    "(t | p)",
    "(t || p)",
    "(1 | site)",
    "(t | site)",
    "(1 | site/p)",
    "(t | p) + (1 | site) + (0 + t | site)",
]


@pytest.mark.parametrize(("random", "reml"), [*zip(RANDOM, [True, False] * 4, strict=False), ("(t | p)", True)])
def test_a_fit_is_the_maximum_of_the_likelihood_of_all_rows(random: str, reml: bool) -> None:
    data = frames(ragged=True)
    fit = Study(data, rules=OPEN).mixed(f"y ~ t + x + {random}", reml)
    rows = whole(data)
    X = np.column_stack([np.ones(len(rows)), rows["t"], rows["x"]])
    value, b, se = likelihood(fit, data, X, fit.covariances)
    assert fit.criterion == pytest.approx(value, rel=1e-10)
    np.testing.assert_allclose([*fit.params, *fit.bse], [*b, *se], rtol=1e-8)
    rng = np.random.default_rng(1)
    for group, of in fit.covariances.items():  # no covariance nearby is more likely
        for _ in range(3):
            A = np.eye(len(of)) + 0.02 * rng.normal(size=of.shape) * (of.to_numpy() != 0)
            near = pd.DataFrame(A @ of.to_numpy() @ A.T, of.index, of.columns)
            assert likelihood(fit, data, X, fit.covariances | {group: near})[0] > fit.criterion - 1e-9


def test_effects_of_sites_are_predicted_and_those_of_patients_stay() -> None:
    data = frames()
    fit = Study(data, rules=OPEN).mixed("y ~ t + (1 | site/p)")
    rows = whole(data)
    G, P = (float(fit.covariances[g].iloc[0, 0]) for g in ("site", "p"))
    same = {g: rows[g].to_numpy()[:, None] == rows[g].to_numpy() for g in ("site", "p")}
    V = fit.scale * np.eye(len(rows)) + G * same["site"] + P * same["p"]
    left = np.linalg.solve(V, rows["y"] - fit.params["Intercept"] - fit.params["t"] * rows["t"])
    want = [G * left[(rows["site"] == name).to_numpy()].sum() for name in fit.sites]
    np.testing.assert_allclose(fit.site_effects["Intercept"], want, rtol=1e-8)
    assert not any(str(p) in str(vars(fit)) for p in rows["p"].unique())


def test_a_variance_at_its_boundary_is_a_note(caplog: pytest.LogCaptureFixture) -> None:
    data = frames()
    rng = np.random.default_rng(4)
    for k, frame in enumerate(data.values()):
        frame["y"] = rng.normal(size=len(frame))
        frame["y"] -= frame["y"].mean() + 1e-3 * k  # less between sites than by chance
    fit = Study(data, rules=OPEN).mixed("y ~ t + (1 | site)")
    assert fit.singular
    assert fit.covariances["site"].iloc[0, 0] < 1e-12
    assert "boundary (singular) fit" in fit.summary()
    assert "boundary (singular) fit" in caplog.text
    flat = Study(data, rules=OPEN).glm("y ~ t")
    np.testing.assert_allclose([*fit.params, *fit.bse], [*flat.params, *flat.bse], rtol=1e-7)


@pytest.mark.rounded
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_rounded_sums_are_near(seed: int) -> None:
    data = frames(seed, sites=4, patients=30)
    exact, rounded = (Study(data, rules=r).mixed("y ~ t + x + (t | p) + (1 | site)") for r in (OPEN, Rules()))
    off = np.abs(rounded.params - exact.params) / exact.bse
    said = float(rounded.pooling.figures.error["coefficients"].split()[1])
    assert 0 < off.max() < said < 0.05
    np.testing.assert_allclose(rounded.bse, exact.bse, rtol=0.01)
    np.testing.assert_allclose(rounded.sigma, exact.sigma, rtol=0.005)
    assert rounded.criterion == pytest.approx(exact.criterion, rel=1e-3)


def test_columns_far_from_0_lose_no_digits() -> None:
    data = frames()
    near = Study(data, rules=OPEN).mixed("y ~ t + (t | p)")
    far = Study({k: f.assign(t=2e6 + f["t"], y=1e6 + f["y"]) for k, f in data.items()}, rules=OPEN).mixed(
        "y ~ t + (t | p)"
    )
    assert far.params["t"] == pytest.approx(near.params["t"], rel=1e-6)
    assert far.bse["t"] == pytest.approx(near.bse["t"], rel=1e-6)
    assert far.sigma == pytest.approx(near.sigma, rel=1e-6)
    assert far.criterion == pytest.approx(near.criterion, rel=1e-9)


def test_rows_in_any_order_missing_ones_and_categories() -> None:
    data = frames(patients=12)
    for frame in data.values():
        frame["sex"] = np.where(frame["p"].str[-1].isin([*"02468"]), "F", "M")
    want = Study(data, rules=OPEN).mixed("y ~ t * C(sex) + (1 | p)")
    first = data["site 0"]
    gone = pd.concat([first, first.head(2).assign(p=None), first.head(1).assign(y=np.nan)]).iloc[::-1]
    got = Study(data | {"site 0": gone}, rules=OPEN).mixed("y ~ t * C(sex) + (1 | p)")
    np.testing.assert_allclose(got.params, want.params, rtol=1e-9)
    assert [*got.params.index] == ["Intercept", "t", "C(sex)[T.M]", "t:C(sex)[T.M]"]
    assert got.rows[0].tolist() == [len(first), 3, 0]


@pytest.mark.parametrize(
    ("formula", "how", "message"),
    [
        ("y ~ t", {}, "it has no random effects; write random effects as"),
        ("y ~ t + (1 | p) + (1 | x)", {}, "it groups a site's rows by p and by x; sums of groups within other groups"),
        ("y ~ t + (1 | x/p)", {}, r"\(1 \| x/p\) cannot be read"),
        ("y ~ t + (t:x || p)", {}, r"\|\| is for columns of numbers"),
        ("y ~ t + (1 | p) + (1 | p)", {}, "a term of random effects is there twice"),
        ("y ~ t + (1 | p) + (t | p)", {}, "Intercept has two random effects of a group"),
        ("y ~ p + (1 | p)", {}, "p is a group, and cannot be a column"),
        ("y ~ t + 1 | p", {}, "write random effects as"),
        ("y ~ t + (1 | p)", {"family": "binomial"}, "study.glm with sites='fixed' .* study.meta"),
    ],
)
def test_what_cannot_be_fitted_says_why(formula: str, how: dict[str, Any], message: str) -> None:
    with pytest.raises(md.RecipeError, match=message):
        Study(frames(), rules=OPEN).mixed(formula, **how)


def test_effects_that_cannot_be_told_apart() -> None:
    data = {k: f.assign(row=np.arange(len(f)), one=1.0) for k, f in frames().items()}
    with pytest.raises(md.MedleyError, match="1 random effects of each of 135 values of row cannot be told"):
        Study(data, rules=OPEN).mixed("y ~ t + (1 | row)")
    with pytest.raises(md.MedleyError, match=r"1 random effects of each of 1 sites .* at least two sites"):
        Study({"a": data["site 0"]}, rules=OPEN).mixed("y ~ t + (1 | site)")
    with pytest.raises(md.MedleyError, match="the columns of random effects, Intercept, one"):
        Study(data, rules=OPEN).mixed("y ~ t + (one | p)")
    with pytest.raises(md.MedleyError, match="nothing is left of the outcome's variance"):
        Study({k: f.assign(y=2 * f["t"]) for k, f in data.items()}, rules=OPEN).mixed("y ~ t + (1 | p)")
    with pytest.raises(md.MedleyError, match="rows of a group differ in nothing that the fixed effects do not give"):
        Study({k: f.assign(y=1.0 * f.groupby("p").ngroup() % 7) for k, f in data.items()}, rules=OPEN).mixed(
            "y ~ t + (1 | p)"
        )
    with pytest.raises(md.RecipeError, match="secure sums hide them"):
        Study(data, rules=OPEN, secure=md.SecureSum(bits=64, bound=1e12)).mixed("y ~ t + (1 | p)")
    with pytest.raises(md.RecipeError, match="rename yours"):
        Study({k: f.assign(site="x") for k, f in data.items()}, rules=OPEN).mixed("y ~ t + (1 | site)")


def visits(patients: int, few: int, seed: int) -> Any:
    """Patients with 5 visits, of whom the last few lack one."""
    g = np.random.default_rng(seed)
    p, t = np.repeat(np.arange(patients), 5), np.tile(np.arange(5.0), patients)
    out = pd.DataFrame(
        {"p": [f"p{i:02}" for i in p], "t": t, "y": g.normal(0, 3, patients)[p] + t + g.normal(size=len(p))}
    )
    return out[(p < patients - few) | (t != 2)]


@pytest.mark.rounded
def test_patients_with_visits_like_too_few_others_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    rows = {"Bern": visits(40, 2, 1), "Chur": visits(30, 12, 2), "Zug": visits(30, 0, 3)}
    rules, formula = Rules(exact=True), "y ~ t + (1 | p)"
    with pytest.raises(Withheld, match=r"Bern withholds: fewer than 5 of p have as many rows .*, alike=5"):
        Study(rows, rules).mixed(formula)
    fit = Study(rows, rules).mixed(formula, alike=5)
    # Two patients are too few for a difference, so three of the others are with them: the first by name.
    assert fit.left_out.to_numpy().tolist() == [[2 * 4 + 3 * 5, 5], [0, 0], [0, 0]]
    assert "left out, as too few others have such rows: 23 rows of 5 p at Bern" in fit.summary()
    assert "23 rows of 5 p at Bern" in caplog.text
    kept = rows["Bern"][~rows["Bern"]["p"].isin(["p00", "p01", "p02", "p38", "p39"])]
    same = Study(rows | {"Bern": kept}, rules).mixed(formula)
    assert fit.params.equals(same.params)
    assert fit.bse.equals(same.bse)
    assert same.left_out.to_numpy().sum() == 0
    shuffled = {name: f.sample(frac=1.0, random_state=0) for name, f in rows.items()}
    np.testing.assert_allclose(Study(shuffled, rules).mixed(formula, alike=5).params, fit.params, rtol=1e-12)
    most = Study(rows, rules).mixed(formula, alike=15)
    assert most.left_out["p"].tolist() == [5, 12, 0]
    with pytest.raises(Withheld, match=r"Chur withholds: .*fewer than 5"):
        Study(rows, rules).mixed(formula, alike=19)
