"""A site's frame: its columns as numbers and as categories, under the rules of `rows.numbers`.

An error about one cell names its row, so that it stays in the site's own log; an error about a column quotes no cell.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from ..contract import BadData, Place
from ..contract.text import shown
from ..rows import numbers as cells
from ..rows.coding import text
from .extra import needed

log = logging.getLogger("medley")

FLOATS = {float, np.longdouble}


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
    columns = {c: out[c] for c in out.columns}
    plain = {c: _plain(column) for c, column in columns.items() if _has_objects(column)}
    changed = {c: column for c, column in plain.items() if column is not columns[c]}
    return out.assign(**changed) if changed else out


def _has_objects(column: Any) -> bool:
    kind = getattr(column.dtype, "categories", column).dtype
    types = needed("pandas").api.types
    return bool(types.is_object_dtype(kind) or types.is_string_dtype(kind))


def _plain(column: Any) -> Any:
    """A column of objects that are all numbers, or True and False, in a type of these; else its texts without spaces at
    their ends, None for empty ones. The same column if nothing changes.
    """
    pandas = needed("pandas")
    objects = column.astype(object).tolist()
    names = {v: text(v) or None for v in {v for v in objects if isinstance(v, str | bytes)}}  # each text once
    values = [names[v] if isinstance(v, str | bytes) else None if cells.is_missing(v) else v for v in objects]
    present = [v for v in values if v is not None]
    if all(isinstance(v, Real | Decimal | np.bool_) and not cells.inexact(v) for v in present):
        bools = present and all(isinstance(v, bool | np.bool_) for v in present)
        return pandas.Series(values, column.index, dtype="boolean" if bools else float)
    changed = any(a != b for a, b in names.items())
    return pandas.Series(values, column.index, dtype=object) if changed else column


def factorized(column: Any) -> tuple[np.ndarray, Any]:
    """A number for each cell of a column, -1 where it is missing, and the distinct cells, in the order of numbers."""
    factorize = needed("pandas").factorize
    try:
        codes, kinds = factorize(column)
    except TypeError:  # lists, for example
        codes, kinds = factorize(column.astype(str))
    return np.asarray(codes), kinds


def is_numeric(column: Any) -> bool:
    """Whether a column holds numbers, or True and False."""
    if column.dtype == object:
        return all(isinstance(v, Real | Decimal) or cells.is_missing(v) for v in column.tolist())
    return bool(needed("pandas").api.types.is_numeric_dtype(column.dtype))


def is_text(frame: Any, name: str, site: str) -> bool:
    """Whether a column is categories, since nothing says so but its cells; the log has texts that look like numbers.

    Raises BadData, naming the row, for a column of numbers and texts.
    """
    column = frame[name]
    if is_numeric(column):
        return False
    kinds = sorted({*texts(frame, name, site)} - {None})
    first = cells.kind_of_text(kinds[0]) if kinds else ""
    if first and "unit" not in first and all(map(cells.kind_of_text, kinds)):  # "3a" may well be a category
        log.warning("%s, column %r: its texts are taken for categories, but %r %s", site, name, kinds[0], first)
    for category in kinds:
        if category.lower() in cells.MISSING and not {"+", "-"} <= {*kinds}:
            log.warning(
                "%s, column %r: %r is taken for a category; make such cells empty if their value is missing",
                site, name, category,
            )  # fmt: skip
    return True


def numbers(frame: Any, name: str, site: str, remedy: str = "write C({}) for categories") -> np.ndarray:
    """A column as floats, missing as NaN.

    Raises BadData for text, with this remedy, for dates, and, naming the row, for infinities, and for whole numbers
    that no float holds.
    """
    column = frame[name]
    place = Place(site, column=name)
    gone = column.isna().to_numpy()
    kind = getattr(column.dtype, "numpy_dtype", None)
    if not is_numeric(column):
        values = texts(frame, name, site)[~gone].tolist()
        kinds = {cells.kind_of_text(v) for v in values[:100]}
        if all(map(cells.is_number, values)):
            remedy = (
                "its texts are numbers; convert them in each site's data, pandas.to_numeric(column.astype('string'))"
            )
        elif "" not in kinds:
            remedy = f"its text {kinds.pop()}"
        raise BadData(f"it is not a number; {remedy.format(name)}", place=place)
    if gone.any() and kind is not None:
        column = column.fillna(kind.type(0))
    filled = np.array(column.to_numpy(dtype=kind))
    filled[gone] = 0
    try:
        values = cells.numbers(filled, place)
    except BadData as e:
        raise e.at(place.at(None if e.row is None else int(column.index[e.row]))) from None
    values[gone] = np.nan
    return values


def texts(frame: Any, name: str, site: str) -> np.ndarray:
    """A column as categories, by their texts: whole numbers as "1", others as they are; None where missing.

    Raises BadData for dates and, naming the row, for infinities, and for texts among numbers.
    """
    column = frame[name]
    place = Place(site, column=name)
    values = column.tolist()
    if not {*map(type, values)} <= {str, int, bool}:
        cells.refuse_kind(np.asarray(column), place)
        values = [None if m else v for m, v in zip(column.isna().to_numpy(), values, strict=True)]
    types = {*map(type, values)} - {type(None)}
    numeric = {t for t in types if issubclass(t, Real | Decimal)}
    infinite = [isinstance(v, float | np.floating) and abs(v) == math.inf for v in values] if types & FLOATS else []
    if any(infinite):
        row = infinite.index(True)
        raise cells.no_number(values[row], place.at(int(column.index[row])))
    odd = types - numeric if numeric else types & {list, tuple, dict, set, np.ndarray}
    if odd:
        row = next(k for k, v in enumerate(values) if type(v) in odd)
        raise _no_text(values[row], place.at(int(column.index[row])), bool(numeric))
    if types == {str}:  # each text once
        names = {v: text(v) for v in {*values} if v is not None}
        return np.array([names.get(v) for v in values], dtype=object)
    return np.array([None if v is None else text(v) for v in values], dtype=object)


def _no_text(value: Any, place: Place, among_numbers: bool) -> BadData:
    """The error of a cell that is no category, or a text among numbers."""
    convert = f"make all of the column numbers, or all texts, frame[{place.column!r}].astype('string')"
    if not among_numbers or not isinstance(value, str) or cells.is_number(value):
        kind = "text among numbers" if among_numbers and isinstance(value, str) else f"a {type(value).__name__}"
        return BadData(f"{value!r:.40} is {kind}; {convert}", place=place)
    return cells.no_number(value, place, convert)


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
