"""The commands of a deployment: deploy init, deploy run."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .arguments import Debug, Set
from .console import DIVERGED, INTERRUPTED, REFUSED, say, show, table

if TYPE_CHECKING:
    from ..storage.history import Row


def deploy_init(
    folder: Annotated[Path, typer.Argument(help="Where to write; a new or empty folder.", metavar="DIR")],
    recipe_file: Annotated[
        Path | None,
        typer.Option("--recipe", metavar="RECIPE.toml", help="The recipe; by default FedNorton on digits, 3 clients."),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="The number of nodes; by default the recipe's clients.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a recipe as a Flower app, with scripts that make keys and try it on this machine."""
    from .. import recipe
    from ..deploy import commands

    r = None if recipe_file is None else recipe.load(recipe_file)
    for path in commands.init(folder, r, clients):
        show(str(path))
    if r is not None and ("study" in r.tables or "data" not in r.tables):
        show(f"{folder / 'node/mydata.py'} reads a site's rows; change it first")
    show(f"next: {folder / 'trial.sh'} tries it on this machine; keys.sh, server.sh and medley node begin in earnest")


def deploy_gate(database: Path, socket: Path) -> None:
    """Tell nginx, through a socket, whether a registered node has signed a request; server.sh starts it."""
    from ..deploy.server.gate import Gate  # Windows has no such sockets

    with Gate(database, socket) as gate:
        gate.serve_forever()


def deploy_superlink(arguments: typer.Context) -> None:
    """Run Flower's SuperLink with these arguments, and settings that large models need; server.sh starts it."""
    from ..deploy.server.superlink import serve

    serve(arguments.args)


def deploy_run(
    project: Annotated[Path, typer.Argument(help="A folder of medley deploy init.", metavar="DIR")] = Path(),
    save: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The run's folder; by default DIR/runs/<time>.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Resume the run in this folder.")] = None,
    readmit: Annotated[
        list[int] | None,
        typer.Option(
            metavar="CLIENT", help="With --resume: this client lost its memory and starts again. May be repeated."
        ),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(min=0, help="After a failure, resume by itself, up to this many times. A study starts again."),
    ] = 0,
    settings: Set = None,
    open_: Annotated[
        int | None,
        typer.Option("--open", min=1, metavar="N", help="Begin with N clients; others join later, and each may leave."),
    ] = None,
    timeout: Annotated[int | None, typer.Option(min=1, help="The seconds to wait for a client.")] = None,
    superlink: Annotated[str, typer.Option(help="The SuperLink's name in Flower's configuration.")] = "",
    debug: Debug = False,
) -> None:
    """Run the app on its SuperLink, print its progress, and end with the run: exit code 0 if it finished."""
    from ..contract.errors import RecipeError
    from ..deploy.commands import Deployment
    from ..storage.run_folder import holds_run

    if readmit and resume is None:
        raise RecipeError("--readmit needs --resume: name the folder of the run that should go on", "readmit")
    folder = resume or save or project / "runs" / time.strftime("%Y-%m-%d-%H%M%S")
    config: dict[str, Any] = {"set": shlex.join(settings)} if settings else {}
    if open_ is not None:
        config["open"] = open_
    if timeout is not None:
        config["timeout"] = timeout
    show(f"the run's folder is {folder}; medley watch {folder} shows it")
    status = Deployment(project, show, superlink).run(folder, config, resume is not None, readmit or (), restarts)
    if not status.ok:
        say(str(status).splitlines()[0])
        if holds_run(folder):
            say(f"medley deploy run {project} --resume {folder} goes on after the last checkpoint")
        raise typer.Exit({"interrupted": INTERRUPTED, "failed": REFUSED}.get(status.outcome, DIVERGED))
    show(f"{status}; saved in {folder}")


