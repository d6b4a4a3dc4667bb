"""FedDyn: clients regularise their own loss, so that its minimum approaches the minimum of the mean loss.

**Reference**: Acar, Zhao, Matas Navarro, Mattina, Whatmough & Saligrama, "Federated Learning Based on Dynamic
Regularization", ICLR 2021, Algorithm 1.

**Status**: published

**Needs**: the same clients from the first round to the last. Clients keep d floats between rounds.

**One round sends** (floats per client):

- train: d + 1 down, d up

**Departures**: if clients differ in size, the paper's uniform α leads to the minimum of the plain mean of f_i. As in
the authors' code, means here are unweighted and α_i = α/(N p_i), which leads to the minimum of Σ p_i f_i. Clients do
not solve the local problem but descend on it for the pace's steps. This does not move the fixed point, where ∇f_i(x) =
−α_i h_i and the mean of h_i is 0. Medley evaluates and returns the server's x. Adam descends on the corrected loss too,
so x ends near the minimum, within a few steps of size lr.

**Missing replies**: a lost reply is left out of the mean. h_i stays as it was on both sides; h is the mean of all h_i.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_quadratics(clients=10)
>>> lr = md.distributions.Uniform(0.02, 0.1)
>>> pace = md.scenarios.Pace(lr=lr, epochs=md.distributions.Integers(1, 10), batch=None)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, pace=pace, participation=0.4)
>>> md.run(md.FedDyn(alpha=5.0), fed, rounds=300, progress=False).summary["gap"] < 1e-12
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from ..contract import Algorithm, Client, Cohort, ModelAndPull, Step, Vec, on_client, positive


@dataclass
class Server:
    """The model and the mean of h_i over all clients."""

    x: Vec
    h: Vec


@dataclass
class Memory:
    """h_i: −α_i h_i is the client's estimate of ∇f_i."""

    h: Vec


@dataclass(frozen=True)
class FedDyn(Algorithm[Server, Memory]):
    """Dynamic regularisation.

    Attributes:
        alpha: α, the weight of the regulariser; the paper tunes it in {0.001, 0.01, 0.1}

    If α is too small, the h_i of rarely asked clients grow: watch the column ``drift``, ‖mean h_i‖.
    """

    alpha: Annotated[float, positive] = 0.1

    def start(self, x: Vec) -> Server:
        """x₀ and h = 0."""
        return Server(x, torch.zeros_like(x))

    def remember(self, x: Vec) -> Memory:
        """h_i = 0."""
        return Memory(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """h_i ← h_i + θ_i − x for clients that take part, x ← mean of their θ_i + mean of all h_i."""
        replies = clients.ask(self.train, ModelAndPull(s.x, self.alpha / clients.population))
        total = replies.sum(dict.fromkeys(clients.p, 1.0)).delta
        s.h = s.h + total / clients.population
        s.x = s.x + total / replies.count + s.h
        clients.note(drift=float(s.h.norm()))

    @on_client(vectorized=True)
    def train(self, me: Client[Memory], request: ModelAndPull) -> Step:
        """Local descent on f_i(θ) + α_i(⟨θ, h_i − x⟩ + ½‖θ‖²)."""
        alpha_i = request.weight / me.p
        h_i = me.memory.h
        step = me.descend(request.x, pull=(alpha_i, request.x), shift=alpha_i * h_i).step
        me.memory.h = h_i + step
        return Step(step)
