"""Every door for data by codings of labels, of values, and kinds of inputs: one table says what all must answer.

The rule is in docs/own.md, "Labels and values". ``LABELS``, ``VALUES`` and ``INPUTS`` have one answer for all doors,
and an exception only with a sentence that says why the door must differ.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

import medley as md
from medley.contract import MedleyError
from support.doors import DOORS, NODES, WHOSE, Joined, Rows, inputs_for, reported, trained

N = 24
BIG = 2**53 + 1
KIND = np.arange(N) % 3
TWO = np.arange(N) % 2


class Says(NamedTuple):
    """A refusal: what its sentence must match, in one line."""

    pattern: str


class But(NamedTuple):
    """An exception: the answer of some doors (", " between), and why they must differ; None: no such rows there."""

    doors: str
    why: str
    answer: Any = None


class Coding(NamedTuple):
    """Labels as a user writes them.

    Attributes:
        y: the labels of 24 rows
        answer: the labels that ``predict`` gives back for these rows, or the sentence of a refusal
        test: labels of six test rows; default those of the first rows
        classes: the number of classes, if the user says it
    """

    y: Callable[[], Any]
    answer: Any
    but: tuple[But, ...] = ()
    test: Callable[[], Any] | None = None
    classes: int | None = None


def of(*values: Any) -> Any:
    """These labels in turn, as many as there are rows."""
    return [values[k % len(values)] for k in range(N)]


def objects(values: Any) -> Any:
    out = np.empty(N, object)
    out[:] = values
    return out


ROW = r"row 5\b"
B = r"('b'|column 1\b)"
DATE = r"(date|time)\b.*timedelta64"
NUMBERS_ONLY = "a file of svmlight has numbers only"
NO_TYPES = "a CSV file has no types, so a cell is what it looks like"
FRAMES = "frame, data=frame, clients=frame, frames, named frames, node, named node"
RECIPE = "a node sees its own rows only, so the recipe has to name codes that do not begin at 0, and texts"
NEEDS_NAMES = But("node", RECIPE, Says(r"\[clients\] labels"))


def dates(zone: Any = None) -> Any:
    days = [datetime(2024, 1, 1 + k, tzinfo=zone) for k in range(N)]
    return objects(days) if zone else np.array(days, "datetime64[s]")


LABELS: dict[str, Coding] = {
    "0, 1, 2": Coding(lambda: KIND, of(0, 1, 2)),
    "1, 2, 3": Coding(lambda: KIND + 1, of(1, 2, 3), (NEEDS_NAMES,)),
    "a gap, 0, 2": Coding(lambda: 2 * TWO, of(0, 2), (NEEDS_NAMES,)),
    "floats 1., 2., 3.": Coding(lambda: KIND + 1.0, of(1, 2, 3), (NEEDS_NAMES,)),
    "-1, 1": Coding(lambda: 2 * TWO - 1, of(-1, 1), (NEEDS_NAMES,)),
    "True, False": Coding(
        lambda: TWO == 1, of(False, True),
        (But("svmlight", NUMBERS_ONLY), But("sql", "SQLite has no booleans", of(0, 1))),
    ),
    "text with spaces": Coding(
        lambda: objects([" a", "b", "a "] * 8), of("a", "b", "a"), (But("svmlight", NUMBERS_ONLY), NEEDS_NAMES)
    ),
    "text '01', '02'": Coding(
        lambda: objects(of("01", "02")), of("01", "02"),
        (But("svmlight", NUMBERS_ONLY), NEEDS_NAMES),
    ),
    "text '1', '2'": Coding(
        lambda: objects(of("1", "2")), of("1", "2"),
        (But("csv", NO_TYPES, of(1, 2)), But("svmlight", NUMBERS_ONLY), NEEDS_NAMES),
    ),
    "fractions": Coding(lambda: TWO + 1.5, Says(r"1\.5.* (LeastSquares|regression=True)")),
    "one label": Coding(lambda: KIND * 0 + 5, Says(r"all .*\b5\b"), ()),
    "bytes": Coding(  # as NumPy and HDF5 hold text; they are read as UTF-8
        lambda: np.array(of(b"a", b"b")), of("a", "b"),
        (But("csv, svmlight", "a text file has no bytes"), NEEDS_NAMES),
    ),
    "nullable integers": Coding(lambda: pd.array(of(1, 2, 3), dtype="Int64"), of(1, 2, 3), (NEEDS_NAMES,)),
    "a category without rows": Coding(
        lambda: pd.Categorical(of("no", "yes"), categories=["no", "unknown", "yes"]), of("no", "yes"),
        (But("svmlight", NUMBERS_ONLY), NEEDS_NAMES),
    ),
    "one-hot": Coding(
        lambda: np.eye(3, dtype=int)[KIND], Says(r"argmax"),
        (But(f"csv, svmlight, parquet, sql, {FRAMES}", "a cell of a table has one number or text"),),
    ),
    "a class of one client": Coding(
        lambda: objects(["ill"] * 12 + ["well"] * 12), ["ill"] * 12 + ["well"] * 12,
        (But("svmlight", NUMBERS_ONLY), NEEDS_NAMES),
    ),
    "a class of test rows": Coding(
        lambda: objects(of("a", "c")), of("a", "c"),
        (But("svmlight", NUMBERS_ONLY), NEEDS_NAMES),
        lambda: objects(of("a", "b", "c"))[:6],
    ),
    "a missing test label": Coding(
        lambda: objects(of("a", "c")), Says(r"row 3\b"),
        (But("svmlight, npz", "the file cannot hold it"), But("node, named node", RECIPE)),
        lambda: np.array(["a", "c", "a", None, "a", "c"], object),
    ),
    "a class without rows": Coding(
        lambda: 2 * TWO, of(0, 2), (But("node, named node", "the recipe's [clients] labels are the classes there"),),
        classes=3,
    ),
    "text at one client": Coding(
        lambda: objects([1, 2] * 6 + ["1", "2"] * 6), Says(r"\btexts?\b|'1'"),
        (
            But("csv", NO_TYPES, of(1, 2)),
            But("svmlight", NUMBERS_ONLY),
            But("npz, parquet", "the file's column has one type"),
            But("node", RECIPE, Says(r"\[clients\] labels")),
        ),
    ),
    "complex": Coding(lambda: KIND + 0j, Says("complex"), (
        But("csv, svmlight, parquet, sql", "the file has no complex numbers"),
    )),
    "masked": Coding(lambda: np.ma.masked_equal(KIND, 2), Says(r"masked|row 2\b"), (
        But("csv, svmlight, parquet, npz, lists", "neither files nor lists have masks"),
        But(FRAMES, "pandas turns what is masked into a missing value", Says(r"row 2\b")),
    )),
    "a missing label": Coding(
        lambda: np.where(np.arange(N) == 5, np.nan, KIND), Says(ROW),
    ),
    "numbers and text": Coding(
        lambda: objects(of(1, "a")), Says(r"\b1 .*'a'|'a'.*\b1\b"),
        (
            But("csv", NO_TYPES, of("1", "a")),
            But("svmlight", NUMBERS_ONLY),
            But("npz, parquet", "the file's column has one type"),
        ),
    ),
    "beyond 2^53": Coding(
        lambda: BIG + TWO.astype(np.int64), of(BIG, BIG + 1),
        (But("svmlight", "its reader has floats, where these numbers are one", Says("more digits")), NEEDS_NAMES),
    ),
}  # fmt: skip

VALUES: dict[str, Coding] = {
    "whole numbers": Coding(lambda: 50 * KIND, of(0, 50, 100)),
    "0, 1": Coding(lambda: TWO, of(0, 1)),
    "a gap, 1, 4": Coding(lambda: 1 + 3 * TWO, of(1, 4)),
    "whole floats": Coding(lambda: 1.0 + KIND, of(1, 2, 3)),
    "fractions": Coding(lambda: 1.5 + KIND, of(1.5, 2.5, 3.5)),
    "nullable integers": Coding(lambda: pd.array(of(100, 150, 175), dtype="Int64"), of(100, 150, 175)),
    "a missing value": Coding(
        lambda: np.where(np.arange(N) == 5, np.nan, KIND), Says(ROW),
    ),
    "True, False": Coding(lambda: TWO == 1, of(0, 1), (But("svmlight", NUMBERS_ONLY),)),
    "a text among values": Coding(lambda: objects([1.5, "high", *[2.5] * 22]), Says("high"), (
        But("svmlight", NUMBERS_ONLY), But("npz, parquet", "the file's column has one type"),
    )),
    "text": Coding(lambda: objects(of("low", "high")), Says(r"\b(low|high)\b"), (But("svmlight", NUMBERS_ONLY),)),
    "dates": Coding(lambda: dates(), Says(DATE), (But("svmlight", NUMBERS_ONLY),)),
    "beyond 2^53": Coding(lambda: BIG + TWO.astype(np.int64), Says("(too many|more) digits")),
}  # fmt: skip

COLUMN = "abc"


def spoilt(value: float) -> dict[str, Any]:
    """Columns of the label's class, with one odd cell in row 5 of column b."""
    X = {name: (k == KIND).astype(float) for k, name in enumerate(COLUMN)}
    X["b"][5] = value
    return X


