"""FedAvgM: FedAvg with momentum at the server, for clients whose data differ.

**Reference**: Hsu, Qi & Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", arXiv:1909.06335, 2019, §4.3.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: none.

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied.

**Example**

>>> import medley as md
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(10))
>>> md.run(md.FedAvgM(), fed, rounds=5, progress=False).summary["accuracy"] > 0.8
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from ..contract import Algorithm, Client, Cohort, Model, Step, Vec, at_least, below, on_client, positive


@dataclass
class Server:
    """The model and its velocity v."""

    x: Vec
    v: Vec


@dataclass(frozen=True)
class FedAvgM(Algorithm[Server]):
    """Federated averaging with server momentum.

    Attributes:
        beta: β, the momentum; 0.9 in the paper
        server_lr: the server's step size; 1 in the paper

    In the long run a displacement counts server_lr/(1 − β) times. ``beta=0, server_lr=1`` is FedAvg.
    """

    beta: Annotated[float, at_least(0), below(1)] = 0.9
    server_lr: Annotated[float, positive] = 1.0

    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀ and v = 0."""
        return Server(x, torch.zeros_like(x))

    def round(self, s: Server, clients: Cohort) -> None:
        """v ← βv + Σ p̃_i (y_i − x), x ← x + η_g v: v is the momentum of the mean displacement."""
        s.v = self.beta * s.v + clients.ask(self.train, Model(s.x)).mean().delta
        s.x = s.x + self.server_lr * s.v

    @on_client(vectorized=True)
    def train(self, me: Client, request: Model) -> Step:
        """Local descent from x to y_i."""
        return Step(me.descend(request.x).step)
