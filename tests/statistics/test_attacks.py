"""What a stranger tries: formulas and conditions as code or as selectors, refusals and messages that tell a value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Describe, Rules, Study, Withheld
from medley.statistics.analysis import packed, tensor
from medley.statistics.describe import Question
from medley.statistics.scoring import Point
from medley.statistics.study import Sites
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0)


def frame() -> Any:
    """80 patients, of whom number 7 is the one that is asked for."""
    import pandas as pd

    g, n = np.random.default_rng(3), 80
    id = np.arange(n)
    out = pd.DataFrame(
        {
            "id": id,
            "age": g.integers(30, 80, n).astype(float),
            "sex": np.array(["F", "M"])[id % 2],
            "pay": g.normal(500, 50, n).round(2),
            "hiv": (id % 3 == 0).astype(int),
            "flag": 1.0 * (id == 7),
            "six": np.where(np.isin(id, [3, 4, 5, 6, 7, 8]), "y", "x"),
            "five": np.where(np.isin(id, [3, 4, 5, 6, 8]), "y", "x"),
            "stage": np.where(id == 7, 4.0, id % 4),
            "grade": np.where((id > 2) & (id < 8), 2 - (id == 7), id % 3),
            "top": np.where(np.isin(id, [6, 7]), 30.0, g.normal(0, 1, n)),
            "months": np.where(id == 7, 10.5, id % 20 + 1.0),
            "died": id % 2,
            "relapsed": np.where(id == 7, 0, id % 2),
            "few": 1.0 * np.where(id % 2 == 0, id < 4, id < 40),
            "ward": id // 10,
            "spikes": np.where(id % 10 == 7, 1.0, 1e-6) * g.uniform(1, 1.1, n),
            "lab": np.where(id == 7, np.nan, 1.0),
            "late": 5.0 * (id == 7),
            "corrected": g.normal(500, 50, n).round(2),
            "years": id + 1.0,
            "alone": np.where(id == 9, 7.5, id + 0.5),
        }
    )
    out.loc[7, "pay"] = 777.25
    out["corrected"] = out["pay"] + (out["ward"] == 3) * (out["corrected"] - 500)
    return out


def study(rules: Rules) -> Study:
    return Study({"Bern": frame()}, rules=rules)


def numbers_within_categories(s: Study) -> None:
    """Sums of pay over six patients, and over five of them."""
    s.glm("age ~ 0 + pay:C(six)")
    s.glm("age ~ 0 + pay:C(five)")


def functions_of_a_column(s: Study) -> None:
    """Five sums of pay times a function of the stage, one from each fit, have the pay at each of its five values."""
    for f in ("stage", "I(stage**2)", "I(stage**3)", "sqrt(stage)", "stage:I(stage**3)"):
        s.glm(f"pay ~ {f}")


def weights_as_functions(s: Study) -> None:
    """The same by weights."""
    for f in ("age", "age + stage", "age + I(stage**2)", "age + sqrt(stage)"):
        s.glm(f"pay ~ {f}", weights="months")
        s.glm(f"pay ~ {f}")


def curves(s: Study, until: float = 11.0, event: str = "died") -> None:
    """Two curves of the same patients: the difference of the two has one patient's time, or event."""
    s.kaplan_meier("months", "died", 1.0, 10.0)
    s.kaplan_meier("months", event, 1.0, until)


def table(s: Study, where: str = "", by: str = "", column: str = "pay", group: str = "") -> float:
    cell = s.describe([column], by=by, where=where).cells[column][group]
    if cell.n is None:
        raise Withheld("withheld")
    return float(cell.n)


def strata_of_six_and_five(s: Study) -> None:
    """The difference of two fits is what one patient adds to another stratum."""
    s.cox("months ~ age", "died", strata="six")
    s.cox("months ~ age", "died", strata="five")


def all_and_without_a_patient(s: Study) -> None:
    """Each ward stands for a patient with ten rows: enough for rules that count rows."""
    s.cox("months ~ age", "died", cluster="ward")
    s.cox("months ~ age", "died", cluster="ward", where="ward != 3")


