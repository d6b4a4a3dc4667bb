"""FedDecorr: FedAvg for clients whose data differ, with a penalty that keeps each client's features uncorrelated.

**Reference**: Shi, Liang, Zhang, Tan & Bai, "Towards Understanding and Mitigating Dimensional Collapse in
Heterogeneous Federated Learning", ICLR 2023, equation 5.

**Status**: published

**Needs**: features, that is, a network whose last layer is linear.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: by default (``reduction="official"``) the penalty is the one in the authors' code, with which they found
β = 0.1. For a batch of B rows it is (B−1)²/B times the mean squared correlation of two different features, so about B
times the paper's ‖K‖_F²/d² without its diagonal. ``reduction="paper"`` is the formula as printed. A batch of one row
has no correlations and no penalty.

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied.

**Example**

>>> import medley as md
>>> digits = md.datasets.digits()
>>> fed = md.Federation(md.problems.Network(md.models.mlp(64, 10)), data=digits, partition=md.partitions.IID(5))
>>> md.run(md.FedDecorr(), fed, rounds=10, progress=False).summary["accuracy"] > 0.7
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..contract import Algorithm, Batch, Client, Cohort, Model, Need, Step, Vec, at_least, on_client


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass(frozen=True)
class FedDecorr(Algorithm[Server]):
    """Federated averaging with a penalty on correlated features in every client's loss.

    Attributes:
        beta: β, the penalty's weight; 0.1 in the authors' code; 0 is FedAvg, bit for bit
        reduction: the penalty: "official", as in the authors' code, or "paper", as printed
    """

    beta: Annotated[float, at_least(0)] = 0.1
    reduction: Literal["official", "paper"] = "official"
    needs = frozenset({Need.FEATURES})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client(vectorized=True)
    def train(self, me: Client, request: Model) -> Step:
        """Local descent on the loss with its penalty on correlated features."""
        return Step(me.descend(request.x, loss=self.loss if self.beta else None).step)

    def loss(self, batch: Batch) -> Tensor:
        """The problem's loss + β × the penalty."""
        return batch.loss() + self.beta * self.penalty(batch.features)

    def penalty(self, Z: Float[Tensor, "b f"]) -> Float[Tensor, ""]:
        """L_decorr of a batch's features; 0 for a batch of one row."""
        B, d = Z.shape
        if B == 1:
            return Z.new_zeros(())
        # 1e-8 under the root, because a feature may be constant over the batch (a dead ReLU), and must have a gradient.
        Z = (Z - Z.mean(0)) / (Z.var(0) + 1e-8).sqrt()
        C = Z.T @ Z
        if self.reduction == "paper":
            return (C / (B - 1)).square().mean()
        off = C - torch.diag(C.diagonal())
        return off.square().sum() / (max(1, d * (d - 1)) * B)
