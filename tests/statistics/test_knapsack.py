"""Exact sums are a knapsack: who knows the other columns finds each patient's outcome by lattice reduction.

With times known, sums of Cox's model and the mean times of a curve's steps do the same for events. Under exact rules
the attacks work, so that they can fail; under default rules they do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("formulaic")

from medley.contract import BadData
from medley.statistics import Rules, Study, Withheld
from medley.statistics.analysis import packed, tensor
from medley.statistics.events import Events
from medley.statistics.scoring import Point
from medley.statistics.study import Sites
from medley.statistics.survival import Cox

EXACT = Rules(exact=True)


def patients(n: int, seed: int = 0) -> Any:
    """Patients whose age and dose everybody knows to many digits; one column is secret."""
    import pandas as pd

    g = np.random.default_rng(seed)
    age, dose = g.normal(60, 10, n), g.gamma(3, 1, n)
    ill = (g.random(n) < 1 / (1 + np.exp(-(age - 60) / 10))).astype(int)
    months = g.permutation(n) + 1.0
    of = {"age": age, "dose": dose, "ill": ill, "months": months, "weeks": g.uniform(1, 59, n)}
    return pd.DataFrame({**of, "sex": np.where(ill, "F", "M")})


def reduced(B: list[list[int]]) -> list[list[int]]:
    """A basis of the same lattice with short vectors (Lenstra, Lenstra & Lovász, 1982), in floating point."""
    A = np.array(B, dtype=object)
    n, k = len(A), 1

    def orthogonal() -> tuple[np.ndarray, np.ndarray]:
        F = A.astype(float)
        R = np.linalg.qr(F.T, mode="r")
        return R / np.diag(R)[:, None], np.diag(R) ** 2

    while k < n:
        mu, size = orthogonal()
        for j in range(k - 1, -1, -1):
            q = round(mu[j, k])
            if q:
                A[k] = A[k] - q * A[j]
                mu[:, k] = mu[:, k] - q * mu[:, j]
        if size[k] >= (0.99 - mu[k - 1, k] ** 2) * size[k - 1]:
            k += 1
        else:
            A[[k - 1, k]] = A[[k, k - 1]]
            k = max(k - 1, 1)
    return [[int(v) for v in row] for row in A]


def subset(weights: np.ndarray, sums: np.ndarray, digits: int) -> np.ndarray | None:
    """y of zeros and ones [n] with weights [k, n] y = sums [k] to so many digits, or None."""
    n, scale = weights.shape[1], 10**digits
    rows = []
    for i in range(n):
        rows.append([2 * (j == i) for j in range(n)] + [0] + [n * round(float(w) * scale) for w in weights[:, i]])
    rows.append([1] * n + [1] + [n * round(float(s) * scale) for s in sums])
    for v in reduced(rows):
        if all(abs(c) == 1 for c in v[: n + 1]):
            y = (1 - np.array(v[:n]) * v[n]) // 2
            if np.abs(weights @ y - sums).max() < 10 ** (2 - digits) * n:
                return np.asarray(y)
            if np.abs(weights @ (1 - y) - sums).max() < 10 ** (2 - digits) * n:
                return np.asarray(1 - y)
    return None


AGE, DOSE = 60.0, 3.0


def weights(rows: Any) -> np.ndarray:
    """What the attacker knows of each patient [3, n]."""
    return np.stack([np.ones(len(rows)), (rows["age"] - AGE) / 10, rows["dose"] / DOSE]).astype(float)


def by_fit(rows: Any, params: np.ndarray, digits: int) -> np.ndarray | None:
    """The outcome from printed coefficients: at the fit Xᵀy = Xᵀμ."""
    W = weights(rows)
    mu = 1 / (1 + np.exp(-(params[0] + params[1] * rows["age"] + params[2] * rows["dose"])))
    return subset(W, W @ mu.to_numpy(), digits)


def of_glm(rows: Any, rules: Rules, digits: int = 9) -> np.ndarray | None:
    return by_fit(
        rows, Study({"Bern": rows}, rules=rules).glm("ill ~ age + dose", "binomial").params.to_numpy(), digits
    )


def of_meta(rows: Any, rules: Rules, digits: int = 9) -> np.ndarray | None:
    meta = Study({"Bern": rows}, rules=rules).meta("ill ~ age + dose", "binomial")
    return by_fit(rows, meta.by_site.loc["Bern"].to_numpy(dtype=float), digits)


def of_least_squares(rows: Any, rules: Rules, digits: int = 9) -> np.ndarray | None:
    """A linear model of the same outcome: Xᵀy = XᵀX b."""
    b, W = Study({"Bern": rows}, rules=rules).glm("ill ~ age + dose").params.to_numpy(), weights(rows)
    return subset(W, W @ (b[0] + b[1] * rows["age"] + b[2] * rows["dose"]).to_numpy(), digits)


def of_table(rows: Any, rules: Rules, digits: int = 9) -> np.ndarray | None:
    """Who is a woman, from the means of what everybody knows."""
    cells = Study({"Bern": rows}, rules=rules).describe(["age", "dose"], by="sex", quantiles=()).cells
    n, age, dose = cells["age"]["F"].n, cells["age"]["F"].mean, cells["dose"]["F"].mean
    return subset(weights(rows), n * np.array([1.0, (age - AGE) / 10, dose / DOSE]), digits)


def of_preparation(rows: Any, rules: Rules, digits: int = 9) -> np.ndarray | None:
    """The same from the preprocessing of women."""
    study = Study({"Bern": rows}, rules=rules)
    n = study.describe(["C(sex)"]).cells["sex"][""].counts["F"]
    age, dose = study.prepare(["age: standardise", "dose: standardise"], where="sex == 'F'").scaling.mean[0].tolist()
    return subset(weights(rows), n * np.array([1.0, (age - AGE) / 10, dose / DOSE]), digits)


def of_cox(rows: Any, rules: Rules, digits: int = 9) -> np.ndarray | None:
    """Who died, from a fit of Cox's model, if times are known: Σ (x − mean of those at risk) over events is 0."""
    b = Study({"Bern": rows}, rules=rules).cox("months ~ age + dose", event="ill").params.to_numpy()
    X = rows[["age", "dose"]].to_numpy()
    risk = np.exp(X @ b - (X @ b).mean())
    later = rows["months"].to_numpy()[None] >= rows["months"].to_numpy()[:, None]
    rest = X - (later * risk) @ X / (later @ risk)[:, None]
    W = np.stack([np.ones(len(rows)), rest[:, 0] / 10, rest[:, 1] / DOSE])
    return subset(W, np.array([rows["ill"].sum(), 0.0, 0.0]), digits)