def ranks_of_groups(s: Study) -> None:
    """Of a group of one the statistic is the number of patients below."""
    if s.describe(["pay"], by="flag", ranks=["pay"]).rank_test("pay") is None:
        raise Withheld("withheld")


ATTACKS: dict[str, Callable[[Study], Any]] = {
    "numbers within categories": numbers_within_categories,
    "functions of a column": functions_of_a_column,
    "weights": weights_as_functions,
    "a weight for one of each ward": lambda s: s.glm("pay ~ 0 + C(ward)", weights="spikes"),
    "an exponential that two patients have": lambda s: s.glm("pay ~ 0 + exp(top)"),
    "curves until two times": curves,
    "curves of two events": lambda s: curves(s, 10.0, "relapsed"),
    "the mean of an indicator of one": lambda s: table(s, column="flag"),
    "a fit of an indicator of one": lambda s: s.glm("flag ~ 1"),
    "the mean of an indicator by group": lambda s: table(s, by="sex", column="few", group="F"),
    "all less the other group": lambda s: table(s, by="sex", column="few", group="M"),
    "a stratum of one": lambda s: s.cox("months ~ age", "died", strata="flag"),
    "strata of six, then of five": strata_of_six_and_five,
    "a late entry of one": lambda s: s.cox("months ~ age", "died", entry="late"),
    "two clusters": lambda s: s.cox("months ~ age", "died", cluster="sex"),
    "two columns that differ in the rows of a patient": lambda s: s.cox(
        "months ~ pay + corrected", "died", cluster="ward"
    ),
    "all rows less those of a patient": all_and_without_a_patient,
    "the rank of one patient": ranks_of_groups,
    "the level of one patient": lambda s: s.ordinal("stage ~ age"),
    "a level within a category": lambda s: s.ordinal("grade ~ C(six)"),
    "groups of six, then of five": lambda s: table(s, by="six", group="y") - table(s, by="five", group="y"),
}


@pytest.mark.parametrize("name", quick(6, ATTACKS))
def test_an_attack_works_without_rules_and_not_with_them(name: str) -> None:
    ATTACKS[name](study(OPEN))
    with pytest.raises(Withheld, match="withh"):
        ATTACKS[name](study(Rules()))


@pytest.mark.parametrize("hiv", [0, 1])
@pytest.mark.parametrize(
    "where",
    [
        "id != 7 or hiv == 1",
        "id == 7 and hiv == 1",
        "not (id == 7 and hiv == 0)",
        "age != 93 or sex != 'M' or hiv == 1",
        "(age == 93 and sex == 'M') or hiv == 1",
    ],
)
def test_a_refusal_does_not_tell_what_a_known_patient_has(where: str, hiv: int) -> None:
    rows = frame()
    rows.loc[7, ["age", "hiv"]] = 93.0, hiv
    with pytest.raises(Withheld) as e:
        Study({"Bern": rows}).describe(["pay"], where=where)
    assert str(e.value).startswith(
        f"Bern withholds: {where=}, together with what has left before, would reveal something about fewer than 5"
    )


def test_a_refusal_over_two_conditions_does_not_tell_either() -> None:
    for hiv in (0, 1):
        rows = frame()
        rows["a"], rows["b"] = (rows["id"] < 40).astype(int), ((rows["id"] < 40) & (rows["id"] != 7)).astype(int)
        rows.loc[7, "hiv"] = hiv
        s = Study({"Bern": rows})
        assert table(s, "a == 1 or hiv == 1") > 40
        with pytest.raises(Withheld):
            table(s, "b == 1 or hiv == 1")


def test_messages_quote_no_value() -> None:
    for call in (lambda s: s.glm("pay ~ age", "binomial"), lambda s: s.glm("hiv ~ age", "gamma")):
        with pytest.raises(md.BadData, match=r"Bern: the outcomes of family=.* are .*, and (pay|hiv) has others$") as e:
            call(study(Rules()))
        assert "777" not in str(e.value)


