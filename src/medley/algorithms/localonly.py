"""LocalOnly: the baseline without collaboration: every client trains alone, and the server sends only the first model.

**Reference**: the baseline without collaboration, as in Li, Hu, Beirami & Smith, "Ditto: Fair and Robust Federated
Learning Through Personalization", ICML 2021, Section 4.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train (first time): d down, 0 up
- train (later): 0 down, 0 up

**Departures**: none. All clients begin at the same x₀. A client that never took part has x₀.

**Missing replies**: if a client's reply is lost, its work is lost too, and it goes on from its previous model.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Network(md.models.mlp(64, 10, (16,))), data=md.datasets.digits(), own_test=True,
...     partition=md.partitions.Labels(clients=10, per_client=2),
... )
>>> md.run(md.LocalOnly(), fed, rounds=5, progress=False).summary["personal_accuracy"] > 0.9
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..contract import Algorithm, Client, Cohort, FirstModel, Message, Need, Recall, Vec, on_client


class Done(Message):
    """Up: the client has done its work; it carries nothing."""


@dataclass
class Server:
    """x₀, and the clients that have it."""

    x: Vec
    have: list[int] = field(default_factory=list)


@dataclass
class Memory:
    """The client's own model y_i; None before its first round."""

    y: Vec | None = None


@dataclass(frozen=True)
class LocalOnly(Algorithm[Server, Memory]):
    """Training without collaboration; the server's model stays x₀."""

    needs = frozenset({Need.REPLIES})
    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """y_i ← local descent from y_i, which is x₀ at first."""
        first = {i: FirstModel(None if i in s.have else s.x) for i in clients.ids}
        s.have = sorted({*s.have, *clients.ask(self.train, Recall(), first).each()})

    @on_client(vectorized=True)
    def train(self, me: Client[Memory], request: Recall, first: FirstModel) -> Done:
        """Local descent from the client's own model."""
        y = me.memory.y if first.x is None else first.x
        assert y is not None
        me.memory.y = y + me.descend(y).step
        return Done()

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Clients without their model begin at x₀ again."""
        s.have = [i for i in s.have if i not in who]

    def personal(self, me: Client[Memory], x: Vec) -> Vec:
        """y_i."""
        return x if me.memory.y is None else me.memory.y
