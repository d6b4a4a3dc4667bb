"""FedAsync: asynchronous training: the server mixes in each reply as it comes, with less weight for old ones.

**Reference**: Xie, Koyejo & Gupta, "Asynchronous Federated Optimization", OPT Workshop 2020, Algorithm 1.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: a client sends its model x_new instead of its displacement, because the server mixes models.
``ReplyPolicy(replies=1)`` gives the paper's method. If several replies end a round, the server mixes in their
p̃-weighted mean, in which each has its own α_t. Of the paper's forms of staleness Medley has the polynomial one, which
is constant for ``power=0``, and not the hinge.
Without a ReplyPolicy the server waits for every reply: the method is then FedAvg with a proximal term and a server step
of α, and a warning at the start of the run says so.

**Missing replies**: late replies are used in the round in which they arrive; lost ones are left out.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_quadratics(clients=10)
>>> pace = md.scenarios.Pace(lr=0.05, epochs=5, batch=None)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, pace=pace)
>>> run = md.run(md.FedAsync(), fed, rounds=50, reply_policy=md.ReplyPolicy(replies=1), progress=False)
>>> run.summary["gap"] < run.history[0]["gap"] / 2
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..contract import Algorithm, Client, Cohort, Model, Need, Vec, above, at_least, at_most, on_client


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass(frozen=True)
class FedAsync(Algorithm[Server]):
    """Asynchronous mixing.

    The server mixes in a reply of staleness τ with the weight α_t = α (1 + τ)^−a.

    Attributes:
        alpha: α, the weight of a fresh reply; 0.6 in the paper's experiments
        power: a, the discount of stale replies; 0.5 in the paper's experiments, 0 for none
        rho: ρ, the weight of the clients' proximal term; 0.005 in the paper's experiments
    """

    alpha: Annotated[float, above(0), at_most(1)] = 0.6
    power: Annotated[float, at_least(0)] = 0.5
    rho: Annotated[float, at_least(0)] = 0.005

    needs = frozenset({Need.REPLIES})
    waits_as: ClassVar[str] = "FedAvg with a proximal term and a server step of alpha"

    @property
    def any_loop(self) -> bool:  # type: ignore[override]  # of the class for other methods
        """Without the proximal term, the server reads only where clients end."""
        return self.rho == 0

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← (1 − α_t) x + α_t x_new, with α_t = α (1 + τ)^−a for a reply of staleness τ."""
        replies = clients.ask(self.train, Model(s.x), late="deliver")
        x = s.x
        total = 0
        for i, new in replies.each().items():
            tau = clients.round - replies.asked[i]
            alpha_t = self.alpha * (1 + tau) ** -self.power
            x = x + clients.p[i] / replies.share * alpha_t * (new.x - s.x)
            total = total + tau
        s.x = x
        clients.note(staleness=total / max(1, len(replies.ids)))

    @on_client
    def train(self, me: Client, request: Model) -> Model:
        """Local descent on f_i(x) + ρ/2·‖x − x_τ‖² from x_τ, the model that the client got."""
        return Model(request.x + me.descend(request.x, pull=(self.rho, request.x)).step)
