"""Finished runs on disk: a file for each method and federation, a line of JSON for each run; see ../packed.py."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from federations import FEDERATIONS

sys.path.append(str(Path(__file__).parents[1]))
from packed import Line, append, files, read, used

__all__ = ["HERE", "Cell", "Line", "all_lines", "append", "file_of", "locked", "read", "used"]

HERE = Path(__file__).parent / "results"


def file_of(folder: Path, federation: str, label: str) -> Path:
    """The file of a method's runs on a federation."""
    return folder / FEDERATIONS[federation].group / federation / f"{label}.jsonl"


class Cell:
    """An open file of one method on one federation, locked against other processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = read(path)

    def add(self, line: Line) -> None:
        """Append a run; it is on disk when this returns."""
        self.lines.append(line)
        append(self.path, line)

    def find(self, **key: Any) -> Line | None:
        """The first line with these values."""
        return next((x for x in self.lines if all(x.get(k) == v for k, v in key.items())), None)


@contextmanager
def locked(path: Path) -> Iterator[Cell | None]:
    """The cell of ``path``, or None where another process has it. A killed process loses its lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield Cell(path)


def all_lines(folder: Path, group: str) -> dict[str, dict[str, list[Line]]]:
    """The lines of every federation of a group and every method, by name."""
    return {
        name: {p.stem: read(p) for p in files(folder / group / name)}
        for name, entry in FEDERATIONS.items()
        if entry.group == group
    }
