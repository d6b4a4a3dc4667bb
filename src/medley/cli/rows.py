"""Tables of rows in files, for commands: a file is read as training reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Delimiter = Annotated[str, typer.Option(help="Between the cells of a CSV file.")]


def table_of(file: Path, delimiter: str, levels: Mapping[str, Sequence[str] | None], call: str) -> Any:
    """A file's columns by name: Arrow's table of a Parquet file, else `Texts`.

    Args:
        levels: the categories of columns that hold some, by name

    Raises RecipeError and BadData, with what to type, for a file that cannot be read.
    """
    from ..contract import RecipeError
    from ..datasets.readers.csv import Texts
    from ..datasets.readers.parquet import table_in

    if not file.is_file():
        raise RecipeError(f"{call}: there is no file {file}; give a CSV or Parquet file of rows", "rows")
    try:
        is_parquet = file.suffix.lower() == ".parquet"
        return table_in(file, None, call)[0] if is_parquet else Texts.of(file, delimiter, levels, call)
    except RecipeError as e:
        if e.key != "delimiter":
            raise
        raise RecipeError(
            f"{call}: cells of {file} are not between {delimiter!r}; name the sign, --delimiter ';'", e.key
        ) from None


def names_of(table: Any) -> list[str]:
    """The names of a table's columns."""
    return [*getattr(table, "column_names", table.columns)]
