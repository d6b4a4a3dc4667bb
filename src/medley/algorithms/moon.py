r"""MOON: FedAvg whose clients keep the features of their rows near the server's, and far from their own last model's.

.. math::

   \ell_{con} &= -\log \frac{\exp(\cos(z, z_{glob})/\tau)}{\exp(\cos(z, z_{glob})/\tau) + \exp(\cos(z, z_{prev})/\tau)}
   && \text{of a row's features z} \quad (1) \\
   \ell &= \ell_{sup}(y; w) + \mu \, \ell_{con}
   && \text{mean over the batch} \quad (2)

z are the features of the model that trains, z_glob those of the server's x, and z_prev those of the client's own model
after its last visit.

**Reference**: Li, He & Song, "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1.

**Status**: published

**Needs**: features, that is, a network whose last layer is linear, with layers below it. Clients keep d floats between
rounds.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: the features are the inputs of the last linear layer. The paper puts a projection head before it, two
linear layers with 256 outputs: give your network these layers to have it. z_glob and z_prev are computed once a round,
of the rows without the transform of training batches. In a client's first round there is no last model. x stands for
it, as z_prev, and the gradient of (1) at z_glob = z_prev is 0, so this round is FedAvg's.

**Checked against**: the authors' code. It compares with the last model alone by default, as here; it can also keep
several. Its SGD has momentum 0.9 and weight decay 1e-5, which are settings of the pace.

**Missing replies**: a lost reply is left out of the mean, and its client's last model stays the one before.

**Example**

>>> import medley as md
>>> digits = md.datasets.digits()
>>> fed = md.Federation(md.problems.Network(md.models.mlp(64, 10)), data=digits, partition=md.partitions.IID(5))
>>> md.run(md.MOON(), fed, rounds=10, progress=False).summary["accuracy"] > 0.7
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor
from torch.nn import functional as F

from ..contract import Algorithm, Batch, Client, Cohort, Model, Need, Step, Vec, at_least, on_client, positive


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Memory:
    """The client's model y_i after its last visit; None before its first."""

    y: Vec | None = None


@dataclass(frozen=True)
class MOON(Algorithm[Server, Memory]):
    """Model-contrastive federated averaging.

    Attributes:
        mu: μ, the contrastive loss's weight; the paper tunes it in {0.1, 1, 5, 10}; 0 is FedAvg, bit for bit
        temperature: τ, 0.5 in the paper
    """

    mu: Annotated[float, at_least(0)] = 1.0
    temperature: Annotated[float, positive] = 0.5
    needs = frozenset({Need.FEATURES, Need.BODY})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x + Σ p̃_i (y_i − x): the server adds the mean displacement."""
        s.x = s.x + clients.ask(self.train, Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client[Memory], request: Model) -> Step:
        """Local descent on (2) from x; the end is the client's model."""
        x = request.x
        if self.mu == 0:
            return Step(me.descend(x).step)
        z_glob = me.problem.features(x)
        z_prev = z_glob if me.memory.y is None else me.problem.features(me.memory.y)

        def loss(batch: Batch) -> Tensor:
            rows = slice(None) if batch.rows is None else batch.rows
            return batch.loss() + self.mu * self.contrast(batch.features, z_glob[rows], z_prev[rows])

        step = me.descend(x, loss=loss).step
        me.memory.y = x + step
        return Step(step)

    def contrast(self, z: Tensor, z_glob: Tensor, z_prev: Tensor) -> Tensor:
        """The mean of (1) over rows: −log(e^a/(e^a + e^b)) = log(1 + e^(b − a))."""
        nearer = F.cosine_similarity(z, z_prev) - F.cosine_similarity(z, z_glob)
        return F.softplus(nearer / self.temperature).mean()
