"""A-GEM: FedAvg for a stream of tasks, whose steps to first order never raise the loss on remembered rows.

**Reference**: Chaudhry, Ranzato, Rohrbach & Elhoseiny, "Efficient Lifelong Learning with A-GEM", ICLR 2019,
equation 11.

**Status**: published

**Needs**: a stream of tasks and a replay memory.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: each client takes the reference gradient on its own memory, at the point of the local step. A client
without a memory does not project.

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied.

**Example**

>>> import medley as md
>>> digits, dealt = md.datasets.digits(), md.partitions.IID(clients=5)
>>> net, split = md.problems.Network(md.models.mlp(64, 10)), md.tasks.Split(tasks=5, mode="task")
>>> pace, ring = md.scenarios.Pace(lr=0.1, batch=16), md.replay.Ring(capacity=20, sample=16)
>>> fed = md.Federation(net, data=digits, partition=dealt, pace=pace, stream=split, replay=ring)
>>> md.run(md.AGEM(), fed, rounds=10, progress=False).summary["acc"] > 0.8
True
"""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import Algorithm, Client, Cohort, Model, Need, Rows, Step, Vec, on_client
from ..numerics.projection import project


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass(frozen=True)
class AGEM(Algorithm[Server]):
    """Averaged gradient episodic memory, for a stream of tasks. A client without past rows takes plain steps."""

    needs = frozenset({Need.REPLAY})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        """Local descent along g − min(0, gᵀr)/(rᵀr) r: g is the step's gradient, r the gradient on the memory."""
        memory = me.replay
        if not memory:
            return Step(me.descend(request.x).step)
        draws = memory.batches()

        def projected(z: Vec, g: Vec, rows: Rows) -> Vec:
            return project(g, memory.problem.grad(z, next(draws)))

        return Step(me.descend(request.x, correct=projected).step)
