"""Parquet files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...contract import BadData, RecipeError, checked
from ...runtime.versions import install
from ..dataset import Dataset
from ..files import Place, locate
from ..ingest.keys import all_keys, refuse_absent
from .table import frame_of


@checked("datasets")
def parquet(
    path: Place,
    target: str,
    keys: Sequence[str] = (),
    regression: bool | None = None,
    folder: Place | None = None,
    client: str | None = None,
) -> Dataset:
    """A Parquet file; every column but ``target``, ``client`` and ``keys`` is a numeric feature.

    Arguments and errors are those of `csv`. It needs pyarrow, the extra ``parquet``; without it
    RecipeError is raised.
    """
    call = f"datasets.parquet({str(path)!r})"
    try:
        import pyarrow as pa
        from pyarrow import parquet as pq
    except ImportError:
        raise RecipeError(f"{call} needs pyarrow: {install('parquet')}.") from None
    file = locate(path, folder, (), call)
    try:
        table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise BadData(f"{call}: {file} is no readable Parquet file ({error}).") from None
    columns: dict[str, np.ndarray] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name.strip() in columns:
            raise BadData(f"{call}: the file names {name!r} twice.")
        # With a gap, Arrow makes floats of whole numbers.
        columns[name.strip()] = np.array(column.to_pylist(), object) if column.null_count else column.to_numpy()
    named = all_keys(target, client, keys, call)
    refuse_absent(columns, (target, *named), client, call)
    return frame_of(columns, call, file.stem, target, named, regression)
