"""NCCL: FedAvg for a stream of tasks: each step weights the gradients of task and memory by their agreement.

**Reference**: Han, Kim, Cho & Lee, "On the Convergence of Continual Learning with Adaptive Methods", UAI 2023, as
described in C-FLAG (AISTATS 2025), Section 5 and Table 1, there with E = 1.

**Status**: published with corrections

**Needs**: a stream of tasks and a replay memory.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: let ∇f be the memory's gradient, ∇g the task's, and Λ = ⟨∇f, ∇g⟩. If Λ > 0, the paper's rate for ∇g, (1
− αL)Λ/(L‖∇g‖²), is not bounded as ∇g → 0. Here it is at most α, so that a step never takes more of the task than plain
descent would. If Λ ≤ 0, the memory's rate α(1 − Λ/‖∇f‖²) is at most 1/L. α is the client's learning rate: choose it
below 1/L, because at 1/L and above a step that helps both ignores the task.

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied.

**Example**

>>> import medley as md
>>> digits, dealt = md.datasets.digits(), md.partitions.IID(clients=5)
>>> net, split = md.problems.Network(md.models.mlp(64, 10)), md.tasks.Split(tasks=5, mode="class")
>>> pace, ring = md.scenarios.Pace(lr=0.1, batch=16), md.replay.Ring(capacity=20, sample=16)
>>> fed = md.Federation(net, data=digits, partition=dealt, pace=pace, stream=split, replay=ring)
>>> md.run(md.NCCL(), fed, rounds=10, progress=False).summary["acc"] > 0.7
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..contract import Algorithm, Client, Cohort, Model, Need, Rows, Step, Vec, on_client, positive


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass(frozen=True)
class NCCL(Algorithm[Server]):
    """Adaptive rates for memory and task. ``L`` is the smoothness of the losses, 5 in C-FLAG's experiments."""

    L: Annotated[float, positive] = 5.0
    needs = frozenset({Need.REPLAY})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        """Local descent along the gradients of memory and task, each times its own rate."""
        memory = me.replay
        alpha = me.pace.lr
        if not memory:
            return Step(me.descend(request.x).step)
        draws = memory.batches()

        def weighed(z: Vec, g: Vec, rows: Rows) -> Vec:
            f = memory.problem.grad(z, next(draws))
            on_memory, on_task = self.rates(alpha, f, g)
            return (on_memory * f + on_task * g) / alpha

        return Step(me.descend(request.x, correct=weighed).step)

    def rates(self, alpha: float, f: Vec, g: Vec) -> tuple[float, float]:
        """The rates of the memory's gradient f and the task's gradient g."""
        agree = float(f @ g)
        size = float(g @ g)
        if agree > 0 and size > 0:  # of a gradient that has all but vanished the square may be zero
            return alpha, min(alpha, max(0.0, 1 - alpha * self.L) * agree / (self.L * size))
        norm = float(f @ f)
        return (min(max(alpha, 1 / self.L), alpha * (1 - agree / norm)) if norm else alpha), alpha