def test_a_study_without_a_patient_is_refused_by_the_register_of_the_one_with_her(tmp_path: Path) -> None:
    assert table(Study({"Bern": frame()}, registers=tmp_path)) == 80
    with pytest.raises(md.BadData, match="fewer than 5 rows are gone since sums of these patients have left"):
        table(Study({"Bern": frame()}, complete=["lab"], registers=tmp_path))
    assert table(Study({"Bern": frame()}, registers=tmp_path)) == 80


def test_a_server_gets_no_column_that_is_not_asked_for() -> None:
    me, asked = Sites(study(Rules()).sites)(0, 1), Describe(("age",), "sex")
    said: dict[str, Any] = {"levels": {"sex": ["F", "M"]}, "numeric": ["age"], "categorical": []}
    assert asked.count(me, Question(packed(said))).sums.shape == (18,)
    for call, wrong in (
        (asked.count, {**said, "numeric": ["pay"]}),
        (asked.count, {**said, "categorical": ["hiv"]}),
        (asked.name_them, ["hiv"]),
        (asked.spread, {**said, "means": [["pay", "", 0.0]], "grids": {"pay": [0, 0, 9]}}),
    ):
        with pytest.raises(md.WireError, match=r"'(pay|hiv)', a column that is not in this description"):
            call(me, Question(packed(wrong)))


def test_a_second_grid_over_the_same_rows_is_withheld() -> None:
    me, asked = Sites(study(Rules()).sites)(0, 1), Describe(("age",))
    said: dict[str, Any] = {"levels": {}, "numeric": ["age"], "categorical": [], "means": [["age", "", 0.0]]}
    first, second = (
        asked.spread(me, Question(packed({**said, "grids": {"age": [0, at, 200]}}))).bins.sum() for at in (0, 40)
    )
    assert (first, second) == (160, 0)


def test_each_bar_of_a_histogram_has_as_many_rows_as_the_rules_want() -> None:
    me, asked = Sites(study(Rules(rows=7)).sites)(0, 1), Describe(("pay",))
    values: dict[str, Any] = {"levels": {}, "numeric": ["pay"], "categorical": [], "means": [["pay", "", 0.0]]}
    bins = asked.spread(me, Question(packed({**values, "grids": {"pay": [0, 0, 900]}}))).bins
    assert bins.sum() == 160
    assert bins[bins > 0].min() >= 7


def test_risks_of_few_rows_are_refused() -> None:
    """At a steep hazard each risk set is its oldest patient alone."""
    me = Sites(study(Rules()).sites)(0, 1)
    cox = md.statistics.Cox("months ~ age", "died")
    point = {"terms": packed({}), "bread": tensor([]), "mean": 0.0, "alpha": 1.0, "rows": 80}
    assert cox.score(me, Point(b=tensor([0.05]), **point)).g.shape == (1,)
    with pytest.raises(Withheld, match=r"fewer than 5 rows decide the sums"):
        cox.score(me, Point(b=tensor([9.0]), **point))


def ordinal(b: list[float], rules: Rules | None = None, closing: bool = True) -> Any:
    """What a site tells at a server's own β and thresholds, the age counted from 55."""
    rows = frame().assign(grade=lambda f: f["id"] % 3)
    me = Sites(Study({"Bern": rows}, rules=rules or Rules()).sites)(0, 1)
    return ordinal_at(me, b, closing)


def ordinal_at(me: Any, b: list[float], closing: bool = True) -> Any:
    point = {"terms": packed({"grade": ["0", "1", "2"]}), "bread": tensor([]), "mean": 0.0, "alpha": 0.0, "rows": 80}
    fit = md.statistics.Ordinal("grade ~ age")
    return fit.score(me, Point(b=tensor(b), basis=tensor([1.0, -55.0, 1.0]), closing=closing, **point))


def test_coefficients_that_leave_the_say_to_few_rows_of_an_ordinal_logit_are_refused() -> None:
    assert ordinal([0.05, -0.7, 0.7]).g.shape == (3,)
    assert ordinal([3.0, -0.7, 0.7]).sums.tolist()[2] == 1.0  # all it says is that a probability is 0 or 1
    for b in ([1.3, -0.7, 0.7], [0.6, -0.7, 16.0]):
        with pytest.raises(Withheld, match="fewer than 15 rows decide the sums"):
            ordinal(b, Rules(rows=15))
    with pytest.raises(md.WireError, match="thresholds do not ascend"):
        ordinal([0.05, 0.7, 0.7])


