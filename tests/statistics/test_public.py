"""Five public data sets in three partitions, against statsmodels where it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study
from support.intervals import LIFELINES, PARTITIONS, of_lifelines, tables
from support.pairs import quick

sm = pytest.importorskip("statsmodels.api")
smf = pytest.importorskip("statsmodels.formula.api")


def diabetes() -> Any:
    from sklearn.datasets import load_diabetes

    frame = load_diabetes(as_frame=True, scaled=False).frame
    return frame.assign(sex=np.where(frame["sex"] == 1, "a", "b"))


def cancer() -> Any:
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame
    return frame.rename(columns=lambda c: c.replace(" ", "_"))


def affairs() -> Any:
    frame = sm.datasets.fair.load_pandas().data
    return frame.assign(any=(frame["affairs"] > 0).astype(int), children="c" + frame["children"].astype(str))


def visits() -> Any:
    return sm.datasets.randhie.load_pandas().data.iloc[:4000]


def scotland() -> Any:
    frame = sm.datasets.scotland.load_pandas().data
    return frame.rename(columns=str.lower)


F = sm.families

FITS: dict[str, tuple[Callable[[], Any], str, str, Any]] = {
    "diabetes": (diabetes, "target ~ age + C(sex) + bmi + bp + s5", "gaussian", F.Gaussian()),
    "breast cancer": (cancer, "target ~ mean_radius + mean_texture + mean_smoothness", "binomial", F.Binomial()),
    "affairs": (affairs, "any ~ age + yrs_married + C(children) + religious", "binomial", F.Binomial()),
    "visits": (visits, "mdvis ~ lncoins + idp + physlm + disea", "poisson", F.Poisson()),
    "visits, overdispersed": (visits, "mdvis ~ lncoins + idp + physlm + disea", "negative_binomial", None),
    "scotland": (scotland, "yes ~ coutax + age + gdp", "gamma", F.Gamma(F.links.InversePower())),
}


def cut(frame: Any, by: str) -> dict[str, Any]:
    """Four sites: in turns, in blocks of unequal size, or sorted by the outcome's column that varies most."""
    n = len(frame)
    rows = frame if by != "sorted" else frame.sort_values(frame.columns[0], kind="stable")
    ends = [0, n // 2, 3 * n // 4, 7 * n // 8, n] if by == "blocks" else [k * n // 4 for k in range(5)]
    return {f"site {k}": frame.iloc[k::4] if by == "turns" else rows.iloc[ends[k] : ends[k + 1]] for k in range(4)}


@pytest.mark.parametrize("by", ["turns", "blocks", "sorted"])
@pytest.mark.parametrize("name", FITS)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::RuntimeWarning")
def test_coefficients_and_errors_to_8_digits(name: str, by: str) -> None:
    load, formula, family, theirs = FITS[name]
    frame = load()
    if theirs is None:
        model: Any = smf.negativebinomial(formula, frame).fit(method="newton", maxiter=300, tol=1e-14, disp=0)
    else:
        model = smf.glm(formula, frame, family=theirs).fit(tol=1e-14, maxiter=200, tol_criterion="params")
    fit = Study(cut(frame, by), rules=Rules(rows=1, events=1, parameters=1.0)).glm(formula, family)
    for mine, other in ((fit.params, model.params), (fit.bse, model.bse)):
        assert [*mine] == pytest.approx([*other.reindex(mine.index)], rel=1e-8)
    assert fit.llf == pytest.approx(model.llf, rel=1e-8)
    assert fit.exchanges <= (20 if family == "negative_binomial" else 8)
    assert md.statistics.GLM(formula, family) == fit.glm  # type: ignore[arg-type]


@pytest.mark.parametrize("name", quick(1, LIFELINES))
def test_intervals_strata_and_clusters_of_lifelines_data_sets_are_those_of_r(name: str) -> None:
    pytest.importorskip("lifelines")
    frame, (deal, formula, event, how) = of_lifelines(name), LIFELINES[name]
    there = json.loads((Path(__file__).parent / "reference_r.json").read_text(encoding="utf-8"))["fits"]
    for part in PARTITIONS:
        fit = Study(tables(frame, deal, part), rules=Rules(1, 1, 1.0)).cox(formula, event, **how)
        r = there[f"lifelines, {name}: {part}"]
        found = [*fit.params, *fit.bse, fit.llf]
        assert found == pytest.approx(np.hstack([r["params"], r["bse"], r["llf"]]).tolist(), rel=1e-8)