def of_curve(rows: Any, rules: Rules, digits: int = 9) -> np.ndarray | None:
    """Who died, from a curve on a fine grid, if times are known: only these rows have a step's mean time."""
    fine = 1e-4
    curves = Study({"Bern": rows}, rules=rules).kaplan_meier("weeks", "ill", unit=fine, until=60.0)
    places, y = np.ceil(rows["weeks"].to_numpy() / fine - 1e-9), np.zeros(len(rows), int)
    for k in np.flatnonzero(curves.deaths[0]):
        some = np.array([*itertools.combinations(range(len(rows)), int(curves.deaths[0, k]))])
        fit = some[np.abs(places[some].mean(1) - k) <= 0.5 + 10.0 ** (4 - digits)]
        if not len(fit):
            return None
        y[fit[0]] = 1
    return y


ATTACKS: dict[str, Callable[[Any, Rules, int], np.ndarray | None]] = {
    "glm": of_glm, "meta": of_meta, "least squares": of_least_squares, "describe": of_table, "prepare": of_preparation,
    "cox": of_cox, "curve": of_curve,
}  # fmt: skip


def attempt(name: str, n: int, rules: Rules, digits: int = 9) -> float:
    """The share of the secret column that an attack finds; a half is guessing."""
    rows = patients(n)
    try:
        y = ATTACKS[name](rows, rules, digits)
    except BadData:  # withheld, here or in a meta-analysis that has no other site
        y = None
    return 0.5 if y is None else float((y == rows["ill"]).mean())


@pytest.mark.rounded
@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=() if k in ("glm", "cox", "curve") else pytest.mark.slow) for k in ATTACKS]
)
@pytest.mark.parametrize("n", [20, pytest.param(30, marks=pytest.mark.slow)])
def test_a_lattice_finds_each_outcome_from_exact_sums_and_not_from_rounded_ones(name: str, n: int) -> None:
    assert attempt(name, n, EXACT) == 1
    for digits in (9, 4, 3):  # as many as the attacker believes in
        assert attempt(name, n, Rules(), digits) < 0.9


@pytest.mark.rounded
@pytest.mark.parametrize("n", [50, 100])
def test_rounded_sums_have_fewer_bits_than_rows(n: int) -> None:
    """Beyond the reach of this file's lattices: there are more outcomes than sums."""
    study = Study({"Bern": patients(n)})
    study.glm("ill ~ age + dose", "binomial")
    assert 10 < study.disclosure().loc[("Bern", "ill"), "bits"] < n


@pytest.mark.rounded
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_coxs_figures_are_a_function_of_rounded_answers_and_near_the_exact_ones(ties: Any) -> None:
    """Within a hundredth of an error, with a third of the bits that 600 rows hide; the same fit costs nothing again."""
    made = {name: patients(600, k).assign(months=lambda d: np.ceil(d["months"] / 3)) for k, name in enumerate("ab")}
    study = Study(made)
    exact, rounded = (s.cox("months ~ age + dose", "ill", ties=ties) for s in (Study(made, rules=EXACT), study))
    assert 0 < (np.abs(exact.params - rounded.params) / exact.bse).max() < 1e-2
    assert np.abs(rounded.bse / exact.bse - 1).max() < 1e-2
    assert rounded.llf - rounded.llnull == pytest.approx(exact.llf - exact.llnull, abs=0.2)
    spent = study.disclosure()["bits"]
    assert 30 < spent.max() < 200
    study.cox("months ~ age + dose", "ill", ties=ties)
    assert (study.disclosure()["bits"] == spent).all()


