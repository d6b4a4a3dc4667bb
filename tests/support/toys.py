"""Small methods and unreliable connections that several tests use. They stand here so that type hints resolve."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import medley as md
from medley.clients.host import ClientHost
from medley.contract.algorithm import Algorithm, on_client
from medley.contract.client import Client
from medley.contract.cohort import Cohort
from medley.contract.message import Message
from medley.contract.problem import Objective
from medley.contract.types import Vec
from medley.engines import choose
from medley.runtime.clock import Device
from medley.server.bookkeeping import Bookkeeping
from medley.server.cohort import LiveCohort
from medley.transports.inprocess import InProcessConnection
from medley.wire.codec import Codec, Plain
from medley.wire.exchange import Exchange, Tag
from medley.wire.fold import Fold


class Say(Message):
    x: Vec


class Own(Message):
    v: float


class Heard(Message):
    v: Vec
    count: int
    weight: float


class Flagged(Message):
    flag: bool


class Maybe(Message):
    v: Vec | None


class Ragged(Message):
    v: Float[Tensor, " n"]


@dataclass
class Server:
    x: Vec
    c: Vec
    log: list[float] = field(default_factory=list)


@dataclass
class Memory:
    c: Vec
    calls: int = 0


@dataclass(frozen=True)
class Toy(Algorithm[Server, Memory]):
    """Two exchanges a round, memory on both sides, Σ p_i c_i = c: a lost or doubled update shows.

    ``trouble`` is called with (client, round, exchange) before a client does anything.
    """

    lr: float = 1.0
    trouble: Any = None

    def start(self, x: Vec) -> Server:
        return Server(x, torch.zeros_like(x))

    def remember(self, x: Vec) -> Memory:
        return Memory(x)

    def round(self, s: Server, clients: Cohort) -> None:
        first = clients.ask(self.train, Say(s.x)).mean()
        s.x = s.x + self.lr * first.v
        second = clients.ask(self.shift, Say(s.x)).sum()
        s.c = s.c + second.v
        s.log = [*s.log, float(second.v.sum())]
        clients.note(drift=float(s.c.norm()))

    @on_client
    def train(self, me: Client[Memory], request: Say) -> Heard:
        if self.trouble is not None:
            self.trouble(me.id, me.round, 0)
        step = me.descend(request.x, shift=0.1 * me.memory.c).step
        me.memory.calls = me.memory.calls + 1
        return Heard(step, me.problem.n, me.p)

    @on_client
    def shift(self, me: Client[Memory], request: Say) -> Heard:
        if self.trouble is not None:
            self.trouble(me.id, me.round, 1)
        new = me.problem.grad(request.x)
        up = new - me.memory.c
        me.memory.c = new
        me.memory.calls = me.memory.calls + 1
        return Heard(up, 1, 0.5)

    # What follows is called by tests only.

    @on_client
    def echo(self, me: Client[Memory], request: Say) -> Heard:
        return Heard(request.x * (me.id + 1), me.id, me.id / 4)

    @on_client
    def each(self, me: Client[Memory], request: Say, personal: Own) -> Heard:
        return Heard(request.x + personal.v, 0, personal.v)

    @on_client
    def flag(self, me: Client[Memory], request: Say) -> Flagged:
        return Flagged(me.id % 2 == 0)

    @on_client
    def nothing(self, me: Client[Memory], request: Say) -> Maybe:
        return Maybe(None)

    @on_client
    def now_and_then(self, me: Client[Memory], request: Say) -> Maybe:
        return Maybe(request.x if me.id < 4 else None)

    @on_client
    def then_and_now(self, me: Client[Memory], request: Say) -> Maybe:
        return Maybe(None if me.id < 4 else request.x)

    @on_client
    def ragged(self, me: Client[Memory], request: Say) -> Ragged:
        return Ragged(request.x if me.id < 4 else request.x[:1])

    @on_client
    def in_place_memory(self, me: Client[Memory], request: Say) -> Maybe:
        me.memory.c.add_(1.0)
        return Maybe(None)

    @on_client
    def in_place_message(self, me: Client[Memory], request: Say) -> Maybe:
        request.x.mul_(2.0)
        return Maybe(None)

    @on_client
    def fail(self, me: Client[Memory], request: Say) -> Maybe:
        return Maybe(request.x[torch.tensor([999])])

    @on_client
    def explode(self, me: Client[Memory], request: Say) -> Maybe:
        return Maybe(request.x / 0.0)

    def not_marked(self, me: Client[Memory], request: Say) -> Maybe:
        return Maybe(None)


def rows(clients: int = 5, d: int = 3, least: int = 4, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Least-squares clients; client i has least + i rows."""
    g = torch.Generator().manual_seed(seed)
    sizes = [least + i for i in range(clients)]
    return [
        (torch.randn(n, d, generator=g, dtype=torch.float64), torch.randn(n, generator=g, dtype=torch.float64))
        for n in sizes
    ]