def deploy_evaluate(
    model: Annotated[
        Path, typer.Argument(help="The folder of a run, or a file of weights, as for run.init of a recipe.")
    ],
    project: Annotated[Path, typer.Argument(help="A folder of medley deploy init.", metavar="DIR")] = Path(),
    save: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The folder of the figures; by default DIR/runs/<time>.")
    ] = None,
    settings: Set = None,
    timeout: Annotated[int | None, typer.Option(min=1, help="The seconds to wait for a client.")] = None,
    superlink: Annotated[str, typer.Option(help="The SuperLink's name in Flower's configuration.")] = "",
    debug: Debug = False,
) -> None:
    """Measure a model on all nodes without training it, and print the figures of each node and of all together."""
    from ..contract.errors import RecipeError
    from ..storage import events
    from ..storage.result import Result

    if not model.exists():
        raise RecipeError(f"medley deploy evaluate {model}: there is no such folder or file", "model")
    folder = save or project / "runs" / time.strftime("%Y-%m-%d-%H%M%S")
    overrides = [*(settings or []), "run.rounds=0", f"run.init={model.resolve()}"]
    deploy_run(project, folder, settings=overrides, timeout=timeout, superlink=superlink)
    result = Result.load(folder, model=False)
    names = dict(enumerate(result.client_names))
    last = [row for row in result.clients if row["round"] == 0]
    reports = [e["clients"] for e in events.read(folder) if e.get("event") == "data"]
    support: Mapping[str, Any] = reports[-1] if reports else {}
    labels = result.labels
    rows = [
        (names.get(int(r["client"]), f"{r['client']:g}"), r, _classes(support, int(r["client"]), labels)) for r in last
    ]
    show(_figures(rows, result.history[-1]))
    if any("test_loss_within" in r for r in last):
        show("nodes rounded their figures; the intervals include what that can change")


def _classes(support: Mapping[str, Any], client: int, labels: Sequence[Any]) -> str:
    """A client's training rows of each class, as "ill: 12, well: 30"."""
    counts = chain.from_iterable(task.get("support", ()) for task in support.get(str(client), ()))
    pairs = [f"{labels[k] if k in range(len(labels)) else k}: {n}" for k, n in counts]
    return ", ".join(pairs[:10]) + (f" and {len(pairs) - 10} more" if len(pairs) > 10 else "")


def _figures(rows: Sequence[tuple[str, Row, str]], total: Row) -> Any:
    """The figures of each client and of all together, with 95 % intervals."""
    from ..numerics.intervals import Z, pooled_error, wilson
    from ..report.units import count

    clients = [row for _, row, _ in rows]
    tested = [r for r in clients if "test_loss_error" in r]
    sums = {name: sum(r.get(name, 0.0) for r in clients) for name in ("rows", "test_rows")}
    if tested:
        parts = [(int(r["test_rows"]), r["test_loss"], r["test_loss_error"]) for r in tested]
        sums["test_loss_error"] = pooled_error(parts)

    def cell(row: Row, name: str) -> str:
        if name not in row:
            return ""
        value = row[name]
        error = row.get(f"{name}_error")
        if name in ("rows", "test_rows"):
            return count(value)
        if name == "accuracy" and row.get("test_rows"):
            within = row.get("accuracy_within", 0.0)
            low, high = wilson(value, row["test_rows"])
            shown = (value, max(0.0, low - within), min(1.0, high + within))
            return "{:.1f} % [{:.1f}, {:.1f}]".format(*(100 * v for v in shown))
        bins = f" ± {row[f'{name}_within']:.1g}" if name != "test_loss" and f"{name}_within" in row else ""
        ends = "" if error is None else f" [{value - Z * error:.3g}, {value + Z * error:.3g}]"
        return f"{value:.4g}{bins}{ends}"

    names = {k for k in chain.from_iterable(clients) if not k.endswith(("_error", "_within"))}
    standard = ["rows", "loss", "test_rows", "test_loss", "accuracy"]
    others = sorted(names - {*standard, "client", "round", "took_part"})
    heads = [k for k in [*standard, *others] if k in names]
    lines = (*rows, ("all", {**total, **sums}, ""))
    body = []
    for name, row, classes in lines:
        cells = [cell(row, k) for k in heads]
        body.append((name, *cells, classes))
    return table(("client", *heads, "rows by class"), body)
