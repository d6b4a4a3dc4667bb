"""FedRS: FedAvg for clients that lack classes: they scale down the missing classes' logits, which then train less.

**Reference**: Li & Zhan, "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data", KDD
2021, equation 5.

**Status**: published with corrections

**Needs**: classes.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: by default (``rule="official"``) the scale of a logit is the soft one in the authors' code, α +
(1−α)·n_i(c)/max_c n_i(c), with n_i(c) the client's number of rows of class c. The paper's scale, ``rule="paper"``, is 1
for a class that the client has and α for one that it does not have. The code leaves the last layer's bias out of the
scaled logits (``bias="drop"``), and evaluates with this bias, which is never trained. By default the bias is scaled
with the rest. Evaluation uses the logits unscaled. If a model has one margin m instead of logits, the mean of the two
classes' scales applies to it, as it would to its two logits ∓m/2.

**Missing replies**: a lost reply is left out of the mean; p̃_i is client i's weight among the clients that replied.

**Example**

>>> import medley as md
>>> digits, dealt = md.datasets.digits(), md.partitions.Dirichlet(clients=10, alpha=0.3)
>>> fed = md.Federation(md.problems.Softmax(mu=1e-3), data=digits, partition=dealt)
>>> md.run(md.FedRS(), fed, rounds=10, progress=False).summary["accuracy"] > 0.6
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from ..contract import Algorithm, Batch, Client, Cohort, Model, Need, Step, Vec, in_range, on_client


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass(frozen=True)
class FedRS(Algorithm[Server]):
    """Federated averaging with a restricted softmax in every client's loss.

    Attributes:
        alpha: the scale of a missing class's logit; 1 is FedAvg
        rule: the scale of the other logits: "official", as in the authors' code, or "paper"
        bias: the last layer's bias: "scale", with the logits, or "drop", as in the authors' code
    """

    alpha: Annotated[float, in_range(0, 1)] = 0.5
    rule: Literal["official", "paper"] = "official"
    bias: Literal["scale", "drop"] = "scale"
    needs = frozenset({Need.CLASSES})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        """Local descent on the loss of the scaled logits."""
        scales = self.scales(me.problem.counts())

        def loss(batch: Batch) -> Tensor:
            z = batch.outputs
            b = batch.bias
            if self.bias == "drop" and b is not None:
                z = z - b
            if z.ndim == 1:
                return batch.loss(z * scales.mean())
            # A head may have room for classes that no client of this federation has.
            return batch.loss(z * F.pad(scales, (0, z.shape[1] - len(scales)), value=self.alpha).to(z))

        return Step(me.descend(request.x, loss=loss).step)

    def scales(self, counts: Int[Tensor, " c"]) -> Float[Tensor, " c"]:
        """The factor on each class's logit, from a client's rows of each class."""
        n = counts.to(torch.float64)
        weights = n / n.max() if self.rule == "official" else (n > 0).to(n)
        return self.alpha + (1 - self.alpha) * weights
