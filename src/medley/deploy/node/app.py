"""The client's side of a recipe as a Flower app: ``app = client_app("recipe.toml")``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Any

import torch

from ... import engines
from ... import recipe as recipes
from ...clients.host import ClientHost
from ...contract import BadData, Client, ClientFailed, MedleyError, PersonalModel, RecipeError, WireError, pytree
from ...contract.pieces import Content, pieces_of
from ...contract.place import name_of
from ...contract.surroundings import set_aside
from ...contract.tuned import split
from ...recipe import Recipe
from ...recipe.user_code import names
from ...server.clientwise import model_of
from ...wire.codec import Plain
from ...wire.exchange import Exchange
from ..protocol import agreement, calls
from ..protocol.agreement import Method, Terms, clients_of, is_row_private, settled
from ..protocol.checked_json import MOST, parsed
from ..protocol.flwr_api import Handler, Letter, release
from ..protocol.reports import Known
from ..protocol.secure_steps import STEPS
from . import serve
from .account import Account
from .coarse import GRADIENT, RUNS, Coarse
from .owner import bytes_of, claim, ledgers, memories, recording_queries
from .rows import Lot, NodeRows, Own, own_lots, report, share
from .sums import Sums

if TYPE_CHECKING:
    from ..protocol.flwr_api import ClientApp, Context

log = logging.getLogger("medley")

OWN_LOG = "the log of its node says more"

REMEDY = (
    "the log of its node has the row and what is wrong: its owner mends it, tries it by medley node --check, and "
    "restarts the node"
)


def client_app(
    recipe: str | Path,
    data: Callable[[Context], Own] | None = None,
    method: Method | None = None,
    code: Collection[str] | None = None,
) -> ClientApp:
    """One client's side of a recipe. The SuperNode's ``--node-config`` says which client it is, for example
    ``partition-id=0``.

    Args:
        data: a function that returns the client's own data; with a stream, one data set for each task. Its test rows
            are for evaluation. By default the client gets its share of the recipe's data
        method: the server's method, if it isn't the recipe's first
        code: the names "module:name" that the recipe and the server's settings may import; by default the names in the
            recipe's file

    The client keeps its memory in the folder that the node config names as ``memory``, by default ``~/.medley``. A
    process that serves several messages reads recipe and data once.
    """
    side = ClientSide(recipe, data, method, code)
    kinds = [*recipes.methods(_kinds(Path(recipe))).values(), *([] if method is None else [type(split(method)[0])])]
    return serve.client_app(side.handlers(kinds, evaluate=side.evaluate), Path(recipe))


def _kinds(recipe: Path) -> list[str]:
    """The kinds of the methods in a recipe's file. Empty if the file cannot be read: the first message reports this."""
    with suppress(MedleyError):
        tables = recipes.load(recipe).tables.get("methods", [])
        return [t["kind"] for t in tables if isinstance(t, dict) and isinstance(t.get("kind"), str)]
    return []


def discreet(handler: Handler) -> Handler:
    """The handler, with errors that quote none of the client's data; the full errors stay in the client's own log.

    Errors about settings, messages and shapes go to the server unchanged. For other errors, and for errors in the
    client's own code, such as its loss, the server gets only the class.
    """

    def reply(letter: Letter, context: Context) -> Content:
        try:
            return handler(letter, context)
        except ClientFailed as e:
            log.error("%s", e)
            kind = e.traceback.strip().rpartition("\n")[2].partition(":")[0]
            left: MedleyError = ClientFailed(
                client=e.client, round=e.round, method=e.method, traceback=f"{kind}; {OWN_LOG}"
            )
        except MedleyError as e:
            i = _id(context)
            cause = e.__cause__
            if isinstance(e, BadData) and e.row is not None:
                column = e.column if e.stands is None else e.stands[0].column
                where = "a row" if column is None else f"column {column!r:.100} in a row"
                left = BadData(f"{name_of(i)}: {where} of its data cannot be used; {REMEDY}", client=i)
            elif cause is None or isinstance(cause, MedleyError | ImportError):
                raise
            else:  # this error's text contains that of another error
                left = MedleyError(f"{name_of(i)} failed: {type(e).__name__} by {type(cause).__name__}; {OWN_LOG}")
            log.error("%s", e)
        except Exception as e:
            log.exception("a request failed")
            left = MedleyError(f"{name_of(_id(context))} failed: {type(e).__name__}; {OWN_LOG}")
        raise left from None

    return reply


KEPT = 2
"""How many runs' data and problems a process keeps."""


