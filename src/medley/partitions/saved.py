"""Partitions in files."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..contract import BadData, Checked, RecipeError, WireError
from ..contract.place import name_of
from ..storage import atomic
from .dealing import Column, Parts, Rows

log = logging.getLogger("medley")

_FORMAT = "medley-partition-1"


def save(parts: Sequence[Any] | Mapping[Any, Any], path: str | Path, rows: int | None = None) -> None:
    """Write a partition as JSON; the file appears complete or not at all.

    Args:
        parts: The rows of each client, in a list or by the client's number from 0, as arrays or lists.
        path: The file.
        rows: The number of rows of the data, ``len(data.X)``; `Saved` then rejects any other data. Default: not
            recorded.

    Raises BadData, naming the client, if ``parts`` is not a partition, and MedleyError if the file cannot be written.
    """
    path = Path(path)
    try:
        clients = [part.tolist() for part in _parts(parts)]
    except ValueError as error:
        raise BadData(f"save(parts, {str(path)!r}): {error}.") from None
    last = max(chain.from_iterable(clients), default=-1)
    if rows is not None and last >= rows:
        raise BadData(f"save(parts, {str(path)!r}, rows={rows}): the partition has row {last}; use rows=len(data.X).")
    recorded = {} if rows is None else {"rows": rows}
    text = json.dumps({"format": _FORMAT, **recorded, "clients": clients}, separators=(",", ":"))
    atomic.write(path, text)


def load(path: str | Path) -> list[Rows]:
    """Read a partition that `save` wrote, or one in plain JSON: [[0, 2], [1]] or {"0": [0, 2], "1": [1]}.

    The second form is what Flower Datasets' ``partition_id_to_indices`` becomes as JSON. Raises RecipeError if there is
    no file, WireError if it is damaged or holds no partition.
    """
    return _read(path)[0]


def _read(path: str | Path) -> tuple[list[Rows], int | None]:
    """A partition as `load` reads it, and the number of rows that it was made for, if the file records it."""
    rows = None
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(
            f"There is no partition file {str(path)!r}: write one with save(parts, path).", "path"
        ) from None
    except (ValueError, RecursionError) as error:
        raise WireError(f"The partition file {str(path)!r} is damaged: {error}. Write it again.") from error
    if isinstance(content, dict) and ("format" in content or not all(map(str.isdigit, content))):
        if content.get("format") != _FORMAT or not isinstance(content.get("clients"), list):
            raise WireError(f"{str(path)!r} is no partition file: it lacks 'format': {_FORMAT!r} or a list 'clients'.")
        rows = content.get("rows")
        content = content["clients"]
        if rows is not None and type(rows) is not int:
            raise WireError(f"The partition file {str(path)!r} is damaged: its rows are {rows!r}, not a whole number.")
    try:
        return _parts(content), rows
    except ValueError as error:
        raise WireError(f"The partition file {str(path)!r} is damaged: {error}.") from None


def _parts(clients: Any) -> list[Rows]:
    """Each client's rows, ascending, from arrays or lists, in a list or by client number. Raises ValueError."""
    if isinstance(clients, Mapping):
        by = {str(k): rows for k, rows in clients.items()}
        if sorted(by) != sorted(map(str, range(len(by)))):
            names = ", ".join([*by][:5])
            raise ValueError(f"its clients are {names}, not 0 to {len(by) - 1}; give a list, in the order of clients")
        clients = [by[str(i)] for i in range(len(by))]
    if not isinstance(clients, list | tuple | Parts):
        raise ValueError(f"it is a {type(clients).__name__}, not a list of clients")
    parts: list[Rows] = []
    for client, rows in enumerate(clients):
        rows = np.asarray(rows).tolist() if hasattr(rows, "__array__") else rows
        if not isinstance(rows, list | tuple) or not all(type(row) is int and abs(row) < 2**63 for row in rows):
            raise ValueError(f"client {client} is not a list of whole numbers")
        parts.append(np.sort(np.array(rows, dtype=np.int64)))
    if not parts:
        raise ValueError("it holds no clients")
    return parts


@dataclass(frozen=True)
class Saved(Checked):
    """The partition in a file that `load` reads, the same for every seed. Rows that it lacks are left out."""

    path: str | Path

    @property
    def clients(self) -> int:
        """The number of clients in the file."""
        return len(load(self.path))

    @property
    def fingerprint(self) -> list[Rows]:
        """The rows of each client, as the file has them now."""
        return load(self.path)

    def split(self, y: Column | None, n: int, seed: int, keys: Mapping[str, Column] | None = None) -> list[Rows]:
        """Read the file, and check it against the data; ``y``, ``seed`` and ``keys`` are ignored.

        Raises RecipeError if there is no file, WireError if it is damaged, and BadData, naming client and row, for a
        row that is not in the data or is held twice, for a client without rows, and for data with another number of
        rows than the file records. If the file records none, the log says how many rows are left out.
        """
        parts, made_for = _read(self.path)
        if made_for not in (None, n):
            raise BadData(f"{self!r} was made for data of {made_for} rows, but this has {n}; make one for this data.")
        for client, rows in enumerate(parts):
            if not len(rows):
                raise BadData(f"{self!r}: {name_of(client)} holds no rows.", client=client)
            for row in rows[[0, -1]]:
                if not 0 <= row < n:
                    raise BadData(
                        f"{self!r}: {name_of(client)} holds row {row}, but the data has rows 0 to {n - 1}: "
                        "was this partition made for other data?",
                        client=client,
                        row=int(row),
                    )
        times = np.bincount(np.concatenate(parts), minlength=n)
        if times.max() > 1:
            row = int(times.argmax())
            holders: list[int] = []
            for client, rows in enumerate(parts):
                holders += [client] * int(np.count_nonzero(rows == row))
            raise BadData(f"{self!r}: row {row} is held {len(holders)} times, by clients {holders}.", row=row)
        if made_for is None and (out := n - int(times.sum())):
            log.warning("%r leaves out %d of the %d rows; was it made for other data?", self, out, n)
        return parts
