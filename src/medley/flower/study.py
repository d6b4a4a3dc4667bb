"""A study as Flower apps: a recipe's [[study]] lists the analyses, and a site answers only those in its own copy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..clients.host import ClientHost
from ..contract import BadData, MedleyError, RecipeError, WireError
from ..recipe import Recipe
from ..statistics.fit import Coefficients
from ..statistics.prepare import Preparation
from ..statistics.site import Site
from ..statistics.study import Shape, Sites, Study
from ..statistics.tables import Description
from ..storage.atomic import write
from ..storage.events import Events
from . import flwr_api, node
from .agreement import Terms, refuse_settings, refuse_unserved, refuse_weaker
from .checked_json import Words
from .cleaning import private
from .client import ClientSide, _id, discreet
from .messenger import Messenger
from .owner import REGISTER, claim, ledgers
from .secure_parties import STEPS
from .server import _agreed
from .settings import Method, clients_of, settled
from .transport import Flower

if TYPE_CHECKING:
    from .flwr_api import ClientApp, Context, Grid, Handler, Letter, ServerApp


RATIOS = ("logit", "log", "cox")
"""The links for which exp(coefficient) is an odds, rate or hazard ratio."""


class StudySide(ClientSide):
    """Handlers of one site's messages. The site's folder keeps what it has disclosed, over all studies on the same
    rows.
    """

    def recipe_and_method(self, context: Context) -> tuple[Recipe, Method]:
        """The recipe and its first analysis. Raises RecipeError if the site's owner does not serve them."""
        i = _id(context)
        refuse_settings(context.node_config, context.run_config, i)
        r = settled(self.recipe, context.run_config)
        refuse_weaker(context.node_config, self.recipe, r, i)
        if r.tables.get("study") != self.recipe.tables.get("study"):
            raise RecipeError(
                f"client {i} answers only the [[study]] of its own recipe, but set= changes it: remove that setting",
                "set",
            )
        analyses = r.analyses()
        for analysis in analyses:
            refuse_unserved(context.node_config, analysis, i)
        return r, analyses[0]

    def report(self, letter: Letter, context: Context) -> bytes:
        """The site's name and terms, compared with the server's."""
        i = _id(context)
        mine = Terms.of(*self.recipe_and_method(context))
        if "run" in letter:
            Terms.read(Words.read("the server's account of the study", letter["run"])).compare(mine, f"client {i}")
        return json.dumps({"client": i, "name": _name(context), "terms": mine.plain()}).encode()

    def _host(self, r: Recipe, method: Method, request: node.CallRequest, context: Context) -> ClientHost:
        i = _id(context)
        analyses = r.analyses()
        k = request.exchange.round - 1
        if k >= len(analyses):
            raise WireError(
                f"client {i}: the server asks for analysis {k + 1}, but the client's recipe has {len(analyses)}"
            )
        if i not in self._own_data:
            self._read(i, context)
            file = ledgers(context.node_config) / REGISTER
            read_site = Site.of(_name(context), self._own_data[i], self.recipe.rules(), r.complete(), file)
            columns = [
                read_site.frame[name].tolist() for name in sorted(read_site.frame.columns, key=str) if name != "site"
            ]
            claim(context.node_config, (repr(row).encode() for row in zip(*columns, strict=True)))
            self._own_data[i] = read_site  # type: ignore[assignment]
        site: Any = self._own_data[i]
        return ClientHost(analyses[k], Shape(), Sites({i: site}), r.seed)  # type: ignore[arg-type]


def _name(context: Context) -> str:
    return str(context.node_config.get("name") or f"client {_id(context)}")


def study_client_app(recipe: str | Path, data: Callable[[Context], Any]) -> ClientApp:
    """One site's side of a study: ``data`` reads its frame, and its copy of the recipe has its own [rules]."""
    side = StudySide(recipe, data, None)
    kinds = {type(a) for a in side.recipe.analyses()}
    queries: dict[str, Handler] = {f"query.{name}": side.serve for kind in kinds for name in kind.message_types}
    queries |= {"query": side.report, **{f"query.{step}": side.secure(step) for step in STEPS}}
    handlers = {kind: discreet(side.isolated(handler)) for kind, handler in queries.items()}
    return node.client_app(handlers, Path(recipe), study=True)


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
            results = studied(grid, context, folder, lambda line: events.add("log", level="info", message=line[:2000]))
        except Exception as e:
            text = str(e) if isinstance(e, MedleyError) else f"{type(e).__name__}: {e}"
            events.add("end", outcome="failed", message=text[:2000], final=isinstance(e, RecipeError))
            raise
        events.add("end", outcome="finished", message="")
        done(results)

    def studied(grid: Grid, context: Context, folder: Path, say: Callable[[str], None]) -> list[Any]:
        r = settled(recipe, context.run_config)
        analyses = r.analyses()
        terms = Terms.of(r, analyses[0])
        messenger = Messenger(grid, float(context.run_config.get("timeout", 600)))
        accounts = messenger.gather(clients_of(r, context), {"run": json.dumps(terms.plain()).encode()})
        names = dict[str, int]()
        for i, account in accounts.items():
            name = Words(f"client {i}'s account", _agreed(i, account, terms, False)).text("name")
            other = names.setdefault(name, i)
            if other != i:
                raise BadData(f"clients {other} and {i} are both called {name!r}: give each node its own name")
        transport = Flower(messenger, f"{context.run_id:020d}", None, terms.digest)
        study = Study(dict.fromkeys(names), secure=r.options().get("secure"), transport=transport)
        results = list[Any]()
        for k, analysis in enumerate(analyses, 1):
            results.append(study.run(analysis))
            write(folder / f"{k}.txt", results[-1].summary() + "\n", owner_only=True)
            if isinstance(results[-1], Coefficients | Description):
                of = {"exp": True} if getattr(analysis, "uses", "") in RATIOS else {}
                write(folder / f"{k}.tex", results[-1].latex(**of) + "\n", owner_only=True)
            if isinstance(results[-1], Preparation):
                results[-1].save(folder / f"{k}.json")
            say(f"{k} of {len(analyses)}: {analysis!r} is in {k}.txt")
        return results

    return flwr_api.server_app(main)
