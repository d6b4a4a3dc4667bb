"""Finished runs on disk, a line of JSON for each (../packed.py), and processes that make the missing ones."""

from __future__ import annotations

import fcntl
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))
from packed import Line, append, read, used

HERE = Path(__file__).parent / "results"


def fill(path: Path, keys: Sequence[Line], make: Callable[[Line], Line], jobs: int) -> list[Line]:
    """The file's lines of these keys, after making those that are missing; each is on disk as soon as it is made.

    A second command waits for the first one's lock on the file.

    Args:
        path: the file
        keys: settings of runs; a line has all entries of its key
        make: a key -> its line; it runs in another process where there are several jobs
        jobs: number of processes
    """
    lines = read(path)
    if any(find(lines, key) is None for key in keys):
        with used(path.parent), path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            lines = read(path)
            for line in produced([key for key in keys if find(lines, key) is None], make, jobs):
                lines.append(line)
                append(path, line)
                print(path.stem, line["method"], line["point"], line["seed"], line["status"], flush=True)
    return [line for key in keys if (line := find(lines, key)) is not None]


def find(lines: Sequence[Line], key: Line) -> Line | None:
    """The first line with all entries of ``key``."""
    return next((x for x in lines if all(x.get(k) == v for k, v in key.items())), None)


def produced(keys: Sequence[Line], make: Callable[[Line], Line], jobs: int) -> Iterator[Line]:
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
