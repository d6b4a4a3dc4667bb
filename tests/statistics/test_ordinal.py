"""The ordinal logit: that of all rows together, of R and statsmodels; its rules, and its refusals."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study, Withheld
from support.hospitals import patients, sites
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0)
LEVELS = ["mild", "moderate", "severe", "critical"]
FORMULA = "severity ~ age + C(sex) + C(ward)"


def ill(n: int = 900, seed: int = 7) -> Any:
    """Patients with a severity, as a text, and as a number under ``grade``."""
    frame = patients(n, seed)
    at = 0.03 * (frame["age"] - 60) + 0.5 * (frame["sex"] == "M") - 0.4 * (frame["ward"] == "b")
    grade = np.digitize(at + np.random.default_rng(seed).logistic(size=n), [-0.5, 0.8, 2.0])
    return frame.assign(grade=grade, severity=np.array(LEVELS)[grade])


def pooled(frame: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Parameters, errors and likelihood by Newton's steps to their limit, with torch's derivatives."""
    columns = [frame["age"] - 60, frame["sex"] == "M", frame["ward"] == "b", frame["ward"] == "c"]
    X = torch.tensor(np.column_stack(columns).astype(float))
    y = torch.tensor(frame["grade"].to_numpy())

    def likelihood(b: Any) -> Any:
        ends = torch.cat([torch.full((1,), -60.0).double(), b[4:], torch.full((1,), 60.0).double()])
        eta = X @ b[:4]
        return torch.log(torch.sigmoid(ends[y + 1] - eta) - torch.sigmoid(ends[y] - eta)).sum()

    b = torch.tensor([0.0, 0.0, 0.0, 0.0, -0.5, 0.8, 2.0]).double()
    for _ in range(12):
        H = -torch.autograd.functional.hessian(likelihood, b)
        b = b + torch.linalg.solve(H, torch.autograd.functional.jacobian(likelihood, b))
    back = np.eye(7)
    back[4:, 0] = 60.0  # thresholds of the age itself
    cov = back @ np.linalg.inv(H.numpy()) @ back.T
    return back @ b.numpy(), np.sqrt(np.diag(cov)), float(likelihood(b))


@pytest.mark.parametrize("by", quick(1, ("turns", "blocks", "age")))
def test_the_fit_is_that_of_all_rows_together(by: str) -> None:
    frame = ill()
    b, errors, llf = pooled(frame)
    fit = Study(sites(frame, by), rules=OPEN).ordinal(FORMULA, levels=LEVELS)
    assert fit.b == pytest.approx(b, rel=1e-8)
    assert fit.bse.to_numpy() == pytest.approx(errors, rel=1e-8)
    assert fit.llf == pytest.approx(llf, rel=1e-10)
    assert fit.names[-3:] == ["mild|moderate", "moderate|severe", "severe|critical"]
    shares = frame["grade"].value_counts(normalize=True).to_numpy()
    assert fit.llnull == pytest.approx(900 * float(shares @ np.log(shares)), rel=1e-10)
    assert "order of the levels: mild (" in fit.summary()
    assert "< moderate (" in fit.summary()
    probabilities = fit.predict(frame.head(5))
    assert probabilities.sum(axis=1).to_numpy() == pytest.approx(np.ones(5))
    below = 1 / (1 + np.exp(-(b[4] - frame["age"].head(5) * b[0] - b[1:4] @ np.array(
        [frame["sex"] == "M", frame["ward"] == "b", frame["ward"] == "c"])[:, :5])))  # fmt: skip
    assert probabilities["mild"].to_numpy() == pytest.approx(below.to_numpy(), rel=1e-8)
    assert len(fit.frame(exp=True)) == 4


def test_numbers_have_their_own_order_and_sites_may_have_effects() -> None:
    frame = ill()
    study = Study(sites(frame), rules=OPEN)
    assert study.ordinal("grade ~ age").levels == ["0", "1", "2", "3"]
    fixed = study.ordinal("grade ~ age", sites="fixed", levels=[0, 1.0, 2, "3"])
    assert fixed.names[1:6] == [f"C(site)[T.{name}]" for name in ("Bern", "Chur", "Genf", "Thun", "Zug")]
    turned = study.ordinal("grade ~ age", levels=[3, 2, 1, 0])
    assert turned.params["age"] == pytest.approx(-study.ordinal("grade ~ age").params["age"], rel=1e-9)


@pytest.mark.slow
def test_the_fit_under_masks_is_the_same_within_their_resolution() -> None:
    frame = ill().assign(date=lambda f: 20240001 + 100 * f["age"], tiny=lambda f: 1e-7 * f["bmi"])
    for formula in (FORMULA, "severity ~ date + tiny"):
        plain = Study(sites(frame), rules=OPEN).ordinal(formula, levels=LEVELS)
        masked = Study(sites(frame), rules=OPEN, secure=md.SecureSum(bits=64, bound=2.0**40))
        found = masked.ordinal(formula, levels=LEVELS)
        assert found.b == pytest.approx(plain.b, rel=1e-6)
        assert found.bse.to_numpy() == pytest.approx(plain.bse.to_numpy(), rel=1e-6)


@pytest.mark.rounded
@pytest.mark.parametrize(("n", "seed"), quick(1, [(n, s) for n in (1800, 1200, 6000) for s in range(4)]))
def test_rounded_fits_are_within_a_hundredth_of_an_error(n: int, seed: int) -> None:
    frame = ill(n, seed)
    study = Study(sites(frame), rules=Rules(events=1))
    found = study.ordinal(FORMULA, levels=LEVELS)
    exact = Study(sites(frame), rules=OPEN).ordinal(FORMULA, levels=LEVELS)
    assert np.abs((found.b - exact.b) / exact.bse.to_numpy()).max() < 0.01
    assert found.bse.to_numpy() == pytest.approx(exact.bse.to_numpy(), rel=0.02)  # of the expected information
    spent = study.disclosure()["bits"]
    assert (spent <= n / 6 * 2).all()
    assert "expected" in found.summary()
    again = study.ordinal(FORMULA, levels=LEVELS)
    assert (again.b == found.b).all()
    assert (study.disclosure()["bits"] == spent).all()


