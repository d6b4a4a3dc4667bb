"""Partitions in files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..contract.errors import BadData, RecipeError, WireError
from ..contract.settings import Settings
from .dealing import Column, Parts

_FORMAT = "medley-partition-1"


def save(parts: Sequence[Any] | Mapping[Any, Any], path: str | Path) -> None:
    """Write a partition as JSON; the file appears complete or not at all.

    Args:
        parts: The rows of each client, in a list or by the client's number from 0, as arrays or lists.
        path: The file.

    Raises BadData, naming the client, for a partition that is none, and OSError where the file cannot be written.
    """
    path = Path(path)
    try:
        clients = [rows.tolist() for rows in _parts(parts)]
    except ValueError as error:
        raise BadData(f"save(parts, {str(path)!r}): {error}.") from None
    text = json.dumps({"format": _FORMAT, "clients": clients}, separators=(",", ":"))
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def load(path: str | Path) -> Parts:
    """Read a partition that `save` wrote, or the plain JSON of one: [[0, 2], [1]] or {"0": [0, 2], "1": [1]}.

    The latter is what Flower Datasets' ``partition_id_to_indices`` becomes as JSON. Raises RecipeError where there is
    no file, WireError where it is damaged or no partition.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(
            f"There is no partition file {str(path)!r}: write one with save(parts, path).", "path"
        ) from None
    except (ValueError, RecursionError) as error:
        raise WireError(f"The partition file {str(path)!r} is damaged: {error}. Write it anew.") from error
    if isinstance(content, dict) and ("format" in content or not all(map(str.isdigit, content))):
        if content.get("format") != _FORMAT or not isinstance(content.get("clients"), list):
            raise WireError(f"{str(path)!r} is no partition file: it lacks 'format': {_FORMAT!r} or a list 'clients'.")
        content = content["clients"]
    try:
        return _parts(content)
    except ValueError as error:
        raise WireError(f"The partition file {str(path)!r} is damaged: {error}.") from None


def _parts(given: Any) -> Parts:
    """Each client's rows, ascending, from arrays or lists, or from those by the client's number. Raises ValueError."""
    if isinstance(given, Mapping):
        by = {str(k): rows for k, rows in given.items()}
        if sorted(by) != sorted(map(str, range(len(by)))):
            names = ", ".join([*by][:5])
            raise ValueError(f"its clients are {names}, not 0 to {len(by) - 1}; give a list, in the order of clients")
        given = [by[str(i)] for i in range(len(by))]
    if not isinstance(given, list | tuple):
        raise ValueError(f"it is a {type(given).__name__}, not a list of clients")
    parts: Parts = []
    for client, rows in enumerate(given):
        rows = np.asarray(rows).tolist() if hasattr(rows, "__array__") else rows
        if not isinstance(rows, list | tuple) or not all(type(row) is int and abs(row) < 2**63 for row in rows):
            raise ValueError(f"client {client} is not a list of whole numbers")
        parts.append(np.sort(np.array(rows, dtype=np.int64)))
    if not parts:
        raise ValueError("it holds no clients")
    return parts


@dataclass(frozen=True)
class Saved(Settings):
    """The partition in a file that `load` reads, the same for every seed. Rows that are not in it are left out."""

    path: str | Path

    @property
    def clients(self) -> int:
        """The number of clients in the file."""
        return len(load(self.path))

    @property
    def fingerprint(self) -> Parts:
        """The rows of each client, as the file has them now."""
        return load(self.path)

    def split(self, y: Column | None, n: int, seed: int, keys: Mapping[str, Column] | None = None) -> Parts:
        """Read the file, and check it against the data; ``y``, ``seed`` and ``keys`` play no part.

        Raises RecipeError where there is no file, WireError where it is damaged, and BadData, naming client and row,
        for a row that is not in the data or is held twice, and for a client without rows.
        """
        parts = load(self.path)
        for client, rows in enumerate(parts):
            if not len(rows):
                raise BadData(f"{self!r}: client {client} holds no rows.", client=client)
            for row in rows[[0, -1]]:
                if not 0 <= row < n:
                    raise BadData(
                        f"{self!r}: client {client} holds row {row}, and the data has rows 0 to {n - 1}: "
                        "was this partition made for other data?",
                        client=client,
                        row=int(row),
                    )
        times = np.bincount(np.concatenate(parts), minlength=n)
        if times.max() > 1:
            row = int(times.argmax())
            holders = [client for client, rows in enumerate(parts) for r in rows if r == row]
            raise BadData(f"{self!r}: row {row} is held {len(holders)} times, by clients {holders}.", row=row)
        return parts