def column(make: Callable[[np.ndarray], Any]) -> Callable[[], dict[str, Any]]:
    """Three columns, of which one says a row's class, each made by a function of its 0 and 1."""
    return lambda: {name: make((k == KIND).astype(int)) for k, name in enumerate(COLUMN)}


INPUTS: dict[str, tuple[Callable[[], dict[str, Any]], Any, tuple[But, ...]]] = {
    "bool": (column(lambda x: x == 1), None, (But("svmlight", NUMBERS_ONLY),)),
    "uint8": (column(lambda x: x.astype(np.uint8)), None, ()),
    "float16": (column(lambda x: x.astype(np.float16)), None, ()),
    "beyond 2^53": (column(lambda x: x.astype(np.int64) + BIG), Says("too many digits"), (
        But("svmlight", "its reader has floats"),
    )),
    "dates": (column(lambda x: dates()), Says(DATE), (But("svmlight", NUMBERS_ONLY),)),
    "dates with a zone": (column(lambda x: dates(UTC)), Says(DATE), (
        But("svmlight", NUMBERS_ONLY), But("npz", "its arrays have no zones"),
    )),
    "durations": (column(lambda x: x.astype("timedelta64[s]")), Says(r"duration.*timedelta64"), (
        But("svmlight", NUMBERS_ONLY),
    )),
    "categories": (column(lambda x: pd.Categorical(np.where(x == 1, "yes", "no"))), Says("prepare"), (
        But("svmlight", NUMBERS_ONLY),
    )),
    "text": (column(lambda x: objects(np.where(x == 1, "yes", "no").tolist())), Says("prepare"), (
        But("svmlight", NUMBERS_ONLY),
    )),
    "dates as text": (lambda: {name: objects(dates().astype(str).tolist()) for name in COLUMN}, Says(DATE), (
        But("svmlight", NUMBERS_ONLY),
    )),
    "decimal commas": (column(lambda x: objects(np.where(x == 1, "1,5", "0,5").tolist())), Says("decimal comma"), (
        But("svmlight", NUMBERS_ONLY),
    )),
    "numbers with units": (column(lambda x: objects(np.where(x == 1, "70 kg", "60 kg").tolist())), Says("unit"), (
        But("svmlight", NUMBERS_ONLY),
    )),
    "missing": (lambda: spoilt(np.nan), Says(f"{ROW}.*{B}|{B}.*{ROW}"), ()),
    "infinite": (lambda: spoilt(np.inf), Says(f"{ROW}.*{B}|{B}.*{ROW}"), ()),
    "sparse": (column(lambda x: sparse.csr_matrix(x[:, None].astype(float))), None, (
        But("npz, csv, parquet, lists", "files and lists are dense", None),
        But("dicts", "an input of several is dense", Says("dense|toarray")),
    )),
}  # fmt: skip


