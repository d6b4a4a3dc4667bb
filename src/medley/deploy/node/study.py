"""A hospital's side of a study as a Flower app: it answers only the analyses that its own copy of the recipe lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...clients.host import ClientHost
from ...contract import RecipeError, WireError
from ...contract.place import name_of
from ...recipe import Recipe
from ...statistics.site import Site
from ...statistics.study import Shape, Sites
from ..protocol import calls
from ..protocol.agreement import Method, Terms, refuse_unserved
from ..protocol.checked_json import parsed
from . import serve
from .app import ClientSide, _id
from .owner import REGISTER, claim, ledgers

if TYPE_CHECKING:
    from ..protocol.flwr_api import ClientApp, Context, Letter


class StudySide(ClientSide):
    """Handlers of one site's messages. The site's folder keeps what it has disclosed, over all studies on the same
    rows.
    """

    def recipe_and_method(self, context: Context) -> tuple[Recipe, Method]:
        """The recipe and its first analysis. Raises RecipeError if the site's owner does not serve them."""
        i = _id(context)
        r = self.settled(context)
        if r.tables.get("study") != self.recipe.tables.get("study"):
            raise RecipeError(
                f"{name_of(i)} answers only the [[study]] of its own recipe, but set= changes it: remove that setting",
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
            who = "the server's account of the study"
            Terms.read(who, parsed(who, letter["run"])).compare(mine, name_of(i))
        return json.dumps({"client": i, "name": _name(context), "terms": mine.plain()}).encode()

    def _host(self, r: Recipe, method: Method, request: calls.CallRequest, context: Context) -> ClientHost:
        i = _id(context)
        analyses = r.analyses()
        k = request.exchange.round - 1
        if not 0 <= k < len(analyses):
            raise WireError(
                f"{name_of(i)}: the server asks for analysis {k + 1}, but the client's recipe has {len(analyses)}"
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
    return serve.client_app(side.handlers(kinds), Path(recipe), study=True)