@pytest.mark.rounded
def test_scores_at_many_coefficients_do_not_average_the_rounding_out() -> None:
    """Each asks for the same sums up to less than their grid; the site has told all that it may after few."""
    rows = frame().assign(grade=lambda f: f["id"] % 3)
    s = Study({"Bern": rows})
    me = Sites(s.sites)(0, 1)
    told = list[Any]()
    with pytest.raises(Withheld, match="sums of grade would tell more bits"):
        told.extend(ordinal_at(me, [0.01 + 1e-5 * k, -0.7, 0.7]).g.numpy() for k in range(1000))
    for k in range(1000):
        try:
            told.append(ordinal_at(me, [0.02 + 1e-5 * k, -0.7, 0.7]).g.numpy())
        except Withheld:
            break
    assert len(told) < 8
    assert s.disclosure().loc[("Bern", "grade"), "bits"] <= 80 * np.log2(3)


def test_leverages_that_leave_the_say_to_one_row_are_refused() -> None:
    me = Sites(study(Rules()).sites)(0, 1)
    fit = md.statistics.GLM("hiv ~ age", "binomial", cov="HC3")
    point = {"terms": packed({}), "b": tensor([0.0, 0.0]), "mean": 0.5, "alpha": 1.0, "rows": 80}
    assert fit.score(me, Point(bread=tensor([1e-3, 0.0, 1e-6]), **point)).meat.shape == (3,)
    oldest = float(frame()["age"].max())
    with pytest.raises(Withheld, match="fewer than 5 rows decide the sums"):
        fit.score(me, Point(bread=tensor([0.0, 0.0, 4 / oldest**2]), **point))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "[x for x in (1, 2)]",
        "eval('1')",
        "np.where(age > 90, 1, 0)",
        "I(age == 93)",
        "I(age > 90)",
        "I(age ** 9)",
        "C(id, contr.treatment(__import__('os')))",
        "{age}",
        "Q('age')",
        "bs(age, df=20)",
        "age | pay",
        "age ~ pay",
        ".",
    ],
)
def test_formulas_are_read_and_not_run(text: str) -> None:
    with pytest.raises(md.RecipeError, match=r"is not understood|cannot be read"):
        study(OPEN).glm(f"hiv ~ {text}")


@pytest.mark.parametrize(
    "where",
    [
        "@frame",
        "__import__('os').system('true')",
        "age.__class__() == 1",
        "`age`.__class__ == 1",
        "[x for x in (1, 2)]",
        "(lambda: 1)()",
        "sex == f'{age}'",
        "age > 10**9",
        "age[0] > 3",
        "(age := 3)",
        "age if age else 1",
        "age is None",
        "sex in 'F'",
        "age == {}",
        "sex < stage",
        "1 in [1]",
    ],
)
def test_conditions_are_read_and_not_run(where: str) -> None:
    with pytest.raises(md.RecipeError, match="write comparisons of a column with a value"):
        study(OPEN).describe(["pay"], where=where)
    with pytest.raises(md.BadData, match=r"no column 'age\.__class__'"):  # a name with a dot is a column's
        study(OPEN).describe(["pay"], where="age.__class__ == 1")


