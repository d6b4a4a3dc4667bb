"""A sweep: every method with every seed, in parallel forked processes; no finished run is lost."""

from __future__ import annotations

import logging
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any

from ..contract import MedleyError, RecipeError, check_flag, integer, refuse_unknown, take
from ..federation.federation import Federation
from ..runtime.cores import cores
from ..server.options import RunOptions
from ..storage import atomic
from ..storage.history import Row
from ..storage.identity import identity
from ..storage.result import Result, Status
from ..storage.run_folder import holds_run
from ..storage.weights import weights_of
from .bar import Bar
from .plan import Method, PlannedRun, as_json, settings_of, slot, split
from .workers import forked, in_turn

log = logging.getLogger("medley")

OWN_OPTIONS = ("seed", "throw", "progress", "checkpoint", "resume", "recipe")
"""Options of a run that a sweep sets itself."""

OPTIONS = [name for name in signature(RunOptions).parameters if name not in OWN_OPTIONS]
"""Options of a run that a sweep passes on."""

IDENTIFIED = ("init", "codec", "metrics")
"""Options of a run whose text in the settings does not distinguish them."""


def check_options(call: Callable[..., Any], options: Iterable[str]) -> None:
    """Raise UnknownSetting, with the nearest valid name, for a keyword that neither the call nor `medley.run` has."""
    refuse_unknown(call, call.__name__, [key for key in options if key not in OWN_OPTIONS], OPTIONS)


