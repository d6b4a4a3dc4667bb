"""Units do not matter, with and without secure sums: 1e-12 to 1e12 give the same figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import medley as md
from medley.statistics import Rules, Study
from medley.statistics.scales import FINER, banded, exponents_of
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0, exact=True)
SECURE = md.SecureSum(bits=64, bound=2.0**40)
N = 240

UNITS = [1e-12, 1e-5, 1.0, 1e5, 1e12]


def rows() -> pd.DataFrame:
    g = np.random.default_rng(3)
    x, z, s = g.normal(1, 1, N), np.exp(g.normal(0, 0.5, N)), g.choice(["F", "M"], N)
    eta = 0.4 * x + 0.3 * z + 0.5 * (s == "M")
    counts = g.negative_binomial(2, 1 / (1 + np.exp(eta / 2) / 2))
    return pd.DataFrame(
        {
            "x": x, "z": z, "s": s, "w": g.uniform(0.5, 3, N), "t": g.exponential(10 * np.exp(-eta / 2)) + 0.1,
            "year": 2020 + 3 * x, "value": eta + g.normal(size=N), "cost": g.gamma(2, np.exp(eta) / 2),
            "event": 1.0 * (g.random(N) < 0.6), "count": 1.0 * counts, "at": np.arange(N) % 3,
        }
    )  # fmt: skip


def study(unit: float, secure: bool, rules: Rules = OPEN) -> Study:
    frame = rows()
    for name in ("x", "w", "t", "year", "value", "cost"):
        frame[name] *= unit
    parts = {f"S{k}": part.drop(columns="at") for k, part in frame.groupby("at")}
    return Study(parts, rules=rules, secure=SECURE if secure else None)


def glm(y: str, family: str, **how: Any) -> Any:
    """A function of a study and a unit: a fit's figures, as they are in the unit 1."""

    def figures(s: Study, unit: float) -> np.ndarray:
        fit = s.glm(f"{y} ~ x + z + C(s)", family, **how)
        of = unit if y in ("value", "cost") else 1.0
        b, se = fit.params.copy(), fit.bse.copy()
        if fit.glm.uses == "log":
            b["Intercept"] -= np.log(of)
        else:
            power = -1 if fit.glm.uses == "inverse" else 1
            b, se = b / of**power, se / of**power
        b["x"], se["x"] = b["x"] * unit, se["x"] * unit
        likely = fit.llf
        if family in ("gaussian", "gamma"):
            likely += N * np.log(of)
        elif "weights" in how:
            likely, se = likely / unit, se * np.sqrt(unit)
        return np.r_[b, se, likely]

    return figures


def described(s: Study, unit: float) -> np.ndarray:
    cells = s.describe(["x", "year", "cost"], by="s").cells
    return np.array([v / unit for name in cells for c in cells[name].values() for v in (c.mean, c.sd)])


def prepared(s: Study, unit: float) -> np.ndarray:
    scaling = s.prepare(["x: standardise", "year: mean, standardise", "cost: standardise"]).scaling
    return np.r_[scaling.mean.numpy().ravel(), scaling.deviation.numpy().ravel()] / unit


def cox(*cuts: float) -> Any:
    def figures(s: Study, unit: float) -> np.ndarray:
        fit = s.cox("t ~ x + z + C(s)", "event", cuts=[unit * c for c in cuts])
        b, se = fit.params.copy(), fit.bse.copy()
        b["x"], se["x"] = b["x"] * unit, se["x"] * unit
        return np.r_[b, se, fit.llf]

    return figures


def curve(s: Study, unit: float) -> np.ndarray:
    found = s.kaplan_meier("t", "event", unit=0.5 * unit, until=30 * unit, by="s")
    parts = [found.frame(g)["survival"].to_numpy() for g in found.groups]
    return np.r_[np.concatenate(parts), [1 + found.moved[g] / unit for g in found.groups]]


CASES: dict[str, Any] = {
    "describe": described, "prepare": prepared, "cox": cox(), "curve": curve,
    "cox with cuts": cox(3.0, 6.0, 12.0, 100.0),
    "gaussian": glm("value", "gaussian"), "gaussian HC3": glm("value", "gaussian", cov="HC3", weights="w"),
    "gamma": glm("cost", "gamma"), "gamma log": glm("cost", "gamma", link="log", cov="HC0"),
    "gaussian log": glm("cost", "gaussian", link="log"), "binomial": glm("event", "binomial", weights="w"),
    "poisson": glm("count", "poisson", weights="w"), "negative binomial": glm("count", "negative_binomial"),
}  # fmt: skip

QUICK = [("describe", 1e-12), ("gaussian HC3", 1e12), ("cox", 1e-12)]