def answer_at(door: str, answer: Any, but: tuple[But, ...]) -> Any:
    """What a door must answer; skips a cell that cannot exist."""
    for exception in but:
        if door in exception.doors.split(", "):
            if exception.answer is None:
                pytest.skip(exception.why)
            return exception.answer
    return answer


def difference(act: Callable[[], Any], want: Any, whose: str = "") -> str:
    """What an answer lacks; empty if it is what the table says. ``whose``: words that a refusal must have, too."""
    try:
        answer = act()
    except MedleyError as e:
        text = " ".join(f"{type(e).__name__}: {e}".split())
        if not isinstance(want, Says):
            return text
        if not re.search(want.pattern, text, re.IGNORECASE):
            return f"refused, but not by {want.pattern}: {text}"
        return "" if whose in text else f"refused without {whose}: {text}"
    except Exception as e:
        return f"no message of Medley: {type(e).__name__}: {e}"
    if isinstance(want, Says):
        return f"not refused: {answer}"
    return "" if repr(answer) == repr(want) else f"{answer} instead of {want}"


def compare(act: Callable[[], Any], want: Any, whose: str = "") -> None:
    """Compare an answer with the table's."""
    text = difference(act, want, whose)
    assert not text, text


def plain(values: Any) -> list[Any]:
    return [v.item() if isinstance(v, np.generic) else v for v in np.asarray(values).tolist()]


def slow_but(quick: Any, rows: Any, doors: Any) -> list[Any]:
    """All cells; those of other rows and doors than the quick ones are slow."""
    marks = lambda row, door: () if row in quick or door in quick else pytest.mark.slow
    return [pytest.param(row, door, marks=marks(row, door)) for row in rows for door in doors]


def answer_of(result: md.Result, door: str, rows: Rows) -> list[Any]:
    """What is predicted for the rows, and the number of classes if the user said one."""
    predicted = plain(result.predict(inputs_for(door, rows)))
    return predicted if rows.classes is None else [*predicted, result.settings["classes"]]


def labelled(coding: Coding, values: Any) -> Rows:
    """Rows in which one of three columns says the label that ``predict`` must give back."""
    y = coding.y()
    test = coding.test() if coding.test is not None else y[:6]
    kinds = [*dict.fromkeys(map(str, values))]
    place = np.array([kinds.index(str(v)) for v in values]) if values else KIND
    X = {name: (place == k).astype(float) for k, name in enumerate(COLUMN)}
    return Rows(X, y, Rows({name: x[:6] for name, x in X.items()}, test), coding.classes)


@pytest.mark.parametrize(("row", "door"), slow_but(("pairs", "csv"), LABELS, (*DOORS, *NODES)))
def test_labels(row: str, door: str, tmp_path: Path) -> None:
    coding = LABELS[row]
    want = answer_at(door, coding.answer, coding.but)
    values = want if isinstance(want, list) else []
    rows = labelled(coding, values)
    classes = coding.classes or len(set(map(str, values))) + (coding.test is not None)
    family: Any = md.problems.Softmax(mu=1e-4)
    if door in NODES:
        names = sorted(set(values)) if door == "named node" else []
        act: Callable[[], Any] = lambda: reported(rows, "Softmax", names)
        want = sorted({repr(v) for v in values}) if values else want
    else:
        if door == "dicts":
            family = md.problems.Network(Joined(3, classes or 3))
        act = lambda: answer_of(trained(door, family, rows, tmp_path), door, rows)
        want = [*want, coding.classes] if isinstance(want, list) and coding.classes else want
    compare(act, want, WHOSE.get(door, "") if want == Says(ROW) else "")


@pytest.mark.parametrize(("row", "door"), slow_but(("pairs", "csv"), VALUES, (*DOORS, NODES[0])))
def test_values(row: str, door: str, tmp_path: Path) -> None:
    coding = VALUES[row]
    but = (*coding.but, But("dicts", "a linear model has one input"))
    want = answer_at(door, coding.answer, but)
    rows = labelled(coding, want if isinstance(want, list) else [])
    family = md.problems.LeastSquares(mu=1e-9)
    if door in NODES:
        want = want if isinstance(want, Says) else []
        compare(lambda: reported(rows, "LeastSquares"), want)
        return
    act = lambda: np.round(trained(door, family, rows, tmp_path, md.Newton()).predict(inputs_for(door, rows)), 3)
    compare(lambda: plain(act()), [*map(float, want)] if isinstance(want, list) else want)


COUNTS: dict[str, tuple[Any, Any]] = {
    # 0, 1, 2 alone at the first client and in the test rows; all rows have a gap, so they cannot be class numbers.
    "0, 1, 2 at one client": (of(0, 1, 2)[:12] + of(0, 1, 2, 7)[:12], "fits"),
    "0, 1, 2": (of(0, 1, 2), Says(r"look like classes.*floats.*regression=True")),
}
TABLES = ("csv", "parquet", "sql", "npz", "svmlight", "frame", "data=frame", "clients=frame")
"""Doors at which whole floats are whole numbers: pandas makes floats of a column of whole numbers with a gap."""


@pytest.mark.parametrize(("row", "door"), slow_but(("pairs", "frames", "csv"), COUNTS, DOORS))
def test_counts(row: str, door: str, tmp_path: Path) -> None:
    if door == "dicts":
        pytest.skip("a linear model has one input")
    y, want = COUNTS[row]
    X = {name: np.random.default_rng(k).normal(size=N) for k, name in enumerate(COLUMN)}
    y = np.array(y)
    fit = lambda y: trained(
        door,
        md.problems.LeastSquares(mu=1e-3),
        Rows(X, y, Rows({name: x[:6] for name, x in X.items()}, y[:6])),
        tmp_path,
        md.Newton(),
    )
    compare(lambda: "fits" if fit(y) else "", want)
    if door not in TABLES:  # the remedy for arrays; `test_remedies` has that for tables
        assert fit(y.astype(float)).status.ok


