"""CSV files: lines as columns of numbers and text."""

from __future__ import annotations

import csv as csvfile
import logging
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from ...contract import BadData, Place, RecipeError, checked
from ...rows.numbers import ROUNDED, inexact, is_number, no_number
from ..dataset import Dataset
from ..files import Place as FilePlace
from ..files import called, check_delimiter, locate, reencode, refuse_packed
from ..ingest.keys import all_keys, key_column, names_in, refuse_absent, refuse_index
from ..ingest.labels import Floats, of_file
from ..ingest.prepared import of_texts, places, preparation, refuse_special
from .table import Raw

log = logging.getLogger("medley")

BLOCK = 128
"""Lines whose cells are converted together; of more, Python's collector of garbage takes longer than the reading."""


@checked("datasets")
def csv(  # noqa: PLR0913
    path: FilePlace,
    target: str,
    keys: Sequence[str] = (),
    regression: bool | None = None,
    delimiter: str = ",",
    folder: FilePlace | None = None,
    header: bool | None = None,
    prepared: Any = None,
    client: str | None = None,
) -> Dataset:
    """A CSV file; every column but ``target``, ``client`` and ``keys`` is a numeric feature.

    Args:
        path: A path, or a name in the folder.
        target: The column of targets.
        keys: Further columns of text, such as each row's patient; default none.
        regression: Whether targets are values; by default fractions are values, and everything else is classes, which
            are numbered in ascending order: numbers by value, False and True as booleans, anything else as text, as
            are numbers with leading zeros. `Result.predict` gives those back.
        delimiter: Between cells; default a comma, or what a first line ``sep=;`` says.
        folder: The folder to look in first; default none.
        header: Whether the first line names the columns; False names them "0", "1", ... By default it does, and one
            that looks like a row of numbers raises BadData.
        prepared: What `Study.prepare` found, or its file: its columns are the features, with empty cells and text.
            Default none.
        client: The column of each row's client, a text as the file has it; `scenarios.ByKey` deals by it. Default none.

    Raises:
        RecipeError: A column is not there.
        BadData: A cell is empty, no number, NaN or infinite, a quote is not closed, or a row has another length. Names
            row, counted from 0 below the header, and column. A column is a frame's index, which pandas writes by
            default.
    """
    call = called("csv", path, delimiter=None if delimiter == "," else delimiter)
    check_delimiter(delimiter, call)
    file, named = locate(path, folder, (), call), (target, *all_keys(target, client, keys, call))
    scaling = None if prepared is None else preparation(prepared, call)
    refuse_packed(file, call)
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            lines = Lines(stream, delimiter, call)
            names = names_of_columns(lines.first, header, lines.delimiter, call)
            numeric = columns_of(names, named, client, call)
            if scaling is not None:
                refuse_special(scaling, [target, *([] if client is None else [client])], call)
            inputs = [] if scaling is None else places(scaling, names, call)
            numeric = numeric if scaling is None else []
            X: Any
            with numbered(names):
                X, texts = lines.read(names, numeric, [*map(names.index, named), *inputs], header is False)
    except UnicodeDecodeError as error:
        raise BadData(f"{call}: {file} is no CSV file in UTF-8 ({error}). {reencode(file)}") from None
    features: tuple[str, ...] = tuple(names[j] for j in numeric)
    if scaling is not None and scaling.coding is not None:
        X, features = of_texts(scaling, texts[len(named) :], call), scaling.coding.features
    else:
        _warn_of_counts(X, features, call)
    with numbered(names):
        return _of(call, (X, texts, features), named, file.stem, regression, scaling)


def _of(
    call: str,
    read: tuple[Any, list[list[str]], tuple[str, ...]],
    named: tuple[str, ...],
    name: str,
    regression: bool | None,
    scaling: Any,
) -> Dataset:
    """The data set of inputs, and of texts of which the first are the target's and the keys'."""
    (X, texts, features), place = read, Place(call)
    floats: Floats = "values" if regression else "either" if regression is None else "labels"
    y = of_file(texts[0], place.at(column=named[0]), floats)
    cells = zip(named[1:], texts[1 : len(named)], strict=True)
    keyed = {k: names_in(key_column(v, place.at(column=k)).tolist()) for k, v in cells}
    return Raw(call, X, y, named[0], keyed, features).dataset(name, regression, scaling)