REFUSED: dict[str, tuple[str, Any, str]] = {
    "texts without an order": ("severity ~ age", (), "texts have no order; give levels="),
    "a level that nobody has": ("severity ~ age", [*LEVELS, "dead"], "no row at any site has 'dead'"),
    "a level that is not named": ("severity ~ age", LEVELS[:3], "rows have 'critical', too"),
    "two levels": ("died ~ age", (), "recoded to 0 and 1, for glm"),
    "a level twice": ("severity ~ age", ["mild", "mild"], "each once"),
    "no column": ("severity ~ 1", LEVELS, "name a column on the right"),
    "no intercept": ("severity ~ 0 + age", LEVELS, "leave out 0 and -1"),
    "separation": ("severity ~ apart", LEVELS, "separation by apart: levels are told apart"),
    "a category of one level": ("severity ~ C(kind)", LEVELS, r"separation by C\(kind\)\[T.only\]"),
}


@pytest.mark.parametrize("why", quick(1, REFUSED))
def test_what_has_no_fit_is_refused_by_a_sentence(why: str) -> None:
    formula, levels, match = REFUSED[why]
    frame = ill().assign(apart=lambda f: 10.0 * f["grade"], kind=lambda f: np.where(f["grade"] == 0, "only", f["ward"]))
    with pytest.raises((md.RecipeError, md.Stalled), match=match):
        Study(sites(frame), rules=OPEN).ordinal(formula, levels=levels)


@pytest.mark.slow
@pytest.mark.rounded
def test_a_level_at_one_site_gaps_and_many_rows() -> None:
    frame = ill(1800)
    parts = sites(frame)
    for name, part in parts.items():
        here = part["severity"].where((part["severity"] != "critical") | (name == "Zug"), "severe")
        parts[name] = part.assign(severity=here.where(part["bmi"] < 30, None))
    fit = Study(parts).ordinal("severity ~ age", levels=LEVELS)
    assert 5 <= fit.counts["critical"] < 60
    assert fit.rows_by_site["missing"].sum() == (frame["bmi"] >= 30).sum()
    parts["Bern"] = parts["Bern"].assign(severity="mild")
    with pytest.raises(Withheld, match="Bern withholds: all its rows have one level of severity"):
        Study(parts).ordinal("severity ~ age", levels=LEVELS)
    assert Study(sites(ill(120_000))).ordinal(FORMULA, levels=LEVELS).nobs == 120_000


@pytest.mark.slow
def test_the_figures_are_those_of_statsmodels() -> None:
    ordinal_model = pytest.importorskip("statsmodels.miscmodels.ordinal_model")
    import pandas as pd

    frame = ill().assign(severity=lambda f: pd.Categorical(f["severity"], LEVELS, ordered=True))
    model = ordinal_model.OrderedModel.from_formula(FORMULA, frame, distr="logit")
    b = model.fit(method="bfgs", disp=0, maxiter=500).params.to_numpy()
    h = np.diag(1e-3 / np.append(np.abs(model.exog).max(0), np.ones(3)))
    f = lambda k: np.array([model.loglike(b + k * step) for step in h])
    for _ in range(4):  # to its limit, by differences of its likelihood
        b = b - np.linalg.solve(model.hessian(b), (8 * (f(1) - f(-1)) - f(2) + f(-2)) / (12 * np.diag(h)))
    fit = Study(sites(frame.assign(severity=frame["severity"].astype(str))), rules=OPEN).ordinal(FORMULA, levels=LEVELS)
    at = [model.exog_names.index(name) for name in fit.names[:4]]
    assert fit.b[:4] == pytest.approx(b[at], rel=1e-8)
    assert fit.b[4:] == pytest.approx(model.transform_threshold_params(b)[1:-1], rel=1e-8)
    assert fit.llf == pytest.approx(model.loglike(b), rel=1e-10)
    errors = np.sqrt(np.diag(np.linalg.inv(-model.hessian(b))))[at]
    assert fit.bse.to_numpy()[:4] == pytest.approx(errors, rel=1e-4)  # it differences its Hessian


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed")
def test_the_figures_are_those_of_r(tmp_path: Path) -> None:
    """MASS::polr differences its Hessian, so that its errors have fewer digits than its coefficients."""
    frame = ill()
    frame.to_csv(tmp_path / "rows.csv", index=False)
    script = """library(MASS); f <- read.csv("rows.csv")
        f$severity <- factor(f$severity, c("mild", "moderate", "severe", "critical"), ordered = TRUE)
        m <- polr(severity ~ I(age - 60) + sex + ward, f, Hess = TRUE, control = list(reltol = 1e-16, maxit = 1000))
        cat(format(c(coef(m), m$zeta, sqrt(diag(vcov(m))), logLik(m)), digits = 15))"""
    out = subprocess.run(["Rscript", "-e", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    there = np.array(out.stdout.split(), float)
    rows = frame.assign(age=frame["age"] - 60)
    fit = Study(sites(rows), rules=OPEN).ordinal(FORMULA, levels=LEVELS)
    assert fit.b == pytest.approx(there[:7], rel=1e-6)
    assert fit.bse.to_numpy() == pytest.approx(there[7:14], rel=1e-4)
    assert fit.llf == pytest.approx(there[14], rel=1e-10)
