"""FedPer: personal models: each client keeps its own last layers, and the layers below are averaged.

**Reference**: Arivazhagan, Aggarwal, Singh & Choudhary, "Federated Learning with Personalization Layers",
arXiv:1912.00818, 2019, Algorithms 1 and 2.

**Status**: published

**Needs**: a network.

**One round sends** (floats per client; d shared parameters):

- train: d down, d up

**Departures**: clients send displacements y_i − x instead of end points. The mean is over the clients that take part,
weighted by rows; the paper averages all clients. At first all clients' personal layers come from one random draw.

**Missing replies**: a lost reply is left out of the mean, and its client goes on from the personal layers that it had
before. A client that never took part has the server's model with the initial personal layers.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Network(md.models.mlp(64, 10, (16,))), data=md.datasets.digits(), own_test=True,
...     partition=md.partitions.Labels(clients=10, per_client=2),
... )
>>> md.run(md.FedPer(), fed, rounds=5, progress=False).summary["personal_accuracy"] > 0.7
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract import Algorithm, Client, Cohort, Model, Need, Patterns, Step, Vec, on_client


@dataclass
class Server:
    """The shared parameters."""

    x: Vec


@dataclass(frozen=True)
class FedPer(Algorithm[Server]):
    """Federated averaging of shared parameters.

    Attributes:
        shared: names of the shared parameters, the base layers; by default all layers but the last one. A network's own
            ``shared`` takes precedence
    """

    shared: str | Sequence[str] = "body"

    needs = frozenset({Need.NETWORK})

    def shares(self) -> Patterns:
        """The base layers."""
        return self.shared

    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement of the shared parameters."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client(vectorized=True)
    def train(self, me: Client, request: Model) -> Step:
        """Local descent from x and the client's personal layers, on both."""
        return Step(me.descend(request.x).step)
