"""SCAFFOLD: clients correct their descent by the difference between their gradient and the mean gradient.

**Reference**: Karimireddy, Kale, Mohri, Reddi, Stich & Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, Algorithm 1.

**Status**: published

**Needs**: nothing. Clients keep d floats between rounds.

**One round sends** (floats per client):

- train: 2d down, 2d up

**Departures**: the paper gives all clients the same weight. Here x is averaged with weights p̃_i over the clients that
take part, and c moves by Σ p_i(c_i⁺ − c_i), so that c = Σ p_i c_i over all clients in every round. In option II the
simulated time T stands for K·η_l (K steps of size η_l). It also holds under learning-rate schedules and momentum, but
not under Adam.

**Missing replies**: a lost reply is left out of the mean. c_i stays as it was on both sides, and c = Σ p_i c_i over all
clients. A client that lost its memory comes back with c_i = 0. Then, and when clients join or leave, the server sums c
anew, by one exchange with all.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_quadratics(clients=10)
>>> lr = md.distributions.Uniform(0.02, 0.1)
>>> pace = md.scenarios.Pace(lr=lr, epochs=md.distributions.Integers(1, 10), batch=None)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, pace=pace, participation=0.4)
>>> md.run(md.SCAFFOLD(), fed, rounds=300, progress=False).summary["gap"] < 1e-12
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from ..contract import Algorithm, Client, Cohort, Vec, on_client, positive
from ..contract.messages import ModelAndVariate, Recall, Recalled, StepAndVariate, recall_all


@dataclass
class Server:
    """The model and c = Σ p_i c_i over all clients."""

    x: Vec
    c: Vec


@dataclass
class Memory:
    """c_i, the client's last estimate of ∇f_i."""

    c: Vec


@dataclass(frozen=True)
class SCAFFOLD(Algorithm[Server, Memory]):
    """Stochastic controlled averaging.

    Attributes:
        server_lr: η_g, the server's step size; 1 in the paper's experiments
        option: the new c_i: "II", the mean gradient of the descent, or "I", ∇f_i(x) on all rows, which costs a full
            gradient
    """

    server_lr: Annotated[float, positive] = 1.0
    option: Literal["I", "II"] = "II"

    def start(self, x: Vec) -> Server:
        """x₀ and c = 0."""
        return Server(x, torch.zeros_like(x))

    def remember(self, x: Vec) -> Memory:
        """c_i = 0."""
        return Memory(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + η_g Σ p̃_i (y_i − x), the mean displacement; c ← c + Σ p_i (c_i⁺ − c_i)."""
        replies = clients.ask(self.train, ModelAndVariate(s.x, s.c))
        up = replies.sum()
        s.x = s.x + self.server_lr / replies.share * up.delta
        s.c = s.c + up.dc

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """c = Σ p_i c_i once more, by an exchange with all clients, in which c_i = 0 for clients that start again."""
        del who
        s.c = recall_all(self.name, clients, self.recall, Recall())

    @on_client
    def recall(self, me: Client[Memory], request: Recall) -> Recalled:
        """The client's c_i."""
        return Recalled(me.memory.c)

    @on_client(vectorized=True)
    def train(self, me: Client[Memory], request: ModelAndVariate) -> StepAndVariate:
        """y ← y − lr·(∇f_i(y) − c_i + c), and a new c_i."""
        c_i = me.memory.c
        c = request.c
        update = me.descend(request.x, shift=c - c_i)
        if self.option == "I":
            me.memory.c = me.problem.grad(request.x)
        else:
            me.memory.c = c_i - c - update.step / update.T
        return StepAndVariate(update.step, me.memory.c - c_i)
