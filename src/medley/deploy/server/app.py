"""The server's side of a recipe as a Flower app: ``app = server_app("recipe.toml")``."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any

from ... import logs
from ... import recipe as recipes
from ...contract import Algorithm, MedleyError, Need, Problem, RecipeError, Unsupported, WireError
from ...contract.place import name_of, naming
from ...contract.tuned import split
from ...federation.run import run
from ...privacy.private import private_part
from ...problems.network import NetworkProblem
from ...recipe import Recipe
from ...server.ending import LASTING
from ...storage.atomic import private, write
from ...storage.events import Events
from ...storage.events import read as read_events
from ...storage.run_folder import holds_run
from ..protocol import flwr_api
from ..protocol.agreement import Method, Terms, clients_of, is_row_private, settled
from ..protocol.reports import Census
from .messenger import Messenger
from .population import RemoteFederation
from .roster import Roster, absent, recorded
from .transport import Flower

if TYPE_CHECKING:
    from ..protocol.flwr_api import Context, Grid, ServerApp

RUN_ID = "flower.json"
"""The file in a run's folder with the name under which clients keep their memories of it."""

NODES = "nodes.json"
"""The file in a run's folder with Flower's number of each client's node."""


def server_app(recipe: str | Path, method: Method | None = None) -> ServerApp:
    """The server's side of a recipe: trains ``method``, by default the recipe's first, on clients behind SuperNodes.

    The server has no data. It asks each client for the number and shape of its rows before round 1, and the clients
    evaluate the model. The app's run config has these settings:

    Args:
        open: the number of clients with which the run starts; others may join later, and each may leave. Default 0: the
            same clients from the first round to the last
        timeout: seconds that a client may take; default 600
        set: settings as for ``medley run --set``
        save: the folder for results and checkpoints; default ``medley-runs/<run>`` in the SuperLink's working directory
        resume: such a folder; the run continues from its last checkpoint
        readmit: with ``resume``, ids of clients that lost their memory and start again without it
    """

    def main(grid: Grid, context: Context) -> None:
        folder, name = _folder(context)
        lines = logs.lines("text", sys.stdout)
        events = Events(folder, listen=False)
        events.add("app", pid=os.getpid(), run=str(context.run_id))
        log = logging.getLogger("medley")
        names = dict[int, str]()
        try:
            with naming(names):
                _run(grid, context, (folder, name), recipe, method, events, names)
        finally:
            log.removeHandler(lines)

    return flwr_api.server_app(main)


def _run(
    grid: Grid,
    context: Context,
    place: tuple[Path, str],
    recipe: str | Path,
    method: Method | None,
    events: Events,
    names: dict[int, str],
) -> None:
    """Run an app, as described in `server_app`. Writes an error to the folder's events, in one sentence, and raises it.

    Args:
        place: the run's folder, and the name under which clients keep their memories
    """
    folder, name = place
    try:
        fed, ours, r = _gathered(grid, context, recipe, method, events.add, folder, names)
        events.add("data", clients={str(c.client): [asdict(task) for task in c.tasks] for c in fed.census.reports})
        terms = Terms.of(r, ours).digest
        goes_on = bool(context.run_config.get("resume")) and holds_run(folder)
        r = _seeded(r, ours, folder if goes_on else None)
        if fed.census.refused:
            why = {str(i): why for i, why in fed.census.refused.items()}
            events.add("refused", clients=why)
        r.save(folder / "recipe.toml")
        # Every round, because clients can go back only to the end of the previous round.
        fed = replace(fed, run=name, first=r.options().get("init") is not None)
        connection = Flower(fed.messenger, name, partial(_known, fed), terms)
        options = {"transport": connection, "checkpoint": folder, "checkpoint_every": 1, "throw": False}
        if goes_on:
            numbers = str(context.run_config.get("readmit", "")).replace(",", " ").split()
            options |= {"resume": folder, "readmit": tuple(map(int, numbers))}
        result = run(ours, fed, r.rounds, seed=r.seed, **{**r.options(), "progress": False, **options})
        result.save(folder)
    except Exception as e:
        text = str(e) if isinstance(e, MedleyError) else f"{type(e).__name__}: {e}"
        if (read_events(folder, 8192) or [{}])[-1].get("event") != "end":  # it failed outside the rounds
            events.add("end", outcome="failed", message=text[:2000], final=isinstance(e, LASTING))
        print(f"failed: {(text or repr(e)).splitlines()[0]}", flush=True)
        raise
    print(f"{result.status}\nsaved in {folder}", flush=True)


def _known(fed: RemoteFederation, problem: Problem) -> Any:
    """The server's values for every client; the model's memory is given back, since clients compute with it."""
    known = fed.known(problem)
    if isinstance(problem, NetworkProblem):
        problem.vacate()
    return known


