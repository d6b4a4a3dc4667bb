"""A federation of unequal speed, and the arrivals of a run on it, for slow oracles of asynchronous methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

import medley as md
from medley.contract.algorithm import Algorithm
from medley.storage.result import Result
from support.oracles import quadratic_parts, walk

Q = md.problems.synthetic_quadratics(clients=6, rows=(8, 30))
DEVICES = md.devices.Devices(speed=[1000.0, 900.0, 700.0, 400.0, 150.0, 60.0], down=1e9, up=1e9, latency=0.01)
LR = 0.05
STEPS = 3
H, b, _ = quadratic_parts(Q)


def federation(steps: int = STEPS, lr: float = LR) -> md.Federation:
    """Six quadratics, the last a sixteenth as fast as the first."""
    pace = md.scenarios.Pace(lr=lr, epochs=steps, batch=None)
    return md.Federation(Q.problem, clients=Q.clients, f_star=Q.f_star, devices=DEVICES, pace=pace)


def run(method: Algorithm[Any, Any], replies: float | None, rounds: int, steps: int = STEPS, **options: Any) -> Result:
    """A run in which a round ends with so many replies; None waits for all."""
    policy = None if replies is None else md.ReplyPolicy(replies=replies)
    return md.run(method, federation(steps), rounds, reply_policy=policy, progress=False, **options)


def arrivals(run: Result) -> Iterator[dict[int, int]]:
    """For every round, the clients whose replies arrived, each with the round in which it was asked."""
    round_asked: dict[int, int] = {}
    last = int(run.history[-1]["round"])
    for t in range(1, last + 1):
        round_asked |= {e.client: t for e in run.ledger if e.round == t and e.down}
        yield {
            e.client: round_asked[e.client] for e in sorted(run.ledger, key=lambda e: e.client) if e.round == t and e.up
        }


def displacement(i: int, x: Tensor) -> Tensor:
    """y − x of client i after its local steps from x."""
    return walk(H[i], b[i], x, LR, STEPS)
