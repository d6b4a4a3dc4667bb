"""Runs in forked processes: the ends of runs, errors that cross, a parent that stops its workers."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import medley as md
from medley.contract.errors import ClientFailed, MedleyError
from medley.experiments import workers
from medley.experiments.bar import Bar
from medley.experiments.plan import PlannedRun
from medley.storage.history import Row
from medley.storage.result import Result
from support.toys import Toy, federation

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def planned(folder: Path, count: int) -> dict[int, PlannedRun]:
    return {k: PlannedRun("Toy", Toy(), k, {"seed": k}, folder / str(k)) for k in range(count)}


def make(run: PlannedRun, on_row: Callable[[Row], object]) -> Result:
    """Two rounds of the run; its result is saved with the number of the process that made it."""
    result = md.run(Toy(), federation(3), 2, seed=run.seed, on_round=on_row, progress=False)
    result = replace(result, settings={"process": os.getpid()})
    assert run.folder is not None
    result.save(run.folder)
    return result


def bar(count: int) -> Bar:
    return Bar(False, "compare", count, 2)


@pytest.mark.slow
def test_workers_make_the_results_of_one_process(tmp_path: Path) -> None:
    one, stopped = workers.in_turn(planned(tmp_path / "a", 3), make, bar(3))
    two, stopped_too = workers.forked(planned(tmp_path / "b", 3), make, 2, bar(3))
    assert (stopped, stopped_too) == (False, False)
    assert list(one) == list(two) == [0, 1, 2]
    assert [one[k].digest for k in one] == [two[k].digest for k in two]
    assert len({r.digest for r in one.values()}) == 3
    made_by = {r.settings["process"] for r in two.values()}
    assert os.getpid() not in made_by
    assert len(made_by) == 2


def test_in_turn_ends_with_the_first_interrupted_run(tmp_path: Path) -> None:
    def second_is_cut(run: PlannedRun, on_row: Callable[[Row], object]) -> Result:
        result = make(run, on_row)
        outcome = "interrupted" if run.seed == 1 else "finished"
        return replace(result, status=replace(result.status, outcome=outcome))

    results, stopped = workers.in_turn(planned(tmp_path, 4), second_is_cut, bar(4))
    assert stopped
    assert [r.status.outcome for r in results.values()] == ["finished", "interrupted"]


def test_an_interrupted_call_stops_its_workers_and_keeps_what_is_made(tmp_path: Path) -> None:
    """Ctrl-C comes with the end of the first run; the others sleep an hour, and their processes are gone at once."""
    processes: list[Any] = []

    class Pool(workers.Pool):
        def end(self) -> None:
            super().end()
            processes.extend(self.processes)

    def slow(run: PlannedRun, on_row: Callable[[Row], object]) -> Result:
        if run.seed:
            time.sleep(3600)
        return make(run, on_row)

    class Struck(Bar):
        def done(self, *args: Any) -> None:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "Pool", Pool)
        results, stopped = workers.forked(planned(tmp_path, 3), slow, 2, Struck(False, "compare", 3, 2))
    assert stopped
    assert list(results) == [0]
    assert results[0].status.ok
    assert [p.is_alive() for p in processes] == [False, False]


def test_an_error_crosses_with_class_attributes_and_traceback() -> None:
    try:
        raise ClientFailed(client=3, round=2, method="train", traceback="a trace")
    except ClientFailed as e:
        description = workers.described(e)
    back = workers.revived(*description)
    assert type(back) is ClientFailed
    assert (back.client, back.round, back.traceback) == (3, 2, "a trace")
    assert str(back).startswith("client 3 failed in round 2 in train(): a trace\n")
    assert "raise ClientFailed(" in "".join(back.__notes__)


def test_an_error_of_a_class_that_is_not_known_here_is_medleys() -> None:
    back = workers.revived("nowhere", "Odd", ["why"], {}, "trace")
    assert type(back) is MedleyError
    assert back.args == ("why",)


def test_a_run_that_fails_in_a_worker_raises_its_error(tmp_path: Path) -> None:
    def failing(run: PlannedRun, on_row: Callable[[Row], object]) -> Result:
        if run.seed == 1:
            raise ZeroDivisionError("by nothing")
        return make(run, on_row)

    with pytest.raises(ZeroDivisionError, match="by nothing") as caught:
        workers.forked(planned(tmp_path, 2), failing, 2, bar(2))
    assert "traceback in the worker" in "".join(caught.value.__notes__)


def test_a_worker_that_is_killed_is_named(tmp_path: Path) -> None:
    def killed(run: PlannedRun, on_row: Callable[[Row], object]) -> Result:
        os.kill(os.getpid(), signal.SIGKILL)
        sys.exit("not reached")

    with pytest.raises(MedleyError, match=r"compare: the process of Toy, seed 0 died, .*try fewer jobs"):
        workers.forked(planned(tmp_path, 1), killed, 1, bar(1))
