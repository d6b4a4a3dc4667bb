"""What may leave: forty attacks that work without rules, and none of which does with them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import medley as md
from medley.statistics.rules import recoverable

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study, Withheld
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0)

SECRET = 777.25
"""The pay of the patient who is asked for."""


def frame() -> Any:
    import pandas as pd

    g = np.random.default_rng(3)
    n = 80
    out = pd.DataFrame(
        {
            "id": np.arange(n),
            "age": g.integers(30, 80, n).astype(float),
            "sex": np.array(["F", "M"])[np.arange(n) % 2],
            "town": np.array(["a", "b", "c", "d"])[np.arange(n) // 20],
            "pay": g.normal(500, 50, n).round(2),
            "hiv": (np.arange(n) % 3 == 0).astype(int),
            "one": 1.0,
            "flag": 0.0,
            "spike": 1.0,
            "tag": "x",
            "twice": 1.0,
        }
    )
    out.loc[7, ["age", "pay", "hiv", "flag", "spike", "tag", "twice"]] = [93.0, SECRET, 1, 1.0, 1e9, "y", 2.0]
    out["older"] = out["age"] + out["flag"]
    out["lab"] = np.where(out["id"] == 7, np.nan, 1.0)
    return out


def total(study: Study, where: str = "", column: str = "pay", by: str = "", group: str = "") -> float:
    cell = study.describe([column], by=by, where=where).cells[column].get(group)
    if cell is None or cell.n is None:
        raise Withheld("withheld")
    return cell.n * (cell.mean or 0.0)


def count(study: Study, level: str, column: str, where: str = "", by: str = "", group: str = "") -> float:
    cell = study.describe([f"C({column})"], by=by, where=where).cells[column].get(group)
    counts = {level: None} if cell is None else cell.counts or {}
    if (found := counts.get(level, 0)) is None:
        raise Withheld("withheld")
    return float(found)


def mean(study: Study, where: str = "", formula: str = "pay ~ 1", **how: Any) -> float:
    fit = study.glm(formula, where=where, **how)
    return float(fit.params["Intercept"]) * fit.nobs


def events(study: Study, where: str = "") -> float:
    fit = study.glm("hiv ~ 1", "binomial", where=where)
    return fit.nobs / (1 + np.exp(-fit.params["Intercept"]))


def squares(study: Study, where: str = "") -> float:
    cell = study.describe(["pay"], where=where).cells["pay"][""]
    if cell.n is None or cell.sd is None or cell.mean is None:
        raise Withheld("withheld")
    return cell.sd**2 * (cell.n - 1) + cell.n * cell.mean**2


def square_of_one(study: Study) -> float:
    return float(np.sqrt(squares(study) - squares(study, "id != 7")))


def coefficient(study: Study, name: str, formula: str, **how: Any) -> float:
    fit = study.glm(formula, **how)
    return float(fit.params[name] + fit.params.get("Intercept", 0.0))


def weighted(study: Study) -> float:
    """Weights that are 2 for one patient: her pay is the difference of two sums."""
    fit = study.glm("pay ~ 1", weights="twice")
    return float(fit.params["Intercept"]) * 81 - mean(study)


F, M = "sex == 'F'", "sex == 'M'"

ATTACKS: dict[str, Callable[[Study], float]] = {
    "one row": lambda s: total(s, "id == 7"),
    "one row by age": lambda s: total(s, "age > 92"),
    "one row in a list": lambda s: total(s, "id in [7]"),
    "two conditions": lambda s: total(s, "age > 90 and sex == 'M'"),
    "all but one": lambda s: total(s) - total(s, "id != 7"),
    "all but one, first": lambda s: -total(s, "id != 7") + total(s),
    "all but the oldest": lambda s: total(s) - total(s, "age <= 92"),
    "not in a list": lambda s: total(s) - total(s, "id not in [7]"),
    "a town but one": lambda s: total(s, "town == 'a'") - total(s, "town == 'a' and id != 7"),
    "a town but one, first": lambda s: -total(s, "town == 'a' and id != 7") + total(s, "town == 'a'"),
    "the men but one": lambda s: total(s, M) - total(s, "sex == 'M' and age < 93"),
    "all less women, less men but one": lambda s: total(s) - total(s, F) - total(s, "sex == 'M' and id != 7"),
    "women, then women or her": lambda s: -total(s, F) + total(s, "sex == 'F' or id == 7"),
    "towns, less all but one": lambda s: sum(total(s, f"town == '{t}'") for t in "abcd") - total(s, "id != 7"),
    "two overlapping sets": lambda s: total(s, "id <= 7") + total(s, "id >= 7") - total(s),
    "three sets": lambda s: total(s, "id <= 20") - total(s, "id <= 6") - total(s, "id > 7 and id <= 20"),
    "a chain": lambda s: total(s, "id <= 40") - total(s, "id > 7 and id <= 40") - total(s, "id < 7"),
    "half of twice": lambda s: (
        total(s, "id <= 7") + total(s, "id in [7] or id > 40") - total(s, "id < 7 or id > 40")
    ) / 2,
    "groups of one": lambda s: total(s, by="tag", group="y"),
    "all less the other group": lambda s: total(s) - total(s, by="tag", group="x"),
    "all of a table less its other group": lambda s: total(s, by="tag") - total(s, by="tag", group="x"),
    "groups within a condition": lambda s: total(s, M, by="sex", group="M") - total(s, "sex == 'M' and id != 7"),
    "a condition within a group": lambda s: total(s, by="sex", group="M") - total(s, "id != 7", by="sex", group="M"),
    "squares": square_of_one,
    "three fits of pairs": lambda s: (mean(s, "id in [6, 7]") + mean(s, "id in [7, 8]") - mean(s, "id in [6, 8]")) / 2,
    "two fits": lambda s: mean(s) - mean(s, "id != 7"),
    "two fits of a town": lambda s: mean(s, "town == 'a'") - mean(s, "town == 'a' and id != 7"),
    "a fit and a table": lambda s: total(s) - mean(s, "id != 7"),
    "a table and a fit": lambda s: mean(s) - total(s, "id != 7"),
    "a fit with a missing value": lambda s: total(s) - mean(s, formula="pay ~ 1 + lab - lab", offset="lab") - 79,
    "a column with one 1": lambda s: coefficient(s, "flag", "pay ~ flag"),
    "a category of one": lambda s: coefficient(s, "C(tag)[T.y]", "pay ~ C(tag)"),
    "a category of one within another": lambda s: coefficient(s, "C(tag)[y]", "pay ~ 0 + C(tag)"),
    "columns that differ in one row": lambda s: coefficient(s, "one", "pay ~ 0 + one + age + older")
    + s.glm("pay ~ 0 + one + age + older").params["older"] * 94
    + s.glm("pay ~ 0 + one + age + older").params["age"] * 93,
    "a weight of a billion": lambda s: coefficient(s, "Intercept", "pay ~ 1", weights="spike") / 2,
    "a weight of two": weighted,
    "events, all but one": lambda s: (events(s) - events(s, "id != 7")) * SECRET,
    "a count, all but one": lambda s: (count(s, "1", "hiv") - count(s, "1", "hiv", "id != 7")) * SECRET,
    "a count of one": lambda s: count(s, "1", "hiv", "id == 7") * SECRET,
    "a count in a group of one": lambda s: count(s, "1", "hiv", by="tag", group="y") * SECRET,
    "a count, all less the other group": lambda s: (
        count(s, "1", "hiv") - count(s, "1", "hiv", by="tag", group="x")
    ) * SECRET,
}  # fmt: skip


def study(rules: Rules) -> Study:
    return Study({"Bern": frame()}, rules=rules)


def test_there_are_forty() -> None:
    assert len(ATTACKS) >= 40


@pytest.mark.parametrize("name", quick(12, ATTACKS))
def test_an_attack_works_without_rules_and_not_with_them(name: str) -> None:
    assert ATTACKS[name](study(OPEN)) == pytest.approx(SECRET, rel=1e-6)
    with pytest.raises(Withheld, match="withh"):
        ATTACKS[name](study(Rules()))


@pytest.mark.parametrize("name", ["all but one", "two fits", "a count, all but one", "events, all but one"])
def test_the_second_of_two_studies_knows_what_the_first_one_told(name: str, tmp_path: Path) -> None:
    made = [Study({"Bern": frame()}, registers=tmp_path) for _ in range(2)]
    turn = itertools.cycle(made)

    class Both:
        def describe(self, *args: Any, **how: Any) -> Any:
            return next(turn).describe(*args, **how)

        def glm(self, *args: Any, **how: Any) -> Any:
            return next(turn).glm(*args, **how)

    with pytest.raises(Withheld, match="withh"):
        ATTACKS[name](Both())  # type: ignore[arg-type]


def test_recoverable_is_what_a_search_over_all_combinations_finds() -> None:
    """A combination of few sets with small coefficients that depends on fewer than 3 rows, sought by force."""
    g = np.random.default_rng(0)
    agree = {True: 0, False: 0}
    for _ in range(150):
        sets = [g.random(9) < g.choice([0.3, 0.6, 0.9]) for _ in range(3)]
        found = any(
            0 < np.count_nonzero(sum(c * s for c, s in zip(cs, sets, strict=True))) < 3
            for cs in itertools.product(range(-2, 3), repeat=3)
        )
        assert recoverable(sets, 3) == found
        assert recoverable(sets * 5, 3) == found  # the same in another way, which counts more sets
        agree[found] += 1
    assert min(agree.values()) > 20


def test_what_may_leave_again_is_what_left_before() -> None:
    s = study(Rules())
    first = s.describe(["pay", "age"], by="sex").summary()
    assert s.describe(["pay", "age"], by="sex").summary() == first
    assert "withheld" not in first
    assert total(s, "id < 70") > 0  # ten rows fewer
    with pytest.raises(Withheld, match="Bern withholds: where='id < 67'"):
        total(s, "id < 67")


def test_suppressed_is_never_zero() -> None:
    shown = study(Rules()).describe(["pay", "C(tag)", "lab"], by="tag")
    assert "y" not in shown.cells["pay"]  # a name of one row does not leave
    assert shown.cells["pay"]["x"].n is None
    assert shown.cells["pay"]["x"].mean is None
    assert shown.cells["tag"][""].counts == {"x": None}  # 79 of 80 would tell of one
    assert shown.cells["lab"][""].missing is None
    row = shown.frame().loc["pay, mean (SD)"]
    assert row.iloc[0] != "withheld"
    assert [*row.iloc[1:]] == ["withheld", ""]
    assert "0" not in shown.frame().columns[1]


def test_events_have_a_least_number_of_their_own() -> None:
    few = frame()
    few["hiv"] = (few["id"] < 3).astype(int)
    with pytest.raises(Withheld, match="fewer than 5 events"):
        Study({"Bern": few}).glm("hiv ~ age", "binomial")
    assert Study({"Bern": few}, rules=Rules(events=3)).glm("hiv ~ age", "binomial").nobs == 80


def test_a_fit_has_at_most_a_third_of_the_rows_in_parameters() -> None:
    small = {"Bern": frame(), "Chur": frame().iloc[:9]}
    formula = "pay ~ age + I(age**2) + sqrt(age)"
    with pytest.raises(Withheld, match=r"Chur withholds: 4 parameters of 9 rows are more than its share of 0\.333"):
        Study(small).glm(formula)
    assert Study(small, rules=Rules(pooled=True)).glm(formula).nobs == 89
    rules = {"Chur": Rules(parameters=0.5)}
    assert Study(small, rules=rules).glm(formula).nobs == 89


def test_coefficients_that_leave_the_say_to_few_rows_are_refused() -> None:
    """A server that asks for a curve so steep that one row alone has a weight."""
    s = study(Rules())
    fit = md.statistics.GLM("hiv ~ age", "binomial")
    from medley.statistics.analysis import packed, tensor
    from medley.statistics.scoring import Point
    from medley.statistics.study import Sites

    me = Sites(s.sites)(0, 1)
    point = {"terms": packed({}), "bread": tensor([]), "mean": 0.5, "alpha": 1.0, "rows": 80}
    assert fit.score(me, Point(b=tensor([0.0, 0.01]), **point)).g.shape == (2,)
    with pytest.raises(Withheld, match="fewer than 5 rows decide the sums"):
        fit.score(me, Point(b=tensor([-93.0 * 4, 4.0]), **point))


def test_quantiles_are_of_one_grid_and_of_sets_that_share_no_rows() -> None:
    s = study(Rules())
    assert s.describe(["pay"], by="sex").cells["pay"][""].quantiles is not None
    assert s.describe(["pay"], by="sex").cells["pay"]["F"].quantiles is not None
    cell = s.describe(["pay"], by="town").cells["pay"]["a"]
    assert cell.n == 20
    assert cell.quantiles is None


def test_coefficients_with_impossible_means_are_told_nothing() -> None:
    from medley.statistics.analysis import packed, tensor
    from medley.statistics.scoring import BAD, Point
    from medley.statistics.study import Sites

    me = Sites(study(Rules()).sites)(0, 1)
    fit = md.statistics.GLM("hiv ~ age", "binomial")
    up = fit.score(me, Point(packed({}), tensor([-3720.0, 40.0]), tensor([]), 0.5, 1.0, 80))
    assert float(up.g.abs().max() + up.H.abs().max()) == 0
    assert up.sums[BAD] > 70


def test_secure_of_another_kind_is_refused() -> None:
    with pytest.raises(md.RecipeError, match=r"Study\(secure=True\): pass md.SecureSum\(\), or None"):
        Study({"A": frame()}, secure=True)
