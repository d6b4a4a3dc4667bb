"""FedBN: FedAvg for clients whose features differ: each keeps its own normalisation layers, the rest is averaged.

**Reference**: Li, Jiang, Zhang, Kamp & Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, Algorithm 1.

**Status**: published

**Needs**: a network with normalisation layers.

**One round sends** (floats per client; d shared parameters):

- train: d down, d up

**Departures**: clients send displacements y_i − x instead of end points. The mean is weighted by rows; in the paper it
is unweighted. If the network has layer or group normalisation, each client keeps those layers too.

**Missing replies**: a lost reply is left out of the mean, and its client goes on from the normalisation layers that it
had before. A client that never took part has the server's model with the initial normalisation layers.

**Example**

>>> import medley as md
>>> from torch import nn
>>> net = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
>>> fed = md.Federation(
...     md.problems.Network(net), data=md.datasets.digits(), own_test=True,
...     partition=md.partitions.Labels(clients=10, per_client=2),
... )
>>> md.run(md.FedBN(), fed, rounds=5, progress=False).summary["personal_accuracy"] > 0.3
True
"""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import Algorithm, Client, Cohort, Model, Need, Patterns, Step, Vec, on_client


@dataclass
class Server:
    """The shared parameters."""

    x: Vec


@dataclass(frozen=True)
class FedBN(Algorithm[Server]):
    """Federated averaging of shared parameters.

    Each client keeps its normalisation layers, with their batch statistics.
    """

    needs = frozenset({Need.NETWORK})

    def shares(self) -> Patterns:
        """Everything except normalisation layers."""
        return "all but norms"

    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement of the shared parameters."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client(vectorized=True)
    def train(self, me: Client, request: Model) -> Step:
        """Local descent on the shared parameters, from x, and on the client's own layers."""
        return Step(me.descend(request.x).step)
