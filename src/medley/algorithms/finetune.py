"""FineTune: the baseline for a stream of tasks: FedAvg on the current task, without any care for earlier ones.

**Reference**: the baseline "Fine-FL" of Keshri, Shah & Prasad, "On the Convergence of Continual Federated Learning
Using Incrementally Aggregated Gradients", AISTATS 2025; its rounds are those of McMahan et al.,
"Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1.

**Status**: published

**Needs**: a stream of tasks.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: clients send displacements y_i − x instead of end points.

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(5),
...     stream=md.tasks.Split(tasks=5, mode="class"),
... )
>>> last = md.run(md.FineTune(), fed, rounds=5, progress=False).summary
>>> last["learn"] > 0.9 and last["acc"] < 0.5
True
"""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import Algorithm, Client, Cohort, Model, Need, Step, Vec, on_client


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass(frozen=True)
class FineTune(Algorithm[Server]):
    """Federated averaging without a memory of past tasks."""

    needs = frozenset({Need.STREAM})
    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client(vectorized=True)
    def train(self, me: Client, request: Model) -> Step:
        """Local descent from x on this task's rows."""
        return Step(me.descend(request.x).step)
