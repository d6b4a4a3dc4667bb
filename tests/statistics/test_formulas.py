"""Design matrices: the columns that formulaic makes, to the bit, from its layout of a formula, which is made once."""

from __future__ import annotations

from typing import Any

import formulaic
import numpy as np
import pandas as pd
import pytest

from medley.statistics import Rules, Study
from medley.statistics import formulas as module
from medley.statistics.formulas import design, parsed
from medley.statistics.site import Site
from support.hospitals import patients, sites

LEVELS = {"c": ["x", "y", "z", "absent"], "e": ["p:q", "w[T.1]"]}

FORMULAS = (
    "1", "0 + a", "a + b - 1", "0 + C(c)", "C(c) + C(e) - 1", "a * C(c)", "C(c):a", "a:b:C(c)", "C(c):a:C(e):b",
    "C(e) * C(c) * a", "a:C(c):b + C(e):C(c)", "C(c, contr.treatment('y')) * a", "C(c, contr.treatment(base='z'))",
    "I(a**2) + I(a*b) + I(b ** 3)", "np.log(a) + log1p(b) + sqrt(b):a", "2:a + b", "a + 3:b:C(c)", "(a + b + C(e))**2",
    "a:b + b:a + a:a", "a/C(c)", "exp(a)/b",
)  # fmt: skip


@pytest.mark.parametrize("right", FORMULAS)
def test_a_design_is_formulaics_to_the_bit(right: str) -> None:
    g = np.random.default_rng(0)
    rows: dict[str, Any] = {"a": g.normal(size=40) + 3, "b": -g.random(40), "c": g.choice(["x", "y", "z"], 40)}
    rows["b"] = rows["b"] if "sqrt" not in right else -rows["b"]
    rows["e"] = g.choice(LEVELS["e"], 40)
    names, X = design(parsed(f"out ~ {right}"), pd.DataFrame(rows), LEVELS, "A")
    wanted = formulaic.model_matrix(
        right,
        pd.DataFrame({k: pd.Categorical(v, categories=LEVELS[k]) if k in LEVELS else v for k, v in rows.items()}),
        context=module.FUNCTIONS | {"np": np},
    )
    assert names == [str(c) for c in wanted.columns]
    assert X.tobytes() == wanted.to_numpy(dtype=float).tobytes()


def test_names_of_columns_and_bases_stay_as_they_are_written() -> None:
    frame = pd.DataFrame({"fu.days": [1.0, 2.0, 3.0], "age (years)": [4.0, 5.0, 7.0], "k": [1, 2, 10]})
    f = parsed("out ~ fu.days + `age (years)` + C(k, contr.treatment(2)) + C(k, contr.treatment(2)):fu.days")
    names, X = design(f, frame, {"k": ["1", "2", "10"]}, "A")
    of = "C(k, contr.treatment(2))[T.{}]"
    assert names[:5] == ["Intercept", "fu.days", "age (years)", of.format(1), of.format(10)]
    assert names[5:] == [f"{of.format(1)}:fu.days", f"{of.format(10)}:fu.days"]
    assert X[:, 3:].tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 3]]


def test_a_fit_reads_each_sites_rows_once_and_lays_out_its_formula_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"rows": 0, "layout": 0}
    picked, model_matrix = Site._picked, formulaic.model_matrix

    def counted_rows(self: Site, *args: Any) -> Any:
        counts["rows"] += 1
        return picked(self, *args)

    def counted_layout(*args: Any, **how: Any) -> Any:
        counts["layout"] += 1
        return model_matrix(*args, **how)

    monkeypatch.setattr(Site, "_picked", counted_rows)
    monkeypatch.setattr(formulaic, "model_matrix", counted_layout)
    module._columns.cache_clear()
    frames = sites(patients())
    rules = Rules(rows=1, events=1, parameters=1.0)
    Study(frames, rules=rules).glm("died ~ age + C(sex)", family="binomial")
    assert counts == {"rows": len(frames), "layout": 0}  # a plain sum needs no formulaic
    Study(frames, rules=rules).glm("died ~ age * C(sex)", family="binomial")
    assert counts == {"rows": 2 * len(frames), "layout": 1}


@pytest.mark.parametrize("right", ["age", "C(sex)", "sex + age + C(site)", "C(site) + C(sex)", "`fu.days` + age"])
def test_a_plain_sum_has_the_columns_that_formulaic_gives_it(right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {c: ("a", "b", "c") for c in ("sex", "site") if f"C({c})" in right}
    mine = module.parsed.__wrapped__("died ~ " + right)
    columns = module._columns.__wrapped__(mine, tuple(levels.items()))
    monkeypatch.setattr(module, "_sum", lambda right: [])
    theirs = module.parsed.__wrapped__("died ~ " + right)
    assert mine == theirs
    assert columns == module._columns.__wrapped__(theirs, tuple(levels.items()))
