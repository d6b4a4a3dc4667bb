"""A short run that represents a long one: full cohorts, few rows, and no evaluation."""

from __future__ import annotations

import contextlib
import logging
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..contract import (
    Client,
    Descent,
    Engine,
    Index,
    LocalLoss,
    LocalUpdate,
    MedleyError,
    Pace,
    Rows,
    TaskView,
    Vec,
    pytree,
)
from ..contract.surroundings import set_aside
from ..engines.fused.engine import Fused
from ..engines.seq import Seq
from ..engines.stacked import Stacked
from ..federation.run import PreparedRun
from ..federation.simulation import Simulation
from ..problems.network.objective import NetworkObjective
from ..runtime import memory
from ..runtime.forwarded import forwarded
from ..runtime.tricks import trim
from ..server.options import RunOptions
from ..storage.result import Result
from ..transports.inprocess import InProcessConnection
from ..wire.connection import Host
from ..wire.exchange import Exchange
from ..wire.fold import Fold
from .plan import Method

ROUNDS = 2
"""Rounds of a trial, in each task that it visits. The first one is not timed: it has what happens once."""

TASKS = 2
"""Tasks of a stream that a trial visits; later ones are assumed to cost as much as the second."""

ROWS = 2
"""The most rows of a client in a trial whose rows are cut."""

THIN = 1 << 20
"""Coordinates of a large model that take part in a trial whose gradients are only counted."""


def local(pace: Pace, n: int) -> int:
    """Rows in a client's local steps of one round, given its n rows."""
    batch = n if pace.batch is None else min(pace.batch, n)
    if pace.steps is not None:
        return pace.steps * batch
    return pace.epochs * (n - n % batch if pace.drop_last else n)


UNMEASURED = SimpleNamespace(
    own_tests=False,
    evaluate=lambda *_: {},
    by_client=lambda *_: [],
    accuracies=lambda *_: [],
    remedy=lambda advice: advice,
)
"""An evaluator that measures nothing, at no cost."""


