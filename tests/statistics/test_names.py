"""Names of columns as people have them, and cells that are no numbers: in formulas, conditions and tables."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pandas as pd
import pytest

import medley as md

pytest.importorskip("formulaic")

from medley.statistics import Rules, Study
from medley.statistics.formulas import parsed
from medley.statistics.site import _functions
from support.pairs import quick

OPEN = Rules(rows=1, events=1, parameters=1.0)
G = np.random.default_rng(0)
PLAIN = pd.DataFrame({"y": G.normal(size=60), "x": G.normal(size=60), "k": np.arange(60) % 3})


def study(x: str = "x", k: str = "k", y: str = "y") -> Study:
    table = PLAIN.rename(columns={"x": x, "k": k, "y": y})
    return Study({"A": table[:30], "B": table[30:]}, rules=OPEN)


WANT = study().glm("y ~ x + C(k)", where="x > -1").params
TWICE = study().glm("y ~ log(k) + I(x**2)", where="k > 0").params

UNQUOTED = ("fu.days", "alk.phos.2", "class", "lambda", "größe", "µg", "m²", "_x", "T", "x.y.z")
QUOTED = (
    "age (years)", "sex (F/M)", "2nd dose", "a:b", "a*b", "a+b", "score[0]", "C(x)", "log", "C", "I(x)", "x'",
    'say "x"', "a,b", "a~b", "50%", "x=1", "column0_", "for", "in", "not", "True", "{x}", "a|b", "x\\y", "ends )",
    "größe (cm)", "年齢", "年齢 (歳)", "T.M", "np.x1", "-x", "#", "x;y", "inner  space",
)  # fmt: skip


@pytest.mark.parametrize("name", quick(3, [*UNQUOTED, *(f"`{name}`" for name in (*QUOTED, *UNQUOTED))]))
def test_a_column_of_any_name_has_the_coefficients_of_a_plain_one(name: str) -> None:
    bare = name.strip("`")
    got = study(x=bare).glm(f"y ~ {name} + C(k)", where=f"{name} > -1").params
    assert [*got.index] == ["Intercept", bare, "C(k)[T.1]", "C(k)[T.2]"]
    assert got.to_numpy() == pytest.approx(WANT.to_numpy(), rel=1e-9)


@pytest.mark.parametrize("name", quick(3, ["fu.days", *(f"`{name}`" for name in QUOTED), "class"]))
def test_categories_functions_and_outcomes_have_any_name_too(name: str) -> None:
    bare = name.strip("`")
    got = study(k=bare).glm(f"y ~ x + C({name})", where="x > -1").params
    assert [*got.index] == ["Intercept", "x", f"C({bare})[T.1]", f"C({bare})[T.2]"]
    assert got.to_numpy() == pytest.approx(WANT.to_numpy(), rel=1e-9)
    got = study(k=bare).glm(f"y ~ log({name}) + I(x**2)", where=f"{name} > 0").params
    assert got.to_numpy() == pytest.approx(TWICE.to_numpy(), rel=1e-9)
    assert study(y=bare).glm(f"{name} ~ x + C(k)", where="x > -1").params.to_numpy() == pytest.approx(WANT.to_numpy())


@pytest.mark.parametrize("name", quick(2, ["C(x)", "ends )", *UNQUOTED, *QUOTED]))
def test_tables_and_preparations_take_any_name(name: str) -> None:
    s = study(x=name)
    column = f"`{name}`" if name.startswith("C(") else name
    table = s.describe([column], by="k")
    assert table.cells[name][""].mean == pytest.approx(PLAIN["x"].mean())
    assert s.prepare([f"{name}: standardise"]).scaling.mean[0, 0] == pytest.approx(PLAIN["x"].mean())
    assert [*(study(k=name).describe([f"C({name})"]).cells[name][""].counts or ())] == ["0", "1", "2"]
    assert study(k=name).describe(["x"], by=name).groups == ["", "0", "1", "2"]


@pytest.mark.parametrize(
    ("formula", "match"),
    [
        ("y ~ age (years)", r"write a name with spaces or signs in backticks: `age \(years\)`"),
        ("age (years) ~ x", "in backticks"),
        ("y ~ x + C(k", "in backticks"),
        ("y ~ `fu.days` + C(`fu.days`)", r"fu\.days occurs both as a number and in C\(\)"),
        ("fu.days ~ log(fu.days)", r"fu\.days is on both sides"),
        ("y ~ poly(fu.days)", r"poly\(fu\.days\) is not understood"),
        ("y ~ `Intercept`", "Intercept has a meaning of its own in formulas; rename"),
        ("y ~ log", "log has a meaning of its own"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_columns_own_name(formula: str, match: str) -> None:
    with pytest.raises(md.RecipeError, match=match):
        parsed(formula)


def test_a_level_that_looks_like_a_name_stays_a_text() -> None:
    table = PLAIN.assign(g=np.where(PLAIN.k == 0, "a.b", "class"))
    s = Study({"A": table[:30], "B": table[30:]}, rules=OPEN)
    assert [*s.glm("y ~ C(g, contr.treatment('class'))").params.index][1].endswith("[T.a.b]")
    assert s.glm("y ~ x", where="g == 'class' and x > -9").nobs == 40


def test_a_column_is_a_function_of_the_column_whose_whole_name_it_has() -> None:
    names = ["log(age)", "age (years)", "fu.age", "age:fu.age", "I(age**2)"]
    of = _functions(names, ["age", "age (years)", "fu.age", "y"], [])
    assert {name: key.split(":")[0].removeprefix("function of ") for name, key in of.items()} == {
        "log(age)": "age",
        "age (years)": "age (years)",
        "fu.age": "fu.age",
        "I(age**2)": "age",
    }


# Cells.


def sites(**columns: Any) -> dict[str, Any]:
    table = PLAIN.assign(**columns)
    return {"A": table[:30], "B": table[30:]}


@pytest.mark.parametrize("dtype", ["object", "category", "str"])
def test_spaces_around_texts_and_names_do_not_count_and_an_empty_text_is_missing(dtype: str) -> None:
    texts = [" yes", "no", "yes\t", "no ", "\u00a0yes", "  "] * 10
    s = Study(
        {n: t.rename(columns={"t": " t "}) for n, t in sites(t=pd.Series(texts, dtype=dtype)).items()}, rules=OPEN
    )
    cell = s.describe(["t"]).cells["t"][""]
    assert (cell.counts, cell.n, cell.missing) == ({"no": 20, "yes": 30}, 50, 10)
    assert s.glm("y ~ C(t)").nobs == 50
    assert s.glm("y ~ x", where="t == 'yes'").nobs == 30
    assert s.prepare(["t: mode, encode"]).scaling.coding.features == ("t=no", "t=yes")  # type: ignore[union-attr]


DAYS = pd.date_range("2024-01-01", periods=60)
TIMES = {
    "dates": DAYS,
    "dates with a zone": DAYS.tz_localize("UTC"),
    "Python's dates": pd.Series([d.date() for d in DAYS], dtype=object),
    "months": pd.period_range("2020-01", periods=60, freq="M"),
    "texts of dates": DAYS.strftime("%Y-%m-%d"),
    "texts of European dates": DAYS.strftime("%d.%m.%Y"),
}


@pytest.mark.parametrize("kind", TIMES)
def test_dates_are_refused_with_the_remedy_wherever_a_number_is_wanted(kind: str) -> None:
    s = Study(sites(day=TIMES[kind]), rules=OPEN)
    match = (
        "^A, column 'day': .*is a (date|period); give numbers, such as (.* from the same day for all clients|t.dt.year)"
    )
    calls: list[Any] = [lambda: s.glm("y ~ day"), lambda: s.glm("day ~ x"), lambda: s.cox("day ~ x", event="k")]
    if "text" not in kind:  # texts are categories where they may be
        calls += [lambda: s.describe(["day"]), lambda: s.describe(["y"], by="day"), lambda: s.glm("y ~ C(day)")]
        calls += [lambda: s.prepare(["day: encode"]), lambda: s.prepare(["day: standardise"])]
    for call in calls:
        with pytest.raises(md.BadData, match=match):
            call()
    numbers = Study(sites(day=(DAYS - pd.Timestamp("2024-01-01")).days), rules=OPEN)
    assert numbers.describe(["day"]).cells["day"][""].mean == 29.5  # the remedy works


def test_objects_that_are_numbers_are_numbers_and_texts_of_numbers_have_their_remedy() -> None:
    from decimal import Decimal

    for column in (PLAIN.x.astype(object), [Decimal(repr(v)) for v in PLAIN.x], PLAIN.x.where(PLAIN.k > 0, None)):
        values = pd.Series(column, dtype=object)
        got = Study(sites(x=values), rules=OPEN).describe(["x"]).cells["x"][""]
        assert got.mean == pytest.approx(values.dropna().astype(float).mean())
    for texts, match in ((["1,5"] * 60, r"decimal comma; .*decimal=','"), (["15"] * 60, "pandas.to_numeric")):
        with pytest.raises(md.BadData, match=f"^A, column 'x': it is not a number; its text.*{match}"):
            Study(sites(x=texts), rules=OPEN).glm("y ~ x")
    assert Study(sites(g=["a", "b "] * 30), rules=OPEN).glm("y ~ x", where="g in ['b ', 'c']").nobs == 30


@pytest.mark.parametrize(
    ("column", "match"),
    [
        (pd.to_timedelta(np.arange(60), "D"), "^A, column 'x': the column is a duration; give numbers"),
        (
            np.arange(60) + 2**53 + 1,
            "^A, row 0, column 'x': 90.*93 has too many digits for a float; subtract a constant",
        ),
        (np.where(np.arange(60) == 5, np.inf, 1.0), "^A, row 5, column 'x': inf is not finite; make it empty"),
    ],
)
def test_cells_that_no_float_holds_are_refused(column: Any, match: str) -> None:
    s = Study(sites(x=column), rules=OPEN)
    for call in (lambda: s.glm("y ~ x"), lambda: s.describe(["x"]), lambda: s.prepare(["x: standardise"])):
        with pytest.raises(md.BadData, match=match):
            call()


def public_calls() -> dict[str, Any]:
    """The study, its methods and those of its results, if they have keywords."""
    s = study()
    fit = s.glm("y ~ x")
    objects = [s, fit, s.describe("x", by="k"), s.prepare(["x: standardise"]), s.pca(["x", "y"])]
    calls: dict[str, Any] = {"Study": Study}
    for thing in objects:
        for name, method in inspect.getmembers(thing, callable):
            kinds = [p.kind for p in inspect.signature(method).parameters.values()] if name[0] != "_" else []
            if inspect.Parameter.POSITIONAL_OR_KEYWORD in kinds and inspect.ismethod(method):
                calls[f"{type(thing).__name__}.{name}"] = method
    return calls


def test_an_unknown_or_missing_argument_of_a_study_is_answered_with_those_that_it_has() -> None:
    calls = public_calls()
    assert len(calls) > 15
    for call in calls.values():
        with pytest.raises(md.UnknownSetting, match=r"\(\) has no 'bogus'\. It knows: \w"):
            call(bogus=1)
    with pytest.raises(md.RecipeError, match=r"lr_test\(\): smaller= is missing"):
        calls["GLMFit.lr_test"]()
