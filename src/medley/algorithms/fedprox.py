"""FedProx: FedAvg whose clients are pulled back to where they started, for clients whose data differ.

**Reference**: Li, Sahu, Zaheer, Sanjabi, Talwalkar & Smith, "Federated Optimization in Heterogeneous Networks", MLSys
2020, Algorithm 2.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: the pace sets how much a client works; the paper asks for a γ-inexact solution. The mean is weighted by
p̃_i over the clients that take part; the paper samples clients with probability p_i. Momentum and weight decay act on
f_i, never on the pull.

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied.

**Example**

>>> import medley as md
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(10))
>>> md.run(md.FedProx(mu=0.1), fed, rounds=3, progress=False).summary["accuracy"] > 0.8
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
class FedProx(Algorithm[Server]):
    """Federated averaging with a proximal term (mu/2)‖y − x‖² in every client's loss.

    Attributes:
        mu: the proximal term's weight; the paper tunes it in {0.001, 0.01, 0.1, 1}; 0 is FedAvg, bit for bit

    A local descent is stable for lr·(λ_max + mu) < 2.
    """

    mu: Annotated[float, at_least(0)] = 0.01

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client(vectorized=True)
    def train(self, me: Client, request: Model) -> Step:
        """Local descent on f_i(y) + (mu/2)‖y − x‖², which pulls y back to x."""
        return Step(me.descend(request.x, pull=(self.mu, request.x) if self.mu else None).step)
