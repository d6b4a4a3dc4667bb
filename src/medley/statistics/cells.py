"""A site's frame: its columns as numbers and as categories, under the rules of `rows.numbers`.

An error about one cell names its row, so that it stays in the site's own log; an error about a column quotes no cell.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import wraps
from numbers import Real
from typing import Any, TypeVar, cast

import numpy as np

from ..contract import BadData, Place
from ..contract.text import shown
from ..rows import numbers as cells
from ..rows.coding import text
from .extra import needed

log = logging.getLogger("medley")

FLOATS = {float, np.longdouble}

F = TypeVar("F", bound=Callable[..., np.ndarray])


class Columns:
    """Rows of a frame whose columns are read once: what a `cached_column` function reads of all rows stays in a cache.

    Args:
        frame: all rows; nobody changes it
        used: these rows, bool [n]; None for all
        cache: what has been read
        site: what a column `site` has in each row, which the frame lacks; empty if there is none, or the frame has it
    """

    def __init__(
        self, frame: Any, used: np.ndarray | None = None, cache: dict[Any, Any] | None = None, site: str = ""
    ) -> None:
        self.frame, self.used, self.site = frame, used, site
        self.cache: dict[Any, Any] = {} if cache is None else cache

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        return [*self.frame.columns, *(["site"] if self.site else [])]

    @property
    def index(self) -> Any:
        """The index of all rows."""
        return self.frame.index

    def at(self, used: np.ndarray | None) -> Columns:
        """Some of all rows, bool [n]; None for all."""
        return Columns(self.frame, None if used is None or used.all() else used, self.cache, self.site)

    def __reduce__(self) -> Any:
        return Columns, (self.frame, self.used, None, self.site)  # what has been read is not sent

    def __getitem__(self, name: str) -> Any:
        if name not in self.cache:
            whole = self.frame.assign(site=self.site) if name == "site" and self.site else self.frame
            self.cache[name] = whole[name]
        return self.cache[name] if self.used is None else self.cache[name][self.used]

    def __len__(self) -> int:
        return len(self.frame) if self.used is None else int(np.count_nonzero(self.used))

    def assign(self, **columns: Any) -> Any:
        """The frame of these rows with other columns."""
        columns = {"site": self.site, **columns} if self.site else columns
        return (self.frame if self.used is None else self.frame[self.used]).assign(**columns)


def cached_column(how: F) -> F:
    """A function that reads a column of a frame; of `Columns` it reads all rows, and only the first time."""

    @wraps(how)
    def read(frame: Any, name: str, *more: Any, **named: Any) -> np.ndarray:
        if not isinstance(frame, Columns):
            return how(frame, name, *more, **named)
        key = how.__name__, name
        if key not in frame.cache:
            try:
                values = how(frame.at(None), name, *more, **named)
            except BadData:
                if frame.used is None:
                    raise
                return how({name: frame[name]}, name, *more, **named)  # another row may have been refused
            values.setflags(write=False)
            frame.cache[key] = values
        values = frame.cache[key]
        return values if frame.used is None else np.asarray(values[frame.used])

    return cast(F, read)


def table(data: Any, site: str) -> Any:
    """A site's rows as a pandas frame: names of columns, and texts, without spaces at their ends; an empty text is
    missing. Raises BadData for data without columns or rows.
    """
    pandas = needed("pandas")
    of = data
    if not isinstance(of, pandas.DataFrame):
        of = data.to_pandas() if hasattr(data, "to_pandas") else data
        of = pandas.DataFrame(dict(of)) if isinstance(of, Mapping) else of
    if not isinstance(of, pandas.DataFrame):
        raise BadData(f"{site}: a {type(data).__name__} is no frame; give a pandas DataFrame, or columns in a dict")
    out = of.reset_index(drop=True)
    names = [str(c).strip() for c in out.columns]
    if not len(out) or len({*names}) < len(names):
        raise BadData(f"{site}: the frame has {'no rows' if not len(out) else 'two columns of one name'}")
    if names != [*out.columns] or type(out.columns) is not pandas.Index:
        out.columns = names
    columns = {c: out[c] for c, dtype in zip(out.columns, out.dtypes, strict=True) if _has_objects(dtype)}
    plain = {c: _plain(column) for c, column in columns.items()}
    changed = {c: column for c, column in plain.items() if column is not columns[c]}
    return out.assign(**changed) if changed else out


def _is_plain(dtype: Any) -> bool:
    """Whether this is NumPy's type of numbers, or of True and False: pandas takes longer to say so."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def _has_objects(dtype: Any) -> bool:
    if _is_plain(dtype):
        return False
    kind = dtype.categories.dtype if hasattr(dtype, "categories") else dtype
    types = needed("pandas").api.types
    return bool(types.is_object_dtype(kind) or types.is_string_dtype(kind))


