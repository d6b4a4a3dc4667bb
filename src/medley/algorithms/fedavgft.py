"""FedAvgFT: personal models by FedAvg: every client fine-tunes the server's model on its own rows before it uses it.

**Reference**: Collins, Hassani, Mokhtari & Shakkottai, "FedAvg with Fine Tuning: Local Updates Lead to Representation
Learning", NeurIPS 2022. The rounds are as in McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: clients send displacements y_i − x instead of end points.

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied. A
client that never took part fine-tunes like any other.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Network(md.models.mlp(64, 10, (16,))), data=md.datasets.digits(), own_test=True,
...     partition=md.partitions.Labels(clients=10, per_client=2),
... )
>>> s = md.run(md.FedAvgFT(), fed, rounds=5, progress=False).summary
>>> s["personal_accuracy"] > s["accuracy"]
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..contract import Algorithm, Client, Cohort, Model, Step, Vec, at_least, on_client


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass(frozen=True)
class FedAvgFT(Algorithm[Server]):
    """Federated averaging with fine-tuning.

    Attributes:
        epochs: passes over a client's rows to fine-tune; the paper takes 10 to 200 steps
    """

    epochs: Annotated[int, at_least(1)] = 1

    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client(vectorized=True)
    def train(self, me: Client, request: Model) -> Step:
        """Local descent from x to y_i."""
        return Step(me.descend(request.x).step)

    def personal(self, me: Client, x: Vec) -> Vec:
        """The model that a descent from x on the client's rows reaches."""
        return x + me.at(epochs=self.epochs).descend(x).step
