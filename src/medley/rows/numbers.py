"""Cells and columns as numbers: what a value means is the same at every door for data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

from ..contract.errors import BadData
from ..contract.place import Place

ROUNDED = (
    "has too many digits for a float; subtract a constant from the column, or leave it out, or name it in client= or "
    "keys= if it says whose a row is"
)
"""The end of a sentence about a whole number that no float64 holds."""

DATE = re.compile(r"(\d{1,2}[./]\d{1,2}[./]\d{4}|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4})([ T]\d.*)?")
"""Texts that are dates; the first kind may begin with the day or with the month."""

MONTH = r"(jan|feb|mar|mär|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-zäé]*\.?"
WORDED = re.compile(rf"\d{{1,2}}[ .-]*{MONTH}[ ,-]*\d{{2,4}}|{MONTH} \d{{1,2}},? \d{{4}}", re.IGNORECASE)
"""Dates with the month's name, such as 5-Jan-2024."""

CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d.*)?")
LASTING = re.compile(r"-?\d+ days?( .*)?|P(\d+D)?(T[\d.HMS]+)?")
"""Texts that are times of day, and durations as pandas or ISO 8601 writes them."""

MEASURED = re.compile(r"\s*[^\w\s.+-]?\s*[-+]?\d+(\.\d*)?\s*([^\w\s.+-]|[a-zA-Zµ]{1,3})?\s*")
"""Numbers with a sign or a unit, such as "12%", "$3.50" or "70 kg"."""

FLAGS = {"True": 1.0, "False": 0.0, "TRUE": 1.0, "FALSE": 0.0, "true": 1.0, "false": 0.0}
"""Booleans as pandas, spreadsheets and JSON write them."""

MISSING = {"na", "n/a", "n.a.", "nan", "nat", "<na>", "null", "none", "?", "-", ".", "unknown", "missing"}
MISSING |= {
    "--",
    "---",
    "n.d.",
    "#n/d",
    "#nv",
    "#wert!",
    "#valeur!",
    "#n/a",
    "#na",
    "#null!",
    "#value!",
    "#ref!",
    "#div/0!",
    "#num!",
    "#name?",
    "k.a.",
    "k. a.",
    "keine angabe",
    "n.v.",
    "non renseigné",
}
"""Texts, in small letters, by which files say that there is no value."""

TOKENS = "for sentences give token ids, datasets.tokens.Vocabulary.of(texts, size=5000).encode(texts, length=40)"

DAYS = (
    "(pandas.to_datetime(t, utc=True) - pandas.Timestamp('2024-01-01', tz='UTC')) / np.timedelta64(1, 'D'), from the "
    "same day for all clients"
)

REMEDIES = {
    "c": "is complex; give real and imaginary parts in separate columns",
    "M": f"is a date; give numbers, such as {DAYS}",
    "m": "is a duration; give numbers, such as t / np.timedelta64(1, 's')",
    "T": "is a time of day; give numbers, such as pandas.to_timedelta(t.astype(str)) / np.timedelta64(1, 'h')",
    "P": "is a period; give numbers, such as t.dt.year * 12 + t.dt.month",
    "U": "is text; code categories in frames by medley.statistics.Study(...).prepare(['sex: encode']) "
    f"and datasets.frame(..., prepared=...), or as columns of 0 and 1; {TOKENS}",
    "S": "is text in bytes; give numbers",
    "V": "has named fields; give one array of numbers, numpy.lib.recfunctions.structured_to_unstructured(...)",
}
"""Kinds of NumPy arrays that are not numbers, with the end of a sentence about each."""