@contextmanager
def numbered(names: Sequence[str]) -> Iterator[None]:
    """A context in which errors about a named column have its number in the file, too."""
    try:
        yield
    except BadData as e:
        if e.stands is not None and e.stands[0].column in names:
            e.column = names.index(str(e.stands[0].column))
        raise


FLAGS = {"True": 1.0, "False": 0.0, "TRUE": 1.0, "FALSE": 0.0, "true": 1.0, "false": 0.0}
"""Booleans as pandas, spreadsheets and JSON write them."""


class Lines:
    """The lines of a CSV file. Excel's first line, ``sep=;``, says the delimiter."""

    def __init__(self, stream: Any, delimiter: str, call: str) -> None:
        self.call, self.delimiter, self.start = call, delimiter, 0
        self.flags, self.width, self.row = set[int](), 0, 0
        start = stream.tell() if stream.seekable() else 0
        first = stream.readline()
        if (said := first.rstrip("\r\n").strip('"')) and said[:4] == "sep=" and len(said) == 5:
            if delimiter not in (",", said[4]):
                raise RecipeError(f"{call}: the first line says {said!r}; leave delimiter= out", "delimiter")
            self.delimiter, self.start = said[4], 1
        else:
            stream.seek(start)
        self.reader = csvfile.reader(stream, delimiter=self.delimiter, strict=True)
        first = self._block(1)
        while first == [[]]:
            first = self._block(1)
        self.first = first[0] if first else []

    def _block(self, size: int) -> list[list[str]]:
        """The next lines. Raises BadData, naming the line, for a quote that is not closed in its line."""
        before, block = self.reader.line_num, list[list[str]]()
        try:
            block.extend(islice(self.reader, size))
        except csvfile.Error as e:
            raise self._quoted(before + sum(map(_lines, block)) + 1, str(e)) from None
        if self.reader.line_num != before + len(block):
            for k, cells in enumerate(block):
                if _lines(cells) > 1 and any("\n" in c and self.delimiter in c for c in cells):
                    line = before + sum(map(_lines, block[:k])) + 1
                    end = self.start + line + _lines(cells) - 1
                    raise self._quoted(line, f"its cell goes on to line {end}")
        if any(len(cells) != self.width for cells in block) and self.width:
            self._refuse_width(block, before)
        return block

    def _refuse_width(self, block: list[list[str]], before: int) -> None:
        """Raise BadData for the first line of a block with another number of cells; empty lines do not count."""
        row = self.row
        for k, cells in enumerate(block):
            if cells and len(cells) != self.width:
                line = self.start + before + sum(map(_lines, block[: k + 1]))
                said = f"it has {len(cells)} cells, the header {self.width} (line {line})"
                raise BadData(said, place=Place(self.call, row=row))
            row += bool(cells)

    def _quoted(self, line: int, said: str) -> BadData:
        return BadData(
            f"{self.call}: line {self.start + line} of the file has a quote that is not closed there, or one within a "
            f"cell ({said}), so that other rows would be read as part of it; remove that quote, or write it as two"
        )

    def read(
        self, header: Sequence[str], numeric: Sequence[int], named: Sequence[int], again: bool
    ) -> tuple[np.ndarray, list[list[str]]]:
        """Numbers [n, columns] of some columns, and the texts of each of some others.

        Args:
            again: whether the first line is a row

        Raises BadData, naming row and column, for a row of another length and for a cell that is not a number.
        """
        values, texts, rows = array("d"), [list[str]() for _ in named], 0
        self.width, self.row = len(header), int(again)
        block = [self.first] if again else []
        while block := block or self._block(BLOCK):
            block = [cells for cells in block if cells]
            if not block:
                continue
            columns = [*zip(*block, strict=True)]
            values.frombytes(self._numbers(columns, numeric, header, rows).tobytes())
            for cells_of, j in zip(texts, named, strict=True):
                cells_of += map(str.strip, columns[j])
            rows += len(block)
            self.row, block = rows, []
        return np.frombuffer(values, np.float64).reshape(rows, len(numeric)), texts

    def _numbers(
        self, columns: Sequence[Sequence[str]], numeric: Sequence[int], header: Sequence[str], first: int
    ) -> np.ndarray:
        """The cells of the numeric columns of some rows, which begin at row ``first``."""
        out = np.empty((len(columns[0]), len(numeric)))
        for k, j in enumerate(numeric):
            if not first:
                self.flags |= {j} if {*map(str.strip, columns[j])} <= FLAGS.keys() else set()
            try:
                read: Any = (lambda c: FLAGS[c.strip()]) if j in self.flags else float
                out[:, k] = np.fromiter(map(read, columns[j]), np.float64, len(out))
                bad = not np.isfinite(out[:, k]).all() or "_" in "".join(columns[j])
            except (ValueError, KeyError):
                bad = True
            odd = np.abs(out[:, k]) > 2**53 if not bad else np.zeros(0, bool)
            row = 0 if odd.any() and any(map(inexact, columns[j])) else -1
            if bad:
                row = next(r for r, c in enumerate(columns[j]) if not is_number(c) or not np.isfinite(float(c)))
            if row < 0:
                continue
            place, cell = Place(self.call, row=first + row, column=header[j]), columns[j][row]
            if not bad:
                row = [*map(inexact, columns[j])].index(True)
                raise BadData(f"{columns[j][row]} {ROUNDED}", place=place.at(first + row))
            raise no_number(cell, place, {header[i]: np.array(columns[i]) for i in numeric})
        return out


