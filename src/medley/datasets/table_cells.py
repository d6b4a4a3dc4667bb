"""Cells of tables: columns of numbers and text, and targets that fit their task. Errors name row and column."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..contract.errors import BadData


def plain(values: Sequence[Any]) -> np.ndarray:
    """A column as whole numbers where all entries are, else as numbers, else as text."""
    for kind in (np.int64, np.float64):
        try:
            return np.array([_exact(v, kind) for v in values], kind)
        except (ValueError, OverflowError):
            continue
    return np.array([str(v) for v in values])


def _exact(value: Any, kind: type) -> Any:
    if kind is np.int64 and isinstance(value, float):
        raise ValueError
    return int(value) if kind is np.int64 else float(value)


INDEX = re.compile(r"|Unnamed: \d+(\.\d+)*|__index_level_\d+__")
"""Names under which pandas writes and reads rows' index where it has none."""


def refuse_index(columns: Iterable[str], call: str, remedy: str) -> None:
    """Raise BadData, naming ``call`` and ending in ``remedy``, for an input column that is the index of a frame."""
    for name in columns:
        if INDEX.fullmatch(name):
            raise BadData(
                f"{call}: the column {name!r} is a frame's index as pandas writes it, which follows the order of rows; "
                f"{remedy}, or give it a name if it is a feature"
            )


def is_number(cell: str) -> bool:
    """Whether a cell is a finite number."""
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def bad_cell(call: str, cell: str, row: int, column: int, header: Sequence[str], said: str = "") -> BadData:
    """The error of a cell; ``said`` goes on behind it, by default as for a feature."""
    said = said or ", which is no finite number; fill it in, drop the row, or name the column in keys="
    message = f"{call}: row {row}, column {header[column]!r} holds {cell!r}{said}."
    return BadData(message, row=row, column=column)


def refuse_nonfinite(X: np.ndarray, numeric: list[int], header: Sequence[str], call: str, said: str = "") -> None:
    """Raise BadData for a number that is not finite in float32; ``numeric`` are the columns' places in the header."""
    # Checked here since Dataset knows no column names. A number beyond float32 would become infinite.
    bad = ~(np.abs(X) <= np.finfo(np.float32).max)
    if bad.any():
        row, j = (int(i) for i in np.argwhere(bad)[0])
        raise bad_cell(call, str(X[row, j]), row, numeric[j], header, said)


def check_keys(columns: Mapping[int, Sequence[str]], call: str, header: Sequence[str]) -> None:
    """Raise BadData for a client without a name; ``columns`` are cells by their place in the header."""
    for column, cells in columns.items():
        if "" in cells:
            said = ", which names no client; fill it in or drop the row"
            raise bad_cell(call, "", cells.index(""), column, header, said)


NUMBER = ", which is no finite number; fill it in or drop the row"


def check_target(values: np.ndarray, regression: bool, call: str, column: int, header: Sequence[str]) -> None:
    """Raise BadData, with the remedy, for targets that do not fit their task.

    A regression wants numbers. A class is not empty, and is no text among numbers of which most are not whole: then
    nearly every row would be a class of its own.
    """
    if values.dtype.kind in "iufb":
        if regression:
            refuse_nonfinite(values[:, None].astype(float), [column], header, call, NUMBER)
        return
    cells = [str(v) for v in values]
    text = [not is_number(c) for c in cells]
    row = next((i for i, flag in enumerate(text) if flag), 0)
    if regression:
        most = 2 * sum(text) > len(cells)
        said = ", and a regression takes numbers; for classes leave regression=True out" if most else NUMBER
        raise bad_cell(call, cells[row], row, column, header, said)
    if "" in cells:
        raise bad_cell(call, "", cells.index(""), column, header, ", which is no class; fill it in or drop the row")
    values_ = [c for c, flag in zip(cells, text, strict=True) if not flag and not float(c).is_integer()]
    if 2 * len(values_) > len(cells):
        said = f" among values such as {values_[0]}; mend it or drop the row, and pass regression=True"
        raise bad_cell(call, cells[row], row, column, header, said)