@pytest.mark.rounded
def test_points_of_the_servers_own_tell_no_single_row() -> None:
    """Points without marks tell nothing new; thirty marks tell fewer bits than rows, and the best guess is poor."""
    rows = patients(150)
    study = Study({"Bern": rows})
    cox = Cox("months ~ age + dose", "ill")
    client, marks = Sites(study.sites)(0, 0), np.random.default_rng(0).normal(size=(30, 2)) / 10

    def at(b: Any, k: int) -> None:
        terms, none, near = packed({}), tensor([]), tensor(marks[:k].ravel())
        cox.score(client, Point(terms, tensor(b), none, 0.0, 0.0, 150, marks=near))

    at([0.0, 0.0], 0)
    first = study.disclosure()["bits"].max()
    for b in marks[:5]:
        at(b, 0)
    assert study.disclosure()["bits"].max() == first
    at([0.0, 0.0], 30)
    assert first < study.disclosure()["bits"].max() <= 150
    (events,) = (v for v in study.sites[0].kept.values() if isinstance(v, Events))
    assert (events.Q**2).sum(1).max() <= 0.9
    assert 0.6 < ((events.weights > 0.5) == (rows["ill"] > 0)).mean() < 0.85  # what is known of age has some of it


@pytest.mark.rounded
def test_a_question_that_was_answered_costs_nothing_again_and_too_many_are_refused() -> None:
    rows = patients(150)
    study = Study({"Bern": rows})
    spent = []
    for formula in ("ill ~ age + dose", "ill ~ age + dose", "ill ~ age", "ill ~ 1"):
        study.glm(formula, "binomial")
        spent.append(study.disclosure().loc[("Bern", "ill"), "bits"])
    assert 30 < spent[0] == spent[1] < 75
    assert spent[3] - spent[0] < 40  # a smaller fit has new bits of a printed χ² alone
    study = Study({"Bern": patients(60)})
    study.glm("ill ~ age + dose", "binomial")
    with pytest.raises(Withheld, match="sums of ill would tell more bits than it has rows"):
        study.glm("ill ~ log(age) + I(age**2) + sqrt(dose) + I(dose**2)", "binomial")


@pytest.mark.rounded
def test_what_is_printed_is_a_function_of_rounded_answers() -> None:
    """Two outcomes with the same rounded sums have the same fit, to the last digit of what depends on them."""
    rows = patients(400)
    fits = []
    for swap in (False, True):
        y = rows["ill"].to_numpy().copy()
        if swap:  # a pair of patients who are nearly alike
            X = rows[["age", "dose"]].to_numpy()
            gap = np.abs(X[:, None] - X[None]).sum(2) + 1e9 * (y[:, None] == y[None])
            i, j = np.unravel_index(gap.argmin(), gap.shape)
            y[[i, j]] = y[[j, i]]
        fits.append(Study({"Bern": rows.assign(ill=y)}).glm("ill ~ age + dose", "binomial"))
    one, other = fits
    assert np.abs(one.b - other.b).max() < 1e-3 * np.sqrt(np.diag(one.covariance)).max()
    assert one.llf == pytest.approx(other.llf, abs=1e-2)


@pytest.mark.rounded
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson", "gamma"])
def test_coefficients_of_large_sites_are_within_a_hundredth_of_an_error(family: str) -> None:
    g, n = np.random.default_rng(1), 1000
    made = {}
    for name in ("Bern", "Chur"):
        rows = patients(n, 3 + len(made))
        mean = np.exp(0.02 * (rows["age"] - 60))
        made[name] = rows.assign(
            count=g.poisson(mean), cost=g.gamma(2, mean), pressure=100 + rows["age"] + g.normal(0, 9, n)
        )
    y = {"gaussian": "pressure", "binomial": "ill", "poisson": "count", "gamma": "cost"}[family]
    exact, rounded = (Study(made, rules=r).glm(f"{y} ~ age + dose", family) for r in (EXACT, Rules()))
    assert (np.abs(exact.params - rounded.params) / exact.bse).max() < 1e-2
    assert np.abs(rounded.bse / exact.bse - 1).max() < 1e-3
    assert (exact.params != rounded.params).all()


@pytest.mark.rounded
def test_means_and_deviations_are_on_their_grids() -> None:
    rows = patients(400)
    exact, rounded = (Study({"Bern": rows}, rules=r).describe(["age"], by="sex").cells["age"] for r in (EXACT, Rules()))
    for group in ("", "F", "M"):
        error = exact[group].sd / np.sqrt(exact[group].n)
        assert 0 < abs(exact[group].mean - rounded[group].mean) < 2e-3 * error
        assert rounded[group].sd == pytest.approx(exact[group].sd, rel=1e-3)
        assert rounded[group].n == exact[group].n
