"""Fed-A-GEM: A-GEM with the mean gradient over all clients' memories as its reference, instead of the client's own.

**Reference**: Dai, Sohn, Chen, Alam, Balakrishnan, Banerjee, Himayat & Lee, "Buffer-based Gradient Projection for
Continual Federated Learning", arXiv 2409.01585, 2024.

**Status**: published

**Needs**: a stream of tasks and a replay memory.

**One round sends** (floats per client):

- refer (if in a later task): d down, d + 1 up
- train (if in the first task, or no client holds past rows): d down, d up
- train (if in a later one): 2d down, d up

**Departures**: clients choose rows for the memory at the end of a task, not during it. So the first task has no
reference gradient. Later the server asks for it at the start of a round; the paper asks at the end of the round before,
at the same x. The reference is averaged with weights p_i over the clients that hold rows. In the authors' code all
clients have the same weight.

**Missing replies**: a lost gradient is left out of the reference, and a lost step out of the mean. Both are over the
clients that replied.

**Example**

>>> import medley as md
>>> digits, dealt = md.datasets.digits(), md.partitions.IID(clients=5)
>>> net, split = md.problems.Network(md.models.mlp(64, 10)), md.tasks.Split(tasks=5, mode="task")
>>> pace, ring = md.scenarios.Pace(lr=0.1, batch=16), md.replay.Ring(capacity=20, sample=16)
>>> fed = md.Federation(net, data=digits, partition=dealt, pace=pace, stream=split, replay=ring)
>>> md.run(md.FedAGEM(), fed, rounds=10, progress=False).summary["acc"] > 0.8
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..contract import Algorithm, Client, Cohort, Message, Model, Need, Rows, Step, Vec, on_client
from ..numerics.projection import project


class Guarded(Message):
    """Down: the server's x [d], and the reference gradient [d]; None while no client remembers any rows."""

    x: Vec
    g_ref: Vec | None


class Reference(Message):
    """Up: the gradient of the client's memory [d], 0 if it holds nothing; 1 if it holds rows, else 0."""

    exact: ClassVar[frozenset[str]] = frozenset({"holds"})
    g: Vec
    holds: float


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass(frozen=True)
class FedAGEM(Algorithm[Server]):
    """Averaged gradient episodic memory over all clients, for a stream of tasks. Without past rows it is FedAvg."""

    needs = frozenset({Need.REPLAY})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """g_ref = Σ p̃_i ∇f(x; memory of i), the reference; then x ← x + Σ p̃_i (y_i − x)."""
        g_ref = None
        if clients.task.index > 0:
            up = clients.ask(self.refer, Model(s.x)).mean()
            g_ref = up.g / up.holds if up.holds > 0 else None
        s.x = s.x + clients.ask(self.train, Guarded(s.x, g_ref)).mean().delta

    @on_client
    def refer(self, me: Client, request: Model) -> Reference:
        """The gradient at x on a sample of the client's memory."""
        memory = me.replay
        if not memory:
            return Reference(torch.zeros_like(request.x), 0.0)
        return Reference(memory.problem.grad(request.x, next(memory.batches())), 1.0)

    @on_client
    def train(self, me: Client, request: Guarded) -> Step:
        """Local descent, in which a gradient that points against g_ref is projected."""
        g_ref = request.g_ref
        if g_ref is None:
            return Step(me.descend(request.x).step)

        def projected(z: Vec, g: Vec, rows: Rows) -> Vec:
            return project(g, g_ref)

        return Step(me.descend(request.x, correct=projected).step)
