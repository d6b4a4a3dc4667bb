"""The best settings of a method on a grid, judged on rows used neither for training nor for the test."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..contract import Algorithm, Diverged, Pace, RecipeError, Tuned, Wrapper
from ..contract.surroundings import set_aside
from ..distributions import is_number
from ..federation.federation import Federation
from ..metrics import named
from ..numerics.forgetting import figures
from ..report.numbers import directions, usable
from ..storage.directions import directions_of, higher_is_better
from ..storage.history import Row
from ..storage.result import Result
from .plan import Method, seeds_of, split
from .sweep import Sweep, check_options

log = logging.getLogger("medley")

LAST = 10
"""A run's score is the mean over this many of its last evaluations."""

DEFAULTS = ("acc", "accuracy", "test_loss", "loss")
"""Figures to choose by, in order of preference; the first that the runs have counts."""

UNKNOWN = "tune(metric=...): the history"

Grid = Mapping[str, Sequence[Any]]
"""Values to try, by setting."""

Point = dict[str, Any]
"""A point of a grid: one value for each setting."""


@set_aside("tune()")
def tune(
    method: Method,
    fed: Federation,
    grid: Grid,
    rounds: int = 100,
    seeds: int | Sequence[int] = 1,
    *,
    metric: str | None = None,
    jobs: int | None = None,
    save: str | Path | None = None,
    **options: Any,
) -> Tuned:
    """The point of ``grid`` with the best ``metric`` on the validation split; the first one in a tie.

    Args:
        method: the method; if it is `Tuned`, the factor "lr" of the grid multiplies its own
        fed: the federation; it needs a validation split
        grid: lists of values. The key "lr" is a factor on every client's lr; the other keys are the method's settings
        rounds, seeds: for every run, as in `compare`. Default 100 rounds and seed 0
        metric: the figure to choose by. Default: the first of these that exists: acc (the mean over a stream's tasks at
            the end), accuracy, test_loss, loss
        jobs: runs at a time, as in `compare`
        save: a folder that keeps finished runs, as in `compare`. Default None keeps none
        options: options of `medley.run`; ``progress`` shows or hides one bar over all runs

    The score of a point is the mean over the seeds of the mean over the last 10 evaluations after round 0; a point that
    diverged loses to any that did not. The record of the returned method has a dict per point, in the order of the
    grid: its settings, score, scores by seed, status, rounds, and whether it was chosen. If the chosen point lies at
    the edge of its grid, the dict also has a note, which appears in reports and as a warning in the log.

    Raises RecipeError for an unknown key, an empty grid, ``evaluate_on="test"``, no validation split, and, after the
    first evaluated round, if the metric is missing or always nan; Diverged if all points diverged.
    """
    check_options(tune, options)
    _check(method, grid, metric, options)
    algorithm, lr = split(method)
    points = points_of(algorithm, grid)
    candidates = {_name(algorithm, p): variant(algorithm, p, lr) for p in points}
    if len(candidates) < len(points):
        raise RecipeError(f"tune(grid={dict(grid)!r}): the same value occurs twice", "grid")
    progress = options.pop("progress", None)
    folder = None if save is None else Path(save)
    options = {**options, "evaluate_on": "validation", "on_round": _checking(metric, options.get("on_round"))}
    chosen = seeds_of(seeds, "tune")
    sweep = Sweep(candidates, fed, rounds, chosen, "tune", jobs=jobs, folder=folder, progress=progress, options=options)
    results, status = sweep.run()
    if not status.ok:
        raise KeyboardInterrupt(str(status))
    if metric is None:
        available = set[str]().union(*(r.history[0] for r in results if r.history), *map(figures_of, results))
        metric = next((m for m in DEFAULTS if m in available), DEFAULTS[-1])
    runs = {name: [r for r in results if r.method == name] for name in candidates}
    record = [{**p, **_judged(runs[n], metric), "rounds": rounds} for n, p in zip(candidates, points, strict=True)]
    best = _best(algorithm, results, record, metric)
    record[best]["chosen"] = True
    _note_idle(algorithm, grid, points, results)
    _note_edge(algorithm, record[best], _edges(points[best], grid))
    return dataclasses.replace(candidates[_name(algorithm, points[best])], record=tuple(record))


