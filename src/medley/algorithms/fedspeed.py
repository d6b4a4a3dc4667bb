"""FedSpeed: FedDyn's corrected proximal term with sharpness-aware steps: gradients at points perturbed uphill.

**Reference**: Sun, Shen, Huang, Ding & Tao, "FedSpeed: Larger Local Interval, Less Communication Round, and Higher
Generalization Accuracy", ICLR 2023, Algorithm 1.

**Status**: published

**Needs**: the same clients from the first round to the last. Clients keep d floats between rounds. A local step takes
two gradients.

**One round sends** (floats per client):

- train: d + 1 down, d up

**Departures**: the paper's prox-correction ĝ_i is −prox_i·h_i here, with h_i the sum of the client's displacements. As
in the authors' code, the perturbation has length ρ, and the server adds the mean of h_i over all clients; a mean over
those that take part has no fixed point at the optimum. Means are unweighted and prox_i = prox/(N p_i), so that the
fixed point is the minimum of Σ p_i f_i even if clients differ in size; the paper gives all the same weight. A
perturbation of fixed length does not vanish at that point: with ρ > 0 iterates stay near it. Adam's steps descend the
corrected loss too, so x ends near the minimum, at a distance of some steps of size lr.

**Checked against**: the first author's code, FL-Simulator. There the gradients g₁ and g₂ have no weight decay, and λy
is added at y. Here decay is part of the gradient: g₁, which sets the direction of the perturbation, includes λy, and g₂
includes λ times the perturbed point, which differs from λy by a vector of length λρ. The code clips the norm of g₂ +
prox·(h_i − x) at 10; ``Pace(clip=10)`` clips g₁ and g₂, each by itself. With α below 1 the code uses α·g₂ alone,
without (1 − α)·g₁.

**Missing replies**: a lost reply is left out of the mean. h_i stays as it was on both sides; h is the mean of all h_i.

**Example**

>>> import medley as md
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(10))
>>> md.run(md.FedSpeed(), fed, rounds=5, progress=False).summary["accuracy"] > 0.8
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from ..contract import Algorithm, Client, Cohort, ModelAndPull, Rows, Step, Vec, at_least, in_range, on_client, positive
from ..numerics.sharpness import stretched


@dataclass
class Server:
    """The model and the mean of h_i over all clients."""

    x: Vec
    h: Vec


@dataclass
class Memory:
    """h_i, the sum of the client's displacements: prox_i·h_i is its estimate of −∇f_i."""

    h: Vec


@dataclass(frozen=True)
class FedSpeed(Algorithm[Server, Memory]):
    """Prox-correction and perturbed gradients. With ``rho=0`` or ``blend=0`` it is FedDyn(alpha=prox).

    Attributes:
        rho: ρ, the length of the perturbation; 0.1 in the authors' code
        prox: 1/λ, the weight of the proximal term; 0.1 in the authors' code
        blend: α in [0, 1], the share of the perturbed gradient in a step; 1 in the authors' code
    """

    rho: Annotated[float, at_least(0)] = 0.1
    prox: Annotated[float, positive] = 0.1
    blend: Annotated[float, in_range(0, 1)] = 1.0

    def start(self, x: Vec) -> Server:
        """x₀ and h = 0."""
        return Server(x, torch.zeros_like(x))

    def remember(self, x: Vec) -> Memory:
        """h_i = 0."""
        return Memory(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """h_i ← h_i + y_i − x for clients that take part, x ← mean of their y_i + mean of all h_i."""
        replies = clients.ask(self.train, ModelAndPull(s.x, self.prox / clients.population))
        total = replies.sum(dict.fromkeys(clients.p, 1.0)).delta
        s.h = s.h + total / clients.population
        s.x = s.x + total / replies.count + s.h
        clients.note(drift=float(s.h.norm()))

    @on_client
    def train(self, me: Client[Memory], request: ModelAndPull) -> Step:
        """y ← y − lr·((1 − α) g₁ + α g₂ + prox_i (h_i + y − x)), g₁ = ∇f_i(y), g₂ = ∇f_i(y + ρ g₁/‖g₁‖)."""

        def merged(y: Vec, g: Vec, rows: Rows) -> Vec:
            return (1 - self.blend) * g + self.blend * me.gradient(y + stretched(g, self.rho), rows)

        prox_i = request.weight / me.p
        h_i = me.memory.h
        perturbed = merged if self.rho and self.blend else None
        step = me.descend(request.x, pull=(prox_i, request.x), shift=prox_i * h_i, correct=perturbed).step
        me.memory.h = h_i + step
        return Step(step)
