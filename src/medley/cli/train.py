"""The commands that train: run, compare, tune."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .arguments import Base, Debug, Jobs, Methods, RecipeFile, Rounds, Seeds, Set, complete, names_in, seeds_in
from .console import DIVERGED, INTERRUPTED, say, show, table

if TYPE_CHECKING:
    from ..federation.federation import Federation
    from ..recipe import Recipe

PLACES = ", ".join(("auto", "inprocess", "lossy", "processes", "ray"))
"""Names that `--on` accepts."""

SHOWN = 8
"""How many names of columns are shown."""

Method = typer.Option(
    "--method", autocompletion=complete, metavar="NAME", help="The method; by default the recipe's first."
)


def run(
    recipe_file: Annotated[
        Path | None,
        typer.Argument(help="The recipe, a TOML file; with --resume by default the one in DIR.", metavar="RECIPE.toml"),
    ] = None,
    only: Annotated[str | None, Method] = None,
    seed: Annotated[int | None, typer.Option(help="The seed for all random draws, instead of run.seed.")] = None,
    rounds: Rounds = None,
    settings: Set = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the result, the recipe and a checkpoint in this folder.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Resume from the checkpoint in this folder.")
    ] = None,
    on: Annotated[str, typer.Option(help=f"Where clients run: {PLACES}.")] = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="The number of processes, or of Ray actors.")] = None,
    log: Annotated[
        str | None,
        typer.Option(help="Print a line per round on stderr instead of the bar: text or json.", metavar="FORM"),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print where the time went.")] = False,
    debug: Debug = False,
) -> None:
    """Train one method on the recipe's clients and print its result."""
    from .. import logs, recipe
    from ..experiments.board import Board
    from ..experiments.profile import profiled

    folder = save or resume
    overrides = [f"run.{k}={v}" for k, v in (("seed", seed), ("rounds", rounds)) if v is not None]
    r = recipe.load(_recipe(recipe_file, resume))
    if recipe_file is None:  # a run's folder may come from another person: run no code from it
        if "sink" in r.tables:  # its address would receive this run's figures
            say(f"[sink] of {folder}/recipe.toml is left out: give the recipe itself to go on sending figures there")
        r = replace(r, folder=None, tables={k: v for k, v in r.tables.items() if k != "sink"})
    r = r.with_settings([*(settings or []), *overrides]).only(only)
    (method,) = r.methods()
    options = r.options() | {"checkpoint": folder, "resume": resume, "recipe": r.dumps()}
    place = _transport(on, workers, options.get("transport"), profile)
    if place is not None:
        options["transport"] = place
    if log is not None:
        logs.lines(log)
        options["progress"] = False
    fed = _federation(r, say if log is None else logging.getLogger("medley").info)
    with _unsaved_shown(), r.filing() as options["on_round"]:
        if profile:
            result, spent = profiled(method, fed, r.rounds, seed=r.seed, throw=False, **options)
            show(spent.text())
        else:
            result = fed.run(method, r.rounds, seed=r.seed, throw=False, **options)
    show(Board([result]))
    show(str(result.status))
    if folder is not None:
        show(f"saved in {folder}")
    if result.status.outcome == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if result.status.outcome in ("diverged", "stalled"):
        raise typer.Exit(DIVERGED)


def _federation(r: Recipe, tell: Callable[[str], object] = say) -> Federation:
    """The recipe's federation. Prints how the data was read, and which rows the figures are from."""
    fed = r.federation()
    text = f"{r.source}: {fed.data!r}"
    if fed.data.features:
        first = fed.data.features[:SHOWN]
        more = len(fed.data.features) - SHOWN
        text += f" with {', '.join(first)}" + (f" and {more} columns more" if more > 0 else "")
    if fed.data.X_test is None and fed.sizes is None:
        text += "; no test rows, so figures are for the training rows"
    tell(text)
    return fed


def _transport(on: str, workers: int | None, faults: Any, profile: bool) -> Any:
    """Where clients run, as asked, inside the recipe's faults; None for the default."""
    from .. import recipe

    if profile and on == "auto" and workers is None:
        on = "inprocess"  # work in other processes would be counted as waiting
    if on == "inprocess" and workers is None:
        return None
    inner = recipe.transport(on, workers)
    return inner if faults is None else replace(faults, inner=inner)


def _recipe(recipe_file: Path | None, resume: Path | None) -> Path:
    """The recipe that you passed, or else the one in the folder to resume. Raises RecipeError if there is neither."""
    from ..contract.errors import RecipeError
    from ..storage.run_folder import holds_comparison

    if resume is not None and holds_comparison(resume):
        message = f"{resume} holds a comparison: medley compare RECIPE.toml --save {resume} goes on with it"
        raise RecipeError(message, "resume")
    if recipe_file is None and resume is None:
        raise RecipeError("medley run: give a recipe, or --resume with the folder of an earlier run")
    if recipe_file is None and not Path(resume or "").is_dir():
        raise RecipeError(
            f"medley run --resume {resume}: there is no such folder; give the folder of an earlier run", "resume"
        )
    return recipe_file or Path(resume or "", "recipe.toml")


