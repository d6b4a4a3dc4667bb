"""The command that estimates the cost of a recipe before you run it: plan."""

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
    from ..report.units import column, duration, plural

    r = recipe.load(recipe_file).with_settings(settings or [])
    methods = r.methods(names_in(only))
    named = dict(zip(names(methods), methods, strict=True))
    chosen = r.seeds if seeds is None else seeds_in(seeds)
    count = chosen if isinstance(chosen, int) else len(chosen)
    rounds = r.rounds if rounds is None else rounds
    found = list[Estimate]()
    options = {k: v for k, v in r.options().items() if k != "transport"}
    for each in estimates(named, r.federation(), rounds, count, seed=r.seed, **options):
        say(f"{each.name}: {duration(each.seconds)} a round")
        found.append(each)
    columns = {
        "method": [e.name for e in found],
        "engine": [e.engine for e in found],
        "memory": column("bytes", [e.memory for e in found]),
        "down a round": column("bytes", [e.down for e in found]),
        "up a round": column("bytes", [e.up for e in found]),
        "time a round": column("seconds", [e.seconds for e in found]),
        "from": ["whole rounds" if e.whole else "few rows" for e in found],
        "in all": column("seconds", [e.total for e in found]),
    }
    show(table([*columns], zip(*columns.values(), strict=True), right=[*columns][1:]))
    first = found[0]
    total = sum(e.total for e in found)
    show(
        f"{first.parameters:,} parameters; {first.clients:.4g} clients a round with {first.rows:,.0f} row gradients of "
        f"local steps, {1e-9 * first.flops:.3g} GFLOP if computed as plain steps"
    )
    made = plural(first.rounds, "round")
    evaluation = duration(first.evaluation)
    runs = f"{plural(count, 'seed')}, {plural(len(found), 'method')}"
    where = f"{plural(torch.get_num_threads(), 'thread')} on {plural(os.cpu_count() or 1, 'core')}"
    show(
        f"{made} and {plural(first.evaluations, 'evaluation')} of {evaluation} each, {runs}, one run after the other: "
        f"{duration(total)} with {where}, loaded as now"
    )
