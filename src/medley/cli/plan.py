"""The command that says the cost of a recipe before it is run: plan."""

from __future__ import annotations

import os

from .arguments import Debug, Methods, RecipeFile, Rounds, Seeds, Set, names_in, seeds_in
from .console import say, show, table


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
    from ..report.units import duration, nbytes

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
    rows = [
        (
            e.name,
            e.engine,
            *map(nbytes, (e.memory, e.down, e.up)),
            f"{e.seconds:.3g}",
            "whole rounds" if e.whole else "few rows",
            duration(e.total),
        )
        for e in found
    ]
    heads = ("engine", "memory", "down a round", "up a round", "s a round", "from", "in all")
    show(table(("method", *heads), rows, right=heads))
    first, total = found[0], sum(e.total for e in found)
    show(
        f"{first.parameters:,} parameters; {first.clients:.4g} clients a round with {first.rows:,.0f} row gradients of "
        f"local steps, {1e-9 * first.flops:.3g} GFLOP as plain steps take them"
    )
    show(
        f"{first.rounds} rounds and {first.evaluations} evaluations of {first.evaluation:.3g} s each, {count} seeds, "
        f"{len(found)} methods, one run after the other: {duration(total)} with {torch.get_num_threads()} threads "
        f"on {os.cpu_count()} cores, loaded as now"
    )