@dataclass(frozen=True, eq=False)
class Small:
    """A draw whose clients have few rows, in the form that `medley.federation.run.PreparedRun` takes.

    Attributes:
        draw: the whole draw
        clients: the most clients in a round
        batches: mini-batches of each client in a round; None for all its rows and steps, 0 for one batch of a few rows.
            In a stream's trial, None is for all rows and one more step in each round, so that `TrialRound.work`, whose
            memory's rows do not follow the client's, tells what comes once and what with each step
        free: whether gradients cost nothing and are only counted, with the steps of the engine `Seq`
        thin: so many coordinates of the model take part, of a network whose gradients are free; None for all
    """

    draw: Simulation
    clients: int
    batches: int | None = 0
    free: bool = False
    thin: int | None = None
    tested: bool = False
    (first_steps,) = forwarded("draw", "first_steps")

    @property
    def problem(self) -> Any:
        """The problem of the trial."""
        return self.draw.problem if self.thin is None else thinned(self.draw.problem, self.thin)

    @property
    def rounds_per_task(self) -> int | None:
        """Rounds of one task of the trial; None without a stream."""
        return None if self.draw.rounds_per_task is None else ROUNDS

    @property
    def task_count(self) -> int:
        """Tasks of the trial."""
        return min(TASKS, self.draw.task_count)

    def real(self, round: int) -> int:
        """The round of the real run that this round of the trial represents."""
        if self.draw.rounds_per_task is None:
            return round
        task, step = divmod(round - 1, ROUNDS)
        return task * self.draw.rounds_per_task + min(step + 1, self.draw.rounds_per_task)

    def view(self, round: int) -> TaskView:
        """The task of this round. A single client is all there are, also for a method that asks every client."""
        view = self.draw.view(self.real(round))
        return replace(view, p=dict.fromkeys(self.cohort(round), 1.0)) if self.clients == 1 else view

    def cohort(self, round: int) -> tuple[int, ...]:
        """Clients of the first round of the task, so that rounds can be compared: the lowest ids.

        A single one has about the mean number of rows.
        """
        first = self.real((round - 1) // ROUNDS * ROUNDS + 1 if self.draw.rounds_per_task is not None else 1)
        ids = self.draw.cohort(first)
        if self.clients > 1:
            return ids[: self.clients]
        sizes = self.draw.task(first).sizes
        mean = statistics.fmean(int(sizes[i]) for i in ids)
        return (min(ids, key=lambda i: abs(int(sizes[i]) - mean)),)

    def sizes(self, round: int) -> dict[int, int]:
        """Rows of each client of the cohort in this round, by id."""
        t = self.real(round)
        sizes = self.draw.task(t).sizes
        return {i: self._cut(i, t, int(sizes[i])) for i in self.cohort(round)}

    def _cut(self, i: int, round: int, n: int) -> int:
        """Rows of client i, which has n, in this round of the real run."""
        return n if self.batches is None else min(n, self.batches * self._batch(i, round, n) or ROWS)

    def _batch(self, i: int, round: int, n: int) -> int:
        """Rows of a mini-batch of client i."""
        batch = self.draw.scenario.pace.of(self.draw.seed, i, round).batch
        return n if batch is None else min(batch, n)

    def pace(self, i: int, round: int) -> Pace:
        """The pace of client i in this round of the trial."""
        pace = self.draw.scenario.pace.of(self.draw.seed, i, self.real(round))
        if self.batches is not None:
            return replace(pace, epochs=1, steps=None, drop_last=False)
        return pace if self.draw.rounds_per_task is None else replace(pace, steps=(round - 1) % ROUNDS + 1)

    def client(self, i: int, round: int, engine: Engine, lr: float = 1.0) -> Client[Any]:
        """Client i with the rows of `sizes`, over which it makes one pass; without ``batches`` the client as it is."""
        t = self.real(round)
        me = self.draw.client(i, t, engine, lr)
        if self.batches is None and not self.free and self.draw.rounds_per_task is None:
            return me  # as quick as in a run
        if self.free and me.replay is not None:
            of_rows = me.objective_of
            me.objective_of = lambda rows: flat(of_rows(rows), thin=self.thin)  # type: ignore[misc]
            me.replay = replace(me.replay, problem=flat(me.replay.problem, thin=self.thin))
        if self.batches is None:
            problem = flat(me.problem, thin=self.thin) if self.free else me.problem
            return replace(me, problem=problem, pace=self.pace(i, round))
        X, y, w = self.draw.clients.rows.of(self.draw.plan.step(t), i)
        n = self._cut(i, t, int(self.draw.task(t).sizes[i]))
        objective = self.draw.problem_at(t).bind(X[:n], y[:n], None if w is None else w[:n])
        if hasattr(me.problem, "rng"):
            objective.rng = me.problem.rng  # type: ignore[attr-defined]
        if self.free or round == 1:
            objective = flat(objective, Flat if self.free else Curved, self.thin)
        return replace(me, problem=objective, pace=self.pace(i, round))

    def evaluator(self, *_: object) -> Any:
        """An evaluator that measures nothing."""
        return UNMEASURED


class TrialRun(PreparedRun):
    """A run that nobody resumes, so that the data need no fingerprint, which takes a pass over all of them. Nor does
    anybody use its model.
    """

    @property
    def settings(self) -> dict[str, Any]:
        """The method and the engine."""
        return {"method": self.algorithm.name, "engine": self.engine.name}

    def _model(self, result: Result) -> None:
        """None."""


@dataclass(frozen=True)
class Counting(Seq):
    """`Seq` for gradients that are only counted, under the name of the engine that would have run.

    Attributes:
        chosen: the engine of the run
    """

    chosen: Engine = field(default_factory=Seq)

    def descend(self, me: Client[Any], x: Vec, how: Descent) -> LocalUpdate:
        """The steps of `Seq`."""
        engine: Any = self.chosen
        if isinstance(engine, Fused) and not engine.takes(me, how):
            engine = engine.rest
        if isinstance(engine, Stacked):  # a trial's clients come one by one
            engine = engine.few
        return replace(super().descend(me, x, how), engine=engine.name)


class Curved(NetworkObjective):
    """A network's loss whose products with the Hessian cost nothing, for a round that is not timed."""

    def hvp(self, x: Vec, v: Vec, rows: Rows = None) -> Vec:
        """v itself."""
        return v.clone()


class Flat(Curved):
    """½‖x‖² in the form of a network's loss: it counts the work of the network's rows, and does little of it."""

    def _count(self, rows: Rows) -> int:
        return self.n if rows is None else len(self.y[rows])

    def loss(self, x: Vec, rows: Rows = None) -> float:
        """½‖x‖²."""
        self.meter.rows += self._count(rows) / 3
        return 0.5 * float(x @ x)

    def grad(self, x: Vec, rows: Rows = None, loss: LocalLoss | None = None, *, copy: bool = True) -> Vec:
        """x."""
        self.meter.rows += self._count(rows)
        if self.also is not None:
            drawn = next(self.also.draws)
            self.meter.rows += self.also.other.n if drawn is None else len(self.also.other.y[drawn])
        return x.clone() if copy else self.problem.gradient.copy_(x)

    def hvp(self, x: Vec, v: Vec, rows: Rows = None) -> Vec:
        """v itself."""
        self.meter.rows += 2 * self._count(rows)
        return v.clone()

    def squares(self, x: Vec, rows: Rows = None) -> Vec:
        """x²."""
        self.meter.rows += self._count(rows)
        return x.square()

    def outputs(self, x: Vec, rows: Rows = None) -> Tensor:
        """The first row's outputs, for each of these rows."""
        self.meter.rows += (self._count(rows) - 1) / 3
        out = super().outputs(x, torch.arange(min(1, self.n)))
        return out.expand(self._count(rows), *out.shape[1:])

    def features(self, x: Vec, rows: Rows = None) -> Tensor:
        """The first row's features, for each of these rows."""
        out = super().features(x, torch.arange(min(1, self.n)))
        return out.expand(self._count(rows), *out.shape[1:])

    def take(self, order: Index) -> NetworkObjective:
        """The same objective with its rows in this order."""
        taken: NetworkObjective = flat(super().take(order), type(self))
        return taken


def flat(objective: Any, kind: type[NetworkObjective] = Flat, thin: int | None = None) -> Any:
    """A network's objective as this kind, of ``thin`` coordinates if it is given; any other as it is."""
    if not isinstance(objective, NetworkObjective):
        return objective
    values = {f.name: getattr(objective, f.name) for f in fields(objective) if f.init}
    if thin is not None:
        values["problem"] = thinned(objective.problem, thin)
    return kind(**values)


def thinned(problem: Any, d: int) -> Any:
    """A network's problem for its first d coordinates alone. What needs its layers raises an error."""
    out = problem.restricted(problem.allowed)
    out.d, out.flat, out.gradient, out.head_at = d, problem.flat[:d], problem.gradient[:d], None
    return out


class TrialRound(NamedTuple):
    """One round of a trial.

    Attributes:
        wall: seconds
        served: seconds of these in clients' calls, sums of replies included
        clients: the cohort's size
        rows: rows in its local steps
        work: row gradients that it computed
        down, up: bytes
    """

    wall: float
    served: float
    clients: int
    rows: int
    work: float
    down: int
    up: int

    @property
    def server(self) -> float:
        """Seconds outside clients' calls."""
        return max(0.0, self.wall - self.served)


class Trial(NamedTuple):
    """A trial's rounds in order, its result, the bytes of a client's newest memory, as a mean over clients, whether
    the server holds replies apart, whether its gradients were only counted, and the most bytes that the process held.
    """

    rounds: list[TrialRound]
    result: Result
    memory: float
    apart: bool
    counted: bool
    peak: int


class Timed(InProcessConnection):
    """The connection in this process; it adds up the seconds and the work of clients' calls by round."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.seconds = Counter[int]()
        self.work = Counter[int]()
        self.apart = False

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """Deliver the request. Yields the blocks in order."""
        self.apart |= exchange.weights is None
        blocks = super().exchange(exchange)
        while True:
            began = time.perf_counter()
            fold = next(blocks, None)
            self.seconds[exchange.round] += time.perf_counter() - began  # type: ignore[assignment]
            if fold is None:
                return
            self.work[exchange.round] += sum(receipt.work for receipt in fold.receipts)  # type: ignore[assignment]
            yield fold


class TimedInProcess:
    """The transport in this process. It remembers the connection that it opened."""

    connection: Timed

    def open(self, host: Host) -> Timed:
        """Begin a run with the clients of ``host``."""
        self.connection = Timed(host)
        return self.connection


@contextlib.contextmanager
def quiet_members() -> Iterator[None]:
    """Without the words for who joined and left: a trial of one client may have another in the second task."""
    log = logging.getLogger("medley")
    others = lambda record: record.module != "members"
    log.addFilter(others)
    try:
        yield
    finally:
        log.removeFilter(others)


def tried(
    method: Method, fed: Any, options: RunOptions, small: Small, x0: Tensor | None = None, rounds: int = ROUNDS
) -> Trial:
    """Run the trial, from ``x0`` if it is given; of a stream, ``rounds`` are of one task.

    Raises what `medley.run` raises before its first round, and MedleyError without a whole round.
    """
    transport = TimedInProcess()
    trial_options = replace(
        options,
        rounds=rounds,
        transport=transport,
        eval_every=1,
        clients_every=None,
        client_models=False,
        target=None,
        target_over=1,
        metrics=None,
        throw=False,
        progress=False,
        on_round=None,
    )
    with set_aside("a trial", trial_options.device_name), quiet_members():
        prepared = TrialRun.of(method, fed, trial_options, small, x0)
        if small.free:
            prepared = replace(prepared, engine=Counting(chosen=prepared.engine))
        result = prepared.run()
    if len(result.history) < 1 + rounds:
        raise MedleyError(f"a trial of {method.name} ended before its round {rounds}: {result.status}")
    connection = transport.connection
    out = []
    for t, (before, after) in enumerate(pairwise(result.history), 1):
        wall, down, up = (after[k] - before[k] for k in ("wall", "bytes_down", "bytes_up"))
        sizes = small.sizes(t)
        rows = sum(local(small.pace(i, t), n) for i, n in sizes.items())
        spent = connection.seconds[t]
        out.append(TrialRound(wall, spent, len(sizes), rows, connection.work[t], int(down), int(up)))
    host: Any = connection.host
    memories = [versions[-1][1] for versions in host.memories.versions.values() if versions]
    size = sum(t.numel() * t.element_size() for _, t in pytree.tensors(memories))
    return Trial(out, result, size / max(1, len(memories)), connection.apart, small.free, memory.peak())


def tried_thin(method: Method, fed: Any, options: RunOptions, small: Small, x0: Tensor) -> Trial:
    """`tried` for a large model whose gradients are free, from trials of two small numbers of its coordinates: bytes
    and seconds grow along a line with them. Raises an error if the method needs the network's layers.
    """
    half, thin = THIN // 2, THIN
    less = tried(method, fed, options, replace(small, thin=half), x0[:half].clone())
    trim()
    memory.restart()
    before = memory.peak()
    more = tried(method, fed, options, replace(small, thin=thin), x0[:thin].clone())

    def grow(a: float, b: float) -> float:
        return b + max(0.0, b - a) * (x0.numel() - thin) / (thin - half)

    rounds = [
        r._replace(
            wall=grow(s.wall, r.wall),
            served=grow(s.served, r.served),
            down=round(grow(s.down, r.down)),
            up=round(grow(s.up, r.up)),
        )
        for s, r in zip(less.rounds, more.rounds, strict=True)
    ]
    peak = before + int((more.peak - before) * x0.numel() / thin)
    return more._replace(rounds=rounds, memory=grow(less.memory, more.memory), peak=peak)
