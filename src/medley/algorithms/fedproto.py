"""FedProto: personal models: clients exchange each class's mean features, and draw their own features towards them.

**Reference**: Tan, Long, Liu, Zhou, Lu, Jiang & Zhang, "FedProto: Federated Prototype Learning across Heterogeneous
Clients", AAAI 2022, Algorithm 1.

**Status**: published

**Needs**: labels in classes, and a network with layers below its last one, because the last layer's mean inputs travel.

**One round sends** (floats per client; C classes, f features, k = C f + C or 0):

- train (first time): d + k down, C f + C up
- train (later): k down, C f + C up

**Departures**: the distance between features is the mean of squares over rows and features, as in the authors' code.
Clients send sums of features and numbers of rows, and the server takes the mean over rows. These are equation 6's
weights |D_ij|/N_j without its further factor 1/|N_j|, which would shrink the prototype of a class by the number of
clients that have it. The authors' code does not have this factor either, but takes the plain mean over clients.
Features come from the model after the local steps, in evaluation mode. The authors' code takes them during the last
local epoch, batch by batch. By default a client's model predicts by its last layer. The paper predicts by the nearest
prototype, as ``predict="prototype"`` does here. As in the authors' code, it then considers only classes that the client
has rows of. The prototypes last received are written into the model's last layer, which needs a bias for this: the
nearest prototype has the greatest 2⟨φ, C̄_j⟩ − ‖C̄_j‖². All clients have one architecture here. If no client that takes
part has a class, the class keeps its last prototype.

**Checked against**: the authors' code, which tests both predictions. The authors' code prints two figures. Both are
running totals over the clients so far, of the correct answers of both kinds of prediction. It trains with SGD at lr
0.01, momentum 0.5 and mini-batches of 4 without the last incomplete one; these are settings of the pace.

**Missing replies**: a lost reply is left out of the prototypes, and its client's own model stays as it was. A client
that never took part has x₀.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Network(md.models.mlp(64, 10, (16,))), data=md.datasets.digits(), own_test=True,
...     partition=md.partitions.Labels(clients=10, per_client=2),
... )
>>> md.run(md.FedProto(), fed, rounds=5, progress=False).summary["personal_accuracy"] > 0.9
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..contract import Batch, Client, Cohort, FirstModel, Message, Need, RecipeError, Vec, at_least
from ..contract.algorithm import Algorithm, on_client

FAR = -1e6
"""Output of a class without a prototype."""


class Prototypes(Message):
    """Down: the mean features of each class [c, f], and 1 for the classes that have some [c]; None at first."""

    z: Float[Tensor, "c f"] | None = None
    there: Float[Tensor, " c"] | None = None


class Sums(Message):
    """Up: the sum of the features of each class [c, f], and its number of rows [c]."""

    z: Float[Tensor, "c f"]
    n: Float[Tensor, " c"]


@dataclass
class Server:
    """x₀, the clients that have it, and the prototypes, None at first."""

    x: Vec
    have: list[int] = field(default_factory=list)
    z: Tensor | None = None
    there: Tensor | None = None


@dataclass
class Memory:
    """The client's own model y_i; None before its first round. The last prototypes, if it predicts by them."""

    y: Vec | None = None
    seen: Prototypes | None = None


@dataclass(frozen=True)
class FedProto(Algorithm[Server, Memory]):
    """Prototype learning; the server's model stays x₀.

    Attributes:
        weight: λ, the weight of the distance to prototypes; the paper takes 1
        predict: "head": a client's model predicts by its last layer; "prototype": by the nearest prototype
    """

    weight: Annotated[float, at_least(0)] = 1.0
    predict: Literal["head", "prototype"] = "head"

    needs = frozenset({Need.CLASSES, Need.FEATURES, Need.BODY})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """C̄_j = Σ_i sum_ij / Σ_i n_ij over the clients that reply, for every class j that they have."""
        first = {i: FirstModel(None if i in s.have else s.x) for i in clients.ids}
        replies = clients.ask(self.train, Prototypes(s.z, s.there), first)
        total = replies.sum(dict.fromkeys(clients.ids, 1.0))
        s.have = sorted({*s.have, *replies.ids})
        present = (total.n > 0).to(total.z.dtype)
        z = total.z / total.n.clamp(min=1)[:, None]
        if s.z is None or s.there is None:
            s.z = z
            s.there = present
        else:
            s.z = torch.where(present[:, None] > 0, z, s.z)
            s.there = torch.maximum(s.there, present)

    @on_client
    def train(self, me: Client[Memory], request: Prototypes, first: FirstModel) -> Sums:
        """Local descent on f_i(y) + λ‖features − C̄‖², then the sums of the client's features by class."""
        if self.predict == "prototype" and me.problem.last()[1] is None:
            raise RecipeError(
                'FedProto(predict="prototype"): the last layer has no bias; give it one, or leave predict= out',
                "predict",
            )
        y = me.memory.y if first.x is None else first.x
        assert y is not None

        def loss(batch: Batch) -> Tensor:
            if request.z is None or request.there is None:
                return batch.loss()
            distances = (batch.features - request.z[batch.y]).square() * request.there[batch.y][:, None]
            return batch.loss() + self.weight * distances.mean()

        y = y + me.descend(y, loss=loss).step
        me.memory.y = y
        me.memory.seen = request if self.predict == "prototype" else None
        features = me.problem.features(y)
        n = me.problem.counts().to(features)
        z = features.new_zeros(len(n), features.shape[1]).index_add(0, me.problem.y, features)
        return Sums(z, n)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Clients without their model begin at x₀ again."""
        s.have = [i for i in s.have if i not in who]

    def personal(self, me: Client[Memory], x: Vec) -> Vec:
        """y_i; under ``predict="prototype"`` its last layer holds the classes' prototypes, once it has any."""
        y = x if me.memory.y is None else me.memory.y
        prototypes = me.memory.seen
        if prototypes is None or prototypes.z is None or prototypes.there is None:
            return y
        weight, bias = me.problem.last()
        assert bias is not None, "train() has looked"
        z = prototypes.z
        present = (prototypes.there > 0) & (me.problem.counts().to(prototypes.there) > 0)
        y = y.clone()
        y[weight:bias] = 0.0
        y[bias:][: (bias - weight) // z.shape[1]] = FAR  # outputs beyond the classes too
        y[weight:][: z.numel()] = 2 * (z * present[:, None]).reshape(-1)
        y[bias:][: len(z)] = torch.where(present, -z.square().sum(1), FAR)
        return y