@dataclass(frozen=True)
class Kill:
    """Trouble that ends its process at one client of round 5, where the environment says KILL."""

    def __call__(self, client: int, round: int, exchange: int) -> None:
        if "KILL" in os.environ and (client, round, exchange) == (3, 5, 1):
            os._exit(9)


def federation(clients: int = 5, **options: Any) -> md.Federation:
    options = {"pace": md.scenarios.Pace(lr=0.05, epochs=2, batch=3)} | options
    return md.Federation(md.problems.LeastSquares(mu=0.1), clients=rows(clients), **options)


def objective(n: int, d: int = 3) -> Objective:
    """Least squares on n rows."""
    ((X, y),) = rows(1, d, n)
    return md.problems.LeastSquares(mu=0.1).ready(X, y, None, torch.float64, "cpu").bind(X, y)


def host(fed: md.Federation, method: Algorithm[Any, Any], seed: int = 0, codec: Codec | None = None) -> ClientHost:
    sim = fed.draw(seed)
    engine = choose("seq", sim.problem, "cpu")
    return ClientHost(method, sim.problem, lambda i, t: sim.client(i, t, engine), seed, codec or Plain())


def cohort(
    method: Algorithm[Any, Any],
    clients: int = 5,
    ids: Sequence[int] | None = None,
    connection: Any = None,
    block: int = 2,
    bookkeeping: Bookkeeping | None = None,
    round: int = 1,
    codec: Codec | None = None,
    device: Any = None,
    fed: md.Federation | None = None,
) -> Cohort:
    fed = fed or federation(clients)
    client_host = host(fed, method, codec=codec)
    return LiveCohort(
        tuple(range(clients) if ids is None else ids),
        fed.draw(0).p,
        round,
        (connection or InProcessConnection)(client_host) if not hasattr(connection, "exchange") else connection,
        bookkeeping or Bookkeeping(),
        codec or Plain(),
        block,
        device or (lambda i: Device()),
    )


@dataclass
class Shuffled:
    """Delivers blocks in the order of ``order``."""

    inner: InProcessConnection
    order: tuple[int, ...]

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        replies = list(self.inner.exchange(exchange))
        yield from (replies[k] for k in self.order if k < len(replies))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class Lossy:
    """Loses what ``lost`` names: (round, exchange, client) -> "request" or "reply"."""

    inner: InProcessConnection
    lost: Mapping[tuple[int, int, int], str]

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        host = self.inner.host
        for block, ids in enumerate(exchange.blocks):
            fate = {i: self.lost.get((exchange.round, exchange.number, i)) for i in ids}
            for i in ids:
                if fate[i] == "reply":
                    list(self.inner.exchange(replace(exchange, blocks=((i,),))))
            present = tuple(i for i in ids if fate[i] is None)
            if present:
                memories = {i: host.memories.get(i, exchange.acked.get(i), exchange.round) for i in present}
                blocks = tuple(present if k == block else b for k, b in enumerate(exchange.blocks))
                reply, pending = host.serve_block(replace(exchange, blocks=blocks), block, memories)
                for i, memory in pending.items():
                    host.memories.put(i, exchange.tag, memory)
                yield reply

    def save(self, acked: Mapping[int, Tag]) -> Mapping[int, Any]:
        return self.inner.save(acked)

    def load(self, memories: Mapping[int, Any], acked: Mapping[int, Tag]) -> None:
        self.inner.load(memories, acked)

    def close(self) -> None:
        self.inner.close()


A_QUARTER_LOST = {
    (t, 0, i): ("request", "reply")[(t + i) % 2] for t, i in product(range(1, 13), range(10)) if (3 * t + i) % 4 == 0
}
"""Of the first exchange of 12 rounds with 10 clients: requests and replies in turn."""


@dataclass(frozen=True)
class LossyTransport:
    lost: Any

    def open(self, host: ClientHost) -> Lossy:
        return Lossy(InProcessConnection(host), self.lost)
