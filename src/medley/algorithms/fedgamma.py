"""FedGAMMA: SCAFFOLD with sharpness-aware steps: clients take gradients at points perturbed uphill.

**Reference**: Dai, Yang, Sun, Shen, Tian, Wang & Zhang, "FedGAMMA: Federated Learning With Global Sharpness-Aware
Minimization", IEEE Transactions on Neural Networks and Learning Systems 35 (2023), Algorithm 1.

**Status**: published

**Needs**: the same clients from the first round to the last. Clients keep d floats between rounds. A local step takes
two gradients.

**One round sends** (floats per client):

- train: 2d down, 2d up

**Departures**: the paper gives all clients the same weight. Here x is averaged with weights p̃_i over the clients that
take part, and c moves by Σ p_i(c_i⁺ − c_i), so that c = Σ p_i c_i over all clients in every round. The simulated time T
stands for K·η_l (K steps of size η_l). It also holds under learning-rate schedules and momentum, but not under Adam.

**Missing replies**: a lost reply is left out of the mean. c_i stays as it was on both sides; c = Σ p_i c_i over all.

**Example**

>>> import medley as md
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(10))
>>> md.run(md.FedGAMMA(), fed, rounds=5, progress=False).summary["accuracy"] > 0.8
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from ..contract import Algorithm, Client, Cohort, Rows, Vec, at_least, on_client, positive
from ..contract.messages import ModelAndVariate, StepAndVariate
from ..numerics.sharpness import stretched


@dataclass
class Server:
    """The model and c = Σ p_i c_i over all clients."""

    x: Vec
    c: Vec


@dataclass
class Memory:
    """c_i, the client's last mean of perturbed gradients."""

    c: Vec


@dataclass(frozen=True)
class FedGAMMA(Algorithm[Server, Memory]):
    """Sharpness-aware minimisation with control variates. With ``rho=0`` it is SCAFFOLD.

    Attributes:
        rho: ρ, the length of the perturbation; 0.1 in the code of a co-author, FL-Simulator
        server_lr: η_g, the server's step size; 1 in that code
    """

    rho: Annotated[float, at_least(0)] = 0.1
    server_lr: Annotated[float, positive] = 1.0

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

    @on_client
    def train(self, me: Client[Memory], request: ModelAndVariate) -> StepAndVariate:
        """y ← y − lr·(∇f_i(y + ρ g/‖g‖) − c_i + c) with g = ∇f_i(y), and a new c_i."""

        def perturbed(y: Vec, g: Vec, rows: Rows) -> Vec:
            return me.gradient(y + stretched(g, self.rho), rows)

        c_i = me.memory.c
        c = request.c
        update = me.descend(request.x, shift=c - c_i, correct=perturbed if self.rho else None)
        me.memory.c = c_i - c - update.step / update.T
        return StepAndVariate(update.step, me.memory.c - c_i)
