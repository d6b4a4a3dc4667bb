"""What a stranger tries on the analyses of effects: each works without rules, and is withheld with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study, Weights, Withheld

OPEN = Rules(rows=1, events=1, parameters=1.0)


def frame() -> Any:
    """240 patients, of whom number 7 is the one that is asked for."""
    import pandas as pd

    g, n = np.random.default_rng(3), 240
    id = np.arange(n)
    age = g.integers(30, 80, n).astype(float)
    age[7] = 95.0
    columns = {"id": id, "age": age, "pay": g.normal(500, 50, n).round(2), "ill": g.integers(0, 2, n)}
    columns |= {"treated": 1 * (g.random(n) < 1 / (1 + np.exp(-(age - 55) / 20))), "flag": 1.0 * (id == 7)}
    columns |= {"six": np.where(np.isin(id, [3, 4, 5, 6, 7, 8]), "y", "x")}
    columns |= {"five": np.where(np.isin(id, [3, 4, 5, 6, 8]), "y", "x"), "grade": g.integers(0, 3, n)}
    return pd.DataFrame(columns | {"months": np.where(id == 7, 10.5, id % 20 + 1.0), "died": g.integers(0, 2, n)})


def spline(at: float) -> str:
    return f"pay ~ bs(age, knots=[{at}], lower_bound=0, upper_bound=120)"


ATTACKS: dict[str, Callable[[Study], Any]] = {
    "the propensity of one patient": lambda s: s.propensity("flag ~ age"),
    "weights, with and without a patient": lambda s: (
        s.glm("pay ~ treated", weights=Weights("treated ~ age")),
        s.glm("pay ~ treated", weights=Weights("treated ~ age"), where="id != 7"),
    ),
    "knots near each other": lambda s: (s.glm(spline(55)), s.glm(spline(55.5))),
    "a knot beyond which there are few": lambda s: s.glm(spline(90)),
    "a margin over a chosen row": lambda s: s.margins("pay ~ age + ill", of="ill", values=[0, 1], over="id == 7"),
    "margins, with and without a patient": lambda s: (
        s.margins("pay ~ age + ill", of="ill", values=[0, 1]),
        s.margins("pay ~ age + ill", of="ill", values=[0, 1], over="id != 7"),
    ),
    "horizons around a time": lambda s: (
        s.kaplan_meier("months", "died", 0.1, 10.4).rmst(10.0),
        s.kaplan_meier("months", "died", 0.1, 10.6).rmst(10.0),
    ),
    "curves of six and of five": lambda s: (
        s.kaplan_meier("months", "died", 1.0, 20.0, by="six"),
        s.kaplan_meier("months", "died", 1.0, 20.0, by="five"),
    ),
    "the correlation of a chosen row": lambda s: s.correlation(["flag", "pay"]),
    "correlations, with and without a patient": lambda s: (
        s.correlation(["age", "pay"]),
        s.correlation(["age", "pay"], where="id != 7"),
    ),
    "components, with and without a patient": lambda s: (
        s.pca(["age", "pay"]),
        s.pca(["age", "pay"], where="id != 7"),
    ),
    "levels, with and without a patient": lambda s: (
        s.ordinal("grade ~ age"),
        s.ordinal("grade ~ age", where="id != 7"),
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_withheld_that_works_without_rules(name: str) -> None:
    with pytest.raises(Withheld, match="Bern withholds"):
        ATTACKS[name](Study({"Bern": frame()}))
    if name != "the propensity of one patient":  # separates, or has no maximum, without rules
        ATTACKS[name](Study({"Bern": frame()}, rules=OPEN))


def test_a_meta_analysis_has_no_fit_of_a_site_without_a_patient() -> None:
    whole = frame()
    study = Study(
        {"Bern": whole, "Zug": whole.assign(pay=whole["pay"] + 1), "Chur": whole.assign(age=whole["age"] + 1)}
    )
    study.meta("pay ~ age")
    with pytest.raises(Withheld, match="id != 7"):
        study.meta("pay ~ age", where="id != 7")
