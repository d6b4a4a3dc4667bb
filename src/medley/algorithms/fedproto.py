"""FedProto: clients exchange the mean features of each class, and draw their own models' features towards them.

**Reference**: Tan, Long, Liu, Zhou, Lu, Jiang & Zhang, "FedProto: Federated Prototype Learning across Heterogeneous
Clients", AAAI 2022, Algorithm 1.

**Status**: published

**Needs**: labels in classes, and a model with features.

**One round sends** (floats per client; C classes, f features, k = C f + C or 0):

- train (first time): d + k down, C f + C up
- train (later): k down, C f + C up

**Departures**: the distance of features is the mean of squares over rows and features, as in the authors' code. Clients
send sums of features and numbers of rows, of which the server takes the mean over rows, with equation 6's weights
|D_ij|/N_j; the authors' code takes the plain mean over clients. Features are taken after the local steps, in evaluation
mode. All clients have one architecture here. A class keeps its last prototype where nobody that takes part has it.

**Missing replies**: a lost one is left out of the prototypes, and its client's own model stays as it was. A client that
never took part has x₀.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Network(md.models.mlp(64, 10, (16,))), data=md.datasets.digits(), own_test=True,
...     partition=md.scenarios.Labels(clients=10, per_client=2),
... )
>>> md.run(md.FedProto(), fed, rounds=5, progress=False).summary["personal_accuracy"] > 0.9
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from ..contract.algorithm import Algorithm, on_client
from ..contract.client import Client
from ..contract.cohort import Cohort
from ..contract.message import Message
from ..contract.messages import FirstModel
from ..contract.needs import Need
from ..contract.problem import Batch
from ..contract.settings import at_least
from ..contract.types import Vec


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
    """The client's own model y_i; None before its first round."""

    y: Vec | None = None


@dataclass(frozen=True)
class FedProto(Algorithm[Server, Memory]):
    """Prototype learning; the server's model stays x₀.

    Attributes:
        weight: λ, the weight of the distance to prototypes; the paper takes 1
    """

    weight: Annotated[float, at_least(0)] = 1.0

    needs = frozenset({Need.CLASSES, Need.FEATURES})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """C̄_j = Σ_i sum_ij / Σ_i n_ij over the clients that answer, for every class j that they have."""
        first = {i: FirstModel(None if i in s.have else s.x) for i in clients.ids}
        replies = clients.ask(self.train, Prototypes(s.z, s.there), first)
        total = replies.sum(dict.fromkeys(clients.ids, 1.0))
        s.have = sorted({*s.have, *replies.ids})
        now = (total.n > 0).to(total.z.dtype)
        z = total.z / total.n.clamp(min=1)[:, None]
        if s.z is None or s.there is None:
            s.z, s.there = z, now
        else:
            s.z, s.there = torch.where(now[:, None] > 0, z, s.z), torch.maximum(s.there, now)

    @on_client
    def train(self, me: Client[Memory], got: Prototypes, first: FirstModel) -> Sums:
        """Local descent on f_i(y) + λ‖features − C̄‖², then the features of the own rows by class."""
        y = me.memory.y if first.x is None else first.x
        assert y is not None

        def loss(batch: Batch) -> Tensor:
            if got.z is None or got.there is None:
                return batch.loss()
            apart = (batch.features - got.z[batch.y]).square() * got.there[batch.y][:, None]
            return batch.loss() + self.weight * apart.mean()

        y = y + me.descend(y, loss=loss).step
        me.memory.y = y
        features = me.problem.features(y)
        n = me.problem.counts().to(features)
        z = features.new_zeros(len(n), features.shape[1]).index_add(0, me.problem.y, features)
        return Sums(z, n)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Clients without their model begin at x₀ again."""
        s.have = [i for i in s.have if i not in who]

    def personal(self, me: Client[Memory], x: Vec) -> Vec:
        """y_i."""
        return x if me.memory.y is None else me.memory.y
