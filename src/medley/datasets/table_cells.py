"""Cells of tables: columns of numbers and text, and targets that fit their task. Errors name row and column."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..contract.errors import BadData
from ..rows import columns as table

log = logging.getLogger("medley")

WHOLE = re.compile(r"[+-]?\d+")

PADDED = re.compile(r"[+-]?0\d+")
"""Whole numbers that begin with a zero, such as postal codes: as numbers they would be others."""


def names_in(values: Sequence[Any]) -> np.ndarray:
    """A column of names: as numbers, for their order, where that changes no name, else as text.

    So "1" and "01" are two names, and so are numbers of 20 digits, which floats would round.
    """
    texts = [str(v) for v in values]
    for kind in (int, float):
        try:
            numbers = [kind(t) for t in texts]
            if [*map(str, numbers)] == texts:
                return np.array(numbers, np.int64 if kind is int else np.float64)
        except (ValueError, OverflowError):
            continue
    return np.array(texts)


def targets_in(values: Sequence[Any], regression: bool, call: str) -> np.ndarray:
    """A column of targets: whole numbers where all entries are, else numbers, booleans, else text.

    Labels with leading zeros, or beyond int64, are texts. Raises BadData, naming the call, for two labels that are one
    number, such as "1" and "1.0".
    """
    texts = [str(v) for v in values]
    whole = all(map(WHOLE.fullmatch, texts))
    if not regression and (any(map(PADDED.fullmatch, texts)) or (whole and any(abs(int(t)) >= 2**63 for t in texts))):
        return np.array(texts)
    if all(isinstance(v, bool) for v in values) or (not regression and {*texts} == {"False", "True"}):
        return np.array([t == "True" for t in texts])
    if any("_" in t for t in texts):  # Python reads "2024_01" as a number
        return np.array(texts)
    try:
        found = np.array([*map(int if whole else float, texts)])
    except ValueError:
        return np.array(texts)
    spelt: dict[Any, str] = {}
    for row, (value, text) in enumerate(zip(found.tolist(), texts, strict=True)):
        if spelt.setdefault(value, text) != text and not regression:
            raise BadData(
                f"{call}: the labels {spelt[value]!r} and {text!r} (row {row}) are the same number; if they are "
                "one class, write them alike",
                row=row,
            )
    return found


INDEX = re.compile(r"|Unnamed: \d+(\.\d+)*|__index_level_\d+__")
"""Names under which pandas writes and reads rows' index where it has none."""


def refuse_index(columns: Iterable[str], call: str, remedy: str) -> None:
    """Raise BadData, naming ``call`` and ending in ``remedy``, for an input column that is the index of a frame."""
    for k, name in enumerate(columns):
        if not INDEX.fullmatch(name):
            continue
        if k and not name.startswith("__"):
            raise BadData(
                f"{call}: the column {name!r} after the others has no name, as if each line ended in a "
                "delimiter; remove that delimiter, or drop the column, frame.drop(columns=...)"
            )
        raise BadData(
            f"{call}: the column {name!r} is a frame's index as pandas writes it, which follows the order of rows; "
            f"{remedy}, or give it a name if it is a feature"
        )


def warn_of_guesses(X: np.ndarray, features: Sequence[str], y: np.ndarray, call: str, regression: bool) -> None:
    """Say in the log which column looks like the numbers of rows, and which label like a missing one; both are kept."""
    if len(X) > 9:
        counted = np.arange(len(X))
        for j, name in enumerate(features):
            if np.array_equal(X[:, j] - X[0, j], counted):
                log.warning(
                    "%s: the column %r counts the rows, and is taken for a feature; leave it out of the file if it "
                    "only numbers them",
                    call,
                    name,
                )
    if regression or y.dtype.kind != "U":
        return
    signs = "+" in y
    for label in np.unique(y):
        if str(label).lower() in MISSING and not (signs and label == "-"):
            log.warning(
                "%s: the label %r is taken for a class (its rows: %d); drop them if their label is missing",
                call,
                str(label),
                int((y == label).sum()),
            )


def cell_text(cell: Any, call: str, name: str) -> Any:
    """A cell of a Parquet file: texts without blanks around them, bytes as text. Raises BadData for other bytes."""
    try:
        cell = cell.decode() if isinstance(cell, bytes) else cell
    except UnicodeDecodeError as e:
        raise BadData(f"{call}: column {name!r} has bytes that are no text in UTF-8: {e}") from None
    return cell.strip() if isinstance(cell, str) else cell


def is_number(cell: str) -> bool:
    """Whether a cell is a finite number, without underscores."""
    try:
        return "_" not in cell and math.isfinite(float(cell))
    except ValueError:
        return False


MISSING = {"na", "n/a", "nan", "null", "none", "?", "-", "unknown", "missing"}
"""Labels, in small letters, by which files say that there is none."""

NUMBER = ", which is no finite number; fill it in or drop the row"


def bad_cell(call: str, cell: str, row: int, column: int, header: Sequence[str], said: str = "") -> BadData:
    """The error of a cell; ``said`` goes on behind it, by default as for a feature."""
    said = said or NUMBER
    message = f"{call}: row {row}, column {header[column]!r} holds {cell!r}{said}."
    return BadData(message, row=row, column=column)


def coded(columns: Mapping[str, np.ndarray]) -> str:
    """What to do with the columns of text among these."""
    names = [n for n, c in columns.items() if c.dtype.kind in "OUS" and not all(map(table.is_number, c.tolist()))]
    said = "" if names[:1] == names else f" ({', '.join(map(repr, names))} hold text)"
    return (
        f"code such columns{said} as numbers, pandas.get_dummies(frame, columns={names}), or leave them out by "
        f"features=; if one names each row's client, say client={next(iter(names), '')!r}"
    )


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


def check_target(values: np.ndarray, regression: bool, call: str, column: int, header: Sequence[str]) -> None:
    """Raise BadData, with the remedy, for targets that do not fit their task.

    A regression wants numbers. A class is not empty, and is no text among numbers of which most are not whole: then
    nearly every row would be a class of its own.
    """
    if values.dtype.kind in "iufb":
        if regression:
            table.refuse_inexact(values, f"{call}: column {header[column]!r}")
            refuse_nonfinite(values[:, None].astype(float), [column], header, call, NUMBER)
        elif (bad := ~np.isfinite(values)).any():
            row = int(bad.argmax())
            raise bad_cell(
                call, str(values[row]), row, column, header, ", which is no class; fill it in or drop the row"
            )
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
