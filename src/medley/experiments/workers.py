"""Makes planned runs: one after the other in this process, or in parallel forked ones."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from multiprocessing import connection as pipes
from typing import Any, cast

import torch

from ..contract.errors import MedleyError
from ..storage.history import Row
from ..storage.result import Result
from .bar import Bar
from .plan import PlannedRun

Make = Callable[[PlannedRun, Callable[[Row], object]], Result]
"""Makes a run, saves its result in its folder and returns it; it calls the second argument with every new row."""

PlannedRuns = Mapping[int, PlannedRun]
"""Planned runs by number."""

Made = tuple[dict[int, Result], bool]
"""Results by number, including interrupted ones, and whether Ctrl-C ended the work."""


def in_turn(runs: PlannedRuns, make: Make, bar: Bar) -> Made:
    """Make the runs one after the other, in this process."""
    results: dict[int, Result] = {}
    with bar:
        try:
            for k, run in runs.items():
                results[k] = make(run, lambda row, k=k: bar.row(k, row))  # type: ignore[misc]
                if results[k].status.outcome == "interrupted":
                    return results, True
                bar.done(k, str(run), _last(results[k]))
        except KeyboardInterrupt:
            return results, True
    return results, False


def forked(runs: PlannedRuns, make: Make, workers: int, bar: Bar) -> Made:
    """Make the runs in ``workers`` forked processes, which leave the results in the runs' folders.

    Raises the error of a failing run, and MedleyError if a process dies.
    """
    stopped = False
    pool = Pool(runs, make)
    try:
        pool.start(workers)
        with bar:
            pool.serve(bar)
    except KeyboardInterrupt:
        stopped = True
    finally:
        pool.end()
    folders = {k: run.folder for k, run in runs.items() if run.folder is not None and run.done}
    return {k: Result.load(folder, model=False) for k, folder in folders.items()}, stopped


class Pool:
    """Forked processes that make runs: numbers of runs go in, rows and the ends of runs come out."""

    def __init__(self, runs: PlannedRuns, make: Make) -> None:
        self.runs = runs
        self.make = make
        self.waiting = list(runs)[::-1]
        self.busy: dict[pipes.Connection, int] = {}
        self.ends: list[pipes.Connection] = []
        self.processes: list[Any] = []

    def start(self, workers: int) -> None:
        """Fork the processes. Call it before the bar starts its thread.

        Threads of torch do no harm: a worker computes with one thread.
        """
        fork = multiprocessing.get_context("fork")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for _ in range(workers):
                pool_end, worker_end = fork.Pipe()
                self.ends.append(pool_end)
                self.processes.append(
                    fork.Process(target=work, args=(worker_end, list(self.ends), self.runs, self.make))
                )
                self.processes[-1].start()
                worker_end.close()

    def serve(self, bar: Bar) -> None:
        """Distribute the runs until all are made. Raises a run's error, or MedleyError if a process died."""
        for end in self.ends:
            self._give(end)
        while self.busy:
            for end in cast("list[pipes.Connection]", pipes.wait(list(self.busy))):
                k = self.busy[end]
                try:
                    kind, *content = end.recv()
                except (EOFError, OSError):  # OSError if it died before it had read its run's number
                    raise MedleyError(
                        f"{bar.call}: the process of {self.runs[k]} died, perhaps because memory ran out; try "
                        "fewer jobs"
                    ) from None
                if kind == "row":
                    bar.row(k, content[0])
                elif kind == "failed":
                    raise revived(*content)
                else:
                    bar.done(k, str(self.runs[k]), content[0])
                    del self.busy[end]
                    self._give(end)

    def _give(self, end: pipes.Connection) -> None:
        if self.waiting:
            self.busy[end] = self.waiting.pop()
            with contextlib.suppress(OSError):  # it has died; `serve` notices when it waits for the answer
                end.send(self.busy[end])

    def end(self) -> None:
        """Stop all processes. A run in progress is interrupted, and saved with the rounds that it made."""
        for process in self.processes:
            process.terminate()
        for end in self.ends:
            end.close()
        for process in self.processes:
            process.join(60)
            process.kill()
            process.join()


def work(end: pipes.Connection, others: list[pipes.Connection], runs: PlannedRuns, make: Make) -> None:
    """The main function of a worker: makes the runs whose numbers it receives, and reports rows, ends and failures."""
    # Ctrl-C reaches the whole process group; only the parent answers it, and asks its workers to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    for other in others:
        other.close()  # with a copy open here, the parent's death would go unnoticed
    torch.set_num_threads(1)
    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):
        while True:
            run = runs[end.recv()]
            try:
                result = make(run, lambda row: end.send(("row", dict(row))))
            except Exception as e:
                end.send(("failed", *described(e)))
                return
            if result.status.outcome == "interrupted":
                return
            end.send(("done", _last(result)))
            del run, result


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def described(e: Exception) -> tuple[str, str, list[str], dict[str, Any], str]:
    """An error as plain values: module and name of its class, arguments, attributes, traceback."""
    state = {a: v for a, v in vars(e).items() if isinstance(v, str | int | list | None)}
    trace = "".join(traceback.format_exception(e))
    return type(e).__module__, type(e).__name__, [str(a) for a in e.args], state, trace


def revived(module: str, name: str, args: list[str], state: dict[str, Any], trace: str) -> Exception:
    """Inverse of `described`: an error of the same class if that is known here, with the traceback as a note."""
    kind = getattr(sys.modules.get(module), name, MedleyError)
    e = cast(Exception, kind.__new__(kind))  # not kind(*args): a constructor may want more than its message
    e.args = tuple(args)
    e.__dict__.update(state)
    e.add_note(f"--- traceback in the worker ---\n{trace}")
    return e


def _last(result: Result) -> Row:
    return result.history[-1] if result.history else {}