def _lines(cells: Sequence[str]) -> int:
    """How many lines of the file these cells are."""
    return 1 + sum(c.count("\n") for c in cells)


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
    values = [name for name in first if is_number(name)]
    odd = [name for name in values if not name.strip().lstrip("+-").isdigit()]
    if header is None and (odd or 2 * len(values) >= max(2, len(first))) and values != counted[: len(values)]:
        raise BadData(
            f"{call}: the first line has numbers, {', '.join(values[:5])}, where names of columns belong; say "
            "header=False if it is a row (columns are then called '0', '1', ...), or header=True if these are names"
        )
    if header is None and values and values == counted[: len(values)]:
        log.warning(
            "%s: the first line, %s, is taken for the names of columns, as of a frame that has none; "
            "say header=False if it is a row, or header=True if these are names",
            call,
            ", ".join(first[:5]),
        )
    return [name.strip() for name in first]


def columns_of(header: Sequence[str], named: Sequence[str], client: object, call: str) -> list[int]:
    """The places of the features: all columns but those of the target and the keys.

    Raises BadData for a header that names a column twice, or has a frame's index, RecipeError for a column that is not
    there.
    """
    if len(set(header) - {""}) != len(header) - header.count(""):
        twice = next(h for h in header if header.count(h) > 1)
        raise BadData(f"{call}: the header names {twice!r} twice.", column=header.index(twice, header.index(twice) + 1))
    refuse_absent(header, named, client, call)
    refuse_index([name for name in header if name not in named], Place(call), "write the file with index=False")
    return [j for j, name in enumerate(header) if name not in named]


def _warn_of_counts(X: np.ndarray, features: Sequence[str], call: str) -> None:
    """Say in the log which column looks like the numbers of rows; it stays a feature."""
    if len(X) < 10:
        return
    rows = np.arange(len(X))
    for j, name in enumerate(features):
        if np.array_equal(X[:, j] - X[0, j], rows):
            log.warning(
                "%s: the column %r counts the rows, and is taken for a feature; leave it out of the file if it "
                "only numbers them",
                call,
                name,
            )
