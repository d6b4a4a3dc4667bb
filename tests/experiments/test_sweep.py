"""Many runs: their order, their folder, and the options that a sweep sets itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import medley as md
from medley.contract.algorithm import Algorithm
from medley.experiments.sweep import OWN_OPTIONS, Sweep
from support.pairs import quick

TOY = md.problems.synthetic_quadratics(clients=3)
METHODS: dict[str, Algorithm[Any, Any]] = {"b": md.FedAvg(), "a": md.FedProx()}


def sweep(seeds: tuple[int, ...] = (4, 0), **arguments: Any) -> Sweep:
    fed = md.Federation(TOY.problem, clients=TOY.clients, pace=md.scenarios.Pace(lr=0.05, batch=None))
    return Sweep(METHODS, fed, 2, seeds, "sweep", progress=False, **arguments)


@pytest.mark.parametrize("jobs", quick(2, [1, 2, 9]))
def test_results_stand_in_the_order_of_methods_and_seeds_whatever_the_jobs(jobs: int) -> None:
    results, status = sweep(jobs=jobs).run()
    assert [(r.method, r.seed) for r in results] == [("b", 4), ("b", 0), ("a", 4), ("a", 0)]
    assert status.ok
    single = md.run(METHODS["a"], sweep().fed, 2, seed=0, progress=False)  # type: ignore[arg-type]
    assert results[3].digest == single.digest


def test_a_folder_gives_back_finished_runs_and_only_the_lacking_ones_are_made(tmp_path: Path) -> None:
    first, _ = sweep((4,), jobs=1, folder=tmp_path / "s").run()
    runs: list[tuple[str, int]] = []
    count = lambda row: runs.append((row["method"], row["seed"]))
    both, _ = sweep(jobs=1, folder=tmp_path / "s", options={"on_round": count}).run()
    assert [r.digest for r in both[::2]] == [r.digest for r in first]
    assert {seed for _, seed in runs} == {0}


def test_an_interrupted_sweep_says_so_and_keeps_what_it_has() -> None:
    def stop(row: dict[str, Any]) -> None:
        if (row["method"], row["seed"], row["round"]) == ("b", 0, 1):
            raise KeyboardInterrupt

    results, status = sweep(jobs=1, options={"on_round": stop}).run()
    assert not status.ok
    assert [(r.method, r.seed, len(r.history)) for r in results] == [("b", 4, 3), ("b", 0, 2)]


@pytest.mark.parametrize("key", OWN_OPTIONS)
def test_an_option_that_a_sweep_sets_itself_is_refused(key: str) -> None:
    with pytest.raises(md.RecipeError, match=rf"sweep\({key}=") as caught:
        sweep(options={key: 1})
    assert caught.value.key == key


@pytest.mark.parametrize("jobs", [0, -1])
def test_jobs_are_at_least_one(jobs: int) -> None:
    with pytest.raises(md.RecipeError, match=rf"sweep\(jobs={jobs}\)"):
        sweep(jobs=jobs)