@pytest.mark.parametrize(("case", "unit"), QUICK)
def test_units_do_not_matter(case: str, unit: float) -> None:
    right = CASES[case](study(1.0, secure=False), 1.0)
    for secure in (False, True):
        mine = CASES[case](study(unit, secure), unit)
        np.testing.assert_allclose(mine, right, rtol=1e-6 if secure else 1e-9, atol=1e-6 if secure else 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_units_do_not_matter_to_any_analysis(case: str) -> None:
    for unit in UNITS:
        test_units_do_not_matter(case, unit)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["describe", "gaussian", "gamma log", "gaussian log"])
def test_units_do_not_matter_to_the_grid_of_sums(case: str) -> None:
    exact = CASES[case](study(1.0, secure=False), 1.0)
    for unit in UNITS:
        for secure in (False, True):
            mine = CASES[case](study(unit, secure, Rules()), unit)
            np.testing.assert_allclose(mine, exact, rtol=3e-3, atol=3e-3)


def test_quantiles_are_within_their_error_in_each_unit() -> None:
    frame = rows()
    for unit in UNITS:
        cells = study(unit, secure=True).describe(["x", "year"]).cells
        for name in ("x", "year"):
            for q, (value, error) in cells[name][""].quantiles.items():
                assert abs(value - unit * frame[name].quantile(q)) <= error * (1 + 1e-9)
                assert error < 0.05 * unit * frame[name].std()


@pytest.mark.parametrize("place", [1e2, 1e4, 1e6])
def test_columns_and_outcomes_far_from_0_under_secure_sums(place: float) -> None:
    frame = rows().assign(year=lambda d: place + d["x"], value=lambda d: place + d["value"])
    parts = {f"S{k}": part.drop(columns="at") for k, part in frame.groupby("at")}
    fits = [Study(parts, rules=OPEN, secure=s).glm("value ~ year + C(s)") for s in (None, SECURE)]
    for figure in ("params", "bse"):
        plain, masked = (getattr(f, figure) for f in fits)
        assert masked["year"] == pytest.approx(plain["year"], rel=1e-5)
    assert fits[1].llf == pytest.approx(fits[0].llf, rel=1e-5)
    spread = Study(parts, rules=OPEN, secure=SECURE).describe(["year"]).cells["year"][""]
    assert spread.sd == pytest.approx(frame["year"].std(), rel=1e-5)


def test_a_scale_is_of_the_pooled_root_mean_square_and_of_no_single_row() -> None:
    g = np.random.default_rng(0)
    for unit in (1e-30, 1e-12, 3.0, 1e20):
        parts = [unit * g.normal(size=(n, 1)) for n in (5, 40, 400)]
        right = np.log2(np.sqrt(np.mean(np.concatenate(parts) ** 2)))
        assert 0 <= exponents_of(sum(banded(p) for p in parts))[0] + FINER - right < 3
    assert exponents_of(banded(np.zeros((5, 1))))[0] == 0
    # A row that is far out moves no more than the mean square: 1e3 times the others in 1e6 rows moves nothing.
    x = np.ones((10**6, 1))
    before = exponents_of(banded(x))
    x[0] = 1e3
    assert exponents_of(banded(x)) == before
    assert banded(x).sum() == len(x)  # counts alone


SETTINGS = [
    (32, 2.0**40, "steps of 2e"),
    (32, 1e9, "steps of 2 "),
    (64, 2.0**50, "steps of 0.00049"),
    (32, 16.0, "up to 16"),
    (32, 1000.0, "beyond SecureSum"),
    (64, 1000.0, "beyond SecureSum"),
]


@pytest.mark.parametrize(("bits", "bound", "text"), SETTINGS)
@pytest.mark.parametrize("unit", quick(1, [1.0, 1e9]))
def test_secure_sums_that_do_not_suit_a_study_are_refused_with_a_remedy(
    bits: Any, bound: float, text: str, unit: float
) -> None:
    frame = rows().assign(wide=unit * np.arange(N))
    frames = {f"S{k}": part for k, part in frame.groupby("at")}
    with pytest.raises(md.MedleyError, match=text) as e:
        Study(frames, secure=md.SecureSum(bits=bits, bound=bound)).describe(["wide"])
    secure = eval(str(e.value).rpartition("give ")[2], {"SecureSum": md.SecureSum})
    masked = Study(frames, secure=secure)
    assert masked.describe(["wide"]).cells["wide"][""].sd == pytest.approx(frame["wide"].std(), rel=1e-6)
    assert masked.glm("value ~ x").params.to_numpy() == pytest.approx(
        Study(frames).glm("value ~ x").params.to_numpy(), rel=1e-5
    )
