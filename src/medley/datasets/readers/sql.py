"""Rows of a database, through a connection of Python's DB-API 2.0 (PEP 249) or of ADBC."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from ...contract import BadData, Place, RecipeError, checked
from .. import disk
from ..dataset import Dataset
from ..files import Place as FilePlace
from ..ingest.queries import add_query
from .table import Roles

log = logging.getLogger("medley")

BLOCK = 10_000
"""How many rows are fetched at a time."""

ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)


@checked("datasets")
def sql(  # noqa: PLR0913
    connection: Any,
    query: str,
    target: str,
    client: str | None = None,
    keys: Sequence[str] = (),
    regression: bool | None = None,
    prepared: Any = None,
    missing: bool = False,
    parameters: Sequence[Any] | Mapping[str, Any] = (),
    store: FilePlace | None = None,
    name: str = "query",
) -> Dataset:
    """The rows of a query; every column but ``target``, ``client`` and ``keys`` is a numeric feature.

    Args:
        connection: An open connection, such as ``sqlite3.connect("ward.db")``, ``psycopg.connect(...)`` or
            ``duckdb.connect(...)``. It stays open, and Medley commits nothing.
        query: The query. Say ORDER BY, since a database gives rows in any order otherwise, and batches follow it.
        target: The column of targets.
        client: The column of each row's client; `partitions.ByKey` deals by it. Default none.
        keys: Further columns that are no inputs, such as each row's patient; default none.
        regression: Whether targets are values; by default fractions are values, and everything else is labels.
        prepared: What `Study.prepare` found, or its file; its columns are the inputs. Default none.
        missing: Whether NULL in features becomes a missing value, for `medley.problems.Trees`; default False.
        parameters: The values of the query's placeholders, which the driver fills in; default none.
        store: A new folder for rows that do not fit into memory: they are read in blocks, kept there, and mapped;
            `saved` maps them again. Default none.
        name: The data set's name in messages and reports.

    Raises:
        RecipeError: A column is not there, the query gives no rows, or the value is no connection.
        BadData: The database ended the query, there are no rows, or a cell is no number. Names row, from 0, and column.
    """
    call = "datasets.sql(...)"
    roles = Roles.of(call, target, client, keys, prepared, unindexed="leave it out of the query", missing=missing)
    if not ORDERED.search(query):
        log.warning("%s: the query has no ORDER BY, so its rows may come in another order at the next run", call)
    with executed(connection, query, parameters, call) as rows:
        inputs = roles.inputs(rows.columns)
        needed = dict.fromkeys((*roles.named, *inputs))
        if store is None:
            return roles.dataset(rows.table(needed), inputs, name, regression)
        with TemporaryDirectory(dir=_parent(store, call)) as folder:
            X, named = _in_blocks(rows, roles, inputs, Path(folder) / "rows")
            disk.save(roles.dataset(named, inputs, name, regression, X), store)
    return disk.saved(store)


def table(connection: Any, query: str, parameters: Sequence[Any] | Mapping[str, Any], call: str) -> dict[str, Any]:
    """All rows of a query as columns [n] by name. Raises as `sql` does."""
    with executed(connection, query, parameters, call) as rows:
        twice = next((c for c in rows.columns if rows.columns.count(c) > 1), None)
        if twice is not None:
            raise BadData(f"{call}: the query gives {twice!r} twice; rename one, SELECT ... AS other")
        return rows.table(rows.columns)


@dataclass(frozen=True)
class Rows:
    """The answer to a query, to be fetched.

    Attributes:
        cursor: the driver's cursor
        columns: the names of its columns
        call: the call, for messages
    """

    cursor: Any
    columns: list[str]
    call: str

    def blocks(self) -> Iterator[list[tuple[Any, ...]]]:
        """At most `BLOCK` rows at a time. Raises BadData if the database ends the query."""
        fetched = 0
        while True:
            try:
                block = self.cursor.fetchmany(BLOCK)
            except Exception as e:
                raise BadData(
                    f"{self.call}: the database ended the query after {fetched} rows ({_reason(e)}); none of them is "
                    "used. Look at the connection, and ask again"
                ) from None
            if not block:
                return
            fetched += len(block)
            yield block

    def tables(self, needed: Sequence[str] | Mapping[str, Any]) -> Iterator[dict[str, np.ndarray]]:
        """The blocks as columns by name, with these columns only."""
        places = {c: self.columns.index(c) for c in needed}
        for block in self.blocks():
            yield {c: _column([row[k] for row in block]) for c, k in places.items()}

    def table(self, needed: Sequence[str] | Mapping[str, Any]) -> dict[str, np.ndarray]:
        """All rows, as columns by name."""
        return _joined([*self.tables(needed)], needed)


@contextlib.contextmanager
def executed(connection: Any, query: str, parameters: Sequence[Any] | Mapping[str, Any], call: str) -> Iterator[Rows]:
    """The answer to a query, within this context. Raises RecipeError and BadData as `sql` does."""
    if not callable(getattr(connection, "cursor", None)):
        kind = type(connection).__name__
        remedy = "give engine.raw_connection()" if hasattr(connection, "raw_connection") else (
            "give an open one, sqlite3.connect('ward.db')"
        )  # fmt: skip
        raise RecipeError(
            f"{call}: connection= is a {kind}, which is no connection of a database; {remedy}", "connection"
        )
    if not isinstance(query, str) or not query.strip():
        raise RecipeError(f"{call}: query={query!r:.40}; give a text, 'SELECT age, died FROM patients'", "query")
    with contextlib.ExitStack() as stack:
        try:
            cursor = stack.enter_context(_cursor(connection))
            cursor.execute(query, parameters) if parameters else cursor.execute(query)
        except Exception as e:
            raise RecipeError(f"{call}: the database refuses the query: {_reason(e)}", "query") from None
        if cursor.description is None:
            raise RecipeError(
                f"{call}: the query gives no rows; ask by SELECT. Medley commits nothing: roll back what it changed",
                "query",
            )
        add_query(query, parameters)
        yield Rows(cursor, [str(column[0]).strip() for column in cursor.description], call)


def _cursor(connection: Any) -> contextlib.AbstractContextManager[Any]:
    """A cursor that fetches as it goes, open within this context."""
    driver = type(connection).__module__.partition(".")[0]
    if "duckdb" in driver:  # its cursors are other connections, without this one's temporary tables
        return contextlib.nullcontext(connection)
    if driver in ("psycopg", "psycopg2") and not connection.autocommit:  # without a name, all rows are sent at once
        return contextlib.closing(connection.cursor("medley"))
    return contextlib.closing(connection.cursor())


def _reason(error: Exception) -> str:
    """The first line of a driver's error, with its kind."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _in_blocks(
    rows: Rows, roles: Roles, inputs: Sequence[str], file: Path
) -> tuple[torch.Tensor, dict[str, np.ndarray]]:
    """The inputs [n, features], mapped from this file, and the columns with a role. One block is in memory at a time.

    Inputs are in float32 if every block is, see `kept_apart`, else in float64.
    """
    named = list[dict[str, np.ndarray]]()
    start, width, wide = 0, 0, False
    with file.open("wb") as stream:
        for block in rows.tables(dict.fromkeys((*roles.named, *inputs))):
            try:
                X = roles.matrix(block, inputs)
            except BadData as e:
                place = e.stands[0] if e.stands else Place(rows.call)
                raise e if place.row is None else e.at(place.at(start + place.row)) from None
            stream.write(X.double().numpy().tobytes())
            named.append({c: block[c] for c in roles.named})
            start += len(X)
            width = X.shape[1]
            wide = wide or X.dtype == torch.float64
    columns = _joined(named, roles.named)
    if not start:
        return torch.empty(0, len(inputs)), columns
    doubles = np.memmap(file, np.float64, "r+", shape=(start, width))
    if wide:
        return torch.from_numpy(doubles), columns
    singles = np.memmap(file.with_suffix(".32"), np.float32, "w+", shape=(start, width))
    for k in range(0, start, BLOCK):
        singles[k : k + BLOCK] = doubles[k : k + BLOCK]
    return torch.from_numpy(singles), columns


