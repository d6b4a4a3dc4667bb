"""What a stranger tries on imputations: each works without rules, and is withheld with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("formulaic")

import pandas as pd

from medley.statistics import Rules, Study, Withheld
from medley.statistics.imputation import models_of, refuse_near

EXACT = Rules(exact=True)
OPEN = Rules(rows=1, events=1, parameters=1.0)


def frame(lacks: int = 40, column: str = "age") -> Any:
    """240 patients, of whom the first few lack a column; number 0 is the one that is asked for."""
    g, n = np.random.default_rng(4), 240
    age = g.normal(60, 9, n).round(1)
    ill = 1.0 * (g.random(n) < 1 / (1 + np.exp(-(age - 60) / 9)))
    pay = g.normal(500, 50, n).round(2) + 2 * age + 20 * ill
    out = pd.DataFrame({"id": np.arange(n), "age": age, "ill": ill, "pay": pay, "few": 1.0 * (np.arange(n) < 43)})
    out.loc[: lacks - 1, column] = np.nan
    return out


def two(lacks: int, others: int) -> Any:
    """Patients who lack age, and nearly the same ones who lack whether they are ill."""
    out = frame(lacks)
    out.loc[: others - 1, "ill"] = np.nan
    return out


def imputed(study: Study) -> Any:
    return study.impute(["age", "pay"], m=2)


ATTACKS: dict[str, tuple[Any, Callable[[Study], Any]]] = {
    "figures with and without three imputed patients": (
        frame(3),
        lambda s: (s.glm("pay ~ age"), imputed(s).glm("pay ~ age")),
    ),
    "an imputed study without one of its patients": (
        frame(),
        lambda s: [imputed(s).glm("pay ~ age", where=c) for c in ("", "id != 7")],
    ),
    "a condition of the imputed study against one of the study": (
        frame(),
        lambda s: (s.glm("pay ~ ill", where="id >= 50"), imputed(s).glm("pay ~ ill", where="id >= 51")),
    ),
    "a condition of the study against one of the imputed study": (
        frame(),
        lambda s: (imputed(s).glm("pay ~ ill", where="id >= 51"), s.glm("pay ~ ill", where="id >= 50")),
    ),
    "columns that two patients lack apart": (
        two(40, 42),
        lambda s: s.impute(["age", "ill", "pay"], m=2, iterations=1),
    ),
    "differences of imputations that differ in few cells": (
        frame(6, "ill"),
        lambda s: s.impute(["ill", "age", "pay"], m=6).glm("pay ~ ill"),
    ),
    "patients in a category beyond those who lack a value": (
        frame(),
        lambda s: s.impute(["age", "few", "pay"], m=2),
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_withheld_that_works_without_rules(name: str) -> None:
    rows, attack = ATTACKS[name]
    with pytest.raises(Withheld, match="Bern withholds"):
        attack(Study({"Bern": rows}, rules=EXACT))
    attack(Study({"Bern": rows}, rules=OPEN))


def test_draws_of_another_study_of_these_rows_count(tmp_path: Path) -> None:
    def drawn(*cells: float) -> None:
        study = Study({"Bern": frame(6, "ill")}, EXACT, registers=tmp_path)
        refuse_near(study.sites[0], models_of(study, ["ill", "age"], "")[0], np.array(cells))

    drawn(0, 0, 0, 0, 0, 0)
    drawn(1, 1, 1, 1, 1, 1)
    drawn(0, 0, 0, 0, 0, 0)
    with pytest.raises(Withheld, match="Bern withholds: two imputations of ill differ in fewer than 5 rows"):
        drawn(0, 0, 0, 1, 0, 0)
