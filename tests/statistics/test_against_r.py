"""Against R: what `benchmarks/against_r.py` and its siblings have kept of R's figures is computed again here."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Study

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "against_r.py"
KEPT = json.loads(SCRIPT.with_suffix(".json").read_text(encoding="utf-8"))
R = KEPT["figures of R"]["made-up-blocks"]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.parametrize("name", ["glm, binomial", "cox, efron", "meta, REML", "glm, weighted by treatment", "table"])
def test_figures_are_those_of_r(script: dict[str, Any], name: str) -> None:
    study = Study(script["cut"](script["made_up"](), "blocks"), rules=script["EXACT"])
    assert script["far"](script["ASKS"][name](study), R[name]) < 1e-8


@pytest.mark.slow
def test_all_figures_of_made_up_rows_are_those_of_r(script: dict[str, Any]) -> None:
    found = script["compared"](script["made_up"](), "blocks", R)
    assert found.keys() == R.keys()
    assert {name: v for name, v in found.items() if isinstance(v, str) or v >= 1e-8} == {}


@pytest.mark.slow
def test_masked_sums_have_six_digits_of_r(script: dict[str, Any]) -> None:
    secure = md.SecureSum(bits=64, bound=2.0**40)
    study = Study(script["cut"](script["made_up"](), "blocks"), rules=script["EXACT"], secure=secure)
    for name in ("glm, binomial", "cox, efron"):
        assert 0 < script["far"](script["ASKS"][name](study), R[name]) < 1e-5


def test_the_file_has_every_comparison_and_what_was_refused_is_separation(script: dict[str, Any]) -> None:
    values = [v for lines in KEPT["far"].values() for v in lines.values()]
    assert len(KEPT["far"]) == 27
    assert len(values) == 27 * len(R) >= 200
    assert all(v < 1e-6 if isinstance(v, float) else "separation" in v for v in values)


LME4 = SCRIPT.with_name("against_lme4.py")
MIXED = json.loads(LME4.with_suffix(".json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("way", ["REML", "ML"])
def test_a_mixed_model_is_that_of_lme4(way: str) -> None:
    lme4 = runpy.run_path(str(LME4))
    fit = lme4["asked"](lme4["MADE_UP"], lme4["made_up"](), way == "REML")
    far = lme4["far"](lme4["MADE_UP"], fit, MIXED["figures of lme4"][way])
    assert max(v for name, v in far.items() if name != "default") < 1e-8
    assert far["default"] > 0  # lme4's own optimiser ends earlier


def test_every_mixed_model_of_the_file_agrees_with_lme4() -> None:
    assert len(MIXED["far"]) == 40
    assert sum(site > 1 for _, site, _ in MIXED["rows, sites, singular"].values()) == 40
    assert max(v for line in MIXED["far"].values() for name, v in line.items() if name != "default") < 1e-8


def test_pooled_figures_are_those_of_mice_within_their_monte_carlo_errors() -> None:
    found = json.loads(SCRIPT.with_name("against_mice.json").read_text(encoding="utf-8"))
    assert min(line["m"] for line in found.values()) >= 200
    assert sum(len(line["names"]) for line in found.values()) == 12
    z = [v for line in found.values() for of in ("coefficients", "errors") for v in line[f"z of {of}"]]
    assert max(map(abs, z)) < 3
    assert sum(v**2 for v in z) < 1.5 * len(z)
