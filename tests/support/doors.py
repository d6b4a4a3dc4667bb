"""Every door through which rows come in, for the same rows of two clients."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

import medley as md
from medley.contract import BadData, Family
from medley.deploy.node.rows import own_lots, report
from medley.deploy.protocol.reports import agreed, differing
from medley.recipe import Recipe

CLIENTS = ("u", "v")
"""The clients' names; the first has the first half of the rows."""

PACE = md.scenarios.Pace(lr=1.0, epochs=20, batch=None)


@dataclass(frozen=True)
class Rows:
    """The rows of both clients, one after the other.

    Attributes:
        X: columns of inputs by name
        y: labels, or values
        test: the rows of the test set, without clients; default none
        classes: the number of classes, if the user says it
    """

    X: Mapping[str, Any]
    y: Any
    test: Rows | None = None
    classes: int | None = None

    def __len__(self) -> int:
        return len(self.y)

    def taken(self, at: slice) -> Rows:
        """Some of the rows, without the test set."""
        return Rows({name: c[at] for name, c in self.X.items()}, self.y[at])

    @property
    def halves(self) -> list[Rows]:
        """The rows of each client."""
        return [self.taken(slice(0, len(self) // 2)), self.taken(slice(len(self) // 2, None))]

    @property
    def clients(self) -> np.ndarray:
        """The name of each row's client."""
        return np.repeat(np.array(CLIENTS, object), [len(half) for half in self.halves])

    @property
    def array(self) -> Any:
        """The inputs as one array [n, columns]: of the columns' own type, if they have one."""
        columns = list(self.X.values())
        if sparse.issparse(columns[0]):
            return sparse.hstack(columns).tocsr()
        return np.stack([np.asarray(c) for c in columns], 1)

    def frame(self, client: bool = False, turned: bool = False) -> pd.DataFrame:
        """The rows as a frame with the column "label", and "client" if asked for; ``turned``: columns from the last."""
        table: dict[str, Any] = {}
        for name, c in self.X.items():
            table[name] = pd.arrays.SparseArray(c.toarray().ravel()) if sparse.issparse(c) else c
        table["label"] = [*self.y] if getattr(self.y, "ndim", 1) > 1 else self.y
        table |= {"client": self.clients} if client else {}
        return pd.DataFrame(dict(reversed(table.items())) if turned else table)


class Items(TorchDataset[Any]):
    """A data set as people write one for PyTorch: an item is (row, label), or a mapping as Hugging Face has it."""

    def __init__(self, rows: Rows, mapping: bool = False) -> None:
        self.X = rows.array
        self.y = rows.y
        self.mapping = mapping
        if sparse.issparse(self.X):
            self.X = self.X.toarray()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> Any:
        x = self.X[i]
        y = self.y[i]
        x = torch.from_numpy(x) if x.dtype.kind in "buif" else x
        return {"x": x, "label": y} if self.mapping else (x, y)


class Joined(nn.Module):
    """A linear model of columns that come as several inputs, by name or as one matrix."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, inputs: Any) -> Tensor:
        columns = [t.reshape(len(t), 1).float() for t in inputs.values()]
        out: Tensor = self.linear(torch.cat(columns, 1))
        return out


def _federation(family: Family, rows: Rows, **data: Any) -> md.Federation:
    return md.Federation(family, pace=PACE, classes=rows.classes, **data)


def _clients(make: Callable[[Rows], Any], named: bool = False) -> Callable[..., md.Federation]:
    """A door ``clients=`` of a value for each client, with ``test=`` of the same kind."""

    def door(family: Family, rows: Rows, folder: Path) -> md.Federation:
        values = [make(half) for half in rows.halves]
        test = {} if rows.test is None else {"test": make(rows.test)}
        return _federation(family, rows, clients=dict(zip(CLIENTS, values, strict=True)) if named else values, **test)

    return door


def _pooled(make: Callable[[Rows, Path, str], Any], key: str | None = "client") -> Callable[..., md.Federation]:
    """A door ``data=`` of all rows, dealt by the column of clients, with ``test=`` of the same kind."""

    def door(family: Family, rows: Rows, folder: Path) -> md.Federation:
        deal = md.partitions.IID(2) if key is None else md.partitions.ByKey(key)
        test = {} if rows.test is None else {"test": make(rows.test, folder, "later")}
        return _federation(family, rows, data=make(rows, folder, "now"), partition=deal, **test)

    return door


def _csv(rows: Rows, folder: Path, name: str) -> Any:
    path = folder / f"{name}.csv"
    rows.frame(client=True).to_csv(path, index=False)
    return md.datasets.csv(path, "label", keys=["client"])


def _parquet(rows: Rows, folder: Path, name: str) -> Any:
    path = folder / f"{name}.parquet"
    rows.frame(client=True).to_parquet(path, index=False)
    return md.datasets.parquet(path, "label", keys=["client"])


def _sql(rows: Rows, folder: Path, name: str) -> Any:
    """The rows in a table of SQLite, whose columns have no types: a cell is a number, a text, bytes or NULL."""
    frame = rows.frame(client=True)
    cells = [[_cell(v) for v in row] for row in frame.astype(object).itertuples(index=False)]
    with closing(sqlite3.connect(":memory:")) as connection:
        names = ", ".join(f'"{c}"' for c in frame.columns)
        connection.execute(f"CREATE TABLE rows ({names})")
        connection.executemany(f"INSERT INTO rows VALUES ({', '.join('?' * len(frame.columns))})", cells)
        connection.commit()
        return md.datasets.sql(connection, "SELECT * FROM rows ORDER BY rowid", "label", keys=["client"])


def _cell(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    return value if isinstance(value, int | float | str | bytes) else str(value)


def _npz(rows: Rows, folder: Path, name: str) -> Any:
    path = folder / f"{name}.npz"
    np.savez(path, X=_plain(rows.array), y=_plain(rows.y), client=rows.clients.astype(str))
    return md.datasets.npz(path, keys=["client"])


def _plain(y: Any) -> np.ndarray:
    """An array that is saved without pickle: text as text."""
    y = np.asarray(y)
    texts = y.dtype.kind == "O" and all(isinstance(v, str) for v in y.ravel().tolist())
    return y.astype(str) if texts else y


def _svmlight(rows: Rows, folder: Path, name: str) -> Any:
    X = rows.array.toarray() if sparse.issparse(rows.array) else rows.array
    lines = [
        " ".join([str(y), *(f"{k + 1}:{v}" for k, v in enumerate(x))])
        for x, y in zip(X.tolist(), np.asarray(rows.y).tolist(), strict=True)
    ]
    path = folder / f"{name}.svm"
    path.write_text("\n".join(lines) + "\n")
    return md.datasets.svmlight(path, zero_based=False)


def _frame(rows: Rows, folder: Path, name: str) -> Any:
    return md.datasets.frame(rows.frame(client=True, turned=name == "later"), "label", "client")


def _dataset(rows: Rows, folder: Path, name: str) -> Any:
    return md.datasets.Dataset(rows.array, rows.y, classes=rows.classes, keys={"client": rows.clients})


def _own_tests(family: Family, rows: Rows, folder: Path) -> md.Federation:
    test = rows.test or rows
    return _federation(family, rows, clients=[(h.array, h.y, test.array, test.y) for h in rows.halves])


def _one_frame(family: Family, rows: Rows, folder: Path) -> md.Federation:
    test = {} if rows.test is None else {"test": rows.test.frame(turned=True)}
    return _federation(family, rows, clients=rows.frame(client=True), **test)


def _of_frame(family: Family, rows: Rows, folder: Path) -> md.Federation:
    test = {} if rows.test is None else {"test": _frame(rows.test, folder, "later")}
    return _federation(family, rows, clients=_frame(rows, folder, "now"), **test)


DOORS: dict[str, Callable[..., md.Federation]] = {
    "csv": _pooled(_csv),
    "parquet": _pooled(_parquet),
    "sql": _pooled(_sql),
    "npz": _pooled(_npz),
    "svmlight": _pooled(_svmlight, None),
    "frame": _of_frame,
    "data=frame": _pooled(lambda rows, *_: rows.frame(client=True)),
    "clients=frame": _one_frame,
    "frames": _clients(lambda rows: rows.frame()),
    "named frames": _clients(lambda rows: rows.frame(), named=True),
    "pairs": _clients(lambda rows: (rows.array, rows.y)),
    "named pairs": _clients(lambda rows: (rows.array, rows.y), named=True),
    "framed pairs": _clients(lambda rows: (rows.frame().drop(columns="label"), rows.y)),
    "lists": _clients(lambda rows: (rows.array.tolist(), list(rows.y))),
    "triples": lambda family, rows, folder: _federation(
        family, rows, clients=[(h.array, h.y, np.ones(len(h))) for h in rows.halves],
        **({} if rows.test is None else {"test": (rows.test.array, rows.test.y)}),
    ),
    "own tests": _own_tests,
    "dicts": _clients(lambda rows: ({name: np.asarray(c) for name, c in rows.X.items()}, rows.y)),
    "items": _clients(Items),
    "loaders": _clients(lambda rows: DataLoader(Items(rows), batch_size=5)),
    "mappings": _clients(lambda rows: Items(rows, mapping=True)),
    "data=items": _pooled(lambda rows, *_: DataLoader(Items(rows)), None),
    "data=pair": _pooled(lambda rows, *_: (rows.array, rows.y), None),
    "Dataset": _pooled(_dataset),
}  # fmt: skip
"""The doors of a simulation, by name: (model, rows, folder for files) to a federation."""

WHOSE = {
    **dict.fromkeys(("named frames", "named pairs"), "client 'u'"),
    **dict.fromkeys(("frames", "pairs", "lists", "framed pairs", "triples", "own tests", "dicts"), "client 0"),
    **dict.fromkeys(("items", "loaders", "mappings"), "client 0"),
}
"""Doors whose refusal of a row names the row's client, and the words in which it does."""

NODES = ("node", "named node")
"""Doors of nodes, each of which reads a frame of its own; the second with the labels' names in the recipe."""


def trained(door: str, family: Family, rows: Rows, folder: Path, method: Any = None) -> md.Result:
    """A model of the rows through a door, after one round. It tells apart rows that have a column of their own."""
    options: dict[str, Any] = {"engine": "seq"} if door == "dicts" else {}
    return md.run(method or md.FedAvg(), DOORS[door](family, rows, folder), rounds=1, progress=False, **options)


def inputs_for(door: str, rows: Rows) -> Any:
    """Rows for ``predict``, in the form that the door took."""
    if door == "dicts":
        return {name: np.asarray(c) for name, c in rows.X.items()}
    return rows.frame(turned=True).drop(columns="label") if "frame" in door else rows.array


def reported(rows: Rows, kind: str, labels: Sequence[Any] = ()) -> list[str]:
    """The labels, as Python writes them, of two nodes that read these rows, each a client's, if they may take part.

    Raises BadData as the server does for accounts that differ.
    """
    tables: dict[str, Any] = {"problem": {"kind": kind}, "methods": [{"kind": "FedAvg"}]}
    recipe = Recipe(tables | ({"clients": {"labels": [*labels]}} if labels else {}))
    accounts = []
    for i, half in enumerate(rows.halves):
        lots = own_lots(recipe, i, md.datasets.frame(half.frame(), "label"))
        accounts.append(report(lots, i))
        problem = recipe.scenario(tuple(accounts[-1].X.shape), accounts[-1].classes).problem
        problem.ready(accounts[-1].X.example(), accounts[-1].y.example(), accounts[-1].classes, None, "cpu")
        if text := agreed(accounts[-1], recipe.limits()):
            raise BadData(text, client=i)
    first = accounts[0]
    for other in accounts[1:]:
        if text := differing(first.names.facts(), other.names.facts()):
            raise BadData(f"client 1 has {text[1]}, client 0 {text[0]}", client=1)
        if (first.classes, first.y.dtype) != (other.classes, other.y.dtype):
            raise BadData(f"client 1 has {other.classes} classes, client 0 {first.classes}", client=1)
    return first.names.labels or [str(k) for k in range(first.classes or 0)]