@pytest.mark.parametrize(("row", "door"), slow_but(("pairs", "frame"), INPUTS, DOORS))
def test_inputs(row: str, door: str, tmp_path: Path) -> None:
    make, answer, but = INPUTS[row]
    want = answer_at(door, KIND.tolist() if answer is None else answer, but)
    rows = Rows(make(), KIND)
    family: Any = md.problems.Network(Joined(3, 3)) if door == "dicts" else md.problems.Softmax(mu=1e-4)
    compare(
        lambda: plain(trained(door, family, rows, tmp_path).predict(inputs_for(door, rows))),
        want,
        WHOSE.get(door, ""),
    )


@pytest.mark.parametrize(("row", "door"), slow_but(("frame",), INPUTS, ("pairs", "frame")))
def test_predict(row: str, door: str, tmp_path: Path) -> None:
    make, answer, but = INPUTS[row]
    want = answer_at(door, KIND.tolist() if answer is None else answer, but)
    result = trained(door, md.problems.Softmax(mu=1e-4), Rows(spoilt(0.0), KIND), tmp_path)
    want = Says("prepare|get_dummies") if want == Says("prepare") else want
    want = Says(ROW) if row in ("missing", "infinite") else want
    compare(lambda: plain(result.predict(inputs_for(door, Rows(make(), KIND)))), want)


RULES = md.statistics.Rules(rows=1, events=1, parameters=1, exact=True)
THIRD = [1 / 3]
YES = ["no", "yes"]
CALLS = ("describe", "glm", "standardise", "encode")


def cells_of(make: Callable[[np.ndarray], list[Any]], dtype: str = "object", odd: Any = ...) -> Callable[[], Any]:
    """Three columns as `column` has them, in a frame's dtype; ``odd`` replaces the cell of row 5 of column b."""

    def columns() -> dict[str, Any]:
        X = {name: make((k == KIND).astype(int)) for k, name in enumerate(COLUMN)}
        X["b"] = [odd if k == 5 and odd is not ... else v for k, v in enumerate(X["b"])]
        return {name: pd.Series(objects(v) if dtype == "object" else v, dtype=dtype) for name, v in X.items()}

    return columns


AT = f"{ROW}.*{B}"
CELLS: dict[str, tuple[Callable[[], Any], Any]] = {
    "objects True, False": (cells_of(lambda x: [bool(v) for v in x]), None),
    "True, False with a gap": (cells_of(lambda x: [bool(v) for v in x], odd=None), Says(f"{AT}.*(empty|missing)")),
    "nullable integers": (cells_of(np.ndarray.tolist, "Int64"), None),
    "nullable integers with a gap": (cells_of(np.ndarray.tolist, "Int64", None), Says(AT)),
    "nullable integers beyond 2^53": (cells_of(lambda x: (x + BIG).tolist(), "Int64", None), Says("too many|" + AT)),
    "even integers beyond 2^53": (lambda: {"a": KIND * 1.0, "b": np.full(N, 2**54), "c": KIND % 2}, "read"),
    "Decimal": (cells_of(lambda x: [Decimal(f"{v}.50") for v in x.tolist()]), None),
    "a word among numbers": (cells_of(np.ndarray.tolist, odd="high"), Says(f"{AT}.*'high' is not a number")),
    "'NA' among numbers": (cells_of(np.ndarray.tolist, odd="NA"), Says(f"{AT}.*'NA' says .* na_values")),
    "1,5 among numbers": (cells_of(np.ndarray.tolist, odd="1,5"), Says(f"{AT}.*decimal comma")),
    "spaces among numbers": (cells_of(np.ndarray.tolist, odd="  "), Says(f"{AT}.*(empty|missing)")),
    "texts of numbers": (cells_of(lambda x: x.astype(str).tolist()), None),
    "a text of a number": (cells_of(np.ndarray.tolist, odd="0"), None),
    "thousands": (cells_of(lambda x: np.where(x == 1, "1 500", "1 000").tolist()), Says("thousands")),
    "times of day": (cells_of(lambda x: np.where(x == 1, "10:30", "9:30").tolist()), Says("time of day.*to_timedelta")),
    "complex": (cells_of(lambda x: (x + 1j).tolist()), Says("complex")),
    "periods": (lambda: dict.fromkeys(COLUMN, pd.period_range("2024-01", periods=N, freq="M")), Says("period.*month")),
    "lists": (cells_of(lambda x: [[1, v] for v in x]), Says(f"row 0.*{B[:-1]}|'a').*(a|type) list")),
    "too large": (cells_of(lambda x: (x * 1.0).tolist(), "float64", 1e300), Says(f"{AT}.*too large.*unit")),
}  # fmt: skip
"""Cells that only a frame can have, with the answer of the doors for training."""

SMALL = (THIRD, [0.0], THIRD, ["0", "1"])
GAP = ([8 / 23], [1 / 15], [8 / 23], ["0", "1"])
DIGITS = Says("too many digits")


def texts(remedy: str, *names: str) -> tuple[Any, ...]:
    """The answers for a column of texts: categories where the call may have them; the remedy for numbers."""
    return [*names], Says(rf"column 'b'.*not a number.*{remedy}"), Says("encode"), [*names]