def test_conditions_say_what_they_mean() -> None:
    import pandas as pd

    rows = frame()
    rows["adult"], rows["n"] = (rows["age"] > 40).astype("boolean"), rows["age"].astype("Int64")
    rows["ward"], rows["day"] = (
        pd.Categorical(rows["sex"]),
        pd.Timestamp("2020-01-01") + pd.to_timedelta(rows["id"], "D"),
    )
    rows.loc[0, ["n", "adult"]] = pd.NA
    there = rows["id"] > 0
    for where, expected in {
        "adult": (rows["age"] > 40) & there,
        "not adult": (rows["age"] <= 40) & there,
        "40 <= n < 60": rows["age"].between(40, 59) & there,
        "n != 50": (rows["age"] != 50) & there,
        "not (ward == 'F' and age > 50)": ~((rows["sex"] == "F") & (rows["age"] > 50)),
        "'F' == ward": rows["sex"] == "F",
        "sex not in ('F', 'X')": rows["sex"] == "M",
        "day >= '2020-02-01'": rows["id"] >= 31,
        "age > -1 # \u2028@x": rows["id"] >= 0,
        "True": rows["id"] >= 0,
    }.items():
        assert table(Study({"Bern": rows}, rules=OPEN), where) == expected.sum(), where
    for where, said in {
        "sex != 1": "sex has texts, and where= has 1",
        "age in [30, '40']": "age has numbers, and where= has '40'",
    }.items():
        with pytest.raises(md.BadData, match=f"Bern: {said}"):
            table(Study({"Bern": rows}, rules=OPEN), where)


@pytest.mark.parametrize(
    ("formula", "error", "match"),
    [
        ("hiv ~ C + C(sex)", md.RecipeError, "C has a meaning of its own in formulas; rename"),
        ("hiv ~ Intercept", md.RecipeError, "Intercept has a meaning of its own"),
        ("hiv ~ 0", md.RecipeError, "has no columns on its right"),
        ("hiv ~ C(sex, contr.treatment('X'))", md.RecipeError, "no site has the base"),
        ("hiv ~ log(stage)", md.BadData, r"Bern: log\(stage\) is not finite in a row"),
        ("hiv ~ age.__class__", md.BadData, "Bern has no column 'age.__class__'"),
        ("hiv ~ lambda", md.BadData, "Bern has no column 'lambda'"),
        ("hiv ~ wave", md.BadData, "Bern, column 'wave': the column is complex"),
    ],
)
def test_awkward_formulas_have_a_sentence(formula: str, error: type[Exception], match: str) -> None:
    rows = frame().assign(C=1.0, Intercept=2.0, wave=1j)
    with pytest.raises(error, match=match):
        Study({"Bern": rows}).glm(formula)


def test_the_column_that_is_not_above_0_is_named() -> None:
    rows = frame()
    rows["zero"] = rows["id"] * 1.0
    with pytest.raises(md.BadData, match="Bern: zero must be above 0"):
        Study({"Bern": rows}, rules=OPEN).glm("hiv ~ age", "poisson", weights="months", exposure="zero")
    with pytest.raises(md.BadData, match="Bern: less must be 0 or more"):
        Study({"Bern": rows.assign(less=rows["id"] - 1.0)}, rules=OPEN).glm("hiv ~ age", "poisson", weights="less")


def nested(few: int, n: int = 100) -> Any:
    """20 patients have one thing, 40 another, and ``few`` have both."""
    import pandas as pd

    id = np.arange(n)
    one = id < 20
    ill = (id < few) | (~one & (id % 2 == 0))
    g = np.random.default_rng(0)
    columns = {"age": g.normal(60, 9, n).round(1), "pay": g.normal(500, 50, n).round(2), "months": id % 17 + 1.0}
    return pd.DataFrame({**columns, "one": np.where(one, "a", "b"), "ill": ill * 1, "state": np.where(ill, "p", "q")})


def category(s: Study) -> float:
    """The rows of a category, from the matrix of a fit."""
    fit = s.glm("age ~ 0 + C(state)", where="one == 'b'")
    return float(fit.scale / fit.cov_params().iloc[0, 0])


def events(s: Study) -> float:
    """The events of a fit."""
    fit = s.glm("ill ~ 1", "binomial", where="one == 'b'")
    return float(fit.nobs / (1 + np.exp(-fit.params.iloc[0])))


def level(s: Study) -> float:
    """The events of a table."""
    counts = s.describe(["C(ill)"]).cells["ill"][""].counts or {}
    count = counts["1"]
    if count is None:
        raise Withheld("withheld")
    return float(count)


