"""Lines of CSV files: the names of their columns, and their cells as numbers and text."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ..contract.errors import BadData, RecipeError
from ..rows.columns import ROUNDED, inexact, no_number
from .table_cells import bad_cell, is_number

log = logging.getLogger("medley")


def names_of_columns(first: Sequence[str], header: bool | None, delimiter: str, call: str) -> list[str]:
    """The names in a file's first line, or "0", "1", ... if ``header`` is False.

    Raises RecipeError for a line with another delimiter, and BadData for an empty file, and for a line that looks like
    a row of numbers and is not said to be names. Frames without names have the header 0, 1, ..., which is taken for
    names; the log says so.
    """
    if not first:
        raise BadData(f"{call}: the file is empty; its first line should name the columns")
    if len(first) == 1 and (other := next((c for c in ";\t|," if c in first[0] and c != delimiter), None)):
        raise RecipeError(f"{call}: the header is one column, {first[0]!r}; pass delimiter={other!r}", "delimiter")
    counted = [str(j) for j in range(len(first))]
    if header is False:
        return counted
    found = [name for name in first if is_number(name)]
    odd = [name for name in found if not name.strip().lstrip("+-").isdigit()]
    if header is None and (odd or 2 * len(found) >= max(2, len(first))) and found != counted[: len(found)]:
        raise BadData(
            f"{call}: the first line has numbers, {', '.join(found[:5])}, where names of columns belong; say "
            "header=False if it is a row (columns are then called '0', '1', ...), or header=True if these are names"
        )
    if header is None and found and found == counted[: len(found)]:
        log.warning(
            "%s: the first line, %s, is taken for the names of columns, as of a frame that has none; "
            "say header=False if it is a row, or header=True if these are names",
            call,
            ", ".join(first[:5]),
        )
    return [*first]


def cells_of(
    lines: Any,
    before: Sequence[list[str]],
    header: Sequence[str],
    columns: tuple[Sequence[int], Sequence[int]],
    call: str,
) -> tuple[array[float], list[list[str]]]:
    """Numbers of some columns, row by row, and the texts of each of some others.

    Args:
        before: rows that were read already
        columns: the places of the columns of numbers, and of those of texts

    Raises BadData, naming row and column, for a row of another length and for a cell that is not a number.
    """
    numeric, named = columns
    numbers, texts = array("d"), [list[str]() for _ in named]
    for row, cells in enumerate(line for line in chain(before, lines) if line):
        if len(cells) != len(header):
            what = f"{call}: row {row} has {len(cells)} cells, the header {len(header)}"
            raise BadData(f"{what} (line {lines.line_num}).", row=row)
        try:
            if "_" in "".join(cells) and any("_" in cells[j] for j in numeric):
                raise ValueError  # Python reads "2024_01" as a number
            numbers.extend(found := [float(cells[j]) for j in numeric])
        except ValueError:
            bad = next(j for j in numeric if not is_number(cells[j]))
            raise _no_number([cells, *lines], bad, row, header, numeric, call) from None
        if found and max(max(found), -min(found)) > 2**53 and (odd := [j for j in numeric if inexact(cells[j])]):
            raise bad_cell(call, cells[odd[0]], row, odd[0], header, f", {ROUNDED}")
        for values, j in zip(texts, named, strict=True):
            values.append(cells[j].strip())
    return numbers, texts


def _no_number(
    rows: Sequence[Sequence[str]], column: int, row: int, header: Sequence[str], numeric: Sequence[int], call: str
) -> BadData:
    """The error of the cell in this column of the first of these rows, which start at row number ``row``."""
    cell = rows[0][column]
    texts = {j: sum(j < len(r) and bool(r[j].strip()) and not is_number(r[j]) for r in rows) for j in numeric}
    names = [header[j] for j, count in texts.items() if 2 * count > len(rows)]
    remedy = "mend it or drop the row"
    if header[column] in names:
        remedy = (
            f"code text as numbers (columns {', '.join(map(repr, names))}), as pandas.get_dummies does before "
            "datasets.frame reads it, or name in keys= what says whose a row is"
        )
    return bad_cell(call, cell, row, column, header, f", {no_number(cell, remedy)}")
