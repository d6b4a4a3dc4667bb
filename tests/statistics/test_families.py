"""A family of one's own: fitted as its likelihood says, and told which members it lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("formulaic")

from medley.contract import RecipeError
from medley.statistics import Rules, Study
from medley.statistics.families import FAMILIES, Family, NegativeBinomial, Poisson
from support.hospitals import patients, sites

OPEN = Rules(rows=1, events=1, parameters=1.0)

MEMBERS = ("variance", "bend", "takes", "first", "inside", "deviance", "parts")


def members(of: type[Family]) -> dict[str, Any]:
    values = {k: getattr(of, k) for k in (*MEMBERS, "links", "outcomes", "counts")}
    return {**values, "name": "counted"}


class InverseGaussian(Family):
    """V = μ³."""

    name = "inverse_gaussian"
    links = ("log", "inverse")
    outcomes = "numbers above 0"
    dispersed = True
    weighted = False
    power = 3

    def variance(self, mu: np.ndarray, alpha: float) -> np.ndarray:
        return mu**3

    def bend(self, mu: np.ndarray, alpha: float) -> np.ndarray:
        return 3 * mu**2

    def takes(self, y: np.ndarray) -> np.ndarray:
        return y > 0

    def first(self, y: np.ndarray) -> np.ndarray:
        return y

    def inside(self, mu: np.ndarray) -> np.ndarray:
        return mu > 0

    def deviance(self, y: np.ndarray, mu: np.ndarray, alpha: float) -> np.ndarray:
        out: np.ndarray = (y - mu) ** 2 / (y * mu**2)
        return out

    def parts(self, y: np.ndarray, mu: np.ndarray, w: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
        return self.deviance(y, mu, alpha), 3 * np.log(y)

    def loglik(self, sums: np.ndarray, n: float, scale: float) -> float:
        return float(-(sums[0] / scale + sums[1] + n * np.log(2 * np.pi * scale)) / 2)

    def most_likely(self, sums: np.ndarray, n: float, scale: float) -> float:
        return self.loglik(sums, n, float(sums[0]) / n)


@pytest.mark.parametrize("exact", [True, False])
def test_an_inverse_gaussian_fits_to_the_zero_of_its_score(exact: bool) -> None:
    rows = patients()
    rules = Rules(rows=1, events=1, parameters=1.0, exact=exact)
    fit = Study(sites(rows), rules=rules).glm("stay ~ age", InverseGaussian)
    y = rows["stay"].to_numpy()
    X = np.column_stack([np.ones(len(y)), rows["age"]])
    mu = np.exp(X @ fit.params.to_numpy())
    step = np.linalg.solve((X / mu[:, None]).T @ X, X.T @ ((y - mu) / mu**2))  # of Fisher's scoring
    chi2 = float(((y - mu) ** 2 / mu**3).sum())
    scale = chi2 / (len(y) - 2)
    assert np.abs(step / fit.bse.to_numpy()).max() < (1e-6 if exact else 0.05)
    assert fit.scale == pytest.approx(scale, rel=1e-8 if exact else 0.02)
    assert fit.deviance == pytest.approx(float(((y - mu) ** 2 / (y * mu**2)).sum()), rel=1e-8 if exact else 0.02)
    error = np.sqrt(np.diag(np.linalg.inv((X / mu[:, None]).T @ X)) * scale)
    assert fit.bse.to_numpy() == pytest.approx(error, rel=1e-8 if exact else 0.02)
    if exact:
        density = -(np.log(2 * np.pi * scale * y**3) + (y - mu) ** 2 / (scale * y * mu**2)) / 2
        assert fit.llf == pytest.approx(density.sum(), rel=1e-9)
        assert "inverse_gaussian" in fit.summary()


def test_a_copy_of_poisson_is_poisson() -> None:
    copy: Any = type("Copy", (Family,), members(Poisson))
    study = Study(sites(patients()), rules=OPEN)
    ours, theirs = (study.glm("visits ~ age + C(ward)", family) for family in (copy, "poisson"))
    for figure in ("params", "bse", "llf", "deviance", "null_deviance", "pearson_chi2"):
        assert np.asarray(getattr(ours, figure)) == pytest.approx(np.asarray(getattr(theirs, figure)), rel=1e-8)


@pytest.mark.parametrize("member", [*MEMBERS, "name", "links", "outcomes"])
def test_a_family_is_told_which_member_it_lacks(member: str) -> None:
    values = members(Poisson)
    del values[member]
    with pytest.raises(TypeError, match=rf"class Short lacks {member}; see"):
        type("Short", (Family,), values)


@pytest.mark.parametrize(
    ("more", "lacking"),
    [
        ({"dispersed": True}, "lacks loglik, most_likely;"),
        ({"has_alpha": True}, "lacks shape;"),
        ({"canonical": "log"}, "must be a subclass of Canonical"),
        ({"links": ("probit",)}, "links has 'probit'"),
    ],
)
def test_what_a_family_says_of_itself_asks_for_more_members(more: dict[str, Any], lacking: str) -> None:
    with pytest.raises(TypeError, match=lacking):
        type("Short", (Family,), {**members(NegativeBinomial), **more})


def test_the_names_are_those_of_the_classes_and_other_classes_are_refused() -> None:
    assert [*FAMILIES] == ["gaussian", "binomial", "poisson", "gamma", "negative_binomial"]
    wrong: Any = int
    with pytest.raises(RecipeError, match="family"):
        Study(sites(patients())).glm("visits ~ age", wrong)
