"""A recipe as a Flower app: ``app = server_app("recipe.toml")``, and ``app = client_app("recipe.toml")``.

The server has no data: what it needs to know of a client (how many rows, of what shape) it asks before round 1, and
the model is evaluated where the data is, by exchanges of their own that no ledger counts. ``medley deploy init`` writes
a whole app; docs/deploy.md leads from there to machines of your own.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from . import recipe as recipes
from .core import tree
from .core.algorithm import Algorithm
from .core.client import Client
from .core.errors import BadData, MedleyError, RecipeError, Unsupported, WireError
from .core.problem import State
from .core.result import Row
from .core.site import Site
from .core.tuned import Tuned
from .core.types import Vec
from .datasets import Dataset
from .federation import Federation, Metric, World
from .problems import engines
from .recipe import Recipe
from .transports.flower import Flower, Handler, Post, Request, answer, opened
from .transports.flower import client_app as flower_client
from .transports.flower import server_app as flower_server

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

Method = Algorithm[Any, Any] | Tuned

RUN_ID = "flower.json"


def server_app(recipe: str | Path, method: Method | None = None) -> ServerApp:
    """The server's side: runs ``method``, by default the recipe's first, with the clients behind Flower's SuperNodes.

    The app's run config says ``clients``, how many there are; ``timeout``, seconds that a client may take, 600 unless
    told otherwise; ``set``, settings as for ``medley run --set``; ``save``, the folder for results and checkpoints,
    ``medley-runs/<run>`` below the SuperLink's working directory unless told otherwise; and ``resume``, such a folder.
    """

    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        r = _settled(recipe, config)
        ours = r.only().methods()[0] if method is None else method
        post = Post(grid, float(config.get("timeout", 600)))
        heard = post.gather(_count(r, context))
        print(f"{len(heard)} clients with {sum(h['rows'] for h in heard.values())} rows are there", flush=True)
        common = _alike(heard)
        fed = Remote(r.federation(common, [(common.X, common.y)] * len(heard)), post, heard)
        folder, name = _folder(context)
        resume = {"resume": folder} if config.get("resume") else {}
        link = Flower(post, name, fed.data.classes)
        (folder / "recipe.toml").write_text(r.dumps(), encoding="utf-8")
        # Every round: clients can go back to the end of the round before, and no further.
        options = r.options() | {"transport": link, "checkpoint": folder, "checkpoint_every": 1, **resume}
        result = fed.run(ours, r.rounds, seed=r.seed, throw=False, progress=False, on_round=_say, **options)
        result.save(folder)
        print(f"{result.status}\nsaved in {folder}", flush=True)

    return flower_server(main)


def client_app(
    recipe: str | Path, data: Callable[[Context], Dataset] | None = None, method: Method | None = None
) -> ClientApp:
    """One client's side; which client it is, the SuperNode's ``--node-config`` says: ``partition-id=0``.

    ``data`` reads the client's own data; by default it is that client's share of the recipe's. Test rows in it are for
    evaluation. ``method`` is the server's, where it isn't the recipe's. What the method remembers of a client lies in
    ``memory``, a folder that the node config names, by default ``~/.medley``.
    """

    @cache
    def mine(client: int, config: str) -> Dataset:
        return _share(_settled(recipe, json.loads(config)), client)

    def own(context: Context) -> Dataset:
        return mine(_me(context), json.dumps(context.run_config)) if data is None else data(context)

    def hello(letter: Mapping[str, bytes], context: Context) -> bytes:
        return json.dumps(_like(own(context), _me(context))).encode()

    def world(context: Context, classes: int | None) -> World:
        r, d, i = _settled(recipe, context.run_config), own(context), _me(context)
        clients = [_standin(_like(d, i))] * _count(r, context)
        fed = r.federation(replace(d, classes=classes), [(c.X, c.y) for c in [*clients[:i], d, *clients[i + 1 :]]])
        options = r.options()
        dtype = options.get("dtype")
        return fed.draw(r.seed, dtype=dtype and getattr(torch, dtype), device=options.get("device", "cpu"))

    def evaluate(letter: Mapping[str, bytes], context: Context) -> bytes:
        asked = tree.from_bytes(letter["common"], {})
        w = world(context, asked["classes"])
        if asked["buffers"] is not None:
            w.problem.load_buffers(asked["buffers"])
        x, i = asked["x"], _me(context)
        row = {"loss": w.client(i, 0, engines.choose("seq", w.problem, w.device)).problem.loss(x)}
        if w.tests[0] is not None:
            X, y = w.tests[0]
            z = w.problem.outputs(x, X)
            losses, hits = w.problem.losses(z, y), w.problem.hits(z, y)
            row["test_loss"] = w.problem.bind(X, y).loss(x) if losses is None else float(losses.double().mean())
            if hits is not None:
                row["accuracy"] = float(hits.double().mean())
        return json.dumps(row).encode()

    def serve(letter: Mapping[str, bytes], context: Context) -> bytes:
        request = Request.read(letter)
        exchange, i = request.exchange, _me(context)
        if exchange.blocks != ((i,),):
            raise WireError(f"this node is client {i}, and was asked as client {exchange.blocks[0][0]}")
        r, w = _settled(recipe, context.run_config), world(context, request.classes)
        algorithm, lr = _parts(r.only().methods()[0] if method is None else method)
        engine = engines.choose(r.options().get("engine", "auto"), w.problem, w.device)

        def client(i: int, round: int) -> Client[Any]:
            me = w.client(i, round, engine, lr)
            me.p = exchange.p[i]
            return me

        site = Site(algorithm.suited(w.problem.gives), w.problem, client, r.seed, device=w.device)
        return answer(site, request, _memory(context))

    kinds = [*recipes.methods().values(), *([] if method is None else [type(_parts(method)[0])])]
    asked = {f"query.{name}": serve for kind in kinds for name in kind.works}
    handlers: dict[str, Handler] = {"query": hello, "evaluate": evaluate, **asked}
    return flower_client(handlers)


class Remote(Federation):
    """A federation whose clients' data is elsewhere; one row of zeros stands for each of them here."""

    def __init__(self, here: Federation, post: Post, heard: Mapping[int, Mapping[str, Any]]) -> None:
        self.__dict__.update(vars(here))
        self.post, self.heard = post, heard

    def draw(self, *args: Any, **options: Any) -> World:
        """As `Federation.draw`."""
        return Elsewhere(self, *args, **options)

    def settings(self) -> dict[str, Any]:
        """As `Federation.settings`, with the clients' own rows."""
        said = [[h["rows"], *h["X"][0]] for h in self.heard.values()]
        return {**super().settings(), "data": f"elsewhere {json.dumps(said)}"}


