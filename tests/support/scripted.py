"""A method that does at its clients what a test tells it to, and runs of it: what tests of transports share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import medley as md
from medley.contract.algorithm import Algorithm, on_client
from medley.contract.client import Client
from medley.contract.cohort import Cohort
from medley.contract.message import Message
from medley.contract.types import Vec
from medley.testing.faults import Rewired, one_by_one


class Model(Message):
    x: Vec


class Step(Message):
    delta: Vec


@dataclass
class Server:
    x: Vec


@dataclass
class Memory:
    sum: Vec | None = None
    rounds: int = 0


def nothing(client: int, round: int) -> None:
    pass


@dataclass(frozen=True)
class Script(Algorithm[Server, Memory]):
    """FedAvg with a memory, and ``act`` called at every client."""

    act: Callable[[int, int], object] = nothing

    def start(self, x: Vec) -> Server:
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client[Memory], request: Model) -> Step:
        self.act(me.id, me.round)
        step = me.descend(request.x, shift=me.memory.sum).step
        me.memory.sum = 0.1 * step if me.memory.sum is None else me.memory.sum + 0.1 * step
        me.memory.rounds += 1
        return Step(step)


def federation(clients: int = 6) -> md.Federation:
    q = md.problems.synthetic_quadratics(clients=clients, d=5)
    pace = md.scenarios.Pace(lr=0.05, epochs=2, batch=4)
    return md.Federation(q.problem, clients=q.clients, pace=pace)


def train(method: Any, transport: Any, fed: md.Federation | None = None, rounds: int = 3, **options: Any) -> md.Result:
    transport = Rewired(transport, one_by_one)
    return md.run(method, fed or federation(), rounds, transport=transport, progress=False, **options)


def assert_same(a: md.Result, b: md.Result) -> None:
    assert torch.equal(a.x, b.x)
    assert list(a.ledger) == list(b.ledger)
    assert [{**r, "wall": 0} for r in a.history] == [{**r, "wall": 0} for r in b.history]


@dataclass(frozen=True)
class Assassin:
    """Kills the process that serves client 3 in round 2, ``times`` times."""

    folder: str
    times: int

    def __call__(self, client: int, round: int) -> None:
        marks = list(Path(self.folder).iterdir())
        if (client, round) == (3, 2) and len(marks) < self.times:
            (Path(self.folder) / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
