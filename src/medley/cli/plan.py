"""The command that says the cost of a recipe before it is run: plan."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import rich.box
import rich.table

from .arguments import Debug, Methods, RecipeFile, Rounds, Seeds, Set, names_in, seeds_in
from .console import say, show

if TYPE_CHECKING:
    from ..experiments.estimate import Estimate


def plan(
    recipe_file: RecipeFile,
    only: Methods = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    settings: Set = None,
    debug: Debug = False,
) -> None:
    """Print the cost of the recipe's runs, from a short trial of each method: operations, bytes, memory, seconds."""
    import torch

    from .. import recipe
    from ..experiments.compare import names
    from ..experiments.estimate import Estimate, estimates

    r = recipe.load(recipe_file).with_settings(settings or [])
    methods = r.methods(names_in(only))
    named = dict(zip(names(methods), methods, strict=True))
    chosen = r.seeds if seeds is None else seeds_in(seeds)
    count = chosen if isinstance(chosen, int) else len(chosen)
    rounds, found = r.rounds if rounds is None else rounds, list[Estimate]()
    options = {k: v for k, v in r.options().items() if k != "transport"}
    for each in estimates(named, r.federation(), rounds, count, seed=r.seed, **options):
        say(f"{each.name}: {each.seconds:.3g} s a round")
        found.append(each)
    show(_table(found))
    first, total = found[0], sum(e.total for e in found)
    show(
        f"{first.parameters:,} parameters; {first.clients:.4g} clients a round with {first.rows:,.0f} row gradients of "
        f"local steps, {_scaled(first.flops, 1000)}FLOP as plain steps take them"
    )
    show(
        f"{first.rounds} rounds and {first.evaluations} evaluations of {first.evaluation:.3g} s each, {count} seeds, "
        f"{len(found)} methods, one run after the other: {_duration(total)} with {torch.get_num_threads()} threads "
        f"on {os.cpu_count()} cores, loaded as now"
    )


def _table(found: list[Estimate]) -> rich.table.Table:
    """A row for each method."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    heads = ("engine", "memory", "down a round", "up a round", "s a round", "from", "in all")
    table.add_column("method")
    for head in heads:
        table.add_column(head, justify="right")
    for e in found:
        table.add_row(
            e.name,
            e.engine,
            f"{_scaled(e.memory)}B",
            f"{_scaled(e.down)}B",
            f"{_scaled(e.up)}B",
            f"{e.seconds:.3g}",
            "whole rounds" if e.whole else "a few steps",
            _duration(e.total),
        )
    return table


def _scaled(value: float, base: int = 1024) -> str:
    """A number with three digits, and the letter of a power of ``base``."""
    letters, k = ("", "K", "M", "G", "T", "P", "E"), 0
    while value >= base and k < len(letters) - 1:
        value, k = value / base, k + 1
    return f"{value:.3g} {letters[k]}{'i' if k and base == 1024 else ''}"


def _duration(seconds: float) -> str:
    """Seconds in the unit that fits."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