STUDIES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("bool", "objects True, False"), (*SMALL[:3], ["False", "True"])),
    "True, False with a gap": (*GAP[:3], ["False", "True"]),
    **dict.fromkeys(("uint8", "float16", "sparse", "nullable integers"), SMALL),
    **dict.fromkeys(("missing", "nullable integers with a gap", "spaces among numbers"), GAP),
    **dict.fromkeys(("beyond 2^53", "nullable integers beyond 2^53"), (DIGITS,) * 3 + ([str(BIG), str(BIG + 1)],)),
    "even integers beyond 2^53": ([2.0**54], Says("collinear"), [2.0**54], [str(2**54)]),
    "Decimal": ([5 / 6], [0.0], [5 / 6], ["0.5", "1.5"]),
    **dict.fromkeys(("dates", "dates with a zone"), (Says("'b'.*is a date; .* from the same day"),) * 4),
    "durations": (Says("duration.*timedelta64"),) * 4,
    **dict.fromkeys(("categories", "text"), texts(r"C\(b\)", "no", "yes")),
    "dates as text": texts("date.*to_datetime", *sorted(dates().astype(str).tolist())),
    "decimal commas": texts("decimal comma", "0,5", "1,5"),
    "numbers with units": texts("unit", "60 kg", "70 kg"),
    "texts of numbers": texts("to_numeric", "0", "1"),
    "thousands": texts("thousands", "1 000", "1 500"),
    "times of day": texts("time of day", "10:30", "9:30"),
    "a text of a number": (Says(f"{AT}.*'0' is text among numbers.*string"),) * 4,
    **{
        row: (CELLS[row][1],) * 4
        for row in ("a word among numbers", "'NA' among numbers", "1,5 among numbers", "complex", "periods", "lists")
    },
    "too large": (*(CELLS["too large"][1],) * 3, Says("category of more than")),
    "infinite": (Says(f"{AT}.*not finite; make it empty"),) * 4,
}
"""What a study answers to the column b of ``INPUTS`` and ``CELLS``: mean or categories, slope, mean, categories.

It differs from the doors above where a study does more: text is categories, so numbers in texts are, too, and are no
numbers among numbers; missing cells are counted and left out; and categories are texts, of any number of digits.
"""


def levels(study: Any, call: str) -> list[str]:
    """The categories of the column "label" in a study's table, or in its preparation."""
    if call == "describe":
        return [*study.describe(["label"]).cells["label"][""].counts]
    return [*study.prepare(["label: encode"]).scaling.coding.columns[0].levels]


def studied(rows: Rows, call: str) -> list[Any]:
    """What a study of both clients says of the column b."""
    sites = {name: half.frame() for name, half in zip("uv", rows.halves, strict=True)}
    study = md.statistics.Study(sites, rules=RULES)
    if call == "glm":
        return [round(float(study.glm("label ~ b").params["b"]), 6) + 0.0]
    if call == "describe":
        cell = study.describe(["b"]).cells["b"][""]
        return [*cell.counts] if cell.counts is not None else [round(float(cell.mean), 6)]
    scaling = study.prepare([f"b: {call}"]).scaling
    return [*scaling.coding.columns[0].levels] if call == "encode" else [round(float(scaling.mean[0, 0]), 6)]


@pytest.mark.parametrize(("row", "call"), slow_but(("describe", "glm"), STUDIES, CALLS))
def test_studies(row: str, call: str) -> None:
    want = STUDIES[row][CALLS.index(call)]
    want = [round(v, 6) if isinstance(v, float) else v for v in want] if isinstance(want, list) else want
    compare(lambda: studied(Rows((INPUTS | CELLS)[row][0](), KIND), call), want)


@pytest.mark.parametrize(("row", "door"), slow_but(("frame", "prepared"), CELLS, ("frame", "frames", "prepared")))
def test_cells(row: str, door: str, tmp_path: Path) -> None:
    make, answer = CELLS[row]
    rows = Rows(make(), KIND)

    def act() -> Any:
        if door == "prepared":
            sites = {name: half.frame() for name, half in zip("uv", Rows(spoilt(0.0), KIND).halves, strict=True)}
            plan = [f"{name}: clip(-1e30, 1e30)" for name in COLUMN]
            X = md.statistics.Study(sites, rules=RULES).prepare(plan).frame(rows.frame()).to_numpy()
            return KIND.tolist() if answer is None and (X.argmax(1) == KIND).all() else "read"
        fed = DOORS[door](md.problems.Softmax(mu=1e-4), rows, tmp_path)
        if answer is not None:
            return "read"
        return plain(md.run(md.FedAvg(), fed, rounds=1, progress=False).predict(inputs_for(door, rows)))

    compare(act, KIND.tolist() if answer is None else answer)


def test_a_category_that_looks_like_a_number_or_is_missing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    for values, text in ((of("0,5", "1,5"), "taken for categories, but '0,5' is a number with a decimal comma"),
                         (of("F", "NA"), "'NA' is taken for a category; make such cells empty")):  # fmt: skip
        half = pd.DataFrame({"b": values})
        md.statistics.Study({"u": half, "v": half}, rules=RULES).describe(["b"])
        assert f"u, column 'b': {text}" in caplog.text or f"u, column 'b': its texts are {text}" in caplog.text


TEXTS = ("text with spaces", "text '01', '02'", "bytes", "a category without rows", "a class of one client")


@pytest.mark.parametrize("call", ["describe", "encode"])
@pytest.mark.parametrize("row", TEXTS)
def test_categories_of_studies(row: str, call: str) -> None:
    coding = LABELS[row]
    want = sorted({str(v) for v in coding.answer})
    sites = {name: half.frame() for name, half in zip("uv", labelled(coding, coding.answer).halves, strict=True)}
    compare(lambda: levels(md.statistics.Study(sites, rules=RULES), call), want)


def test_a_gap_is_not_closed_where_the_network_is_trained(tmp_path: Path) -> None:
    rows = Rows(spoilt(0.0), 2 * TWO)
    network = md.problems.Network(torch.nn.Linear(3, 3), start="module")
    for door in ("pairs", "frames", "csv", "data=pair"):
        with pytest.raises(md.BadData, match=r"outputs stand for classes already, but the labels 0, 2 .*pass classes="):
            DOORS[door](network, rows, tmp_path)
        result = trained(door, network, dataclasses.replace(rows, classes=3), tmp_path)
        assert result.settings["classes"] == 3
        loose = DOORS[door](md.problems.Network(torch.nn.Linear(3, 3)), rows, tmp_path)
        with pytest.raises(md.BadData, match=r"^run\(init=...\) begins at trained weights"):
            md.run(md.FedAvg(), loose, 1, init=result.state_dict())


