"""FedOpt: FedAvg with an adaptive optimizer at the server, which takes the mean displacement for a gradient.

**Reference**: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar & McMahan, "Adaptive Federated Optimization",
ICLR 2021, Algorithm 2.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: none. Like the paper's, the recursions have no bias correction.

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied.

**Example**

>>> import medley as md
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(10))
>>> for method in (md.FedAdagrad(), md.FedAdam(), md.FedYogi()):
...     print(md.run(method, fed, rounds=10, progress=False).summary["accuracy"] > 0.8)
True
True
True
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch

from ..contract import Algorithm, Client, Cohort, Model, Step, Vec, at_least, below, on_client, positive


@dataclass
class Server:
    """The model x, the mean of displacements m, and v of their squares; [d] each."""

    x: Vec
    m: Vec
    v: Vec


class FedOpt(Algorithm[Server]):
    """Algorithm 2 without its rule for v, which each method defines."""

    server_lr: float
    beta1: float
    tau: float

    any_loop = True

    def start(self, x: Vec) -> Server:
        """x₀, m = 0 and v = τ²."""
        return Server(x, torch.zeros_like(x), torch.full_like(x, self.tau**2))

    def round(self, s: Server, clients: Cohort) -> None:
        """m ← β₁m + (1 − β₁)Δ̄, v by the method's rule, x ← x + η m/(√v + τ); Δ̄ is the mean displacement."""
        delta = clients.ask(self.train, Model(s.x)).mean().delta
        s.m = self.beta1 * s.m + (1 - self.beta1) * delta
        s.v = self.second_moment(s.v, delta.square())
        s.x = s.x + self.server_lr * s.m / (s.v.sqrt() + self.tau)

    @abstractmethod
    def second_moment(self, v: Vec, squared: Vec) -> Vec:
        """The next v, from v and Δ̄²."""

    @on_client(vectorized=True)
    def train(self, me: Client, request: Model) -> Step:
        """Local descent from x; Δ_i is its displacement."""
        return Step(me.descend(request.x).step)


@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    """FedAdagrad: Adagrad at the server, whose steps shrink as displacements add up.

    Attributes:
        server_lr: η, the size of the first step in each coordinate; tune it
        beta1: β₁, the momentum; 0 in the paper
        tau: τ, the displacement below which steps become proportional to it; 0.001 in the paper
    """

    server_lr: Annotated[float, positive] = 0.1
    beta1: Annotated[float, at_least(0), below(1)] = 0.0
    tau: Annotated[float, positive] = 1e-3

    def second_moment(self, v: Vec, squared: Vec) -> Vec:
        """v + Δ̄²."""
        return v + squared


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """FedAdam: Adam at the server; a coordinate moves by about η a round, whatever the size of its displacement.

    Attributes:
        server_lr: η, the size of a step in each coordinate; tune it
        beta1: β₁, the decay of the mean displacement; 0.9 in the paper
        beta2: β₂, the decay of the mean squared displacement; 0.99 in the paper
        tau: τ, the displacement below which steps become proportional to it; 0.001 in the paper
    """

    server_lr: Annotated[float, positive] = 0.01
    beta1: Annotated[float, at_least(0), below(1)] = 0.9
    beta2: Annotated[float, at_least(0), below(1)] = 0.99
    tau: Annotated[float, positive] = 1e-3

    def second_moment(self, v: Vec, squared: Vec) -> Vec:
        """β₂v + (1 − β₂)Δ̄²."""
        return self.beta2 * v + (1 - self.beta2) * squared


@dataclass(frozen=True)
class FedYogi(FedOpt):
    """FedYogi: Yogi at the server, whose v moves by (1 − β₂)Δ̄² at most and so forgets large displacements slowly.

    Attributes:
        server_lr: η, the size of a step in each coordinate; tune it
        beta1: β₁, the decay of the mean displacement; 0.9 in the paper
        beta2: β₂: 1 − β₂ is the share of Δ̄² by which v moves; 0.99 in the paper
        tau: τ, the displacement below which steps become proportional to it; 0.001 in the paper
    """

    server_lr: Annotated[float, positive] = 0.01
    beta1: Annotated[float, at_least(0), below(1)] = 0.9
    beta2: Annotated[float, at_least(0), below(1)] = 0.99
    tau: Annotated[float, positive] = 1e-3

    def second_moment(self, v: Vec, squared: Vec) -> Vec:
        """v − (1 − β₂)Δ̄² sign(v − Δ̄²)."""
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)