def _note_edge(algorithm: Algorithm[Any, Any], best: Point, edge: str) -> None:
    """Note in the record of the chosen point, and in the log, that it lies at an edge of its grid, if it does."""
    if edge:
        best["note"] = edge
        log.warning("tune: %s, %s", algorithm.name, edge)


def points_of(algorithm: Algorithm[Any, Any], grid: Grid) -> list[Point]:
    """All points of a grid. Raises RecipeError for an unknown key and for an empty grid."""
    keys = tunable(algorithm)
    for key, values in grid.items():
        if key not in keys and key in Pace.__dataclass_fields__:
            raise RecipeError(
                f"tune(grid=...): {key!r} is a setting of the clients' pace, the same for all methods; "
                f"call tune on one federation per Pace({key}=...), and compare the scores",
                key,
            )
        if key not in keys:
            raise RecipeError.unknown(key, keys, f"tune(grid=...) of {algorithm.name}")
        if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
            raise RecipeError(f"tune(grid={{{key!r}: {values!r}}}): give a list of values to try", key)
        invalid = [v for v in values if not is_number(v) or v <= 0] if key == "lr" else []
        if invalid:
            raise RecipeError(f"tune(grid={{'lr': ...}}) has {invalid[0]!r}; give numbers above 0, factors of lr", key)
    if not grid:
        raise RecipeError("tune(grid={}): give settings to try, e.g. {'lr': [0.3, 1, 3]}", "grid")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _judged(runs: list[Result], metric: str) -> dict[str, Any]:
    """The record of one point: its score, its scores by seed, and its status."""
    scores = [score(r, metric) for r in runs]
    ends = "; ".join(f"seed {r.seed} {r.status}" for r in runs if not r.status.ok) or "finished"
    return {"score": sum(scores) / len(scores), "scores": scores, "status": ends, "chosen": False}


def _checking(metric: str | None, on_round: Callable[[Row], object] | None) -> Callable[[Row], object] | None:
    """``on_round``, preceded by a check that raises RecipeError for a metric that the runs' rows lack.

    Row 0 lacks notes of a round. Figures of a stream and of clients' own models may come only with the last row.
    """
    if metric is None:
        return on_round

    def checked(row: Row) -> None:
        late = figures([[0.0]]) if "task" in row else {}
        if row["round"] > 0 and not (metric in row or metric in late or metric.startswith("personal_")):
            raise RecipeError.unknown(metric, {*row, *late} - {"method", "seed", "round"}, UNKNOWN)
        if on_round is not None:
            on_round(row)

    return checked


def _best(algorithm: Algorithm[Any, Any], results: list[Result], record: list[Point], metric: str) -> int:
    """The index of the best point. Raises RecipeError for an unknown metric, Diverged if all points diverged."""
    ranked = [k for k, row in enumerate(record) if math.isfinite(row["score"])]
    if not ranked:
        rows = chain.from_iterable((*r.history, figures_of(r)) for r in results)
        available = sorted(set[str]().union(*rows))
        if metric not in available:
            raise RecipeError.unknown(metric, available, UNKNOWN)
        if any(map(usable, results)):
            raise RecipeError(
                f"tune(metric={metric!r}): it is nan at the end of every run that finished, so it cannot "
                "choose between points; choose a metric that has a value on these rows",
                "metric",
            )
        raise Diverged(f"tune: {algorithm.name} diverged at all {len(record)} points; try smaller values", results)
    blind = [row for row in record if math.isnan(row["score"]) and row["status"] == "finished"]
    if blind:
        log.warning("tune: %s is nan at %d of %d points, which can't be chosen", metric, len(blind), len(record))
    sign = 1.0 if higher_is_better(metric, directions(results)) else -1.0
    return max(ranked, key=lambda k: sign * record[k]["score"])