SUBTRACTIONS: dict[str, tuple[Callable[[Study], float], Callable[[Study], float]]] = {
    "picked, less a group": (
        lambda s: table(s, "state == 'p'"),
        lambda s: table(s, "one == 'b'", by="state", column="age", group="p"),
    ),
    "picked, less a category of a fit": (lambda s: table(s, "state == 'p'"), category),
    "a group, less a category of a fit": (lambda s: table(s, by="state", group="p"), category),
    "events, less those of a fit": (level, events),
    "events, less those of curves": (
        level,
        lambda s: float(s.kaplan_meier("months", "ill", 1.0, 20.0, where="one == 'b'").deaths.sum()),
    ),
    "events, less those of Cox's fit": (
        level,
        lambda s: float(s.cox("months ~ age", "ill", where="one == 'b'", cuts=(9.0, 20.0)).steps.d.sum()),
    ),
}


@pytest.mark.parametrize("name", SUBTRACTIONS)
def test_counts_of_one_column_in_two_tables_do_not_tell_how_many_have_both(name: str) -> None:
    """Each count alone may leave; that of the few who have both follows by subtraction, whatever else is summed."""
    few = 3
    for order in (1, -1):
        both = SUBTRACTIONS[name][::order]
        one, other = (count(Study({"Bern": nested(few)}, rules=OPEN)) for count in both)
        assert order * (one - other) == pytest.approx(few, abs=0.01)
        s = Study({"Bern": nested(few)})
        both[0](s)
        with pytest.raises(Withheld, match="withh"):
            both[1](s)


@pytest.mark.rounded
@pytest.mark.parametrize("code", [(0, 1), (1, 2), (0, 0.5), (-1, 1), (0.25, 100.25)])
def test_bits_of_a_column_with_two_values_are_counted_in_any_code(code: tuple[float, float]) -> None:
    """Another code of the same outcome hides it as well: no more bits than rows, and the same refusal."""
    rows = nested(10)
    rows["ill"] = np.array(code)[rows["ill"]]
    s = Study({"Bern": rows})
    table(s, column="ill")
    assert s.disclosure().loc[("Bern", "ill"), "bits"] == pytest.approx(4.9, abs=0.2)
    s.sites[0].register.spend("ill", {"what left before": 50.0}, np.inf)
    with pytest.raises(Withheld, match="sums of ill would tell more bits than it has rows"):
        s.glm("ill ~ age + log(age) + months + sqrt(pay)")
    assert s.disclosure().loc[("Bern", "ill"), "bits"] <= 100


@pytest.mark.rounded
def test_bits_of_categories_are_at_most_what_their_rows_hide() -> None:
    """A table of a column of which nearly all bits have left is refused, as a mean of its numbers is."""
    s = Study({"Bern": nested(10)})
    s.sites[0].register.spend("state", {"what left before": 97.0}, np.inf)
    with pytest.raises(Withheld, match="sums of state would tell more bits than it has rows"):
        s.describe(["state"], by="one")


@pytest.mark.rounded
def test_a_column_on_the_right_has_exact_sums_as_the_page_says() -> None:
    """Which docs/study.md and its text for an ethics board concede."""
    rows = nested(10)
    fit = Study({"Bern": rows}).glm("pay ~ ill + age")
    X = np.linalg.inv(fit.cov_params().to_numpy() / fit.scale)
    assert X[1, 2] == pytest.approx(float(rows["ill"] @ rows["age"]), rel=1e-9)
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    assert "A column on the right of a formula, or that makes groups, has exact sums" in page


def test_events_are_counted_for_outcomes_with_events_alone() -> None:
    """The number of incomes above 0 is a patient's, if one has debts."""
    me, levels = Sites(study(Rules()).sites)(0, 1), packed({})
    point = Point(terms=levels, b=tensor([]), bread=tensor([]), mean=0.0, alpha=1.0, rows=80)
    assert md.statistics.GLM("pay ~ age").begin(me, point).x[3].tolist() == [0, 0]
    assert float(md.statistics.GLM("hiv ~ age", "binomial").begin(me, point).x[3, 0]) == frame()["hiv"].sum()


