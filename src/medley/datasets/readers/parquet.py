"""Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...contract import BadData, RecipeError, checked
from ...runtime.versions import install
from ..dataset import Dataset
from ..files import Place, locate
from .table import Roles


@checked("datasets")
def parquet(
    path: Place,
    target: str,
    keys: Sequence[str] = (),
    regression: bool | None = None,
    folder: Place | None = None,
    client: str | None = None,
    prepared: Any = None,
    missing: bool = False,
) -> Dataset:
    """A Parquet file; every column but ``target``, ``client`` and ``keys`` is a numeric feature.

    For arguments and errors see `csv`. It needs pyarrow, the extra ``parquet``; without it RecipeError is raised.
    """
    call = f"datasets.parquet({str(path)!r})"
    roles = Roles.of(call, target, client, keys, prepared, missing=missing)
    table, name = table_in(path, folder, call)
    names = [name.strip() for name in table.column_names]
    inputs = roles.inputs(names)
    # With a gap, Arrow makes floats of whole numbers.
    cells: Any = lambda column: np.array(column.to_pylist(), object) if column.null_count else column.to_numpy()
    columns = {k: cells(table.column(names.index(k))) for k in (*roles.named, *inputs)}
    return roles.dataset(columns, inputs, name, regression)


def table_in(path: Place, folder: Place | None, call: str) -> tuple[Any, str]:
    """Arrow's table of a file, and the file's name without its ending.

    Raises RecipeError without pyarrow, and BadData for a file that it cannot read.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet as pq
    except ImportError:
        raise RecipeError(f"{call} needs pyarrow: {install('parquet')}.") from None
    file = locate(path, folder, (), call)
    try:
        return pq.read_table(file, partitioning=None), file.stem
    except (pa.ArrowException, OSError) as error:
        raise BadData(
            f"{call}: {file} is no readable Parquet file ({error}); a CSV file is read by datasets.csv."
        ) from None