@contextmanager
def _unsaved_shown() -> Iterator[None]:
    """Print the table of a finished run that could not be saved."""
    from ..contract.errors import MedleyError
    from ..experiments.board import Board

    try:
        yield
    except MedleyError as e:
        if e.result is not None and e.result.status.outcome != "failed":
            show(Board([e.result]))
        raise


def compare(
    recipe_file: RecipeFile,
    only: Methods = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    settings: Set = None,
    base: Base = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="report.html, table.csv or figures.json; or a folder that keeps every run, to resume after Ctrl-C.",
        ),
    ] = None,
    jobs: Jobs = None,
    debug: Debug = False,
) -> None:
    """Run several methods on the same clients, seed by seed, and print the table."""
    from .. import recipe
    from ..experiments import compare as comparison
    from ..experiments.board import kind_of
    from ..storage import atomic

    r = recipe.load(recipe_file).with_settings(settings or [])
    methods = r.methods(names_in(only))
    named = dict(zip(comparison.names(methods), methods, strict=True))
    if base is not None:
        base = next((n for n in named if n.lower() == base.lower()), base)
    options = r.options()
    fed = _federation(r)
    chosen = r.seeds if seeds is None else seeds_in(seeds)
    folder = save if save is not None and kind_of(save) == "folder" else None
    if save is not None and folder is None:
        atomic.writable(save, "medley compare --save")
    rounds = r.rounds if rounds is None else rounds
    with r.filing() as options["on_round"]:
        board = comparison.compare(
            named, fed, rounds, chosen, jobs=jobs, save=folder, base=base, recipe=r.dumps(), **options
        )
    if not board.results:
        raise KeyboardInterrupt(str(board.status))
    board.command = shlex.join(["medley", *sys.argv[1:]])
    show(board)
    if save is not None:
        board.save(save if folder is None else folder / "report.html")
        show(f"saved in {save}")
    if not board.status.ok:
        say(str(board.status))
        raise typer.Exit(INTERRUPTED)
    if not any(r.status.ok for r in board.results):
        raise typer.Exit(DIVERGED)


def tune(
    recipe_file: RecipeFile,
    only: Methods = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    metric: Annotated[str | None, typer.Option(help="The figure to choose by, instead of tune.metric.")] = None,
    settings: Set = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE.toml", help="Write the recipe with the settings that were found here."),
    ] = None,
    jobs: Jobs = None,
    debug: Debug = False,
) -> None:
    """Choose each method's settings from the recipe's grid, by the validation split, and print every trial."""
    from rich.text import Text

    from .. import recipe
    from ..contract.errors import RecipeError
    from ..experiments import tune as tuning
    from ..storage import atomic

    if save is not None:
        atomic.writable(save, "medley tune --save")
    r = recipe.load(recipe_file).with_settings(settings or [])
    methods = r.methods(names_in(only))
    grids = [r.grid(m) for m in methods]
    if not all(grids):
        message = f"{recipe_file} has no settings to try; give some, [tune] grid = {{ lr = [0.3, 1, 3] }}"
        raise RecipeError(message, "tune")
    options = r.tuning() | {k: v for k, v in (("rounds", rounds), ("metric", metric)) if v is not None}
    if seeds is not None:
        options["seeds"] = seeds_in(seeds)
    fed = _federation(r)
    tuned = []
    for method, grid in zip(methods, grids, strict=True):
        best = tuning.tune(method, fed, grid, jobs=jobs, **options)
        tuned.append(best)
        show(_grid_table(best.name, grid, best.record))
    chosen = recipe.tuned(r, tuned)
    show(Text(recipe.Recipe({"methods": chosen.tables["methods"]}).dumps()))
    if save is not None:
        show(f"saved in {chosen.save(save)}")


def _grid_table(name: str, grid: Mapping[str, Any], record: Iterable[Mapping[str, Any]]) -> Any:
    """A row for each point of the grid, with its score, its status and its note; the chosen one is bold."""
    from rich.text import Text

    rows = []
    for row in record:
        remarks = [row["status"] if row["status"] != "finished" else "", row.get("note", "")]
        words = "; ".join([*(["chosen"] if row["chosen"] else []), *(s for s in remarks if s)])
        cells = (*(str(row[k]) for k in grid), f"{row['score']:.4g}", words)
        rows.append([Text(cell, style="bold" if row["chosen"] else "") for cell in cells])
    return table((*grid, "score", ""), rows, right=(*grid, "score"), title=name)
