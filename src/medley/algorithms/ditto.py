"""Ditto: personal models: in addition to FedAvg, each client trains its own model, pulled towards the server's.

**Reference**: Li, Hu, Beirami & Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
Algorithm 1 with FedAvg as its global solver.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: clients send displacements y_i − x instead of end points. The two local descents draw separate batches.
If a network has batch statistics, a client's own model uses the server's.

**Missing replies**: a lost reply is left out of the mean, and its client's own model stays as it was. A client that
never took part has the server's model.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Network(md.models.mlp(64, 10, (16,))), data=md.datasets.digits(), own_test=True,
...     partition=md.partitions.Labels(clients=10, per_client=2),
... )
>>> s = md.run(md.Ditto(mu=0.1), fed, rounds=5, progress=False).summary
>>> s["personal_accuracy"] > s["accuracy"]
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ..contract import Algorithm, Client, Cohort, Model, Step, Vec, at_least, on_client


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Memory:
    """The client's own model v_i. Before its first round it is None, and the client begins at x."""

    v: Vec | None = None


@dataclass(frozen=True)
class Ditto(Algorithm[Server, Memory]):
    """Each client trains a model v of its own, with a proximal term (mu/2)‖v − x‖².

    Attributes:
        mu: the proximal term's weight λ; the paper tunes it in {0.1, 1, 2}. With 0 nothing pulls own models to x
        own_epochs: passes over a client's rows to train its own model; None, the default, is the pace's number
    """

    mu: Annotated[float, at_least(0)] = 1.0
    own_epochs: Annotated[int, at_least(1)] | None = None

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client(vectorized=True)
    def train(self, me: Client[Memory], request: Model) -> Step:
        """Two local descents: from x on f_i, and from the client's own v_i on f_i(v) + (mu/2)‖v − x‖²."""
        v = request.x if me.memory.v is None else me.memory.v
        pull = (self.mu, request.x) if self.mu else None
        me.memory.v = v + me.at("own model", self.own_epochs).descend(v, pull=pull).step
        return Step(me.descend(request.x).step)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: the server does not know the clients' own models."""

    def personal(self, me: Client[Memory], x: Vec) -> Vec:
        """v_i."""
        return x if me.memory.v is None else me.memory.v