def combined(n: int = 200) -> Any:
    """Three things that patients have; one patient has all of them."""
    import pandas as pd

    g = np.random.default_rng(1)
    X = g.integers(0, 2, (n, 3))
    X[np.flatnonzero(X.all(1))[1:], 2] = 0
    y = g.random(n) < 1 / (1 + np.exp(1 - X @ [1.2, -0.5, 1.0]))
    return pd.DataFrame({**dict(zip("abc", X.T, strict=True)), "y": y.astype(int)})


@pytest.mark.slow
def test_a_fit_does_not_tell_of_the_one_patient_with_three_things() -> None:
    """The information matrix at the fit, and the number of rows, are 8 equations for the rows of 8 combinations."""
    rows = combined()
    fit = Study({"Bern": rows}, rules=OPEN).glm("y ~ C(a) + C(b) + C(c)", "binomial")
    kinds = np.array([[1, *k] for k in np.ndindex(2, 2, 2)])
    mean = 1 / (1 + np.exp(-kinds @ fit.params.to_numpy()))
    H, at = np.linalg.inv(fit.cov_params().to_numpy()), np.triu_indices(4)
    A = np.array([*(mean * (1 - mean) * kinds[:, i] * kinds[:, j] for i, j in zip(*at, strict=True)), np.ones(8)])
    found = np.linalg.lstsq(A, np.append(H[at], 200), rcond=1e-14)[0]
    assert found[-1] == pytest.approx(1, abs=0.01)
    with pytest.raises(Withheld, match="Bern withholds: a value of combination 8 of the columns has fewer than 5 rows"):
        Study({"Bern": rows}).glm("y ~ C(a) + C(b) + C(c)", "binomial")
    assert Study({"Bern": rows}).glm("y ~ C(a) + C(b) + C(c)").nobs == 200  # weights are alike


def test_sums_at_a_cut_do_not_tell_of_the_one_patient_with_three_things() -> None:
    """Sums at a cut at one β are 10 equations for the rows of 8 combinations that leave there."""
    import pandas as pd

    rows = pd.concat([combined().iloc[:100].drop(columns="y"), combined(400).iloc[200:].drop(columns="y")])
    g = np.random.default_rng(2)
    rows = rows.assign(months=g.uniform(1, 9, len(rows)).round(1), died=1.0 * (g.random(len(rows)) < 0.5))
    cox = md.statistics.Cox("months ~ C(a) + C(b) + C(c)", "died", cuts=(10.0,), ties="breslow")
    levels = packed({name: ["0", "1"] for name in "abc"})
    b, kinds = np.array([0.3, -0.2, 0.5]), np.array([[1, *k] for k in np.ndindex(2, 2, 2)])
    point = Point(terms=levels, b=tensor(b), bread=tensor([]), mean=0.0, alpha=1.0, rows=len(rows))
    up = cox.leaving(Sites(Study({"Bern": rows}, rules=OPEN).sites)(0, 1), point)
    i, j = np.triu_indices(4)
    A = np.append(kinds[:, i] * kinds[:, j] * np.exp(kinds[:, 1:] @ b)[:, None], np.ones((8, 1)), axis=1)
    told = np.append(up.leave[0].numpy(), up.counts[0, 0])
    there = rows.groupby(["a", "b", "c"]).size().reindex([*np.ndindex(2, 2, 2)], fill_value=0)
    assert np.linalg.lstsq(A.T, told, rcond=1e-14)[0] == pytest.approx(there.to_numpy(), abs=0.01)
    assert there.min() < 5
    with pytest.raises(Withheld, match=r"a value of combination \d of the columns has fewer than 5 rows"):
        cox.leaving(Sites(Study({"Bern": rows}).sites)(0, 1), point)


