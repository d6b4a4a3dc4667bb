"""Finished runs of a paper in one compressed table beside its folder `results/`, and new ones as plain files in it.

    python papers/packed.py fold papers/league      # plain files join the table and go
    python papers/packed.py unfold papers/league    # the table becomes plain files, to move or delete some

A row of `results.jsonl.xz` is a line of JSON: a run, and under "file" the plain file that it is from, without its
ending. pandas reads it: ``pd.read_json("papers/league/results.jsonl.xz", lines=True)``. A plain file stands in the
place of the rows of its name.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import lzma
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from medley.storage.atomic import replacing

Line = dict[str, Any]


def table_of(folder: Path) -> Path:
    """The table of a folder of results."""
    return folder.with_name(f"{folder.name}.jsonl.xz")


def root(path: Path) -> Path | None:
    """The folder of results that a file or folder is in, or is, and that has a table."""
    return next((f for f in (path, *path.parents) if f.name and table_of(f).exists()), None)


def rows(table: Path) -> dict[str, str]:
    """The text of each plain file in a table, by its path without the ending."""
    return _rows(table, table.stat().st_mtime_ns) if table.exists() else {}


@lru_cache(8)
def _rows(table: Path, _: int) -> dict[str, str]:
    by_file: dict[str, list[str]] = {}
    with lzma.open(table, "rt", encoding="utf-8") as f:
        for line in map(json.loads, f):
            by_file.setdefault(line.pop("file"), []).append(json.dumps(line) + "\n")
    return {name: "".join(lines) for name, lines in by_file.items()}


def named(path: Path, folder: Path) -> str:
    """What the rows of a plain file are marked with."""
    return path.relative_to(folder).as_posix().removesuffix(".jsonl")


def complete(path: Path) -> str:
    """A plain file without a last line that a killed process left unfinished."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text[: text.rfind("\n") + 1]


def text(path: Path) -> str:
    """The lines of a plain file, or those of its name in the table where there is none yet."""
    plain = complete(path)
    if plain:
        return plain
    folder = root(path := path.resolve())
    return rows(table_of(folder)).get(named(path, folder), "") if folder else ""


def read(path: Path) -> list[Line]:
    """The runs of a plain file, or those of its name in the table."""
    return [json.loads(line) for line in text(path).splitlines()]


def files(start: Path) -> list[Path]:
    """The files with runs in a folder and below it, on disk or in the table, by name."""
    folder = root(start := start.resolve())
    packed = [folder / f"{name}.jsonl" for name in rows(table_of(folder))] if folder else []
    return sorted({p for p in packed if p.is_relative_to(start)} | {p for p in start.rglob("*.jsonl") if complete(p)})


def append(path: Path, line: Line) -> None:
    """Add a run to its plain file, which begins with the rows in the table; it is on disk when this returns.

    Raises KeyboardInterrupt for a run that Ctrl-C ended: `medley.run` with ``throw=False`` returns it as any other.
    """
    if line.get("status") == "interrupted":
        raise KeyboardInterrupt
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = complete(path)
    size = path.stat().st_size if path.exists() else 0
    if size > len(begun.encode()):
        with path.open("r+b") as f:
            f.truncate(len(begun.encode()))
    with path.open("ab", buffering=0) as f:  # one write: nothing stands in the rows' place before it
        f.write(("" if begun else text(path)).encode() + json.dumps(line).encode() + b"\n")


@contextmanager
def used(folder: Path) -> Iterator[None]:
    """While runs are added, by any number of commands, none folds their files."""
    folder = root(folder := folder.resolve()) or folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as f:
        fcntl.flock(f, fcntl.LOCK_SH)
        yield


def write(table: Path, files: dict[str, str]) -> None:
    """Write a table, the same bytes from the same rows."""
    pairs = [(name, json.loads(line)) for name in sorted(files) for line in files[name].splitlines()]
    with replacing(table) as tmp, lzma.open(tmp, "wt", preset=9, encoding="utf-8") as f:
        f.writelines(json.dumps({"file": name} | line) + "\n" for name, line in pairs)


def fold(folder: Path) -> int:
    """Move plain files into the table. Returns their number."""
    table = table_of(folder)
    plain = sorted(folder.rglob("*.jsonl"))
    new = {named(p, folder): lines for p in plain if (lines := complete(p))}
    if new:
        write(table, rows(table) | new)
    for path in plain:
        path.unlink()
    for below in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
        if not any(below.iterdir()):
            below.rmdir()
    return len(new)


def unfold(folder: Path) -> int:
    """Write the table's rows as plain files, but for those that are there, and delete it. Returns their number."""
    table = table_of(folder)
    files = {folder / f"{name}.jsonl": lines for name, lines in rows(table).items()}
    new = {path: lines for path, lines in files.items() if not complete(path)}
    for path, lines in new.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines, encoding="utf-8")
    table.unlink(missing_ok=True)
    return len(new)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("fold", "unfold"))
    parser.add_argument("papers", nargs="+", type=Path, help="folders such as papers/league")
    args = parser.parse_args()
    for paper in args.papers:
        folder = paper / "results"
        folder.mkdir(exist_ok=True)
        with (folder / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"{folder} is in use by another process", file=sys.stderr)
                return 2
            print(f"{paper}: {(fold if args.command == 'fold' else unfold)(folder)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
