"""CSV files."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...contract import BadData, checked
from ..dataset import Dataset
from ..files import Place, called, locate
from ..ingest.prepared import cells_of
from .lines import Lines, check_delimiter, names_of_columns, reencode, refuse_packed
from .table import Roles

log = logging.getLogger("medley")


@checked("datasets")
def csv(  # noqa: PLR0913
    path: Place,
    target: str,
    keys: Sequence[str] = (),
    regression: bool | None = None,
    delimiter: str = ",",
    folder: Place | None = None,
    header: bool | None = None,
    prepared: Any = None,
    client: str | None = None,
    missing: bool = False,
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
        client: The column of each row's client, a text as the file has it; `partitions.ByKey` deals by it. Default
            none.
        missing: Whether empty cells of features become missing values, for `medley.problems.Trees`; default False.

    Raises:
        RecipeError: A column is not there.
        BadData: A cell is empty, no number, NaN or infinite, a quote is not closed, or a row has another length. Names
            row, counted from 0 below the header, and column. A column is a frame's index, which pandas writes by
            default.
    """
    call = called("csv", path, delimiter=None if delimiter == "," else delimiter)
    check_delimiter(delimiter, call)
    roles = Roles.of(call, target, client, keys, prepared, missing=missing)
    file = locate(path, folder, (), call)
    refuse_packed(file, call)
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            lines = Lines(stream, delimiter, call, missing)
            names = names_of_columns(lines.first, header, lines.delimiter, call)
            inputs = roles.inputs(names)
            numeric = inputs if roles.scaling is None else []
            texts = [*roles.named, *(name for name in inputs if name not in numeric)]
            with numbered(names):
                X, cells = lines.read(names, [*map(names.index, numeric)], [*map(names.index, texts)], header is False)
                if numeric:
                    _warn_of_counts(X, numeric, call)
                columns = dict(zip(texts, cells, strict=True))
                return roles.of_texts(columns, X if numeric else None, inputs, file.stem, regression)
    except UnicodeDecodeError as error:
        raise BadData(f"{call}: {file} is no CSV file in UTF-8 ({error}). {reencode(file)}") from None


@dataclass(frozen=True)
class Texts:
    """All columns of a CSV file as texts, a table by name. Cells are as a reader of training rows takes them.

    Attributes:
        texts: the cells of each column
        levels: the categories of columns that hold some, by name
    """

    texts: Mapping[str, list[str]]
    levels: Mapping[str, Sequence[str] | None]

    @classmethod
    def of(cls, path: Place, delimiter: str, levels: Mapping[str, Sequence[str] | None], call: str) -> Texts:
        """Read a file. Raises RecipeError and BadData as `csv` does."""
        check_delimiter(delimiter, call)
        file = locate(path, None, (), call)
        refuse_packed(file, call)
        try:
            with file.open(newline="", encoding="utf-8-sig") as stream:
                lines = Lines(stream, delimiter, call)
                names = names_of_columns(lines.first, None, lines.delimiter, call)
                _, cells = lines.read(names, (), range(len(names)), False)
        except UnicodeDecodeError as error:
            raise BadData(f"{call}: {file} is no CSV file in UTF-8 ({error}). {reencode(file)}") from None
        if len({*names}) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise BadData(f"{call}: the file has two columns {twice!r}; rename one")
        return cls(dict(zip(names, cells, strict=True)), levels)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [*self.texts]

    def __getitem__(self, name: str) -> np.ndarray:
        return cells_of(self.texts[name], self.levels.get(name))

    def select(self, names: Sequence[str]) -> Texts:
        """The table with these columns only."""
        return Texts({name: self.texts[name] for name in names}, self.levels)


@contextmanager
def numbered(names: Sequence[str]) -> Iterator[None]:
    """A context in which errors about a named column have its number in the file, too."""
    try:
        yield
    except BadData as e:
        if e.stands is not None and e.stands[0].column in names:
            e.column = names.index(str(e.stands[0].column))
        raise


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