class ClientSide:
    """Handlers of one client's messages; the parameters are those of `client_app`.

    Attributes:
        claims: whether the owner's ledgers note whose rows these are; a check of the data notes nothing
    """

    def __init__(
        self,
        recipe: str | Path,
        data: Callable[[Context], Own] | None,
        method: Method | None,
        code: Collection[str] | None = None,
    ) -> None:
        self.data = data
        self.method = method
        self.code = code
        self.claims = True
        self._file = Path(recipe)
        self._own_data: dict[int, Own] = {}
        self._lots: dict[tuple[int, str], list[Lot]] = {}
        self._rows: dict[tuple[int, str, str], NodeRows] = {}

    def handlers(self, kinds: Iterable[Any], **others: Handler) -> dict[str, Handler]:
        """The handlers of the messages of methods of these kinds, and ``others``, by message type."""
        queries: dict[str, Handler] = {f"query.{name}": self.serve for kind in kinds for name in kind.message_types}
        queries |= {f"query.{step}": self.secure(step) for step in STEPS}
        every: dict[str, Handler] = {"query": self.report, **others, **queries}
        return {kind: discreet(self.isolated(handler)) for kind, handler in every.items()}

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, as its file was at the first message; it may import only the names in ``code``."""
        r = recipes.load(self._file)
        return replace(r, code=names(r.tables) if self.code is None else frozenset(self.code))

    def isolated(self, handler: Handler) -> Handler:
        """The handler, as in a fresh process; if it fails, the next message gets a new problem and new rows."""

        def reply(letter: Letter, context: Context) -> Content:
            try:
                with set_aside(name_of(_id(context)), self.recipe.tables.get("run", {}).get("device", "cpu")):
                    out = handler(letter, context)
            except BaseException:
                self._rows.clear()
                self._lots.clear()
                raise
            for rows in self._rows.values():
                rows.vacate()
            return out

        return reply

    def lots(self, context: Context) -> list[Lot]:
        """The client's rows in each task: its own data, or its share of the recipe's data."""
        i = _id(context)
        key = (_id(context), json.dumps(context.run_config))
        if key not in self._lots:
            r = settled(self.recipe, context.run_config)
            if self.data is not None:
                self._read(i, context)
            lots = share(r, i) if self.data is None else own_lots(r, i, self._own_data[i])
            if self.data is not None and self.claims:
                claim(context.node_config, (row for lot in lots for row in bytes_of(lot.X, lot.y)))
            _keep(self._lots, key, lots)
        return self._lots[key]

    def own_data(self, i: int, context: Context) -> Any:
        """The client's own data; None if it has none. Errors are for its owner only: their text may quote a row."""
        if self.data is not None and i not in self._own_data:
            with recording_queries(context.node_config, self.claims):
                self._own_data[i] = self.data(context)
        return self._own_data.get(i)

    def _read(self, i: int, context: Context) -> None:
        """Like `given`, but the server learns only an error's class."""
        try:
            self.own_data(i, context)
        except Exception as e:
            log.exception("%s's own data cannot be read", name_of(i))
            raise BadData(f"{name_of(i)}: its data cannot be read, {type(e).__name__}; {OWN_LOG}", client=i) from None

    def rows(self, context: Context, method: Method, values: Any) -> NodeRows:
        """The client's side of the run; ``values`` holds the server's values for every client, see `Known`."""
        common = Known.read(values, self.recipe.limits())
        key = _id(context), json.dumps(context.run_config), repr(common)
        if key not in self._rows:
            r = settled(self.recipe, context.run_config)
            lots = self.lots(context)
            options = r.options()
            who = (_id(context), clients_of(r, context))
            dtype = getattr(torch, options["dtype"]) if options.get("dtype") else None
            scenario = r.scenario(tuple(lots[0].X.shape[1:]), common.classes).sharing(split(method)[0])
            about = r.seed, dtype, options.get("device", "cpu"), r.rounds, common
            rows = NodeRows(who, scenario, lots, *about)
            rows.vacate()
            rows.metrics = r.metric_functions()
            # Counts of rows by predicted probability can reveal single rows.
            hidden = is_row_private(method) or options.get("secure") is not None
            rows.summed = not hidden and self.recipe.rules().scores
            _keep(self._rows, key, rows)
        return self._rows[key]

    def report(self, letter: Letter, context: Context) -> bytes:
        """The client's account of its data, see `ClientReport`, and its `Terms`, compared with the server's."""
        i = _id(context)
        r, method = self.recipe_and_method(context)
        mine = Terms.of(r, method)
        if "run" in letter:
            who = "the server's account of the run"
            Terms.read(who, parsed(who, letter["run"])).compare(mine, name_of(i))
        client_report = replace(report(self.lots(context), i), name=str(context.node_config.get("name") or ""))
        if is_row_private(method) or r.options().get("secure") is not None:
            client_report = replace(client_report, tasks=[replace(task, support=[]) for task in client_report.tasks])
        return json.dumps(client_report.plain() | {"terms": mine.plain()}).encode()

    def settled(self, context: Context) -> Recipe:
        """The recipe with the server's settings. Raises RecipeError for those that the node's owner does not allow."""
        agreement.refuse_settings(context.node_config, context.run_config, _id(context))
        r = settled(self.recipe, context.run_config)
        agreement.refuse_weaker(context.node_config, self.recipe, r, _id(context))
        return r

    def recipe_and_method(self, context: Context) -> tuple[Recipe, Method]:
        """The recipe and the method of the run. Raises RecipeError if the node's owner does not serve them."""
        owner = context.node_config
        i = _id(context)
        r = self.settled(context)
        if self.method is None:
            agreement.refuse_kind(owner, r, i)  # before anything is built
        method = r.only().methods()[0] if self.method is None else self.method
        agreement.refuse_unserved(owner, method, i)
        return r, method

    def evaluate(self, letter: Letter, context: Context) -> Content:
        """Figures of the server's model on the client's rows, see `NodeRows`, and of its own, if it has one."""
        r, method = self.recipe_and_method(context)
        request = calls.Evaluation.read(letter)
        i = _id(context)
        x = request.x
        buffers = request.buffers
        private = is_row_private(method)
        rules = self.recipe.rules()
        model = PersonalModel(x, buffers)
        secure = any(of.options().get("secure") is not None for of in (self.recipe, r))
        for wants, hides, what in (
            (request.grad, private, "its rows are private, but the server asks for the gradient of its loss"),
            (request.grad, secure, "its recipe has [secure], but the server asks for the gradient of its loss"),
            (request.loss, private, "its rows are private, but the server asks for their loss without noise"),
            (request.sample, secure, "its recipe has [secure], but the server asks for the loss of some of its rows"),
            (request.grad, not rules.exact, GRADIENT),
        ):
            if wants and hides:
                raise WireError(f"{name_of(i)} refuses: {what}; leave that figure out")
        if request.run:
            calls.check_run(request.run)
        if secure or not rules.exact:
            about = blake2b(digest_size=16)
            given = [*pieces_of(letter["common"]), *pieces_of(letter.get("own", b""))]
            plain = [*pytree.in_pieces({"x": x, "buffers": buffers}), repr(request.known).encode()]
            for piece in given if request.run else plain:
                about.update(piece)
            del given, plain, piece
            self._count(about.hexdigest(), context, bool(request.run), 1 if secure else RUNS)
        release(letter)
        rows = self.rows(context, method, request.known)
        request.check(rows.problem, len(rows.tests), r.rounds)
        coarse = Coarse.of(context.node_config, rules, model)
        figures = rows.evaluate(model, request.round, request.tests, request.loss, request.sample, coarse)
        if request.run and private:  # its own model is computed from the rows without noise
            figures |= {"why": "its rows are private, and figures of a model made from them have no noise"}
        elif request.run:
            figures |= self._own_figures(r, method, context, request)
        text = json.dumps(figures).encode()
        if not request.grad or "loss" not in figures:
            return text
        return calls.sealed_gradient(text, rows.gradient(x, request.round))

    def _count(self, request: str, context: Context, personal: bool, runs: int) -> None:
        """Add an evaluation to the account, which allows as many as ``runs`` runs of the recipe make."""
        options = self.recipe.options()
        account = self._account(context)
        every = options.get("clients_every", MOST) if personal else options.get("eval_every", 1)
        most = (self.recipe.rounds // every + 1) * len(self.lots(context)) + 1
        account = replace(account, study=f"{account.study} own") if personal else account
        account.evaluate(request, most * runs)

    def _own_figures(self, r: Recipe, method: Method, context: Context, evaluation: calls.Evaluation) -> dict[str, Any]:
        """Figures of the client's own model, which stays on the node; the reason if it cannot be computed."""
        i = _id(context)
        t = evaluation.round
        e = Exchange(max(1, t), -1, "personal", ((i,),), {"x": evaluation.x}, {}, {}, {i: 0.0}, None)
        request = calls.CallRequest(replace(e, buffers=evaluation.buffers), evaluation.run, evaluation.known)
        host = self._host(r, method, request, context)
        acked = (evaluation.acked[0], evaluation.acked[1]) if evaluation.acked else None
        memory = serve.shelf(host, request, self._memories(context)).peek(i, acked)
        fold, _ = host.serve_block(request.exchange, 0, {i: memory})
        if i in fold.failed:
            log.error("%s", fold.failed[i])
            return {"why": f"its method failed; {OWN_LOG}"}
        mine = model_of(fold.replies[i])
        rows = self.rows(context, method, evaluation.known)
        coarse = Coarse.of(context.node_config, self.recipe.rules(), mine)
        return {"own": rows.evaluate(mine, t, evaluation.tests, evaluation.loss, coarse=coarse)}

    @staticmethod
    def _memories(context: Context) -> Path:
        return memories(context.node_config)

    def serve(self, letter: Letter, context: Context) -> Content:
        """The reply to a client method. Raises WireError if the request is for another client."""
        r, method = self.recipe_and_method(context)
        request = calls.CallRequest.read(letter)
        i = _id(context)
        if request.exchange.blocks != ((i,),):
            raise WireError(f"this node is client {i}, but the request is for client {request.exchange.blocks[0][0]}")
        if r.options().get("secure") is not None:
            raise WireError(
                f"{name_of(i)} refuses: its recipe has [secure], but the server asks for its reply without the mask "
                "of a secure sum"
            )

        def answer() -> Content:
            return serve.answer(self._host(r, method, request, context), request, self._memories(context))

        if not is_row_private(method):
            release(letter)
            return answer()
        text = f"{serve.digest(letter)} {Terms.of(r, method)}"
        release(letter)
        return self._account(context).once(blake2b(text.encode(), digest_size=16).hexdigest(), answer)

    def _account(self, context: Context) -> Account:
        """The node's account of what it has disclosed about its rows."""
        study = blake2b(self._file.read_bytes(), digest_size=8).hexdigest()
        return Account(ledgers(context.node_config), _id(context), study)

    def _approved(self) -> Method:
        """The method that the node's owner has agreed to: the recipe's first, unless the app names one."""
        return self.recipe.only().methods()[0] if self.method is None else self.method

    def secure(self, step: str) -> Handler:
        """The handler of one step of secure sums; see `medley.deploy.node.sums`."""

        def reply(letter: Letter, context: Context) -> Content:
            r, method = self.recipe_and_method(context)
            i = _id(context)
            settings = r.options().get("secure")
            if settings is None:
                raise WireError(f"{name_of(i)}: the server asks for {step}, but the client's recipe has no [secure]")
            host = lambda request: self._host(r, method, request, context)
            files = (context.node_config.get(k) for k in ("key", "keyring"))
            key, keyring = (Path(str(file)) if file else None for file in files)
            terms = Terms.of(r, method).digest if step == STEPS[2] else ""
            return Sums(i, self._memories(context), settings, key, keyring, terms).answer(step, letter, host)

        return reply

    def _host(self, r: Recipe, method: Method, request: calls.CallRequest, context: Context) -> ClientHost:
        """The host that serves a request. A training on private rows is counted."""
        algorithm, lr = split(method)
        rows = self.rows(context, method, request.values)
        options = r.options()
        device = options.get("device", "cpu")
        problem = rows.problem
        engine = engines.choose(options.get("engine", "auto"), problem, device)

        def client(i: int, round: int) -> Client[Any]:
            me = rows.client(round, engine, lr, request.exchange.p[i])
            me.noise_seed = randbits(256)  # from the operating system, because the server knows the run's seed
            if is_row_private(method) and not request.exchange.aside:
                total = context.node_config.get("epsilon")
                lot = self.lots(context)[0]
                self._account(context).charge(method, self._approved, self.recipe, lot, me, total)
            return me

        about = algorithm.suited(problem.gives), problem, client, r.seed, options.get("codec") or Plain()
        keeps = rows.clients.scenario.keeps_optimizers
        request.check(problem, r.rounds * len(rows.tests))
        host = ClientHost(*about, device=device, keeps_optimizers=keeps)
        if host.remembers:
            serve.guard(self._memories(context) / request.run / str(_id(context)), r)
        return host


def _keep(cache: dict[Any, Any], key: Any, value: Any) -> None:
    """Put a value into a mapping of at most `KEPT` entries, replacing the oldest."""
    cache[key] = value
    while len(cache) > KEPT:
        del cache[next(iter(cache))]


def _id(context: Context) -> int:
    i = context.node_config.get("partition-id")
    if not isinstance(i, int) or i < 0:
        raise RecipeError(
            'say which client this is: medley node --client 0, or flower-supernode --node-config "partition-id=0"'
        )
    return i
