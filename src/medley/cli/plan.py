"""The command that estimates the cost of a recipe before you run it: plan."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from threading import Event, Thread
from typing import Any

import typer

from ..runtime.terminals import on_terminal
from ..runtime.tricks import paused_collector
from .arguments import AsJson, Debug, Methods, RecipeFile, Rounds, Seeds, Set, names_in, seeds_in
from .console import say, show, table


class Progress:
    """What a command does at the moment, said again with each second that it takes; without a terminal after ten
    seconds with each minute.
    """

    def __init__(self) -> None:
        self._over = Event()
        self._part = "beginning", time.monotonic()
        self._said = time.monotonic()

    def __enter__(self) -> Progress:
        self._voice = Thread(target=self._speak, daemon=True)
        self._voice.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._voice.join()  # or a line of it would follow the table or the error

    def next(self, what: str) -> None:
        """Begin another part."""
        self._said = time.monotonic()
        self._part = what, self._said
        say(what)

    def _speak(self) -> None:
        watched = on_terminal(sys.stderr)
        while not self._over.wait(0.1):
            what, began = self._part
            now = time.monotonic()
            if now - self._said >= (0.8 if watched or now - began < 10 else 60):
                self._said = now
                say(f"{what}: {now - began:.0f} s so far")


def _without_nodes(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a recipe's runs, for a trial in this process."""
    out = {k: v for k, v in options.items() if k != "transport"}
    if "reply_policy" in out:
        out["reply_policy"] = replace(out["reply_policy"], clock="virtual")
    return out


def plan(
    recipe_file: RecipeFile,
    only: Methods = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    settings: Set = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print the cost of the recipe's runs, from a short trial of each method: operations, bytes, memory, seconds."""
    with Progress() as progress:
        with paused_collector():
            progress.next("loading torch")  # which takes a second
            import torch

            progress.next("loading Medley")
            from .. import recipe
            from ..experiments.compare import names
            from ..experiments.estimate import Estimate, estimates
            from ..report.units import column, duration, plural
        gc.freeze()  # a search of all that was imported takes as long as a trial

        progress.next(f"reading {recipe_file}")
        r = recipe.load(recipe_file).with_settings(settings or [])
        progress.next("reading its data")
        methods = r.methods(names_in(only))
        named = dict(zip(names(methods), methods, strict=True))
        chosen = r.seeds if seeds is None else seeds_in(seeds)
        count = chosen if isinstance(chosen, int) else len(chosen)
        rounds = r.rounds if rounds is None else rounds
        costs = list[Estimate]()
        fed = r.federation(on_use=True)
        trials = estimates(named, fed, rounds, count, progress.next, seed=r.seed, **_without_nodes(r.options()))
        for name in named:
            costs.append(next(trials))
            say(f"{name}: {duration(costs[-1].seconds)} a round")
    if as_json:
        return typer.echo(json.dumps([{**asdict(e), "total": e.total} for e in costs]))
    columns = {
        "method": [e.name for e in costs],
        "engine": [e.engine for e in costs],
        "memory": column("bytes", [e.memory for e in costs]),
        "down a round": column("bytes", [e.down for e in costs]),
        "up a round": column("bytes", [e.up for e in costs]),
        "time a round": column("seconds", [e.seconds for e in costs]),
        "from": [e.source for e in costs],
        "in all": column("seconds", [e.total for e in costs]),
    }
    show(table([*columns], zip(*columns.values(), strict=True), right=[*columns][1:]))
    first = costs[0]
    runs = f"{plural(count, 'seed')}, {plural(len(costs), 'method')}"
    machine = f"{plural(torch.get_num_threads(), 'thread')} on {plural(os.cpu_count() or 1, 'core')}"
    show(
        f"{first.parameters:,} parameters; {first.clients:.4g} clients a round with {first.rows:,.0f} row gradients of "
        f"local steps, {1e-9 * first.flops:.3g} GFLOP if computed as plain steps\n"
        f"{plural(first.rounds, 'round')} and {plural(first.evaluations, 'evaluation')} of "
        f"{duration(first.evaluation)} each, {runs}, one run after the other: {duration(sum(e.total for e in costs))} "
        f"with {machine}, loaded as now"
    )