def test_a_node_fits_counts_as_values() -> None:
    X = {name: np.random.default_rng(k).normal(size=N) for k, name in enumerate(COLUMN)}
    assert reported(Rows(X, KIND), "LeastSquares") == []
    with pytest.raises(md.BadData, match=r"^client 0: .* fits values, but the targets are text, such as '1'; .*=True"):
        reported(Rows(X, objects(of("1", "2"))), "LeastSquares")


def test_a_node_whose_codes_are_all_numbers_has_the_texts_of_the_recipe() -> None:
    X = {name: np.random.default_rng(k).normal(size=N) for k, name in enumerate(COLUMN)}
    assert reported(Rows(X, TWO + 1), "Softmax", ["1", "2", "2b"]) == ["'1'", "'2'", "'2b'"]
    with pytest.raises(md.BadData, match=r"the label '3' is not among \[clients\] labels"):
        reported(Rows(X, KIND + 1), "Softmax", ["1", "2", "2b"])


@pytest.mark.parametrize("kind", ["dok_matrix", "dok_array", "lil_matrix", "coo_array"])
def test_every_sparse_form_is_a_matrix(kind: str) -> None:
    dense = np.eye(3)[KIND]
    X = getattr(sparse, kind)(dense)
    fed = md.Federation(md.problems.Softmax(mu=1e-4), clients=[(X, KIND), (X, KIND)], test=(X, KIND))
    assert plain(md.run(md.FedAvg(), fed, rounds=1, progress=False).predict(X)) == KIND.tolist()