def _column(values: list[Any]) -> np.ndarray:
    """Cells as numbers if all are of one kind of number, else as the objects that they are."""
    kinds = {*map(type, values)}
    if kinds in ({int}, {float}, {bool}) and (kinds != {int} or max(map(abs, values)) < 1 << 63):
        return np.array(values)
    out = np.empty(len(values), object)
    out[:] = values
    return out


def _joined(
    tables: Sequence[Mapping[str, np.ndarray]], needed: Sequence[str] | Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Blocks of columns as whole columns, as objects where blocks differ in kind."""
    out = dict[str, np.ndarray]()
    for name in needed:
        parts = [t[name] for t in tables]
        alike = len({p.dtype for p in parts}) == 1
        out[name] = np.concatenate(parts if alike else [p.astype(object) for p in parts]) if parts else np.empty(0)
    return out


def _parent(store: FilePlace, call: str) -> Path:
    """The folder that holds the new one. Raises RecipeError if it is not there, or the new one is not empty."""
    folder = Path(store).expanduser()
    if folder.exists() and any(folder.iterdir()):
        raise RecipeError(f"{call}: store={str(store)!r} has files already; give a new folder", "store")
    if not folder.absolute().parent.is_dir():
        raise RecipeError(f"{call}: store={str(store)!r}: there is no {folder.absolute().parent}; make it", "store")
    return folder.absolute().parent
