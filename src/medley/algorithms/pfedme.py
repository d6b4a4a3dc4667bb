"""pFedMe: the clients' own models minimise their loss near the server's model, which follows their Moreau envelopes.

**Reference**: Dinh, Tran & Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d up

**Departures**: clients send displacements w_i − x, not end points. The mean is weighted by rows, where the paper's is
plain. The inner problem is solved by ``inner_steps`` gradient steps on one batch, from the last θ_i of the round, and
from x at its start, as in the authors' code. Momentum and optimizers of the pace are not used. Parameters that a
network leaves to each client are not trained.

**Missing replies**: a lost one is left out of the mean, and its client's own model stays as it was. A client that never
took part has the server's model.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Network(md.models.mlp(64, 10, (16,))), data=md.datasets.digits(), own_test=True,
...     partition=md.scenarios.Labels(clients=10, per_client=2),
... )
>>> s = md.run(md.pFedMe(), fed, rounds=5, progress=False).summary
>>> s["personal_accuracy"] > s["accuracy"]
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ..contract.algorithm import Algorithm, on_client
from ..contract.client import Client
from ..contract.cohort import Cohort
from ..contract.messages import Model, Step
from ..contract.settings import at_least, positive
from ..contract.types import Vec


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Memory:
    """The client's own model θ_i; None before its first round, where it is x."""

    theta: Vec | None = None


@dataclass(frozen=True)
class pFedMe(Algorithm[Server, Memory]):
    """Moreau envelopes.

    Attributes:
        mu: the weight λ of (λ/2)‖θ − w‖²; the paper's default is 15
        inner_steps: K, gradient steps that approximate θ on one batch; the paper's default is 5
        outer_lr: η, the step of w; None, the default, takes the pace's lr, which is that of θ. w moves by η·λ of its
            distance to θ
        beta: β, the server's step; the paper takes 1 to 4
    """

    mu: Annotated[float, positive] = 15.0
    inner_steps: Annotated[int, at_least(1)] = 5
    outer_lr: Annotated[float, positive] | None = None
    beta: Annotated[float, positive] = 1.0

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← (1 − β) x + β Σ p̃_i w_i."""
        s.x = s.x + self.beta * clients.ask(self.train, Model(s.x)).mean().delta

    @on_client
    def train(self, me: Client[Memory], got: Model) -> Step:
        """For each batch θ ≈ argmin f_i(θ; batch) + (λ/2)‖θ − w‖², then w ← w − ηλ (w − θ)."""
        w = theta = got.x
        eta = me.pace.lr if self.outer_lr is None else self.outer_lr
        for rows in me.batches():
            for _ in range(self.inner_steps):
                theta = theta - me.pace.lr * (me.gradient(theta, rows) + self.mu * (theta - w))
            w = w - eta * self.mu * (w - theta)
        me.memory.theta = theta
        return Step(w - got.x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: the server knows no own models."""

    def personal(self, me: Client[Memory], x: Vec) -> Vec:
        """θ_i."""
        return x if me.memory.theta is None else me.memory.theta