def _seeded(r: Recipe, method: Method, folder_before: Path | None) -> Recipe:
    """The recipe. If it has no run.seed and the method is private, set a secret seed; on resume, the one in
    ``folder_before``.
    """
    if "seed" in r.tables.get("run", {}) or private_part(split(method)[0]) is None:
        return r
    seed = randbits(128) if folder_before is None else recipes.load(folder_before / "recipe.toml").seed
    return r.with_settings([f"run.seed={seed}"])


def _gathered(
    grid: Grid,
    context: Context,
    recipe: str | Path,
    method: Method | None,
    note: Callable[..., object],
    folder: Path,
    names: dict[int, str],
) -> tuple[RemoteFederation, Method, Recipe]:
    """The clients, once they are connected and agree; the method; and the recipe. ``names`` learns clients' names."""
    r = settled(recipe, context.run_config)
    ours = r.only().methods()[0] if method is None else method
    messenger = Messenger(grid, float(context.run_config.get("timeout", 600)), folder / NODES, names)
    messenger.events = note
    options = r.options()
    start = int(context.run_config.get("open", 0) or 0)
    n = clients_of(r, context)
    if start:
        _refuse_open(split(ours)[0], options)
    policy = options.get("reply_policy")
    tolerant = policy is not None and policy.faulty == "drop"
    terms = Terms.of(r, ours)
    letter = {"run": json.dumps(terms.plain()).encode()}
    before = recorded(folder) if start else None
    members = None if not start else min(start, n) if before is None else before.members
    tell = lambda text: note("log", level="info", message=text)
    accounts = messenger.gather(n, letter, tolerant, tell, members)
    agreed = {i: _agreed(i, account, terms, tolerant) for i, account in accounts.items()}
    roster = None
    if start:
        messenger.open, admitted = True, lambda i, account: _agreed(i, account, terms, False)
        roster = Roster.of(folder, messenger, agreed, n, r.limits(), admitted)
        agreed = {i: roster.kept.founders.get(i, absent(i)) for i in range(n)}
    census = Census.of(agreed, r.limits(), tolerant)
    if not r.rules().exact:
        text = "nodes round the figures of models, more if they have few rows, unless their owners set rules.exact"
        note("log", level="info", message=text)
    print(f"{len(census) - len(census.refused)} clients with {census.rows.sum()} rows are connected", flush=True)
    scenario = r.scenario(tuple(census.reports[0].X.shape), census.known.classes).joined(roster)
    private = is_row_private(ours)
    scaling = r.limits().scaling
    summed = options.get("secure") is not None
    return RemoteFederation(scenario, census, messenger, tolerant, roster, private, scaling, summed), ours, r


def _refuse_open(algorithm: Algorithm[Any, Any], options: Mapping[str, Any]) -> None:
    """Raise Unsupported for a method that needs the same clients throughout, and RecipeError for secure sums."""
    if Need.FIXED in algorithm.requires():
        text = Need.FIXED.description.replace("membership=", "--open")
        raise Unsupported(f"{algorithm.name} needs {text}", method=algorithm.name, need=Need.FIXED)
    if options.get("secure") is not None:
        raise RecipeError("--open with [secure]: secure sums need the same clients throughout; remove one", "open")


def _agreed(i: int, account: dict[str, Any], terms: Terms, tolerant: bool) -> dict[str, Any]:
    """A client's account without its terms, if they match the server's; otherwise with the reason under "refused"."""
    rest = {k: v for k, v in account.items() if k != "terms"}
    if "refused" in account:
        return rest
    try:
        terms.compare(Terms.read(f"{name_of(i)}'s terms", account.get("terms")), name_of(i))
    except (WireError, RecipeError) as e:
        if not tolerant:
            raise
        return {"client": i, "refused": str(e)}
    return rest


def _folder(context: Context) -> tuple[Path, str]:
    """The run's folder, and the name under which clients keep their memories of the run.

    Raises WireError if ``resume`` is not a run's folder, and RecipeError if ``save`` already holds a run.
    """
    config = context.run_config
    old = config.get("resume")
    if old:
        folder = Path(str(old)).resolve()
        try:
            return folder, str(json.loads((folder / RUN_ID).read_text(encoding="utf-8"))["run"])
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise WireError(f"{folder} is not a run's folder, because it has no {RUN_ID}: {e}") from None
    folder = Path(str(config.get("save") or f"medley-runs/{context.run_id}")).resolve()
    if (folder / RUN_ID).exists() and holds_run(folder):
        raise RecipeError(f"{folder} already holds a run; choose another folder, or continue it with --resume", "save")
    private(folder)
    # Names have a fixed length: each request carries the name, and the ledger counts the bytes of Flower's records.
    name = f"{context.run_id:020d}"
    settings = {key: config[key] for key in ("open", "set", "timeout") if config.get(key)}
    write(folder / RUN_ID, json.dumps({"run": name, "config": settings}))
    return folder, name
