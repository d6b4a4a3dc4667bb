"""A method round by round: the test says who takes part and what is lost, and sees the server and every memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import medley as md
from medley.clients.host import ClientHost
from medley.contract.algorithm import Algorithm
from medley.contract.cohort import Cohort
from medley.engines import choose
from medley.problems import Synthetic
from medley.server.bookkeeping import Bookkeeping
from medley.server.cohort import LiveCohort
from medley.transports.inprocess import InProcessConnection
from support.toys import Lossy


class Rig:
    def __init__(
        self,
        method: Algorithm[Any, Any],
        toy: Synthetic,
        x: Tensor | None = None,
        lost: Mapping[tuple[int, int, int], str] | None = None,
        dtype: torch.dtype = torch.float64,
        **pace: Any,
    ) -> None:
        fed = md.Federation(toy.problem, clients=toy.clients, pace=md.scenarios.Pace(**{"batch": None} | pace))
        self.sim = sim = fed.draw(0, dtype=dtype)
        self.method = method = method.suited(sim.problem.gives)
        engine = choose("seq", sim.problem, "cpu")
        self.client = lambda i, t: sim.client(i, t, engine)
        self.host = ClientHost(method, sim.problem, self.client)
        self.connection = Lossy(InProcessConnection(self.host), lost or {})
        self.bookkeeping = Bookkeeping()
        self.t = 0
        self.s = method.start(torch.zeros(sim.problem.d, dtype=dtype) if x is None else x.to(dtype))

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(self.sim.p)

    def cohort(self, ids: Iterable[int]) -> Cohort:
        return LiveCohort(tuple(sorted(ids)), self.sim.p, self.t, self.connection, self.bookkeeping)

    def __call__(self, ids: Iterable[int] | None = None) -> Any:
        self.t += 1
        self.bookkeeping = replace(self.bookkeeping, notes={})
        self.method.round(self.s, self.cohort(self.all if ids is None else ids))
        return self.s

    def remember(self, memories: Mapping[int, Any]) -> None:
        """Clients' memories, as if acknowledged before round 1."""
        self.bookkeeping.acked = dict.fromkeys(memories, (0, 0))
        self.connection.load(memories, self.bookkeeping.acked)

    def memories(self) -> dict[int, Any]:
        return self.connection.save(self.bookkeeping.acked)

    def grad(self, i: int, x: Tensor) -> Tensor:
        return self.client(i, 1).problem.grad(x)
