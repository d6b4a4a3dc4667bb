"""Finished runs on disk, a line of JSON for each, and processes that make the runs that are missing."""

from __future__ import annotations

import fcntl
import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

Line = dict[str, Any]

HERE = Path(__file__).parent / "results"


def read(path: Path) -> list[Line]:
    """The lines of a file; a last one that a killed process left unfinished is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def fill(path: Path, keys: Sequence[Line], make: Callable[[Line], Line], jobs: int) -> list[Line]:
    """The file's lines of these keys, after making those that are missing; each is on disk as soon as it is made.

    A second command waits for the first one's lock on the file.

    Args:
        path: the file
        keys: settings of runs; a line has all entries of its key
        make: a key -> its line; it runs in another process where there are several jobs
        jobs: number of processes
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        text = path.read_text(encoding="utf-8")
        held.truncate(len(text[: text.rfind("\n") + 1].encode()))
        lines = read(path)
        missing = [key for key in keys if find(lines, key) is None]
        for line in made(missing, make, jobs):
            lines.append(line)
            held.write(json.dumps(line) + "\n")
            held.flush()
            print(path.stem, line["method"], line["point"], line["seed"], line["status"], flush=True)
    return [line for key in keys if (line := find(lines, key)) is not None]


def find(lines: Sequence[Line], key: Line) -> Line | None:
    """The first line with all entries of ``key``."""
    return next((x for x in lines if all(x.get(k) == v for k, v in key.items())), None)


def made(keys: Sequence[Line], make: Callable[[Line], Line], jobs: int) -> Iterator[Line]:
    """The lines of these keys, in the order in which they are finished."""
    if jobs == 1 or len(keys) < 2:
        quiet()
        yield from map(make, keys)
        return
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("fork"), quiet)
    try:
        for done in as_completed([pool.submit(make, key) for key in keys]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def quiet() -> None:
    """One thread, and no messages below errors."""
    torch.set_num_threads(1)
    logging.getLogger("medley").setLevel(logging.ERROR)


def nicely(main: Callable[[], None], nice: int) -> None:
    """Run a command at this priority; Ctrl-C ends it with a sentence."""
    os.nice(nice)
    try:
        main()
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        raise SystemExit(130) from None
