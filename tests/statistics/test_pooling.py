"""What results say of how they may be pooled, and of what left the sites."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study
from medley.statistics.files import save_last
from medley.statistics.pooling import FIGURES
from medley.statistics.study import RESULTS

COARSE = Rules(exact=False)

ASKS: dict[str, Callable[[Study], Any]] = {
    "glm": lambda s: s.glm("died ~ age + C(sex)", "binomial"),
    "margins": lambda s: s.margins("died ~ age + C(sex)", "binomial", of="sex"),
    "cox": lambda s: s.cox("months ~ age", "died"),
    "kaplan_meier": lambda s: s.kaplan_meier("months", "died", 0.5, 20.0),
    "describe": lambda s: s.describe(["age", "sex"]),
    "prepare": lambda s: s.prepare(["age: median, standardise"]),
    "correlation": lambda s: s.correlation(["age", "months"], "spearman"),
    "pca": lambda s: s.pca(["age", "months"]),
    "ordinal": lambda s: s.ordinal("grade ~ age"),
    "mixed": lambda s: s.mixed("months ~ age + (1 | ward)"),
    "meta": lambda s: s.meta("months ~ age"),
    "balance": lambda s: s.balance(s.propensity("treated ~ age").weights()),
}


def frames(seed: int = 0, sizes: tuple[int, ...] = (150, 200)) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    out = {}
    for k, n in enumerate(sizes):
        age, sex = rng.normal(60, 10, n).round(), rng.choice(["F", "M"], n)
        risk = 1 / (1 + np.exp(0.5 - 0.05 * (age - 60) - 0.4 * (sex == "M")))
        columns = {"age": age, "sex": sex, "months": rng.exponential(9, n).round(1) + 0.1}
        columns |= {"died": 1 * (rng.random(n) < risk), "treated": 1 * (rng.random(n) < 0.3 + 0.4 * risk)}
        columns["grade"] = np.digitize(risk + rng.normal(0, 0.3, n), [0.3, 0.6])
        columns["ward"] = np.arange(n) // 5
        out[f"site {k}"] = pd.DataFrame(columns)
    return out


def test_every_analysis_says_how_its_figures_may_be_pooled() -> None:
    assert {a.call for a in RESULTS} == set(FIGURES) == set(ASKS)


@pytest.mark.parametrize("call", ASKS)
def test_a_result_says_how_it_may_be_pooled_and_what_left(call: str) -> None:
    study = Study(frames(), rules=COARSE)
    result = ASKS[call](study)
    figures, left = result.pooling.figures, result.pooling.left
    assert set(figures.how) <= {"exact", "approximate", "not"}
    assert (figures.error[figures.how == "approximate"] != "").all()
    last = max(e.round for e in study.ledger)
    mine = [e for e in study.ledger if e.round == last]
    for k, site in enumerate(study.names):
        assert left.loc[site].bytes.sum() == sum(e.up for e in mine if e.client == k)
    assert (left.numbers * 8 == left.bytes).all()
    assert not any("." in sums[-1:] for _, sums in left.index)
    assert str(result).endswith(result.pooling.line)
    assert "See .pooling" in result._repr_html_()


@pytest.mark.parametrize("rules", [Rules(exact=True), Rules(rows=1, exact=False)])
def test_figures_of_exact_rules_are_exact(rules: Rules) -> None:
    fit = Study(frames(), rules=rules).glm("died ~ age", "binomial")
    assert (fit.pooling.figures.how == "exact").all()
    assert "coefficients: exact" in fit.pooling.line


def test_one_site_that_rounds_makes_a_fit_approximate() -> None:
    fit = Study(frames(), rules={"site 0": Rules(exact=True), "site 1": COARSE}).glm("died ~ age", "binomial")
    assert fit.pooling.figures.how["coefficients"] == "approximate"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_coefficients_are_within_the_error_that_is_said(seed: int) -> None:
    """In twelve draws of 2 to 6 sites the largest share of it was 0.23 for binomial fits, 0.61 for gamma ones."""
    for call in ("glm", "cox", "margins", "ordinal"):
        rounded, exact = (ASKS[call](Study(frames(seed), rules=r)) for r in (COARSE, Rules(exact=True)))
        said = re.search(r"about ([\d.e-]+) standard errors", rounded.pooling.figures.error.iloc[0])
        off = float((abs(rounded.params - exact.params) / exact.bse).max())
        assert said is not None
        assert 0 < off < float(said[1]) < 0.1


def test_a_curve_says_how_far_times_moved_and_a_meta_analysis_what_to_use_for_all_rows() -> None:
    curves = ASKS["kaplan_meier"](Study(frames(), rules=COARSE))
    assert f"moved by {curves.moved['']:.2g}" in curves.pooling.figures.error.iloc[0]
    meta = ASKS["meta"](Study(frames()))
    assert [*meta.pooling.figures.how] == ["not"] * 3
    assert "study.glm" in meta.pooling.line


@pytest.mark.slow
def test_masked_sums_are_approximate_and_their_keys_are_no_numbers() -> None:
    study = Study(frames(sizes=(150, 200, 150)), secure=md.SecureSum(bits=64, bound=2.0**40))
    fit = study.glm("died ~ age", "binomial")
    assert "secure sums" in fit.pooling.figures.error["coefficients"]
    assert fit.pooling.left.loc["site 0", "keys and masks of secure sums"].numbers == 0
    open_fit = Study(frames(sizes=(150, 200, 150))).glm("died ~ age", "binomial")
    step = "The site's score and information at β"
    each = [f.pooling.left.loc["site 0", step] for f in (fit, open_fit)]
    assert each[0].numbers / each[0].exchanges == each[1].numbers / each[1].exchanges


def test_files_have_it_whole(tmp_path: Any) -> None:
    fit = Study(frames()).glm("died ~ age", "binomial")
    save_last(tmp_path, fit.glm, [fit])
    text = (tmp_path / "1.txt").read_text(encoding="utf-8")
    assert text == f"{fit.summary()}\n\n{fit.pooling}\n"
    assert "What left the sites" in text
    assert "site 1" in text