def _check(method: object, grid: object, metric: object, options: Mapping[str, Any]) -> None:
    if not isinstance(method, Algorithm | Tuned):
        raise RecipeError(f"tune(method={method!r}): give a method such as FedAvg()", "method")
    if not isinstance(grid, Mapping):
        raise RecipeError(f"tune(grid={grid!r}): give values by setting, such as {{'lr': [0.1, 1.0]}}", "grid")
    if metric is not None and not isinstance(metric, str):
        raise RecipeError(f"tune(metric={metric!r}): give the name of a figure, such as 'accuracy'", "metric")
    declared = directions_of(named(options.get("metrics")))
    if metric in declared:
        higher_is_better(metric, declared)
    if options.get("best") is not None and options.get("patience") is None:
        raise RecipeError(
            f"tune(best={options['best']!r}): a point's score is the mean of its last evaluations, whichever round was "
            "best; leave best= out, choose the figure by metric=, or give patience= too, to end runs early",
            "best",
        )
    if options.get("evaluate_on", "validation") != "validation":
        raise RecipeError(
            f"tune(evaluate_on={options['evaluate_on']!r}): if you choose by test rows, the method looks better "
            "than it is; leave evaluate_on= out, and tune chooses by validation rows",
            "evaluate_on",
        )


def tunable(algorithm: Algorithm[Any, Any]) -> list[str]:
    """Settings that can be tuned: "lr", the factor on the clients' lr, and the method's own settings."""
    return ["lr", *algorithm.settings()]


def variant(algorithm: Algorithm[Any, Any], settings: Mapping[str, Any], lr: float = 1.0) -> Tuned:
    """``algorithm`` with these settings, named as in `tunable`; ``lr`` multiplies its factor."""
    arguments = {k: v for k, v in settings.items() if k != "lr"}
    method: Any = algorithm  # mypy doesn't know that every method is a dataclass
    if isinstance(algorithm, Wrapper):
        prefix = f"{algorithm.prefix}."
        outer = {k.removeprefix(prefix): arguments.pop(k) for k in [*arguments] if k.startswith(prefix)}
        arguments = {**outer, "method": variant(algorithm.method, arguments).method}
    return Tuned(dataclasses.replace(method, **arguments), lr * settings.get("lr", 1.0))


def score(result: Result, metric: str) -> float:
    """The mean of the last evaluations, or the final figure of a stream of tasks; nan for an unusable run.

    Row 0, the model before any training, counts only if there is no other row.
    """
    rows = result.history[1:][-LAST:] or result.history
    values = [row[metric] for row in (*rows, figures_of(result)) if metric in row]
    return sum(values) / len(values) if values and usable(result) else math.nan


def figures_of(result: Result) -> dict[str, float]:
    """Final figures of a stream of tasks, such as acc, fgt and learn; empty for other runs."""
    return {name: result.summary[name] for name in figures([[0.0]]) if name in result.summary}


def _name(algorithm: Algorithm[Any, Any], point: Mapping[str, Any]) -> str:
    return f"{algorithm.name} ({', '.join(f'{k}={v}' for k, v in point.items())})"


def _note_idle(algorithm: Algorithm[Any, Any], grid: Grid, points: Sequence[Point], results: Sequence[Result]) -> None:
    """If all values of a setting led to the same models, log a warning that names it."""
    models: dict[str, list[bytes]] = {}
    for r in results:
        models.setdefault(r.method, []).append(r.x.numpy().tobytes())
    for key, values in grid.items():
        alike = [
            models[_name(algorithm, p)] == models[_name(algorithm, q)]
            for p, q in itertools.combinations(points, 2)
            if all(repr(p[k]) == repr(q[k]) for k in grid if k != key)
        ]
        if len(values) > 1 and all(alike):
            log.warning("tune: %s changed nothing: all its values gave %s the same models", key, algorithm.name)


def _edges(point: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> str:
    """A sentence that names the values at the edge of their grid; empty if there are none."""
    at = []
    for key, value in point.items():
        values = grid[key]
        numbers = len(values) > 1 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        if numbers and value in (min(values), max(values)):
            at.append(f"{key}={value} is the {'smallest' if value == min(values) else 'largest'} of its grid")
    return f"{' and '.join(at)}: a better one may lie beyond" if at else ""
