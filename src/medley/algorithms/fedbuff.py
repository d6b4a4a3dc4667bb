"""FedBuff: asynchronous training: the server steps after every K replies; replies from old models weigh less.

**Reference**: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek & Huba, "Federated Learning with Buffered Asynchronous
Aggregation", AISTATS 2022, Algorithm 1.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: the buffer is the round, so K is the run's ``ReplyPolicy(replies=K)``. Without a ReplyPolicy the server
waits for every reply: the method is then FedAvg, and a warning at the start of the run says so. A reply has the weight
p̃_i among the K replies instead of 1/K; the two are the same if clients have equal sizes.

**Missing replies**: late replies are used in the round in which they arrive; lost ones are left out of the mean.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_quadratics(clients=10)
>>> devices = md.devices.Devices(speed=[1000.0] * 9 + [50.0])
>>> fed = md.Federation(toy.problem, clients=toy.clients, devices=devices, pace=md.scenarios.Pace(lr=0.05, batch=None))
>>> waiting, buffered = (
...     md.run(md.FedBuff(), fed, rounds=20, reply_policy=md.ReplyPolicy(replies=k), progress=False) for k in (10, 5)
... )
>>> buffered.summary["seconds"] < waiting.summary["seconds"] / 5
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..contract import Algorithm, Client, Cohort, Model, Need, Step, Vec, at_least, on_client, positive


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass(frozen=True)
class FedBuff(Algorithm[Server]):
    """Buffered asynchronous averaging.

    Attributes:
        server_lr: η_g, the server's step size
        power: a reply of staleness τ weighs (1 + τ)^−power; ½ in the paper (section 5), 0 for no discount
    """

    server_lr: Annotated[float, positive] = 1.0
    power: Annotated[float, at_least(0)] = 0.5

    needs = frozenset({Need.REPLIES})
    waits_as: ClassVar[str] = "FedAvg"
    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + η_g Σ p̃_i (1 + τ_i)^−½ (y_i − x_i), over the replies that the buffer holds."""
        replies = clients.ask(self.train, Model(s.x), late="deliver")
        x = s.x
        total = 0
        for i, step in replies.each().items():
            tau = clients.round - replies.asked[i]
            x = x + self.server_lr * clients.p[i] / replies.share * (1 + tau) ** -self.power * step.delta
            total += tau
        s.x = x
        clients.note(staleness=total / max(1, len(replies.ids)))

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        """Local descent from x."""
        return Step(me.descend(request.x).step)
