"""The server's side of a study as a Flower app: it runs every analysis of the recipe's [[study]]."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...contract import BadData, MedleyError
from ...contract.place import name_of
from ...server.ending import LASTING
from ...statistics.files import save_last
from ...statistics.study import Study
from ...storage.atomic import private
from ...storage.events import Events
from ..protocol import flwr_api
from ..protocol.agreement import Terms, clients_of, settled
from ..protocol.checked_json import Line, checked
from ..protocol.reports import namesake
from .app import _agreed
from .messenger import Messenger
from .transport import Flower

if TYPE_CHECKING:
    from ..protocol.flwr_api import Context, Grid, ServerApp


def study_server_app(recipe: str | Path, done: Callable[[list[Any]], object] = lambda results: None) -> ServerApp:
    """The server's side of a study: runs every analysis in [[study]], saves it as text, and passes them all to
    ``done``.

    It also saves tables in LaTeX: a Table 1, and coefficients, as odds, rate or hazard ratios if the link gives these.
    """

    def main(grid: Grid, context: Context) -> None:
        config = context.run_config  # a study has no checkpoints: a resumed one starts again in its folder
        where = config.get("save") or config.get("resume") or f"medley-runs/{context.run_id}"
        folder = private(Path(str(where)).resolve())
        events = Events(folder, listen=False)
        events.add("app", pid=os.getpid(), run=str(context.run_id))
        try:
            results = studied(grid, context, folder, events.add)
        except Exception as e:
            text = str(e) if isinstance(e, MedleyError) else f"{type(e).__name__}: {e}"
            events.add("end", outcome="failed", message=text[:2000], final=isinstance(e, LASTING))
            raise
        events.add("end", outcome="finished", message="")
        done(results)

    def studied(grid: Grid, context: Context, folder: Path, note: Callable[..., object]) -> list[Any]:
        say: Callable[[str], object] = lambda line: note("log", level="info", message=line[:2000])
        r = settled(recipe, context.run_config)
        analyses = r.analyses()
        terms = Terms.of(r, analyses[0])
        messenger = Messenger(grid, float(context.run_config.get("timeout", 600)))
        messenger.events = note
        letter = {"run": json.dumps(terms.plain()).encode()}
        accounts = messenger.gather(clients_of(r, context), letter, tell=say)
        say(f"{len(accounts)} clients are connected; {len(analyses)} analyses begin")
        names = dict[int, str]()
        for i, account in accounts.items():
            names[i] = checked(f"{name_of(i)}'s account", _agreed(i, account, terms, False), "name", Line)
            reason = namesake(i, names, len(accounts))
            if reason:
                raise BadData(reason, client=i)
        transport = Flower(messenger, f"{context.run_id:020d}", None, terms.digest)
        study = Study(dict.fromkeys(names.values()), secure=r.options().get("secure"), transport=transport)
        results = list[Any]()
        for k, analysis in enumerate(analyses, 1):
            results.append(study.run(analysis))
            file = save_last(folder, analysis, results)
            if file:
                say(f"{file} is for the next recipe: put it next to it, and send it to the nodes with it")
            say(f"{k} of {len(analyses)}: {analysis!r} is in {k}.txt")
        return results

    return flwr_api.server_app(main)