def test_coefficients_that_leave_the_say_at_a_cut_to_few_rows_are_refused() -> None:
    me = Sites(study(Rules()).sites)(0, 1)
    cox = md.statistics.Cox("months ~ age", "died", cuts=(30.0,))
    point = {"terms": packed({}), "bread": tensor([]), "mean": 0.0, "alpha": 1.0, "rows": 80}
    assert cox.leaving(me, Point(b=tensor([0.05]), **point)).leave.shape == (1, 3)
    with pytest.raises(Withheld, match=r"fewer than 5 rows decide the sums"):
        cox.leaving(me, Point(b=tensor([9.0]), **point))


def test_coefficients_that_leave_the_say_to_one_of_those_who_died_are_refused() -> None:
    """Efron's sums of the dead at a cut, at a β at which one weighs more than all others, have that one's age."""
    import pandas as pd

    g = np.random.default_rng(0)
    alive, dead = g.normal(90, 0.5, 300).round(1), np.append(84.0, g.integers(50, 70, 29))
    died = np.repeat([0, 1], [300, 30])
    rows = pd.DataFrame({"age": np.append(alive, dead), "months": g.uniform(1, 9, 330).round(1), "died": died})
    point = {"terms": packed({}), "bread": tensor([]), "mean": 0.0, "alpha": 1.0, "rows": 330}
    cox = md.statistics.Cox("months ~ age", "died", cuts=(10.0,))
    me = lambda rules: Sites(Study({"Bern": rows}, rules=rules).sites)(0, 1)
    ask = lambda rules, b: cox.leaving(me(rules), Point(b=tensor([b]), **point))
    one, age, _ = ask(OPEN, 0.5).tied[0].tolist()
    assert age / one == pytest.approx(84.0, abs=0.1)
    assert ask(Rules(), 0.05).tied.shape == (1, 3)
    with pytest.raises(Withheld, match=r"fewer than 5 rows decide the sums"):
        ask(Rules(), 0.5)


def test_sums_of_all_and_of_the_dead_at_a_cut_do_not_tell_of_few_others() -> None:
    """Eight combinations, each of many patients and of many who died: all of one combination but two."""
    import pandas as pd

    kinds = np.repeat([*np.ndindex(2, 2, 2)], 30, axis=0)
    died = np.tile(np.repeat([0, 1], 15), 8)
    died[:30] = np.repeat([0, 1], [2, 28])
    rows = pd.DataFrame(kinds, columns=[*"abc"]).assign(months=np.linspace(1, 9, 240), died=died)
    ask = lambda ties: Study({"Bern": rows}).cox("months ~ C(a) + C(b) + C(c)", "died", cuts=[10.0], ties=ties)
    assert ask("breslow").nobs == 240
    with pytest.raises(Withheld, match=r"a value of combination 1 of the columns has fewer than 5 rows"):
        ask("efron")


def test_entries_that_leave_two_at_risk_together_would_tell_how_far_apart_they_are() -> None:
    ages = frame()["age"]
    at_0 = Point(b=tensor([0.0]), bread=tensor([]), terms=packed({}), mean=0.0, alpha=1.0, rows=80)
    ask = lambda rules: md.statistics.Cox("years ~ age", "died", entry="alone").score(
        Sites(study(rules).sites)(0, 1), at_0
    )
    assert float(ask(OPEN).g[0]) == (ages[7] - ages[9]) / 2
    with pytest.raises(Withheld, match="by alone nearly all patients are at risk alone, and fewer than 5 decide"):
        ask(Rules())


def test_a_server_gets_no_sums_of_clusters_that_are_not_asked_for_or_of_its_own_coefficients() -> None:
    me = Sites(study(Rules()).sites)(0, 1)
    point = {"bread": tensor([]), "terms": packed({}), "mean": 0.0, "alpha": 1.0, "rows": 80}
    clustered = md.statistics.Cox("months ~ age", "died", cluster="id")
    with pytest.raises(md.WireError, match="asks for sums for robust errors, and this fit has none"):
        md.statistics.Cox("months ~ age", "died").stack(me, Point(b=tensor([0.0]), **point))
    assert clustered.stack(me, Point(b=tensor([0.0]), **point)).meat.shape == (1,)
    with pytest.raises(Withheld, match="fewer than 5 rows decide the sums"):
        clustered.stack(me, Point(b=tensor([9.0]), **point))
