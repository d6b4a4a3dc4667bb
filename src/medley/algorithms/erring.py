"""ER-ring: FedAvg for a stream of tasks: clients put rows of past tasks into every mini-batch.

**Reference**: Chaudhry, Rohrbach, Elhoseiny, Ajanthan, Dokania, Torr & Ranzato, "On Tiny Episodic Memories in Continual
Learning", arXiv:1902.10486, 2019, Algorithm 1 with one ring buffer per class (`medley.replay.Ring`).

**Status**: published

**Needs**: a stream of tasks and a replay memory.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: clients choose rows for the memory at the end of a task, as in C-FLAG, not during it. A step takes the
mean loss over the union of its two batches, in one pass. Under BatchNorm the two batches pass through the network one
after the other, each with its own statistics.

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied.

**Example**

>>> import medley as md
>>> digits, dealt = md.datasets.digits(), md.partitions.IID(clients=5)
>>> net, split = md.problems.Network(md.models.mlp(64, 10)), md.tasks.Split(tasks=5, mode="class")
>>> pace, ring = md.scenarios.Pace(lr=0.1, batch=16), md.replay.Ring(capacity=20, sample=16)
>>> fed = md.Federation(net, data=digits, partition=dealt, pace=pace, stream=split, replay=ring)
>>> md.run(md.ERring(), fed, rounds=10, progress=False).summary["acc"] > 0.7
True
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..contract import Algorithm, Client, Cohort, Model, Need, Step, Vec, on_client


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass(frozen=True)
class ERring(Algorithm[Server]):
    """Experience replay, for a stream of tasks. A client without past rows uses its current rows alone."""

    needs = frozenset({Need.REPLAY})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        """Local descent; every step uses rows of the task and rows of the memory together."""
        memory = me.replay
        if not memory:
            return Step(me.descend(request.x).step)
        both = me.problem.beside(memory.problem, memory.batches())
        return Step(replace(me, problem=both).descend(request.x).step)
