"""FedSMOO: FedDyn with sharpness-aware steps: dynamic regularisation of the models and of their perturbations.

**Reference**: Sun, Shen, Chen, Ding & Tao, "Dynamic Regularized Sharpness Aware Minimization in Federated Learning:
Approaching Global Consistency and Smooth Landscape", ICML 2023, Algorithm 1.

**Status**: published

**Needs**: the same clients from the first round to the last. Clients keep 2d floats between rounds. A local step takes
two gradients.

**One round sends** (floats per client):

- train: 2d + 1 down, 2d up

**Departures**: as in the authors' code, s is the mean of μ_i over the clients that take part, stretched to length r;
the paper first subtracts the client's last perturbation from μ_i. The paper's λ_i is −prox_i·h_i here, with h_i the sum
of the client's displacements. Means are unweighted and prox_i = prox/(N p_i), so that for r = 0 the fixed point is the
minimum of Σ p_i f_i even if clients differ in size; the paper gives all the same weight. With r > 0 iterates stay near
this minimum. Adam's steps descend the corrected loss too, so x ends near the minimum, at a distance of some steps of
size lr.

**Checked against**: the first author's code, FL-Simulator: every equation, the starting values and both defaults. The
code also clips gradients at norm 10 and decays weights; both are settings of the pace here.

**Missing replies**: a lost reply is left out of both means. h_i and μ_i stay as they were; h is the mean of all h_i.

**Example**

>>> import medley as md
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(10))
>>> md.run(md.FedSMOO(), fed, rounds=5, progress=False).summary["accuracy"] > 0.8
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from ..contract import Algorithm, Client, Cohort, Message, Rows, Vec, at_least, on_client, positive
from ..numerics.sharpness import stretched


class Model(Message):
    """Down: the server's x, the perturbation s that clients should agree on, and prox/N."""

    x: Vec
    s: Vec
    prox: float


class Step(Message):
    """Up: the displacement y_i − x, and μ_i."""

    delta: Vec
    mu: Vec


@dataclass
class Server:
    """The model, the mean of h_i over all clients, and the common perturbation."""

    x: Vec
    h: Vec
    s: Vec


@dataclass
class Memory:
    """h_i, the sum of the client's displacements, and μ_i, the dual variable of its perturbations."""

    h: Vec
    mu: Vec


@dataclass(frozen=True)
class FedSMOO(Algorithm[Server, Memory]):
    """Dynamic regularisation of models and perturbations. With ``rho=0`` it is FedDyn(alpha=prox).

    Attributes:
        rho: r, the length of a perturbation; 0.1 in the authors' code
        prox: 1/β, the weight of the proximal term; 0.1 in the authors' code
    """

    rho: Annotated[float, at_least(0)] = 0.1
    prox: Annotated[float, positive] = 0.1

    def start(self, x: Vec) -> Server:
        """x₀, h = 0 and s = 0."""
        return Server(x, torch.zeros_like(x), torch.zeros_like(x))

    def remember(self, x: Vec) -> Memory:
        """h_i = 0 and μ_i = 0."""
        return Memory(x, x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← mean of y_i + mean of all h_i, and s ← r μ̄/‖μ̄‖ with μ̄ the mean of μ_i."""
        replies = clients.ask(self.train, Model(s.x, s.s, self.prox / clients.population))
        total = replies.sum(dict.fromkeys(clients.p, 1.0))
        s.h = s.h + total.delta / clients.population
        s.x = s.x + total.delta / replies.count + s.h
        s.s = stretched(total.mu, self.rho)
        clients.note(drift=float(s.h.norm()))

    @on_client
    def train(self, me: Client[Memory], request: Model) -> Step:
        """y ← y − lr·(∇f_i(y + s_i) + prox_i (h_i + y − x)), with μ_i ← μ_i + s_i − s in every step.

        s_i is ∇f_i(y) − μ_i − s, stretched to length r.
        """
        mu = me.memory.mu

        def perturbed(y: Vec, g: Vec, rows: Rows) -> Vec:
            nonlocal mu
            s_i = stretched(g - mu - request.s, self.rho)
            mu = mu + s_i - request.s
            return me.gradient(y + s_i, rows)

        prox_i = request.prox / me.p
        h_i = me.memory.h
        correct = perturbed if self.rho else None
        step = me.descend(request.x, pull=(prox_i, request.x), shift=prox_i * h_i, correct=correct).step
        me.memory.h = h_i + step
        me.memory.mu = mu
        return Step(step, mu)
