"""A-FedPD: primal-dual training for partial participation; absent clients' dual variables follow the others' mean.

**Reference**: Sun, Shen & Tao, "A-FedPD: Aligning Dual-Drift is All Federated Primal-Dual Learning Needs", NeurIPS
2024, Algorithm 1.

**Status**: published

**Needs**: the same clients from the first round to the last. The server keeps d floats for each client that took part.

**One round sends** (floats per client):

- train: 2d + 1 down, d up

**Departures**: the paper gives all clients the same weight. Here means are unweighted and ρ_i = prox/(N p_i), with N
the number of clients, so that the fixed point is the minimum of Σ p_i f_i even if clients differ in size. As in the
paper, the server keeps the dual variables λ_i, in the form λ_i/ρ_i = a_i + V. V, the sum of mean displacements, is
common to all clients, so one addition makes the virtual update of all absent ones. Clients do not solve the local
problem but descend on it for the pace's steps. Adam descends on the corrected loss too, so x ends near the minimum,
within a few steps of size lr.

**Checked against**: the paper's abstract and two implementations by others. The authors published no code, and we did
not have the listing. The server, the starting values and ρ agree with both. The first adds θ̄ − θ to λ_i/ρ_i of absent
clients, as here, and uses ρ/(N p_i). The second replaces λ_i/ρ_i by θ̄ − θ.

**Missing replies**: a client whose reply is lost counts as absent and gets the virtual update.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_quadratics(clients=5)
>>> pace = md.scenarios.Pace(lr=0.1, epochs=md.distributions.Integers(1, 10), batch=None)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, pace=pace, participation=0.6)
>>> md.run(md.AFedPD(prox=3.0), fed, rounds=60, progress=False).summary["gap"] < 1e-8
True
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch

from ..contract import Algorithm, Client, Cohort, Message, ModelAndPull, Need, Step, Vec, on_client, positive


class Dual(Message):
    """Down to one client: λ_i/ρ_i."""

    h: Vec


@dataclass
class Server:
    """The model θ; V, the mean of λ_i/ρ_i over all clients; a_i = λ_i/ρ_i − V for each client that has taken part."""

    x: Vec
    V: Vec
    a: dict[int, Vec] = field(default_factory=dict)


@dataclass(frozen=True)
class AFedPD(Algorithm[Server]):
    """Primal-dual learning under partial participation, with aligned duals; FedDyn(alpha=prox) if all take part.

    Attributes:
        prox: ρ, the weight of the proximal term; 0.1, as in FedSpeed and FedSMOO by the same authors

    Watch the column ``drift``, ‖V‖: it vanishes at the minimum.
    """

    prox: Annotated[float, positive] = 0.1

    needs = frozenset({Need.REPLIES, Need.FIXED})

    def start(self, x: Vec) -> Server:
        """θ⁰, and λ_i = 0."""
        return Server(x, torch.zeros_like(x))

    def round(self, s: Server, clients: Cohort) -> None:
        """θ ← θ̄ + mean λ_i/ρ_i, where λ_i/ρ_i ← λ_i/ρ_i + θ_i − θ; for absent clients θ_i is θ̄."""
        zero = torch.zeros_like(s.x)
        duals = {i: Dual(s.a.get(i, zero) + s.V) for i in clients.ids}
        replies = clients.ask(self.train, ModelAndPull(s.x, self.prox / clients.population), duals).each()
        if not replies:
            return
        delta = torch.stack([up.delta for up in replies.values()]).mean(0)
        s.V = s.V + delta
        s.a = s.a | {i: duals[i].h + up.delta - s.V for i, up in replies.items()}
        s.x = s.x + delta + s.V
        clients.note(drift=float(s.V.norm()))

    @on_client(vectorized=True)
    def train(self, me: Client, request: ModelAndPull, dual: Dual) -> Step:
        """Local descent on f_i(θ_i) + ⟨λ_i, θ_i − θ⟩ + (ρ_i/2)‖θ_i − θ‖²."""
        rho_i = request.weight / me.p
        return Step(me.descend(request.x, pull=(rho_i, request.x), shift=rho_i * dual.h).step)
