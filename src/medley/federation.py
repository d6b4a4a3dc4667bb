"""A federation: clients with data, means and devices; and `run`, which trains one method on it."""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from .core import streams
from .core.algorithm import Algorithm
from .core.client import Client, Engine
from .core.errors import BadData, Diverged, RecipeError, Stalled, Unsupported
from .core.files import lasting
from .core.problem import Family, Problem, State
from .core.result import Result, Row
from .core.run import Run
from .core.site import Site
from .core.transport import Transport
from .core.tuned import Tuned
from .core.types import Data, Vec
from .core.wire import Codec, Plain
from .datasets import Dataset
from .problems import engines
from .scenarios import Devices, Everyone, Pace, Participation, Partition, describe
from .scenarios import participation as who_takes_part
from .scenarios.laws import is_number
from .scenarios.partition import Description
from .transports import Local

Metric = Callable[[Tensor, Tensor], float]
"""(outputs, y) of the test rows -> a figure."""

Split = Literal["test", "validation"]

COLUMNS = {"round", "exchanges", "seconds", "wall", "bytes_down", "bytes_up", "loss", "gap", "grad_norm"}
COLUMNS |= {"test_loss", "accuracy", "client_accuracy_mean", "client_accuracy_worst"}
"""What a row of the history may hold beside metrics and a method's notes."""

EVALUATED_AT_ONCE = 1 << 22
"""Input numbers in one forward pass of an evaluation: 16 MB in float32, so that activations stay small."""