@pytest.mark.parametrize("door", ["pairs", "frames", "frame", "csv"])
def test_a_label_that_looks_missing_is_said(door: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    y = objects(of("nan", "a"))
    rows = Rows({"a": TWO.astype(float), "b": TWO * 2.0, "c": TWO * 3.0}, y)
    trained(door, md.problems.Logistic(mu=1e-2), rows, tmp_path)
    assert f"'nan' is taken for a class (its rows: {N // 2})" in caplog.text


ALIKE = {"compositions": ("Z\u00fcrich", "Zu\u0308rich"), "no width": ("a", "a\u200b"), "spaces": ("a b", "a\u00a0b")}
SEEN = ("pairs", "frame", "frames", "data=frame", "data=pair", "csv")


@pytest.mark.parametrize("door", SEEN)
@pytest.mark.parametrize("kind", ALIKE)
def test_labels_that_look_alike_are_said(
    kind: str, door: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = ALIKE[kind]
    rows = Rows({name: x for name, x in spoilt(0.0).items()}, objects(of(one, other, "c")))
    DOORS[door](md.problems.Softmax(mu=1e-2), rows, tmp_path)
    assert f"{one!a} (" in caplog.text
    assert f"{other!a} (" in caplog.text
    assert ("client " in caplog.text) == (door != "data=pair")


@pytest.mark.parametrize("door", SEEN)
def test_a_gap_is_said_once_where_users_see_it(door: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gap = SEEN.index(door) + 40  # said once in a process
    for _ in range(2):
        DOORS[door](md.problems.Logistic(mu=1e-2), Rows(spoilt(0.0), gap * TWO), tmp_path)
    assert [r.levelname for r in caplog.records if f"the labels 0, {gap} are numbered 0, 1" in r.message] == ["WARNING"]
    DOORS[door](md.problems.LeastSquares(mu=1e-2), Rows(spoilt(0.0), (gap + 50) * TWO), tmp_path)
    assert f"the labels 0, {gap + 50}" not in caplog.text


@pytest.mark.parametrize("door", SEEN)
def test_test_rows_have_the_training_rows_coding(door: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    test = Rows({name: x[:6] for name, x in spoilt(0.0).items()}, TWO[:6])
    fed = DOORS[door](md.problems.Softmax(mu=1e-2), Rows(spoilt(0.0), TWO + 1, test), tmp_path)
    assert (fed.data.classes, fed.data.labels) == (3, ())
    assert fed.data.y_test is not None
    assert (fed.data.y.tolist(), fed.data.y_test.tolist()) == ((TWO + 1).tolist(), TWO[:6].tolist())
    assert "the test rows have the labels 0, which no training row has" in caplog.text


def test_test_rows_by_client_are_answered_by_the_form_that_has_them() -> None:
    X, pairs = np.eye(3)[KIND], [(np.eye(3)[KIND], KIND)] * 2
    frames = [TABLE, TABLE]
    for clients, test in (
        (pairs, pairs),
        (pairs, dict(zip("uv", pairs, strict=True))),
        (frames, frames),
        (pairs, [md.datasets.Dataset(X, KIND)] * 3),
    ):
        with pytest.raises(md.BadData, match=r"^Federation\(test=...\): .* by client, .*\(X, y, X_test, y_test\)"):
            md.Federation(md.problems.Softmax(), clients=clients, test=test)
    for other in ({"X": X, "y": KIND}, {}, [], X, "later.csv"):
        with pytest.raises(md.BadData, match=r"^Federation\(test=...\): its type is .*; give a pair \(X, y\)"):
            md.Federation(md.problems.Softmax(), clients=pairs, test=other)
    tested = md.Federation(md.problems.Softmax(), clients=pairs, test=md.datasets.Dataset(X[:3], KIND[:3]))
    assert tested.data.y_test is not None
    assert tested.data.y_test.tolist() == [0, 1, 2]


@pytest.mark.parametrize("door", SEEN)
def test_values_have_no_classes(door: str, tmp_path: Path) -> None:
    rows = Rows(spoilt(0.0), KIND + 0.5, classes=2)
    for family in (md.problems.LeastSquares(), md.problems.Network(torch.nn.Linear(3, 1), loss="mse")):
        with pytest.raises(md.RecipeError, match=r"Federation\(classes=2\): .* fits values, not classes; leave it out"):
            DOORS[door](family, rows, tmp_path)


TABLE = Rows(spoilt(0.0), TWO).frame()
NAMES: dict[str, Callable[[Any], Any]] = {
    "clients=frame": lambda c: {"clients": TABLE.assign(client=c)},
    "frame": lambda c: {"clients": md.datasets.frame(TABLE.assign(site=c), "label", client="site")},
    "data=frame": lambda c: {"data": TABLE.assign(site=c), "partition": md.partitions.ByKey("site")},
    "Dataset": lambda c: {
        "data": md.datasets.Dataset(TABLE[[*COLUMN]], TWO, keys={"site": c}), "partition": md.partitions.ByKey("site"),
    },
    "named frames": lambda c: {"clients": {name: TABLE for name in dict.fromkeys(c)}},
}  # fmt: skip


@pytest.mark.parametrize("door", NAMES)
def test_names_of_clients(door: str, caplog: pytest.LogCaptureFixture) -> None:
    names = lambda column: md.Federation(md.problems.Logistic(), **NAMES[door](column)).client_names
    assert names(of(1.0, 2.0)) == ("1", "2")
    assert names(of(1.5, 2.0)) == ("1.5", "2.0")
    assert names(of(True, False)) in (("False", "True"), ("True", "False"))
    assert "client's name" not in caplog.text
    assert {*names(of("nan", "a"))} == {"nan", "a"}
    assert "'nan' is taken for a client's name" in caplog.text
    assert {*names(of(*pd.period_range("2024-01", periods=2, freq="M")))} == {"2024-01", "2024-02"}
    names(of("Bern", "BERN"))
    assert re.search("the clients '(Bern|BERN)' and '(Bern|BERN)' look alike", caplog.text)
    names(of(*ALIKE["no width"]))
    assert r"the clients 'a' and 'a\u200b' look alike, as 'a'" in caplog.text
    with pytest.raises(md.BadData, match=r"is no client's name|names no client|has no key"):
        names(of(None, "a"))


def test_raw_test_rows_are_prepared_like_the_training_rows() -> None:
    rng = np.random.default_rng(0)
    raw = pd.DataFrame({"age": rng.normal(60, 9, N), "sex": of("f", "m"), "label": of("no", "no", "yes")})
    raw.loc[3, "age"] = np.nan
    study = md.statistics.Study({"u": raw[:12], "v": raw[12:]}, rules=RULES)
    prepared = study.prepare(["age: median, standardise", "sex: encode"])
    data = md.datasets.frame(raw.assign(site=Rows({}, TWO).clients), "label", "site", prepared=prepared)
    later = raw[:6].assign(age=[70, np.nan, 50, 60, 61, 62], sex=["m", "f", "m", "f", "m", "f"])
    fed = md.Federation(md.problems.Logistic(mu=0.1), clients=data, test=later)
    want = md.datasets.frame(later, "label", prepared=prepared)
    assert fed.data.X_test is not None
    assert torch.equal(fed.data.X_test, want.X)
    assert fed.data.y_test is not None
    assert fed.data.y_test.tolist() == [0, 0, 1, 0, 0, 1]
    with pytest.raises(md.BadData, match="'sex'"):
        md.Federation(md.problems.Logistic(mu=0.1), clients=data, test=later.drop(columns="sex"))


def test_rows_in_other_forms_are_answered_by_a_remedy() -> None:
    result = md.run(md.FedAvg(), md.Federation(md.problems.Logistic(), clients=[TABLE, TABLE]), 1, progress=False)
    X = TABLE[[*COLUMN]]
    for given, says in (
        ({name: X[name].tolist() for name in COLUMN}, r"a dict of columns by name; .*pandas\.DataFrame\(X\)"),
        (X.to_dict("records"), r"a list of rows by name; .*pandas\.DataFrame\(X\)"),
        ((X, TWO), r"a tuple, .*; give the rows alone"),
        ("later.csv", "the text 'later.csv'; read the file first"),
    ):
        with pytest.raises(md.BadData, match=rf"^predict\(X\): X is {says}"):
            result.predict(given)
    for client in (True, 1.0):
        with pytest.raises(md.RecipeError, match="give a client's name as text, or its id as a whole number"):
            result.predict(X, client=client)
    with pytest.raises(md.RecipeError, match=r"datasets\.frame\(\) has no 'label'\. Did you mean 'target'\?"):
        md.datasets.frame(TABLE, label="label")  # type: ignore[call-arg]
    with pytest.raises(md.RecipeError, match=r"datasets\.frame\(\): target= is missing"):
        md.datasets.frame(TABLE)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (np.array(["a"] * N), r"row 0, column 'weights': a is text; give numbers"),
        (np.ones((N, 1)), r"there are 24 rows and weights \[24, 1\]; give one weight per row"),
        (np.full(N, np.nan), r"row 0: its weight is nan; give finite weights of at least 0"),
        (pd.array([*[1] * 23, None], dtype="Int64"), r"row 23: its weight is nan"),
    ],
)
def test_weights_are_refused_alike_in_tuples_and_in_data_sets(weights: Any, says: str) -> None:
    with pytest.raises(md.BadData, match=rf"^client 0(, |: ){says}"):
        md.Federation(md.problems.Logistic(), clients=[(np.eye(3)[KIND], TWO, weights)])
    with pytest.raises(md.BadData, match=rf"^data(, |: ){says}"):
        md.datasets.Dataset(np.eye(3)[KIND], TWO, weights=weights)


def only(y: Any) -> Any:
    """One client with these labels, its columns in a frame."""
    return [(TABLE[[*COLUMN]], y)]


class Unread:
    """A frame as polars has it before it is collected."""

    columns = ("a", "label")

    def __getitem__(self, name: str) -> Any:
        raise TypeError("it has no rows yet")

    def collect(self) -> None:
        pass


ODD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a word in a list": (
        lambda: {"clients": [([[1.0, 2, 3], [1, "a", 3]], [0, 1])]}, r"^client 0, row 1, column 1: 'a' is text",
    ),
    "a number as text in a list": (
        lambda: {"clients": [([[1.0, 2, 3], [1, "4", 3]], [0, 1])]}, r"row 1, column 1: '4' is a number as text",
    ),
    "a generator": (lambda: {"clients": only(v for v in KIND)}, "^client 0: y is a generator.* give a list"),
    "a set": (lambda: {"clients": only({0, 1})}, "^client 0: y is a set.* give a list"),
    "values of a dict": (
        lambda: {"clients": [({0: KIND}.values(), KIND)]}, "^client 0: X is a dict_values.* give a list",
    ),
    "intervals": (lambda: {"clients": only(pd.cut(KIND, [-1, 0, 1, 2]))}, r"row 0.*type Interval.*y\.astype\(str\)"),
    "fractions in 8 bits": (
        lambda: {"clients": [(torch.eye(3).to(torch.float8_e4m3fn)[KIND], KIND)]}, r"^client 0: X is in float8.*float",
    ),
    "rows in an array of objects": (
        lambda: {"clients": [(objects([[1, 2]] * N), KIND)]}, r"^client 0, row 0: .* is a row .*numpy\.stack\(",
    ),
    "a list of dicts": (
        lambda: {"clients": [([{"a": 1}] * N, KIND)]}, r"^client 0, row 0: .* by name .*pandas\.DataFrame\(",
    ),
    "decimals as weights": (
        lambda: {"clients": [(np.eye(3)[KIND], KIND, [Decimal(1)] * N)]},
        r"^client 0, row 0, column 'weights': .*numpy\.asarray\(weights, float\)",
    ),
    "keys of several parts": (
        lambda: {"clients": {("u", 1): TABLE, ("v", 2): TABLE}}, r"\('u', 1\) is no client's name; .*'_'\.join",
    ),
    "a frame that is not read": (lambda: {"clients": [Unread()]}, "^client 0, column 'a': .*TypeError: .*collect"),
    "periods": (lambda: {"clients": only(pd.period_range("2024-01", periods=N, freq="M"))}, "row 0.*period.*month"),
    "True, False beside numbers": (
        lambda: {"clients": [*only(TWO == 1), *only(TWO)]}, r"^client 1: .*True and False.*y\.astype\(float\)",
    ),
    "words beside True, False": (
        lambda: {"clients": [*only(of("no", "yes")), *only(TWO == 1)]}, "^client 1: .*texts.*one word for each class",
    ),
    "columns of one name": (
        lambda: {"clients": [(TABLE[[*COLUMN]], TWO), (TABLE[["a", "b", "b"]], TWO)]}, "^client 1: .*two columns 'b'",
    ),
    "columns of one name in one frame": (
        lambda: {"clients": pd.concat([TABLE, TABLE[["b"]]], axis=1)},
        r"^Federation\(clients=frame\): .*two columns 'b'",
    ),
    "names of two levels": (
        lambda: {"clients": [pd.concat({"x": TABLE}, axis=1)]}, "^client 0: .*'x', 'a'.* 2 levels.*join",
    ),
    "the client as index": (
        lambda: {"clients": TABLE.assign(client=Rows({}, TWO).clients).set_index("client")},
        r"^Federation\(clients=frame\): .*its index 'client', frame\.reset_index\(\)",
    ),
    "a word in one frame": (
        lambda: {"clients": Rows(cells_of(np.ndarray.tolist, odd="hi")(), TWO).frame(client=True)},
        r"^Federation\(clients=frame\), row 5, column 'b': 'hi' is not a number",
    ),
    "a client without rows": (
        lambda: {"clients": {"Bern": TABLE, "Basel": TABLE[:0]}}, "^client 'Basel': .*leave it out",
    ),
    "a very long name": (lambda: {"clients": {"B" * 5000: TABLE[:0]}}, "^client 'B{99}: "),
}  # fmt: skip


