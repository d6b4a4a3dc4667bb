"""The bootstrap, against the same draws by numpy; who may ask for it, and what it tells."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import medley as md
from medley.statistics import Rules, Study
from medley.statistics.bootstrap import sample

EXACT = Rules(exact=True)


def rows(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, n)
    treated = (rng.random(n) < 1 / (1 + np.exp(-0.05 * (age - 60)))).astype(int)
    stay = 2.0 * treated + 0.1 * age + rng.normal(0, 1, n)
    return pd.DataFrame({"age": age, "treated": treated, "stay": stay, "id": np.arange(n) // 2})


def study(rules: Rules = EXACT, sites: int = 3, n: int = 150, seed: int = 0, **how: Any) -> Study:
    return Study({f"s{i}": rows(n, 10 * seed + i) for i in range(sites)}, rules=rules, **how)


def effect(s: Study) -> Any:
    return s.glm("stay ~ treated", weights=s.propensity("treated ~ age").weights("ATE"))


def pooled_effect(frame: pd.DataFrame) -> np.ndarray:
    """Weighted least squares with inverse probabilities of an own logistic regression."""
    X = np.column_stack([np.ones(len(frame)), frame["age"] - 60])
    t = frame["treated"].to_numpy(float)
    b = np.zeros(2)
    for _ in range(30):
        p = 1 / (1 + np.exp(-X @ b))
        b += np.linalg.solve((X * (p * (1 - p))[:, None]).T @ X, X.T @ (t - p))
    w = np.where(t == 1, 1 / p, 1 / (1 - p))
    Z = np.column_stack([np.ones(len(t)), t])
    return np.linalg.solve((Z * w[:, None]).T @ Z, (Z * w[:, None]).T @ frame["stay"].to_numpy())


def slope(s: Study) -> Any:
    return s.glm("stay ~ treated")


def pooled_slope(frame: pd.DataFrame) -> np.ndarray:
    Z = np.column_stack([np.ones(len(frame)), frame["treated"]])
    return np.linalg.lstsq(Z, frame["stay"].to_numpy(), rcond=None)[0]


@pytest.mark.parametrize(
    ("figure", "pooled"), [(slope, pooled_slope), pytest.param(effect, pooled_effect, marks=pytest.mark.slow)]
)
def test_each_draw_is_the_fit_of_its_rows_and_comes_again(figure: Any, pooled: Any):
    asked = study(sites=2)
    found = asked.bootstrap(figure, draws=20)
    for k in range(20):
        drawn = pd.concat([sample(site, asked.secret, k).frame for site in asked.sites.values()])
        np.testing.assert_allclose(found.draws.iloc[k], pooled(drawn), rtol=1e-7)
    np.testing.assert_allclose(found.estimate, figure(asked).b)
    np.testing.assert_allclose(found.se, found.draws.to_numpy().std(0, ddof=1))
    assert [*found.estimate.index] == [*found.frame().index] == ["Intercept", "treated"]
    assert found.draws.equals(asked.bootstrap(figure, draws=20).draws)
    assert asked.secret != study(sites=2).secret
    assert found.bytes_up > 20 * 2 * 8
    normal = found.interval(kind="normal")
    np.testing.assert_allclose(normal.mean(axis=1), found.estimate)
    assert "20 draws of each site's rows" in found.summary()


@pytest.mark.slow
def test_masked_sums_give_the_same_draws():
    secure = md.SecureSum(bits=64, bound=1e12)
    plain = study(seed=1).bootstrap(slope, draws=20, seed=5)
    masked = study(seed=1, secure=secure).bootstrap(slope, draws=20, seed=5)
    np.testing.assert_allclose(masked.draws, plain.draws, rtol=1e-5)


def test_patients_are_drawn_with_all_their_rows():
    site = study(Rules(exact=True, id="id")).sites[0]
    drawn = sample(site, 1, 0).frame
    assert (drawn["id"].value_counts() % 2 == 0).all()
    assert len({*drawn["id"]}) < 75


@pytest.mark.rounded
@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: study(Rules()).bootstrap(effect), "s0 rounds its sums, and 200 draws of them would average"),
        (lambda: study({"s0": EXACT, "s1": Rules(), "s2": EXACT}).bootstrap(effect), "s1 rounds its sums"),
        (lambda: study().bootstrap(effect, draws=5), "give 20 or more"),
        (lambda: study().bootstrap(None), "give a function of a study"),
        (lambda: study().bootstrap(lambda s: "large", draws=20), "the function returned a str; return a fit"),
        (lambda: study().bootstrap(), r"figure= is missing"),
    ],
)
def test_what_cannot_be_drawn_is_said(ask: Any, message: str):
    with pytest.raises(md.RecipeError, match=message):
        ask()


def test_draws_that_fail_are_counted_and_too_many_are_an_error():
    calls = []

    def rare(s: Study, every: int) -> float:
        calls.append(1)
        if len(calls) > 1 and len(calls) % every == 0:
            raise md.BadData("separated")
        return float(len(calls))

    assert study().bootstrap(lambda s: rare(s, 15), draws=40).failed == 2
    calls.clear()
    with pytest.raises(md.RecipeError, match="draws failed, the last by: separated"):
        study().bootstrap(lambda s: rare(s, 2), draws=40)


def test_a_rule_on_rows_is_asked_of_the_rows_before_any_draw():
    """A category of few rows is withheld as by any fit, so that no draw of it leaves."""
    few = {"s0": rows(150, 1).assign(ward=["x"] * 3 + ["y"] * 147), "s1": rows(150, 2).assign(ward=["x", "y"] * 75)}
    seen = []
    with pytest.raises(md.statistics.Withheld):
        Study(few, rules=EXACT).bootstrap(lambda s: (seen.append(s), s.glm("stay ~ C(ward)"))[1], draws=20)
    assert len(seen) == 1


def test_a_draw_without_a_figure_is_no_missing_value_among_others():
    names = iter([["a", "b"], *[["a", "b"]] * 10, ["a"]])
    with pytest.raises(md.RecipeError, match="a draw differs from the rows in 'b'; merge rare categories"):
        study().bootstrap(lambda s: pd.Series(1.0, next(names)), draws=20)
    numbers = iter([1.0, *range(15), float("nan"), *range(4)])
    assert study().bootstrap(lambda s: float(next(numbers)), draws=20).failed == 1


@pytest.mark.slow
def test_errors_are_those_of_stacked_estimation():
    ratios = []
    for seed in range(3):
        asked = study(seed=seed, sites=2)
        ratios.append(asked.bootstrap(effect, draws=60, seed=seed).se["treated"] / effect(asked).bse["treated"])
    assert 0.8 < np.mean(ratios) < 1.2  # 60 draws know an error to a tenth
