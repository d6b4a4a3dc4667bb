"""FedNova: FedAvg for clients with unequal numbers of steps, whose displacements it divides by their local work.

**Reference**: Wang, Liu, Liang, Joshi & Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020, equations 8-9 and §4 (proximal and momentum clients, server momentum).

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d + 1 up

**Departures**: the effective number of steps is τ_eff = Σ p̃_i‖a_i‖₁ over the clients that take part, for every local
optimizer; a_i are the weights of client i's gradients in its displacement. (The authors' code takes raw steps under a
proximal term, and counts steps twice when momentum joins it.) Clients begin every round with momentum 0, as in that
code. The paper assumes one learning rate for all: with unequal lr_i its fixed point weighs f_i by p_i·lr_i.
``lr_aware=True`` also normalises the learning rates away and leaves an error of O(lr). With Adam at the clients, x
comes to rest away from the minimum, and normalising the steps does not change that.

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied.

**Example**

>>> import medley as md
>>> pace = md.scenarios.Pace(lr=0.1, epochs=md.distributions.Integers(1, 5))
>>> digits = md.datasets.digits()
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=digits, partition=md.partitions.IID(10), pace=pace)
>>> md.run(md.FedNova(), fed, rounds=3, progress=False).summary["accuracy"] > 0.8
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from ..contract import Algorithm, Client, Cohort, Message, Model, Num, Vec, at_least, below, on_client


class UnitStep(Message):
    """Up: the displacement per unit of local work, and that work."""

    direction: Vec
    work: Num


@dataclass
class Server:
    """The model and, under server momentum, its velocity v."""

    x: Vec
    v: Vec


@dataclass(frozen=True)
class FedNova(Algorithm[Server]):
    """Normalised averaging.

    Attributes:
        lr_aware: True normalises by Σ lr·a instead of ‖a‖₁, for clients whose lr differ
        mu: μ of a proximal term (μ/2)‖y − x‖², as in FedProx; 0 for none
        server_momentum: the paper's slow momentum, "gmf" in the authors' code; 0 for none

    The pace sets the local momentum.
    """

    lr_aware: bool = False
    mu: Annotated[float, at_least(0)] = 0.0
    server_momentum: Annotated[float, at_least(0), below(1)] = 0.0

    def start(self, x: Vec) -> Server:
        """x₀, at rest."""
        return Server(x, torch.zeros_like(x))

    def round(self, s: Server, clients: Cohort) -> None:
        """v ← gmf·v − τ_eff Σ p̃_i d_i, x ← x + v: −d_i is a displacement per unit of local work."""
        up = clients.ask(self.train, Model(s.x)).mean()
        s.v = self.server_momentum * s.v + up.work * up.direction
        s.x = s.x + s.v

    @on_client(vectorized=True)
    def train(self, me: Client, request: Model) -> UnitStep:
        """Local descent, and its work ‖a_i‖₁; T is Σ lr·a."""
        update = me.descend(request.x, pull=(self.mu, request.x) if self.mu else None)
        work = update.T if self.lr_aware else update.T / me.pace.lr
        return UnitStep(update.step / work, work)
