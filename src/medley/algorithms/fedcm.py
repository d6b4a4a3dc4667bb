"""FedCM: client-level momentum for clients whose data differ: they mix their gradient with the last mean direction.

**Reference**: Xu, Wang, Wang & Yao, "FedCM: Federated Learning with Client-level Momentum", 2021, arXiv:2106.10874,
Algorithm 1.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: 2d down, d + 1 up

**Departures**: the paper gives all clients the same weight and K steps of size η_l. Here x moves by the mean
displacement with weights p̃_i. Δ is that displacement divided by −T̄, with T̄ the mean simulated time of the clients
that take part. For equal paces T̄ = K·η_l, and both are the paper's. A client with a longer pace counts for more in Δ,
in proportion to its time. T also holds under learning-rate schedules and momentum, but not under Adam, AdamW or Muon,
whose steps have another scale than η·∇f: with AdamW and Muon it was below FedAvg in all eleven comparisons of
``papers/adapters``, in seven of them at 9 to 18 % with ten classes. Weight decay λ
is part of the client's gradient here, and α scales it too: y ← y − lr·(α(∇f_i(y) + λy) + (1 − α)Δ), which comes to rest
at the minimum with decay λ.

**Checked against**: FL-Simulator, the code of FedSpeed's first author; we did not have FedCM's own. It adds λy to the
mixture, y ← y − lr·(α∇f_i(y) + (1 − α)Δ + λy), and so comes to rest at the minimum with decay λ/α, which is ten times
as strong by default. ``Pace(weight_decay=λ/α)`` gives the same step. It clips the norm of the mixture at 10;
``Pace(clip=10)`` clips the gradient before it is mixed.

**Missing replies**: a lost reply is left out of both means.

**Example**

>>> import medley as md
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(10))
>>> md.run(md.FedCM(), fed, rounds=20, progress=False).summary["accuracy"] > 0.8
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from ..contract import Algorithm, Client, Cohort, Message, TimedStep, Vec, above, at_most, on_client, positive


class Model(Message):
    """Down: the server's x and Δ."""

    x: Vec
    Delta: Vec


@dataclass
class Server:
    """The model, and Δ, the mean direction of the last round: a gradient, which points uphill."""

    x: Vec
    Delta: Vec


@dataclass(frozen=True)
class FedCM(Algorithm[Server]):
    """Client-level momentum. With ``alpha=1`` it is FedAvg, bit for bit.

    Attributes:
        alpha: α in (0, 1], the share of the client's own gradient in a step; 0.1 in the paper
        server_lr: η_g, a factor of the mean displacement; default 1
    """

    alpha: Annotated[float, above(0), at_most(1)] = 0.1
    server_lr: Annotated[float, positive] = 1.0

    def start(self, x: Vec) -> Server:
        """x₀ and Δ = 0."""
        return Server(x, torch.zeros_like(x))

    def round(self, s: Server, clients: Cohort) -> None:
        """Δ ← −Σ p̃_i (y_i − x) / Σ p̃_i T_i, the mean direction; x ← x + η_g Σ p̃_i (y_i − x)."""
        up = clients.ask(self.train, Model(s.x, s.Delta)).mean()
        s.Delta = -up.delta / float(up.T)
        s.x = s.x + self.server_lr * up.delta

    @on_client(vectorized=True)
    def train(self, me: Client, request: Model) -> TimedStep:
        """y ← y − lr·(α ∇f_i(y) + (1 − α) Δ): the client's gradient, mixed with the mean direction."""
        momentum = (1 - self.alpha) * request.Delta if self.alpha < 1 else None
        update = me.descend(request.x, scale=self.alpha, shift=momentum)
        return TimedStep(update.step, update.T)
