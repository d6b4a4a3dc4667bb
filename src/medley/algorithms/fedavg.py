"""FedAvg: clients descend on their own data, and the server averages their models.

**Reference**: McMahan, Moore, Ramage, Hampson & Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: clients send displacements y_i − x instead of end points. ``server_lr`` scales the server's step (1 in
the paper).

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied.

**Example**

>>> import medley as md
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(10))
>>> md.run(md.FedAvg(), fed, rounds=3, progress=False).summary["accuracy"] > 0.8
True
"""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import Algorithm, Client, Cohort, Model, Step, Vec, on_client


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass(frozen=True)
class FedAvg(Algorithm[Server]):
    """Federated averaging. ``server_lr`` is the server's step size η_g, 1 in the paper; any finite number."""

    server_lr: float = 1.0

    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + η_g Σ p̃_i (y_i − x): the server adds the mean displacement, times its step size."""
        delta = clients.ask(self.train, Model(s.x)).mean().delta
        s.x = (delta if self.server_lr == 1.0 else self.server_lr * delta).add_(s.x)  # in the mean's memory

    @on_client(vectorized=True)
    def train(self, me: Client, request: Model) -> Step:
        """Local descent from x to y_i."""
        return Step(me.descend(request.x).step)
