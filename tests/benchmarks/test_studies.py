"""The short form of 2,000 random studies: `make soak` runs the others."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("statsmodels")
pytest.importorskip("lifelines")

STUDIES = Path(__file__).parents[2] / "benchmarks" / "studies.py"


@pytest.fixture(scope="module")
def studies() -> Any:
    made = importlib.util.spec_from_file_location("studies", STUDIES)
    assert made is not None
    assert made.loader is not None
    module = importlib.util.module_from_spec(made)
    sys.modules["studies"] = module
    made.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_sixty_random_studies_are_equal_or_refused_truly(studies: Any, tmp_path: Path) -> None:
    file = tmp_path / "studies.jsonl"
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = studies.run(range(60), file)
    finally:
        logging.disable(logging.NOTSET)
    assert [r for r in done if r["outcome"] == "wrong"] == []
    assert sum(r["outcome"] == "equal" for r in done) >= 45
    assert {r["family"] for r in done} == {*studies.LINKS}
    lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join(lines[:58]) + "\n", encoding="utf-8")
    again = studies.run(range(60), file)  # two are run again, and have the same outcome
    assert [r["outcome"] for r in again] == [r["outcome"] for r in done]
    assert len(file.read_text(encoding="utf-8").splitlines()) == 60


def test_a_wrong_fit_is_wrong(studies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself can fail: a coefficient that is off by 1e-7 of itself."""
    seed = next(
        s for s in range(40) if (d := studies.sample(s)).family == "poisson" and not d.secure and "a" in d.formula
    )
    assert studies.outcome(seed)["outcome"] == "equal"
    glm = studies.Study.glm

    def off(self: Any, *args: Any, **how: Any) -> Any:
        fit = glm(self, *args, **how)
        fit.b = fit.b * (1 + 1e-7)
        return fit

    monkeypatch.setattr(studies.Study, "glm", off)
    assert studies.outcome(seed)["outcome"] == "wrong"
    assert json.loads(json.dumps(studies.outcome(seed)))["error"] > 1e-8