class Elsewhere(World):
    """What the server knows of the clients: sizes and shares; and how to have the model evaluated by them."""

    def __init__(self, fed: Remote, seed: int, on: Any, dtype: Any, device: str, rounds: int = 1) -> None:
        if fed.stream is not None:
            raise Unsupported(
                "streams of tasks are not deployed yet; leave stream= out", method="Flower", need="stream"
            )
        super().__init__(fed, seed, on, dtype, device, rounds)
        self.post, self.heard, self.evaluations = fed.post, fed.heard, 0
        sizes = np.array([h["rows"] for h in fed.heard.values()], dtype=np.int64)
        weights = sizes if fed.weights == "size" else np.ones_like(sizes)
        shares = dict(enumerate((weights / weights.sum()).tolist()))
        self.steps = [replace(self.steps[0], sizes=sizes, p=shares, histograms=None)]

    def evaluate(
        self,
        x: Vec,
        buffers: State | None,
        metrics: Mapping[str, Metric] | None = None,
        grad_norm: bool = False,
        round: int = 0,
        minimum: bool = False,
    ) -> Row:
        """The loss over the clients' training rows, test_loss and accuracy over their test rows, of those who answer.

        ``evaluations`` counts these exchanges, which the column ``exchanges`` leaves out; ``evaluated`` is Σ p_i of who
        answered.
        """
        if metrics or grad_norm:
            raise RecipeError("on Flower clients measure loss and accuracy only: leave metrics= and grad_norm out")
        common = tree.to_bytes({"x": x, "buffers": buffers, "classes": self.fed.data.classes})
        answers = self.post.send("evaluate", {i: {"common": common} for i in self.p})
        rows = {i: json.loads(opened(raw)) for i, (raw, _) in sorted(answers.items())}
        if not rows:
            raise MedleyError(f"no client evaluated the model after round {round}; are the SuperNodes up?")
        self.evaluations += 1
        share = sum(self.p[i] for i in rows)
        out: Row = {"loss": sum(self.p[i] * row["loss"] for i, row in rows.items()) / share}
        if self.fed.f_star is not None:
            out["gap"] = out["loss"] - self.fed.f_star
        for name in ("test_loss", "accuracy"):
            tested = {i: self.heard[i]["test"] for i, row in rows.items() if name in row}
            if tested:
                out[name] = sum(k * rows[i][name] for i, k in tested.items()) / sum(tested.values())
        return {**out, "evaluations": self.evaluations, "evaluated": share}


