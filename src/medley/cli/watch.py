"""The commands that show a run in progress: watch, status."""

from __future__ import annotations

import json
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from .arguments import AsJson, Debug
from .console import say, show, table

RunDir = Annotated[
    Path, typer.Argument(file_okay=False, help="The folder of a run, in progress or finished.", metavar="RUN")
]


def watch(
    run: RunDir,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 chooses any free port.")] = 8550,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    debug: Debug = False,
) -> None:
    """Serve a page about a run on 127.0.0.1: curves, clients, the log's end. It only reads the run's folder."""
    from ..contract.errors import RecipeError
    from ..report import watching
    from ..storage import run_view
    from ..storage.result import RUN

    if not (run / RUN).exists():
        show(f"there is no run in {run} yet; waiting for one (Ctrl-C ends this)")
        while not (run / RUN).exists():
            time.sleep(0.3)
    run_view.view(run)
    try:
        server = watching.server(run, port)
    except OSError as e:
        raise RecipeError(f"medley watch --port {port}: {e}; --port 0 chooses a free one", "port") from None
    with server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        show(f"{run} is shown at {address} (Ctrl-C ends this)")
        if browser:
            webbrowser.open(address)
        server.serve_forever()


def _ago(seconds: float) -> str:
    """How long ago something was, as people say it: 40 s ago, 12 min ago, 3 h ago, 2 d ago."""
    units = ((172800.0, 86400.0, "d"), (7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))
    size, unit = next((size, unit) for least, size, unit in units if max(seconds, 0.0) >= least)
    return f"{max(seconds, 0.0) / size:.0f} {unit} ago"


def status(
    run: RunDir,
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Print Prometheus' text format.")] = False,
    as_json: AsJson = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Draw who waited for whom in a run on nodes into this file, name.svg.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Print the state of a run once: round, figures, clients, the log's end."""
    from ..report.units import count, nbytes
    from ..storage import run_view
    from ..storage.result import shown

    v = run_view.view(run)
    if timeline is not None:
        from ..report import timeline as drawn
        from ..storage import atomic

        atomic.writable(timeline, "medley status --timeline")
        timeline.write_text(drawn.timeline(run), encoding="utf-8")
        show(f"wrote {timeline}")
        return
    if prometheus:
        typer.echo(run_view.prometheus(v), nl=False)
        return
    if as_json:
        typer.echo(json.dumps(v.plain()))
        return
    of = "" if v.rounds is None else f" of {v.rounds}"
    show(f"{v.method}, seed {v.seed}: {v.state}, round {v.round}{of}, {count(v.rate)} exchanges a minute")
    if v.message:
        say(v.message)
    last = v.history[-1] if v.history else {}
    figures = [shown(last, k) for k in ("loss", "test_loss", "gap", "evaluated", "accuracy") if k in last]
    if figures:
        show(f"round {int(last['round'])}: {', '.join(figures)}")
    show("clients: " + ", ".join(f"{n} {k}" for k, n in v.standings.most_common()))
    rows = []
    for c in v.clients[:100]:
        ago = "" if c.answered is None else _ago(time.time() - c.answered)
        numbers = ("", "", "") if c.round is None else (c.round, nbytes(c.down), nbytes(c.up))
        rows.append((c.name or c.client, c.standing, ago, *numbers, c.why))
    right = ("client", "round", "down", "up")
    show(table(("client", "standing", "last answer", *right[1:], ""), rows, right))
    show("Round and bytes are from the last answer.")
    if len(v.clients) > 100:
        show(f"and {len(v.clients) - 100} clients more")
    for line in v.log[-10:]:
        show(line)
