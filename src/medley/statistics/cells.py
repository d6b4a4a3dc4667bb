"""A site's frame: its columns as numbers and as categories. Only this module imports pandas and formulaic."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from ..contract import BadData, RecipeError
from ..contract.text import shown
from ..rows.coding import text
from ..rows.numbers import SEPARATED
from ..runtime.versions import install

DATES = "(date - pandas.Timestamp('2024-01-01')).dt.days, from the same day at all sites"

DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d.*)?")
"""Texts that are dates."""

NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")
"""Texts that are numbers, with a decimal point or comma."""

TIMES = {
    "M": f"is a date; compute a number of days in each site's data, {DATES}",
    "m": "is a duration; compute a number in each site's data, such as duration / np.timedelta64(1, 'D')",
}
"""Kinds of columns of times, with the end of a sentence about each."""


def needed(package: str) -> Any:
    """The module of one of the extra's packages. Raises RecipeError if the package is not installed."""
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as e:
        raise RecipeError(f"medley.statistics needs {package} ({e}): {install('statistics')}") from e


def table(data: Any, site: str) -> Any:
    """A site's rows as a pandas frame: names of columns, and texts, without spaces at their ends; an empty text is
    missing. Raises BadData for data without columns or rows.
    """
    pandas = needed("pandas")
    if hasattr(data, "to_pandas"):
        data = data.to_pandas()
    elif isinstance(data, Mapping):
        data = pandas.DataFrame(dict(data))
    if not isinstance(data, pandas.DataFrame):
        raise BadData(f"{site}: a {type(data).__name__} is no frame; give a pandas DataFrame, or columns in a dict")
    out = data.reset_index(drop=True)
    out.columns = [str(c).strip() for c in out.columns]
    if not len(out) or out.columns.has_duplicates:
        raise BadData(f"{site}: the frame has {'no rows' if not len(out) else 'two columns of one name'}")
    return out.assign(**{c: _trimmed(out[c]) for c in out.columns if _has_texts(out[c])})


def _has_texts(column: Any) -> bool:
    kind, types = getattr(column.dtype, "categories", column).dtype, needed("pandas").api.types
    return bool(types.is_object_dtype(kind) or types.is_string_dtype(kind))


def _is_number(value: Any) -> bool:
    """Whether an object is a number that a float holds; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return False
    return bool(abs(float(value)) < 2**53 or value == float(value))


def _trimmed(column: Any) -> Any:
    """A column of objects that are all numbers, as floats; else its texts without spaces at their ends, None for empty
    ones. The same column if nothing changes.
    """
    pandas = needed("pandas")
    values, missing = column.astype(object).tolist(), column.isna().to_numpy()
    present = [v for v, m in zip(values, missing, strict=True) if not m]
    if present and all(map(_is_number, present)):
        return pandas.Series([math.nan if m else float(v) for v, m in zip(values, missing, strict=True)], column.index)
    trimmed = [(text(v) or None) if isinstance(v, str | bytes) else v for v in values]
    if all(a is b or a == b for a, b in zip(values, trimmed, strict=True) if isinstance(a, str | bytes)):
        return column
    return pandas.Series(trimmed, index=column.index, dtype=object)


def is_numeric(column: Any) -> bool:
    """Whether a column holds numbers, or True and False."""
    return bool(needed("pandas").api.types.is_numeric_dtype(column.dtype))


def numbers(frame: Any, name: str, site: str, remedy: str = "write C({}) for categories") -> np.ndarray:
    """A column as floats, missing as NaN.

    Raises BadData for text, with this remedy, for dates, for infinities, and for whole numbers that no float holds.
    """
    column = frame[name]
    if not is_numeric(column) or column.dtype.kind == "c":
        refuse_times(column, name, site, as_text=True)
        raise BadData(f"{site}: {name} is not a number; {_numeric(column) or remedy.format(name)}")
    values: np.ndarray = column.to_numpy(dtype=float, na_value=np.nan)
    if np.isinf(values).any():
        raise BadData(f"{site}: {name} is infinite in a row; leave it empty, or recode it")
    if column.dtype.kind in "iu" and (np.abs(values) >= 2.0**53).any():
        raise BadData(f"{site}: {name} has whole numbers with too many digits for a float; subtract a constant there")
    return values


def _numeric(column: Any) -> str:
    """The remedy for a column of texts that are numbers; empty for another."""
    values = [v for v in column.dropna() if isinstance(v, str)]
    if not values or len(values) < column.notna().sum() or not all(NUMBER.fullmatch(v) for v in values):
        return ""
    comma = any("," in v for v in values)
    return "its texts are numbers" + (
        f" with a decimal comma; read the file there with pandas.read_csv(path, {SEPARATED}, decimal=',')"
        if comma
        else "; convert them in each site's data, pandas.to_numeric(column)"
    )


def refuse_times(column: Any, name: str, site: str, as_text: bool = False) -> None:
    """Raise BadData for dates and durations; with ``as_text``, for a column of texts that are all dates, too."""
    values = column.dropna()
    kind = column.dtype.kind if column.dtype.kind in "mM" else ""
    kind = "M" if str(column.dtype).startswith("period") else kind
    if column.dtype == object and len(values):
        kind = "M" if isinstance(values.iloc[0], date | time) else "m" if isinstance(values.iloc[0], timedelta) else ""
    if not kind and as_text and len(values) and all(isinstance(v, str) and DATE.fullmatch(v) for v in values):
        kind = "M"
    if kind:
        raise BadData(f"{site}: {name} {TIMES[kind]}")


def texts(frame: Any, name: str, site: str) -> np.ndarray:
    """A column as categories, by their texts: whole numbers as "1", others as they are; None where missing.

    Raises BadData for dates and for infinities.
    """
    column = frame[name]
    refuse_times(column, name, site)
    missing = column.isna().to_numpy()
    if column.dtype.kind == "f" and np.isinf(column.to_numpy(dtype=float, na_value=np.nan)).any():
        raise BadData(f"{site}: {name} is infinite in a row; leave it empty, or recode it")
    return np.array([None if m else text(v) for m, v in zip(missing, column.tolist(), strict=True)], dtype=object)


def printed(frame: Any, **how: Any) -> str:
    """A frame as text; names of rows and columns, which other sites chose, command nothing in a terminal."""
    name = lambda v: shown(v) if isinstance(v, str) else v
    return str(frame.rename(index=name, columns=name).to_string(**how))


def in_sequence(levels: Sequence[str]) -> list[str]:
    """Levels sorted as numbers if all are numbers, else as texts."""
    try:
        return sorted(levels, key=float)
    except ValueError:
        return sorted(levels)