@pytest.mark.parametrize("row", ODD)
def test_odd_values_are_answered_by_place_and_remedy(row: str) -> None:
    make, pattern = ODD[row]
    with pytest.raises(MedleyError, match=pattern) as e:
        md.Federation(md.problems.Softmax(), **make())
    assert len(str(e.value)) < 1000


@pytest.mark.parametrize("door", ["pairs", "npz", "data=pair", "lists"])
@pytest.mark.parametrize(("y", "answer"), [(of("no", "yes"), ["no", "yes"]), (TWO, [[0], [1]])])
def test_a_column_of_labels_keeps_its_names(door: str, y: Any, answer: list[Any], tmp_path: Path) -> None:
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    family = md.problems.Network(torch.nn.Linear(3, 1), loss=loss)
    rows = Rows({name: TWO * 2.0 - 1 for name in COLUMN}, np.array(y)[:, None])
    assert trained(door, family, rows, tmp_path).predict(inputs_for(door, rows)[:2]).tolist() == answer


def test_a_loss_of_ones_own_takes_a_data_set_of_0_and_1() -> None:
    loss = lambda outputs, y: torch.nn.functional.binary_cross_entropy_with_logits(outputs.squeeze(1), y.float())
    family = md.problems.Network(torch.nn.Linear(3, 1), loss=loss)
    fed = md.Federation(family, data=md.datasets.Dataset(np.eye(3)[KIND], TWO), partition=md.partitions.IID(2))
    assert fed.data.y.tolist() == TWO.tolist()


def test_texts_of_one_number_are_said(caplog: pytest.LogCaptureFixture) -> None:
    md.Federation(md.problems.Softmax(), clients=[*only(of("1", "2")), *only(of("1.0", "2.0"))])
    assert "the labels '1', '1.0', '2', '2.0' are different classes; if two are spellings" in caplog.text