def is_missing(value: Any) -> bool:
    """Whether a cell has no value: None, NaN, NaT, pandas.NA, or a text of spaces."""
    if isinstance(value, str | bytes):
        return not value.strip()
    if isinstance(value, float | np.floating | np.datetime64 | np.timedelta64 | Decimal):
        return bool(value != value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def table(columns: Mapping[str, np.ndarray], place: Place, missing: bool = False) -> np.ndarray:
    """Columns as float64 [n, columns]. Raises BadData, naming row and column, for cells that are no numbers.

    Args:
        missing: whether empty cells become NaN; default False
    """
    return np.stack([numbers(c, place.at(column=name), columns, missing) for name, c in columns.items()], 1)


def numbers(
    column: np.ndarray, place: Place, others: Mapping[str, np.ndarray] | str = "", missing: bool = False
) -> np.ndarray:
    """A column's cells as float64.

    Args:
        others: all columns of the table by name, so that the error can say how many are text; or the remedy itself
        missing: whether empty cells become NaN; default False

    Raises BadData, naming the row, for dates, for cells that are not numbers, for nan and infinity, and for
    whole numbers that no float64 holds.
    """
    refuse_kind(column, place)
    refuse_inexact(column, place)
    empty = np.zeros(len(column), bool)
    if missing and column.dtype.kind in "OUSf":
        empty = np.isnan(column) if column.dtype.kind == "f" else np.array([*map(is_missing, column.tolist())], bool)
        column = np.where(empty, np.nan, column.astype(object)) if column.dtype.kind != "f" else column
    try:
        if column.dtype.kind in "OU" and any(isinstance(v, str) and "_" in v for v in column.tolist()):
            raise ValueError  # Python reads "2024_01" as a number
        values = column.astype(np.float64)
    except (TypeError, ValueError):
        row = next(i for i, v in enumerate(column.tolist()) if not is_number(v))
        raise no_number(column[row], place.at(row), others) from None
    bad = ~(np.abs(values) <= np.finfo(np.float32).max) & ~empty
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        if np.isfinite(values[row]):
            raise BadData(f"{values[row]:g} is too large for float32; use another unit", place=place.at(row))
        raise no_number(column[row], place.at(row), others)
    return values


def refuse_kind(column: np.ndarray, place: Place) -> None:
    """Raise BadData for a column of dates, durations, complex numbers, or cells with fields."""
    kind: str = column.dtype.kind
    if kind == "O":  # pandas gives dates with a time zone, and Python's own, as objects; one of each type tells
        kind = next(filter(None, map(kind_of_object, {type(v): v for v in column.tolist()}.values())), "O")
    if kind in "cMmPTV":
        raise BadData(f"the column {REMEDIES[kind]}, or leave the column out", place=place)


def kind_of_object(value: Any) -> str:
    """The key in `REMEDIES` of an object that is never a number; empty for others."""
    if isinstance(value, date | time | timedelta) and not is_missing(value):
        return "m" if isinstance(value, timedelta) else "T" if isinstance(value, time) else "M"
    return "c" if isinstance(value, complex) else "P" if type(value).__name__ == "Period" else ""


def refuse_inexact(values: Any, place: Place) -> None:
    """Raise BadData, naming the row, for a whole number [n, ...] that no float64 holds, so that it would be rounded."""
    if values.dtype.kind in "OU":
        bad = np.array([inexact(v) for v in values.ravel().tolist()], bool).reshape(values.shape)
    elif values.dtype.kind in "iu" and values.itemsize == 8:
        big = (values > 2**53) | (values < -(2**53))
        bad = np.zeros(values.shape, bool)
        bad[big] = [inexact(v) for v in values[big].tolist()]
    else:
        return
    if bad.any():
        row, *rest = (int(k) for k in np.argwhere(bad)[0])
        raise BadData(f"{values[(row, *rest)]} {ROUNDED}", place=place.at(row, *rest[:1]))


def inexact(value: Any) -> bool:
    """Whether a value, or a text, is a whole number that no float64 holds."""
    if isinstance(value, str):
        value = int(value) if len(value) > 15 and re.fullmatch(r"\s*[-+]?\d{1,300}\s*", value) else 0
    elif isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        value = int(value)
    return isinstance(value, int) and abs(value) > 2**53 and (value.bit_length() > 1000 or int(float(value)) != value)


def no_number(value: Any, place: Place, others: Mapping[str, np.ndarray] | str = "") -> BadData:
    """The error of a cell that is not a finite number, with the remedy; for ``others`` see `numbers`."""
    value = value.decode(errors="replace") if isinstance(value, bytes) else value
    value = str(value) if isinstance(value, str) else value  # NumPy's texts show their type
    text = str(value).strip()
    name = place.column if isinstance(place.column, str) else "age"
    fill = f"fill it in, for example by medley.statistics.Study(...).prepare(['{name}: median']), or drop the row"
    if is_missing(value):
        shown = "it is empty" if isinstance(value, str) or value is None else f"{value} is not a number"
        problem = f"{shown}; {fill}"
    elif not isinstance(value, str | float | np.floating):
        problem = f"{value!s:.60} is of the type {type(value).__name__}; give numbers"
        if isinstance(value, list | tuple | np.ndarray | Mapping):
            problem += ", a column for each in it, pandas.DataFrame(column.tolist())"
    elif text.lower() in MISSING:
        problem = (
            f"{value!r} says that there is no number; make it empty, pandas.read_csv(path, na_values=[{text!r}]), "
            f"and {fill}"
        )
    elif special := kind_of_text(text):
        problem = f"{value!r} {special}"
    elif is_number(value):
        shown = repr(value) if isinstance(value, str) else str(value)
        problem = f"{shown} is not finite; make it empty, and {fill}"
    else:
        problem = f"{value!r} is not a number; {others if isinstance(others, str) else _code(text, name, others)}"
        if problem.endswith(")") and place.whose.startswith("datasets."):  # the calls that have these arguments
            problem += "; if it is no input, name it in client= or keys="
    return BadData(problem, place=place)


SEPARATED = "sep=None, engine='python'"
"""Arguments of pandas.read_csv that find a file's separator, which beside decimal commas is seldom a comma."""

GROUPED = re.compile(r"[-+]?\d{1,3}(?:(?:[ \u00a0\u202f'\u2019]\d{3})+(?:[.,]\d+)?|(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})")
"""Numbers with spaces, apostrophes or points between thousands."""


def kind_of_text(value: str) -> str:
    """The end of a sentence about a text that is a time, or a number in another form; empty for other texts."""
    text = value.strip()
    date_of = DATE.fullmatch(text)
    if date_of or WORDED.fullmatch(text):
        either = date_of and date_of[1][-5:-4] in ("/", ".")
        order = "; add dayfirst=True to to_datetime where days come before months" if either else ""
        return f"is a date; give numbers, such as {DAYS}{order}"
    if CLOCK.fullmatch(text):
        seconds = "" if text.count(":") > 1 else " + ':00'"
        return f"is a time of day; give numbers, such as pandas.to_timedelta(t{seconds}) / np.timedelta64(1, 'h')"
    if LASTING.fullmatch(text) and any(c.isdigit() for c in text):
        return "is a duration; give numbers, such as pandas.to_timedelta(t) / np.timedelta64(1, 's')"
    if re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?", text):
        return (
            "is a number with commas between thousands, or with a decimal comma; give datasets.frame("
            f"pandas.read_csv(path, {SEPARATED}, thousands=',')), or decimal=',', or write it without"
        )
    if GROUPED.fullmatch(text):
        return "is a number with signs between thousands; take those out in every row of the column"
    if re.fullmatch(r"[-+]?\d+,\d+", text):
        return (
            "is a number with a decimal comma; write a point, or datasets.frame("
            f"pandas.read_csv(path, {SEPARATED}, decimal=','))"
        )
    if re.fullmatch(r"[\u2010-\u2015\u2212]\s*\d[\d.,]*", text):
        return "has another sign for minus; write '-', column.str.replace(r'[\u2010-\u2015\u2212]', '-', regex=True)"
    if re.fullmatch(r"\(\s*\d[\d.,]*\s*\)", text):
        return "is a number in brackets, as accounts write negative ones; write it with '-'"
    if MEASURED.fullmatch(text) and any(c.isdigit() for c in text) and not is_number(text):
        return "is a number with a sign or a unit; take that off in every row of the column"
    return ""


def _code(text: str, name: str, columns: Mapping[str, np.ndarray]) -> str:
    """What to do with a column of text among these."""
    if len(text.split()) > 3:
        return TOKENS
    odd = {n: sum(not is_number(v) for v in c.tolist()) for n, c in columns.items() if c.dtype.kind in "OUS"}
    names = [n for n, count in odd.items() if 2 * count > len(columns[n])]
    if name not in names:
        return "mend it or drop the row"
    note = "" if names[:1] == names else f" ({', '.join(map(repr, names))} hold text)"
    return (
        f"code such columns{note} as numbers: give prepared=medley.statistics.Study(...).prepare(["
        f"'{name}: encode', ...]), or pandas.get_dummies(frame, columns={names or [name]})"
    )


def is_number(value: Any) -> bool:
    """Whether Python can make a float of a value; text with underscores does not count."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not (isinstance(value, str) and "_" in value)