def _settled(recipe: str | Path, config: Mapping[str, Any]) -> Recipe:
    return recipes.load(recipe).with_settings(shlex.split(str(config.get("set", ""))))


def _parts(method: Method) -> tuple[Algorithm[Any, Any], float]:
    return (method.method, method.lr) if isinstance(method, Tuned) else (method, 1.0)


def _count(r: Recipe, context: Context) -> int:
    n = context.run_config.get("clients") or r.tables.get("partition", {}).get("clients")
    if not isinstance(n, int):
        raise RecipeError(f"{r.source}: say how many clients there are: clients = 3 in the app's run config", "clients")
    return n


def _me(context: Context) -> int:
    i = context.node_config.get("partition-id")
    if not isinstance(i, int) or i < 0:
        raise RecipeError('start the SuperNode with --node-config "partition-id=0", 1, 2, ...: which client it is')
    return i


def _memory(context: Context) -> Path:
    given = context.node_config.get("memory") or os.environ.get("MEDLEY_HOME") or "~/.medley"
    return Path(str(given)).expanduser()


def _share(r: Recipe, i: int) -> Dataset:
    """Client i's rows of the recipe's data, and every n-th of its test rows."""
    fed = r.federation()
    parts, d = fed.parts(r.seed)[0], fed.data
    if i >= len(parts):
        raise BadData(f"partition-id={i}, but the recipe's partition has clients 0..{len(parts) - 1}", client=i)
    rows = torch.from_numpy(parts[i])
    X, y = (None if t is None or i >= len(t) else t[i :: len(parts)] for t in (d.X_test, d.y_test))
    return Dataset(d.X[rows], d.y[rows], X, y, classes=d.classes, name=d.name)


def _like(d: Dataset, client: int) -> dict[str, Any]:
    """What client ``client`` says of its data."""
    rows = {k: [list(t.shape[1:]), str(t.dtype).removeprefix("torch.")] for k, t in (("X", d.X), ("y", d.y))}
    test = 0 if d.X_test is None else len(d.X_test)
    return {"client": client, "rows": len(d.X), "test": test, "classes": d.classes, **rows}


def _standin(like: Mapping[str, Any], classes: int | None = None, test: bool = False) -> Dataset:
    """One row of zeros."""
    X, y = (torch.zeros(1, *shape, dtype=getattr(torch, dtype)) for shape, dtype in (like["X"], like["y"]))
    return Dataset(X, y, X if test else None, y if test else None, classes=classes or like["classes"], name="elsewhere")


def _alike(heard: Mapping[int, Mapping[str, Any]]) -> Dataset:
    """A row of zeros for everybody. Raises BadData where clients' rows differ in kind, or ids are not 0, 1, 2, ..."""
    if list(heard) != list(range(len(heard))):
        raise BadData(f"{len(heard)} clients must have partition-id 0..{len(heard) - 1}, but have {list(heard)}")
    for i, h in heard.items():
        for k in "Xy":
            if h[k] != heard[0][k]:
                raise BadData(f"client {i} has {k} of shape and type {h[k]}, client 0 {heard[0][k]}", client=i)
        if (h["classes"] is None) != (heard[0]["classes"] is None):
            raise BadData(f"client {i} has {h['classes']} classes, client 0 {heard[0]['classes']}", client=i)
    classes = None if heard[0]["classes"] is None else max(h["classes"] for h in heard.values())
    return _standin(heard[0], classes, any(h["test"] for h in heard.values()))


def _folder(context: Context) -> tuple[Path, str]:
    """Where the run is kept, and the name under which clients keep what they remember of it."""
    config = context.run_config
    if old := config.get("resume"):
        folder = Path(str(old)).resolve()
        try:
            return folder, str(json.loads((folder / RUN_ID).read_text(encoding="utf-8"))["run"])
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise WireError(f"{folder} is no run's folder, it has no {RUN_ID}: {e}") from None
    folder = Path(str(config.get("save") or f"medley-runs/{context.run_id}")).resolve()
    if (folder / RUN_ID).exists():
        raise RecipeError(f"{folder} holds a run already; choose another folder, or go on with resume=", "save")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RUN_ID).write_text(json.dumps({"run": str(context.run_id)}), encoding="utf-8")
    return folder, str(context.run_id)


def _say(row: Row) -> None:
    figures = "  ".join(f"{k} {row[k]:.6g}" for k in ("loss", "test_loss", "accuracy") if k in row)
    print(f"round {int(row['round'])}  {figures}  {row['wall']:.1f} s", flush=True)