def _plain(column: Any) -> Any:
    """A column of objects that are all numbers, or True and False, in a type of these; else its texts without spaces at
    their ends, None for empty ones. The same column if nothing changes.
    """
    pandas = needed("pandas")
    if pandas.api.types.infer_dtype(column) == "string":  # each text once
        codes, kinds = factorized(column)
        plain = [text(v) or None for v in kinds]
        if plain == [*kinds]:
            return column
        kind = object if any(plain) else float
        return pandas.Series(np.array([*plain, None], object)[codes], column.index, dtype=kind)
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
    if _is_plain(column.dtype):
        return True
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
    odd = [v for v in kinds if not cells.is_number(v)]
    if 0 < len(odd) < len(kinds) / 2:
        log.warning(
            "%s, column %r: it is taken for categories, since %r is no number, but most of its texts are",
            site, name, odd[0],
        )  # fmt: skip
    for category in kinds:
        if category.lower() in cells.MISSING and not {"+", "-"} <= {*kinds}:
            log.warning(
                "%s, column %r: %r is taken for a category; make such cells empty if their value is missing",
                site, name, category,
            )  # fmt: skip
    return True


@cached_column
def missing(frame: Any, name: str) -> np.ndarray:
    """The rows that lack a column, bool [n]."""
    column = frame[name]
    if _is_plain(column.dtype):
        return np.asarray(np.isnan(column.to_numpy()) if column.dtype.kind == "f" else np.zeros(len(column), bool))
    return np.array(column.isna(), bool)


@cached_column
def numbers(frame: Any, name: str, site: str, remedy: str = "write C({}) for categories") -> np.ndarray:
    """A column as floats, missing as NaN.

    Raises BadData for text, with this remedy, for dates, and, naming the row, for infinities, and for whole numbers
    that no float holds.
    """
    column = frame[name]
    place = Place(site, column=name)
    gone = missing(frame, name)
    kind = getattr(column.dtype, "numpy_dtype", None)
    if not is_numeric(column):
        values = texts(frame, name, site)[~gone].tolist()
        kinds = {cells.kind_of_text(v) for v in values[:100]}
        if all(map(cells.is_number, values)):
            remedy = (
                "its texts are numbers; convert them in each site's data, pandas.to_numeric(column.astype('string'))"
            )
        elif 2 * sum(map(cells.is_number, values)) > len(values):
            row = next(k for k, v in enumerate(texts(frame, name, site)) if v is not None and not cells.is_number(v))
            raise cells.no_number(column.iloc[row], place.at(int(column.index[row])), "write numbers alone")
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


@cached_column
def texts(frame: Any, name: str, site: str) -> np.ndarray:
    """A column as categories, by their texts: whole numbers as "1", others as they are; None where missing.

    Raises BadData for dates and, naming the row, for infinities, and for texts among numbers.
    """
    column = frame[name]
    place = Place(site, column=name)
    if needed("pandas").api.types.infer_dtype(column) == "string":  # each text once
        codes, kinds = factorized(column)
        return np.take(np.array([*map(text, kinds), None], object), codes)
    values = column.tolist()
    if not {*map(type, values)} <= {str, int, bool}:
        cells.refuse_kind(np.asarray(column), place)
        values = [None if m else v for m, v in zip(missing(frame, name), values, strict=True)]
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