class Federation:
    """Clients that differ: what they hold, what they can do, who takes part.

    Give ``data`` and a ``partition``, which is drawn anew for every seed; or ``clients``, one (X, y) pair each, and a
    ``test`` pair. ``pace`` says how each client works, ``participation`` who takes part in a round (a fraction, or one
    of `medley.scenarios`), ``devices`` how fast machines and links are. ``weights`` are p_i by "size" or "uniform".
    ``validation`` is a share of the training rows that is never trained on, for `tune`. ``f_star`` is the optimal loss
    where it is known, for the column ``gap``.

    Raises BadData, naming client, row and column, for data that cannot be used; RecipeError for settings that can't.
    """

    def __init__(
        self,
        problem: Family,
        *,
        data: Dataset | None = None,
        clients: Sequence[tuple[Any, Any]] | None = None,
        test: tuple[Any, Any] | None = None,
        partition: Partition | None = None,
        pace: Pace | None = None,
        participation: float | Participation | None = None,
        devices: Devices | None = None,
        weights: Literal["size", "uniform"] = "size",
        validation: float = 0.0,
        classes: int | None = None,
        f_star: float | None = None,
    ) -> None:
        if isinstance(problem, torch.nn.Module):
            raise RecipeError("Federation(problem): this is a module; wrap it, problems.Network(module)", "problem")
        _is_a(problem, Family, "Federation(problem)", "problems.Softmax()", "problem", wanted=True)
        _is_a(data, Dataset, "Federation(data=...)", "datasets.Dataset(X, y, classes=10)", "data")
        _is_a(pace, Pace, "Federation(pace=...)", "scenarios.Pace(lr=0.1)", "pace")
        _is_a(partition, Partition, "Federation(partition=...)", "scenarios.IID(clients=10)", "partition")
        _is_a(devices, Devices, "Federation(devices=...)", "scenarios.phones()", "devices")
        _is_a(participation, object, "Federation(participation=...)", "scenarios.Everyone()", "participation")
        if (data is None) == (clients is None):
            raise RecipeError("Federation: give either data= with partition=, or clients=[(X, y), ...]", "data")
        if data is not None and partition is None:
            raise RecipeError(
                "Federation(data=...): say who holds what with partition=, e.g. scenarios.Dirichlet(clients=100, "
                "alpha=0.1)",
                "partition",
            )
        if clients is not None and partition is not None:
            raise RecipeError(
                "Federation(clients=...): they hold their data already; leave partition= out", "partition"
            )
        if weights not in ("size", "uniform"):
            raise RecipeError.unknown(str(weights), ("size", "uniform"), "Federation(weights=...)")
        if not is_number(validation) or not 0 <= validation < 1:
            raise RecipeError(f"Federation(validation={validation!r}): must be a share in [0, 1)", "validation")
        if classes is not None and (not is_number(classes) or classes != int(classes) or classes < 2):
            raise RecipeError(f"Federation(classes={classes!r}): must be a whole number, at least 2", "classes")
        if f_star is not None and not is_number(f_star):
            raise RecipeError(f"Federation(f_star={f_star!r}): must be a finite number, the optimal loss", "f_star")
        self.problem, self.partition, self.weights, self.f_star = problem, partition, weights, f_star
        self.pace, self.devices = pace or Pace(), devices or Devices()
        self.participation = who_takes_part(participation)
        self.validation = validation
        self.sizes: list[int] | None = None
        if clients is not None:
            data, self.sizes = _pooled(problem, clients, test, classes)
        assert data is not None
        self.data = data if classes is None else replace(data, classes=classes)
        if validation and data.X_validation is None and self.sizes is None:
            self.data = self.data.split(test=0.0, validation=validation)

    def draw(self, seed: int, on: Split = "test", dtype: torch.dtype | None = None, device: str = "cpu") -> World:
        """The clients of this seed: who holds what, ready to run."""
        return World(self, seed, on, dtype, device)

    def describe(self, seed: int = 0) -> Description:
        """Who holds what under this seed: sizes, labels, and how far from IID it is."""
        return describe(self.parts(seed)[0], self._labels())

    def parts(self, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Per client the rows it trains on, and the rows kept for validation (empty unless carved per client)."""
        if self.sizes is None:
            assert self.partition is not None
            labels = self._labels()
            parts = self.partition.split(labels, len(self.data.X), seed, self.data.keys)
            return parts, [p[:0] for p in parts]
        ends = np.cumsum(self.sizes)
        whole = [np.arange(e - n, e) for n, e in zip(self.sizes, ends, strict=True)]
        kept = []
        for i, rows in enumerate(whole):
            out = streams.rng(seed, i, "validation").permutation(rows)[: int(self.validation * len(rows))]
            kept.append(np.sort(out))
        return [np.setdiff1d(rows, out) for rows, out in zip(whole, kept, strict=True)], kept

    def _labels(self) -> np.ndarray | None:
        return self.data.y.numpy() if self.data.classes else None

    def settings(self) -> dict[str, Any]:
        """Everything that makes this federation, in plain values."""
        return {
            **self.problem.settings(),
            "data": f"{self.data.name} {list(self.data.X.shape)} #{self._digest}",
            "partition": lasting(repr(self.partition))
            if self.partition
            else f"{len(self.sizes or [])} clients' own data",
            "pace": lasting(repr(self.pace)),
            "participation": lasting(repr(self.participation)),
            "devices": lasting(repr(self.devices)),
            "weights": self.weights,
            "validation": self.validation,
        }

    @cached_property
    def _digest(self) -> str:
        """Of all rows, training, test and validation, and of how clients of their own share them."""
        digest, d = blake2b(repr(self.sizes).encode(), digest_size=6), self.data
        for t in (d.X, d.y, d.X_test, d.y_test, d.X_validation, d.y_validation):
            digest.update(b"|" if t is None else np.ascontiguousarray(t.numpy()).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def run(self, method: Algorithm[Any, Any] | Tuned, rounds: int = 100, **options: Any) -> Result:
        """`medley.run` on this federation."""
        return run(method, self, rounds, **options)


class World:
    """A federation as one seed drew it: data sorted by client, so that a client's rows are a slice."""

    def __init__(self, fed: Federation, seed: int, on: Split, dtype: torch.dtype | None, device: str) -> None:
        self.fed, self.seed, data = fed, seed, fed.data
        parts, kept = fed.parts(seed)
        for i, rows in enumerate(parts):
            if len(rows) == 0:
                raise BadData(
                    f"client {i} has no training rows; drop it, give its partition a minimum, or take fewer clients",
                    client=i,
                )
        fed.pace.check(len(parts))
        fed.devices.check(len(parts))
        self.sizes = np.array([len(rows) for rows in parts], dtype=np.int64)
        order = torch.from_numpy(np.concatenate(parts))
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)])
        X, y = data.X[order], data.y[order]
        try:
            self.problem: Problem = fed.problem.ready(X, y, data.classes, dtype, device)
        except BadData as e:
            raise self._blamed(e) from e.__cause__
        self.X, self.y = self.problem.inputs(X), self._targets(y, device)
        n = len(parts)
        shares = self.sizes / self.sizes.sum() if fed.weights == "size" else np.full(n, 1 / n)
        self.p = dict(enumerate(shares.tolist()))
        held = (data.X_test, data.y_test)
        if on == "validation":
            held = (data.X_validation, data.y_validation)
            if held[0] is None and fed.sizes is not None and fed.validation:
                carved = torch.from_numpy(np.concatenate(kept))
                held = (data.X[carved], data.y[carved])
            if held[0] is None or len(held[0]) == 0:
                raise RecipeError("there is no validation data: give Federation(validation=0.1)", "validation")
        self.held: tuple[Tensor, Tensor] | None = None
        if held[0] is not None and held[1] is not None and len(held[0]):
            self.held = self.problem.inputs(held[0]), self._targets(held[1], device, on)
        self.histograms: np.ndarray | None = None
        if data.classes:
            owner = np.repeat(np.arange(n), self.sizes)
            self.histograms = np.zeros((n, data.classes))
            np.add.at(self.histograms, (owner, y.numpy().astype(np.int64)), 1.0)

    def _targets(self, y: Tensor, device: str, part: Literal["train"] | Split = "train") -> Tensor:
        try:
            y = self.fed.problem.targets(y, self.fed.data.classes)
        except BadData as e:
            if part != "train":
                raise BadData(f"the {part} set: {e}", row=e.row) from None
            raise self._blamed(e) from None
        return y.to(device=device, dtype=self.problem.dtype if y.is_floating_point() else y.dtype)

    def _blamed(self, e: BadData) -> BadData:
        """The same with the client whose row it is, where it names a row of all."""
        if e.row is None:
            return e
        client = int(np.searchsorted(self.starts, e.row, side="right")) - 1
        row = e.row - int(self.starts[client])
        return BadData(f"client {client}, row {row}: {e}", client=client, row=row)

    def client(self, i: int, round: int, engine: Engine, lr: float = 1.0) -> Client[Any]:
        """Client i in this round, its lr multiplied by ``lr``."""
        pace = self.fed.pace.of(self.seed, i, round)
        if lr != 1.0:
            pace = replace(pace, lr=pace.lr * lr)
        return Client(i, self.p[i], self.problem.bind(*self._slice(i)), pace, engine, self.seed, round)

    def cohort(self, round: int) -> tuple[int, ...]:
        """Who takes part."""
        return tuple(self.fed.participation.draw(round, self.sizes, self.seed).tolist())

    def evaluate(
        self, x: Vec, buffers: State | None, metrics: Mapping[str, Metric] | None = None, grad_norm: bool = False
    ) -> Row:
        """loss, and gap, grad_norm, test_loss, accuracy and accuracy over clients where there are such.

        A client's accuracy is the test accuracy under its own mix of labels, Σ_c share_i(c)·accuracy(c).
        """
        if buffers is not None:
            self.problem.load_buffers(buffers)
        problem, row = self.problem, {}
        losses = [problem.losses(z, y) for z, y in self._outputs(x, self.X, self.y)]
        if any(part is None for part in losses):
            means = [problem.bind(*self._slice(i)).loss(x) for i in self.p]
            row["loss"] = sum(p * f for p, f in zip(self.p.values(), means, strict=True))
        else:
            by_row = torch.cat([part for part in losses if part is not None]).double()
            if self.fed.weights == "size":
                mean = float(by_row.mean())
            else:
                sums = torch.zeros(len(self.p), dtype=torch.float64, device=by_row.device)
                sizes = torch.from_numpy(self.sizes).to(by_row.device)
                owner = torch.repeat_interleave(torch.arange(len(self.p), device=by_row.device), sizes)
                mean = float((sums.index_add_(0, owner, by_row) / sizes).mean())
            row["loss"] = mean + problem.penalty(x)
        if self.fed.f_star is not None:
            row["gap"] = row["loss"] - self.fed.f_star
        if grad_norm:
            g = sum(p * problem.bind(*self._slice(i)).grad(x) for i, p in self.p.items())
            row["grad_norm"] = float(torch.as_tensor(g).norm())
        if self.held is not None:
            row |= self._held(x, *self.held, metrics or {})
        return row

    def _held(self, x: Vec, X: Data, y: Data, metrics: Mapping[str, Metric]) -> Row:
        row: Row = {}
        z = torch.cat([z for z, _ in self._outputs(x, X, y)])
        losses = self.problem.losses(z, y)
        row["test_loss"] = float(losses.double().mean()) if losses is not None else self.problem.bind(X, y).loss(x)
        hits = self.problem.hits(z, y)
        if hits is not None:
            row["accuracy"] = float(hits.double().mean())
        if hits is not None and self.histograms is not None:
            label = (y > 0).long() if y.is_floating_point() else y
            C = self.histograms.shape[1]
            seen = torch.bincount(label, minlength=C).cpu().numpy()
            right = torch.bincount(label, weights=hits.double(), minlength=C).cpu().numpy()
            by_class = np.where(seen > 0, right / np.maximum(seen, 1), row["accuracy"])
            by_client = np.sort(self.histograms @ by_class / self.histograms.sum(1))
            row["client_accuracy_mean"] = float(by_client.mean())
            row["client_accuracy_worst"] = float(by_client[: max(1, round(len(by_client) / 10))].mean())
        for name, f in metrics.items():
            row[name] = float(f(z, y))
        return row

    def _outputs(self, x: Vec, X: Data, y: Data) -> Iterator[tuple[Tensor, Tensor]]:
        rows = max(64, EVALUATED_AT_ONCE // max(1, X[0].numel()))
        for a, b in zip(torch.split(X, rows), torch.split(y, rows), strict=True):
            yield self.problem.outputs(x, a), b

    def _slice(self, i: int) -> tuple[Tensor, Tensor]:
        rows = slice(int(self.starts[i]), int(self.starts[i + 1]))
        return self.X[rows], self.y[rows]


def run(
    method: Algorithm[Any, Any] | Tuned,
    fed: Federation,
    rounds: int = 100,
    *,
    seed: int = 0,
    init: Tensor | None = None,
    dtype: torch.dtype | str | None = None,
    device: str = "cpu",
    engine: str = "auto",
    transport: Transport | None = None,
    codec: Codec | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    resume: str | Path | None = None,
    eval_every: int = 1,
    evaluate_on: Split = "test",
    target: Mapping[str, float] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    on_round: Callable[[Row], object] | None = None,
    throw: bool = True,
    progress: bool | None = None,
) -> Result:
    """Train ``method`` on ``fed``.

    ``init`` is x₀ [d] in place of the seed's own. ``target={"accuracy": 0.9}`` ends the run when it is reached (loss,
    test_loss, gap and grad_norm: at most). ``checkpoint`` is a folder that is written every ``checkpoint_every``
    rounds, at the end and on Ctrl-C; ``resume`` is such a folder, and goes on writing to it. ``metrics`` are figures
    of the test outputs by name. With ``throw`` a run that diverges raises Diverged, and one that stalls raises Stalled;
    both carry the result so far.

    Raises Unsupported before round 1 when the method needs what the problem or the scenario cannot give.
    """
    _is_a(method, Algorithm | Tuned, "run(method)", "FedAvg()", "method", wanted=True)
    _is_a(fed, Federation, "run(fed)", "Federation(problem, data=..., partition=...)", "fed", wanted=True)
    _is_a(transport, Transport, "run(transport=...)", "transports.Local()", "transport")
    _is_a(codec, Codec, "run(codec=...)", "core.wire.Cast('float16')", "codec")
    _is_a(target, Mapping, "run(target=...)", "{'accuracy': 0.9}", "target")
    for key, folder in (("checkpoint", checkpoint), ("resume", resume)):
        _is_a(folder, str | Path, f"run({key}=...)", "'runs/a', a folder's name", key)
    _is_a(metrics, Mapping, "run(metrics=...)", "{'top3': function}", "metrics")
    for name, f in {"on_round": on_round or print, **(metrics or {})}.items():
        if not callable(f):
            raise RecipeError(f"run(): {name} is {f!r}; give a function", name)
    for name, goal in (target or {}).items():
        if not is_number(goal):
            raise RecipeError(f"run(target={{{name!r}: {goal!r}}}): must be a finite number", "target")
    if evaluate_on not in ("test", "validation"):
        raise RecipeError.unknown(str(evaluate_on), ("test", "validation"), "run(evaluate_on=...)")
    try:
        seed = operator.index(seed)
    except TypeError:
        raise RecipeError(f"run(seed={seed!r}): must be a whole number", "seed") from None
    with contextlib.suppress(TypeError):  # numpy's whole numbers are no int; Run refuses what is none
        rounds = operator.index(rounds)
    if taken := COLUMNS & (metrics or {}).keys():
        raise RecipeError(f"run(metrics=...): {min(taken)!r} is a column already; choose another name", "metrics")
    try:
        torch.empty(0, device=str(device))
    except Exception:  # of several kinds: no such word, torch built without it, no such hardware
        raise RecipeError(
            f"run(device={device!r}): torch finds no such device here; leave device= out", "device"
        ) from None
    algorithm, lr = (method.method, method.lr) if isinstance(method, Tuned) else (method, 1.0)
    world = fed.draw(seed, evaluate_on, _dtype(dtype), device)
    asked, algorithm = algorithm.settings(), algorithm.suited(world.problem.gives)
    _refuse(algorithm, world)
    local = engines.choose(engine, world.problem, device)
    x0 = world.problem.initial(streams.generator(seed, "init"))
    if init is not None:
        try:
            init = torch.as_tensor(init)
        except (TypeError, ValueError, RuntimeError) as e:
            raise RecipeError(f"run(init=...): cannot be made a tensor: {e}", "init") from None
        if init.shape != x0.shape:
            raise RecipeError(
                f"run(init=...): x has {x0.numel()} parameters, init has shape {list(init.shape)}", "init"
            )
        x0 = init.detach().to(x0).clone()
        if not bool(torch.isfinite(x0).all()):
            raise RecipeError("run(init=...): it holds numbers that are not finite", "init")
    codec = codec or Plain()
    site = Site(algorithm, world.problem, lambda i, t: world.client(i, t, local, lr), seed, codec, device=device)
    wanted = dict(target or {})
    if "gap" in wanted and fed.f_star is None:
        raise RecipeError("run(target={'gap': ...}): the optimum is not known; give Federation(f_star=...)", "target")
    if world.held is None and (metrics or wanted.keys() & {"accuracy", "test_loss"}):
        key = "metrics" if metrics else "target"
        raise RecipeError(f"run({key}=...): there is no test set to measure that on; give Federation(test=(X, y))", key)
    settings = {
        "method": algorithm.name,
        **{f"method.{k}": v for k, v in asked.items()},
        **{f"resolved.{k}": v for k, v in algorithm.settings().items() if v != asked[k]},
        "lr multiplier": lr,
        **fed.settings(),
        "seed": seed,
        "dtype": str(world.problem.dtype).removeprefix("torch."),
        "device": device,
        "engine": local.name,
        "codec": repr(codec),
    }
    folder = resume if checkpoint is None else checkpoint
    block = max(4, min(32, (1 << 18) // world.problem.d))
    with contextlib.closing((transport or Local()).open(site)) as link, _bar(progress, algorithm.name, rounds) as tick:

        def watch(row: Row) -> None:
            tick(row)
            if on_round is not None:
                on_round(row)

        loop = Run(
            algorithm,
            link,
            x0,
            world.problem.buffers(),
            world.p,
            world.cohort,
            lambda x, b: world.evaluate(x, b, metrics, "grad_norm" in wanted),
            rounds=rounds,
            seed=seed,
            eval_every=eval_every,
            target=wanted,
            codec=codec,
            block=block,
            device=cache(lambda i: fed.devices.of(seed, i)),
            checkpoint=Path(folder) if folder is not None else None,
            checkpoint_every=checkpoint_every,
            on_round=watch,
            settings=settings,
        )
        result = loop(Path(resume) if resume is not None else None)
    if result.buffers is not None:
        world.problem.load_buffers(result.buffers)
    world.problem.outputs(result.x.to(device), world.X[:1])  # loads x into the module
    result.model = getattr(world.problem, "module", None)
    if throw and (kind := {"diverged": Diverged, "stalled": Stalled}.get(result.status.outcome)):
        raise kind(result.status.message, result)
    return result


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise RecipeError(f"run(dtype={dtype!r}): choose float32 or float64", "dtype")
    return found


def _is_a(value: object, kind: Any, where: str, example: str, key: str, wanted: bool = False) -> None:
    """Raise RecipeError unless ``value`` is of this kind, or None where it isn't ``wanted``; a class in an instance's
    place is the usual slip.
    """
    if (value is not None or wanted) and (isinstance(value, type) or not isinstance(value, kind)):
        what = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise RecipeError(f"{where} is {what}; give an object such as {example}", key)


def _refuse(algorithm: Algorithm[Any, Any], world: World) -> None:
    gives = set(world.problem.gives)
    if len(world.cohort(1)) == len(world.p) and isinstance(world.fed.participation, Everyone):
        gives.add("everyone")
    why = {
        "everyone": "every client in every round; leave participation= out",
        "hessian": "Hessians, which this problem hasn't got",
        "convex": "a convex problem: Logistic, Softmax or LeastSquares",
        "features": "a network whose last layer is linear, or a linear model",
        "classes": "labels in classes",
        "replay": "a stream of tasks with a replay memory",
    }
    for need in sorted(algorithm.requires() - gives):
        raise Unsupported(f"{algorithm.name} needs {why.get(need, need)}", method=algorithm.name, need=need)


def _tensor(value: Any, what: str, client: int | None) -> Tensor:
    try:
        t = value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
    except (TypeError, ValueError) as e:
        raise BadData(f"{what} cannot be made a tensor: {e}", client=client) from None
    t = t.detach().cpu()
    return t if t.is_floating_point() else t.to(torch.int64)


def _pooled(
    problem: Family, clients: Sequence[tuple[Any, Any]], test: tuple[Any, Any] | None, classes: int | None
) -> tuple[Dataset, list[int]]:
    """One data set of the clients' rows in order, and how many each has."""
    if isinstance(clients, Mapping):
        raise BadData("Federation(clients=...) is a mapping; give a list of pairs (X, y), list(clients.values())")
    if not (clients := list(clients)):
        raise BadData("Federation(clients=[]): there are no clients")
    Xs: list[Tensor] = []
    ys: list[Tensor] = []
    for i, pair in enumerate(clients):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BadData(f"client {i}: give a pair (X, y)", client=i)
        X, y = _tensor(pair[0], f"client {i}'s X", i), _tensor(pair[1], f"client {i}'s y", i)
        if len(X) == 0:
            raise BadData(f"client {i} has no rows; leave it out", client=i)
        if X.ndim < 2 or len(X) != len(y):
            raise BadData(
                f"client {i}: X is {list(X.shape)} and y is {list(y.shape)}; want one row a sample in both", client=i
            )
        if Xs and X.shape[1:] != Xs[0].shape[1:]:
            want = list(Xs[0].shape[1:])
            raise BadData(
                f"client {i} has rows of shape {list(X.shape[1:])}, client 0 of {want}: all must agree", client=i
            )
        _finite(X, i, "column")
        _finite(y[:, None] if y.ndim == 1 else y, i, "target")
        Xs.append(X)
        ys.append(y)
    sizes = [len(X) for X in Xs]
    if test is not None and (not isinstance(test, tuple | list) or len(test) != 2):
        raise BadData("Federation(test=...): give a pair (X, y)")
    X_test, y_test = (
        (None, None) if test is None else (_tensor(t, f"the test {k}", None) for t, k in zip(test, "Xy", strict=True))
    )
    try:
        y_test = None if y_test is None else problem.canonical(y_test, classes)
    except BadData as e:
        raise BadData(f"the test set: {e}", row=e.row) from None
    try:
        y = problem.canonical(torch.cat(ys), classes)
    except BadData as e:
        if e.row is None:
            raise
        client = int(np.searchsorted(np.cumsum(sizes), e.row, side="right"))
        row = e.row - sum(sizes[:client])
        raise BadData(f"client {client}, row {row}: {e}", client=client, row=row) from None
    if classes is None and not y.is_floating_point():
        classes = max(int(t.max()) for t in (y, y_test) if t is not None) + 1
        classes = max(classes, 2)
    return Dataset(torch.cat(Xs), y, X_test, y_test, classes=classes, name="own"), sizes


def _finite(t: Tensor, client: int, what: str) -> None:
    if t.is_floating_point() and not bool(torch.isfinite(t.sum())):
        bad = (~torch.isfinite(t.reshape(len(t), -1))).nonzero()
        if len(bad):
            row, column = (int(k) for k in bad[0])
            value = t.reshape(len(t), -1)[row, column].item()
            raise BadData(
                f"client {client} has {value} in row {row}, {what} {column}; remove or fill such rows first",
                client=client,
                row=row,
                column=column,
            )


@contextlib.contextmanager
def _bar(progress: bool | None, name: str, rounds: int) -> Iterator[Callable[[Row], None]]:
    """A progress bar with the live loss and accuracy; on a terminal unless told otherwise."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda row: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[now]}"))
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(name, total=rounds, now="")

        def tick(row: Row) -> None:
            accuracy = f"  accuracy {row['accuracy']:.3f}" if "accuracy" in row else ""
            bar.update(task, completed=int(row["round"]), now=f"loss {row['loss']:.4g}{accuracy}")

        yield tick