@dataclass(frozen=True)
class Sweep:
    """Every named method with every seed, in that order. A run that diverges does not end the sweep.

    Attributes:
        jobs: number of processes at a time, with one thread each. Default: one per core, or one if runs bring a
            transport or an accelerator. With one job the runs are made in this process, with torch's own threads
        folder: keeps every finished run; runs found in it are not repeated. Default None keeps none
        progress: whether to draw a bar; None draws it on a terminal
    """

    methods: Mapping[str, Method]
    fed: Federation
    rounds: int
    seeds: Sequence[int]
    call: str
    jobs: int | None = None
    folder: Path | None = None
    progress: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    per_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of single methods, by their names; they override ``options``."""
    recipe: str | None = None
    """The TOML source, written into the folder once its runs are known to be of this call."""

    def __post_init__(self) -> None:
        for key in OWN_OPTIONS:
            if key in self.options:
                remedy = "; set them with seeds=, a list or their number" if key == "seed" else ""
                raise RecipeError(f"{self.call}({key}=...): {self.call} sets this for every run itself{remedy}", key)
        take(self, integer, "jobs")
        jobs = None if self.jobs is None else integer(self.jobs)
        if self.jobs is not None and (jobs is None or jobs < 1):
            raise RecipeError(f"{self.call}(jobs={self.jobs!r}): must be a whole number, at least 1", "jobs")
        if self.progress is not None:
            check_flag(self.progress, self.call, "progress")
        if not isinstance(self.fed, Federation):
            raise RecipeError(f"{self.call}(fed={self.fed!r}): give a Federation", "fed")

    def run(self) -> tuple[list[Result], Status]:
        """Make all runs. Returns the results in order, and the status of the sweep.

        Ctrl-C ends the sweep early: the status says so, and interrupted runs are returned with the rounds that they
        made. An error in a run is raised with the run's name in its message.
        """
        with ExitStack() as stack:
            if self.folder is not None:
                if holds_run(self.folder):
                    raise RecipeError(
                        f"{self.folder} holds a single run; choose another folder for {self.call}", "save"
                    )
                stack.enter_context(atomic.locked(self.folder))
            runs = self.plan()
            saved = {k: run.saved_result() for k, run in enumerate(runs)}
            results = {k: result for k, result in saved.items() if result is not None}
            if self.folder is not None and self.recipe is not None:
                atomic.write(self.folder / "recipe.toml", self.recipe)
            todo = {k: run for k, run in enumerate(runs) if k not in results}
            self._check(todo.values())
            bar = Bar(self.progress, self.call, len(todo), self.rounds, self._tell(todo))
            workers = min(self.jobs or self._default_jobs(), len(todo))
            if workers > 1 and "fork" not in multiprocessing.get_all_start_methods():
                log.warning(
                    "%s(jobs=%d): this system cannot fork, so runs are made one after the other", self.call, workers
                )
                workers = 1
            if workers > 1:
                if self.folder is None:  # results of other processes come through files
                    place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="medley-")))
                    todo = {
                        k: replace(run, folder=slot(place, run.name, run.seed, self.methods)) for k, run in todo.items()
                    }
                results_made, stopped = forked(todo, self.make, workers, bar)
            else:
                results_made, stopped = in_turn(todo, self.make, bar)
        results |= results_made
        for result in results.values():
            result.model = None  # x is kept, so there is a copy of the weights
        status = self._interrupted(results, len(runs)) if stopped else Status("finished")
        return [results[k] for k in sorted(results)], status

    def plan(self) -> list[PlannedRun]:
        """All runs, in order."""
        common = self.fed.settings() | ({} if self.folder is None else self.fed.identity())
        runs = []
        for name, method in self.methods.items():
            settings = {**settings_of(method), **common, "run": {"rounds": self.rounds, **self.options_of(name)}}
            if self.folder is not None:
                settings |= identity(self._identified(name)) | identity({"method": split(method)[0]})
            for seed in self.seeds:
                at = None if self.folder is None else slot(self.folder, name, seed, self.methods)
                runs.append(PlannedRun(name, method, seed, as_json({**settings, "seed": seed}), at))
        return runs

    def make(self, run: PlannedRun, tick: Callable[[Row], object]) -> Result:
        """Make one run and save it; ``tick`` is called with every row. Errors carry the run's name."""
        try:
            result = self.fed.run(
                run.method,
                self.rounds,
                seed=run.seed,
                throw=False,
                progress=False,
                on_round=tick,
                **self.options_of(run.name),
            )
        except MedleyError as e:
            e.args = (f"{run}: {e}", *e.args[1:])
            raise
        except Exception as e:
            e.add_note(f"in {self.call}: {run}")
            raise
        result.method = run.name
        result.settings = as_json({**run.settings, **result.settings})
        if run.folder is not None:
            result.save(run.folder)
        return result

    def _tell(self, runs: Mapping[int, PlannedRun]) -> Callable[[int, Row], object] | None:
        """A function that passes a run's row to ``on_round``, with method and seed; None without ``on_round``."""
        on_round = self.options.get("on_round")
        if on_round is None:
            return None
        return lambda k, row: on_round({"method": runs[k].name, "seed": runs[k].seed, **row})

    def options_of(self, name: str) -> dict[str, Any]:
        """The options of `medley.run` for the method of this name, without ``on_round``."""
        options = {**self.options, **self.per_method.get(name, {})}
        options.pop("on_round", None)
        return options

    def _check(self, runs: Iterable[PlannedRun]) -> None:
        """Before any run starts, raise the error that one of them would raise at its start."""
        first = {run.name: run for run in reversed(list(runs))}
        if first:
            options_by_name = {name: {"rounds": self.rounds, **self.options_of(name)} for name in first}
            seed = self.seeds[0]
            try:
                self.fed.check(
                    {name: self.methods[name] for name in self.methods if name in first},
                    {name: {**options, "seed": seed} for name, options in options_by_name.items()},
                )
            except MedleyError as e:
                e.args = (f"{self.call}, before the first run: {e}", *e.args[1:])
                raise

    def _identified(self, name: str) -> dict[str, Any]:
        options = self.options_of(name)
        parts = {key: options.get(key) for key in IDENTIFIED}
        return parts | {"init": weights_of(parts["init"])}

    def _default_jobs(self) -> int:
        options = [self.options_of(name) for name in self.methods]
        accelerated = any(o.get("transport") is not None or str(o.get("device", "cpu")) != "cpu" for o in options)
        return 1 if accelerated or sys.platform != "linux" else cores()

    def _interrupted(self, results: Mapping[int, Result], total: int) -> Status:
        done = sum(r.status.outcome != "interrupted" for r in results.values())
        more = f"; the same call resumes from {self.folder}" if self.folder is not None else ""
        return Status("interrupted", f"stopped by Ctrl-C: {done} of {total} runs are done{more}")
