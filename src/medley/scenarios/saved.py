"""Partitions in files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..contract.errors import BadData, RecipeError, WireError
from ..contract.settings import Settings
from .dealing import Column, Parts, Rows

_FORMAT = "medley-partition-1"


def save(parts: Sequence[Rows], path: str | Path) -> None:
    """Write a partition as JSON; the file appears complete or not at all.

    Raises OSError where it cannot be written.
    """
    path = Path(path)
    text = json.dumps({"format": _FORMAT, "clients": [rows.tolist() for rows in parts]}, separators=(",", ":"))
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
    """Read a partition that `save` wrote.

    Raises RecipeError where there is no file, WireError where it is damaged or no partition.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(
            f"There is no partition file {str(path)!r}: write one with save(parts, path).", "path"
        ) from None
    except (ValueError, RecursionError) as error:
        raise WireError(f"The partition file {str(path)!r} is damaged: {error}. Write it anew.") from error
    if (
        not isinstance(content, dict)
        or content.get("format") != _FORMAT
        or not isinstance(content.get("clients"), list)
    ):
        raise WireError(f"{str(path)!r} is no partition file: it lacks 'format': {_FORMAT!r} or a list 'clients'.")
    parts: Parts = []
    for client, rows in enumerate(content["clients"]):
        if not isinstance(rows, list) or not all(type(row) is int and abs(row) < 2**63 for row in rows):
            raise WireError(
                f"The partition file {str(path)!r} is damaged: client {client} is not a list of whole numbers."
            )
        parts.append(np.sort(np.array(rows, dtype=np.int64)))
    if not parts:
        raise WireError(f"The partition file {str(path)!r} holds no clients.")
    return parts


@dataclass(frozen=True)
class Saved(Settings):
    """The partition in a file that `save` wrote, the same for every seed. Rows that are not in it are left out."""

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
