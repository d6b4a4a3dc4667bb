"""The command that uses a trained model: predict."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .arguments import Debug
from .console import say, show
from .rows import Delimiter, names_of, table_of

if TYPE_CHECKING:
    from ..storage.result import Result


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN")],
    rows: Annotated[Path, typer.Argument(help="The rows, a CSV or Parquet file.", metavar="ROWS.csv")],
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write the predictions here instead of printing them.")
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="The name or number of the client whose own model to use.", metavar="CLIENT")
    ] = None,
    allow_code: Annotated[
        str, typer.Option(metavar="NAMES", help="Code of your own that the network needs, mynet:Net; default none.")
    ] = "",
    delimiter: Delimiter = ",",
    debug: Debug = False,
) -> None:
    """Print a run's predictions for the rows of a file as CSV, with the probability of each class."""
    from ..recipe.user_code import load_object
    from ..storage.atomic import write
    from ..storage.result import Result

    for name in filter(None, allow_code.split(",")):
        load_object(name.strip(), Path(), "--allow-code")
    log = logging.getLogger("medley")
    level = log.level
    log.setLevel(logging.ERROR)  # what it warns of, a result without a model, is the error of its first use
    try:
        result = Result.load(run)
    finally:
        log.setLevel(level)
    table = _inputs(result, rows, delimiter)
    whose = int(client) if client is not None and client.isdigit() and client not in result.client_names else client
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(_lines(result, table, whose))
    if save is None:
        typer.echo(stream.getvalue(), nl=False)
    else:
        write(save, stream.getvalue())
        show(f"saved in {save}")


def _inputs(result: Result, rows: Path, delimiter: str) -> Any:
    """The table of the model's inputs, of a file that may have further columns; says which it leaves out."""
    call = f"medley predict {rows}"
    coding = result.scaling.coding if result.scaling is not None else None
    inputs = result.features if coding is None else coding.names
    levels = {} if coding is None else {c.name: c.levels for c in coding.columns}
    table = table_of(rows, delimiter, levels, call)
    names = names_of(table)
    if not inputs:
        say(f"the model's inputs have no names; they are the file's columns in this order: {', '.join(names)}")
    unused = [name for name in names if inputs and name.strip() not in inputs]
    if unused:
        say(f"not used, because the model was not trained on it: {', '.join(unused)}")
    return table.select([name for name in names if name not in unused])


def _lines(result: Result, table: Any, client: str | int | None) -> list[Sequence[object]]:
    """A head, and for each row its number, its prediction or outputs, and its probabilities if there are some."""
    from ..contract import RecipeError
    from ..storage.predictions import predicted, probabilities

    missing = getattr(result.model, "reads_missing", False)
    outputs = result.outputs(table if result.features else _array(table, missing), client=client)
    of = result.settings
    values = predicted(outputs, of.get("classes"), of.get("labels"), of.get("decision", "argmax"))
    columns = {"prediction": values} if values.ndim == 1 else {f"output {k}": v for k, v in enumerate(values.T)}
    if result.labels and values.ndim == 1:
        try:
            shares = probabilities(outputs, of)
            columns |= {f"probability of {name}": p for name, p in zip(result.labels, shares.T, strict=True)}
        except RecipeError as e:
            say(str(e))
    cells = [map(str, column) for column in columns.values()]  # all digits that a number has
    return [("row", *columns), *zip(range(len(values)), *cells, strict=True)]


def _array(table: Any, missing: bool) -> Any:
    """A table's columns as an array [n, columns], in their order; NaN in empty cells, if they may be ``missing``.

    Raises BadData, naming row and column, for text.
    """
    import numpy as np

    from ..contract import Place
    from ..rows.numbers import table as as_numbers

    columns = {name: np.asarray(table[name]) for name in names_of(table)}
    return as_numbers(columns, Place("medley predict"), missing)
