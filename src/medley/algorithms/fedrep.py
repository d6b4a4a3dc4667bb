"""FedRep: personal models: a client first trains its own head on the shared body, then the body, which is averaged.

**Reference**: Collins, Hassani, Mokhtari & Shakkottai, "Exploiting Shared Representations for Personalized Federated
Learning", ICML 2021, Algorithm 1.

**Status**: published

**Needs**: a network.

**One round sends** (floats per client; d shared parameters):

- train: d down, d up

**Departures**: clients send displacements y_i − x, not end points. The mean is weighted by rows; the paper's is
unweighted.

**Missing replies**: a lost reply is left out of the mean, and its client goes on from the head that it had before. A
client that never took part has the server's body with the initial head.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Network(md.models.mlp(64, 10, (16,))), data=md.datasets.digits(), own_test=True,
...     partition=md.partitions.Labels(clients=10, per_client=2),
... )
>>> md.run(md.FedRep(head_epochs=3), fed, rounds=5, progress=False).summary["personal_accuracy"] > 0.8
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ..contract import Algorithm, Client, Cohort, Model, Need, Patterns, Step, Vec, at_least, on_client


@dataclass
class Server:
    """The body."""

    x: Vec


@dataclass(frozen=True)
class FedRep(Algorithm[Server]):
    """Shared representations.

    Attributes:
        head_epochs: passes over a client's rows that train its head; the paper's experiments take 10. The pace's
            epochs train the body
        shared: names of the parameters of the body; by default all layers but the last one. A network's own ``shared``
            takes precedence
    """

    head_epochs: Annotated[int, at_least(1)] = 10
    shared: str | Sequence[str] = "body"

    needs = frozenset({Need.NETWORK})

    def shares(self) -> Patterns:
        """The body."""
        return self.shared

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement of the body."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        """Local descent on the head at x, then on the body from x."""
        me.at(epochs=self.head_epochs).descend(request.x, train="own")
        return Step(me.descend(request.x, train="shared").step)
