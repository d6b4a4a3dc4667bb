"""pFedMe: personal models minimise each client's loss near the server's model, which follows their Moreau envelopes.

**Reference**: Dinh, Tran & Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1.

**Status**: published

**Needs**: nothing.

**One round sends** (floats per client):

- train: d down, d up
- follow (if everyone trains): d down, 0 up; of the clients that do not take part

**Departures**: only the clients that take part train. Under partial participation the models of the others stay as they
were and cost nothing. In Algorithm 1 every client trains in every round, and the server takes the mean over those that
take part: ``everyone=True`` does this. x is the same either way. Clients send displacements w_i − x instead of end
points. The mean is weighted by rows, as in the authors' code; the paper's is unweighted. The inner problem is solved by
``inner_steps`` gradient steps on one batch, from the last θ_i of the round, and from x at its start. The pace's
momentum and optimizer are not used. Parameters that a network does not share are not trained.

**Checked against**: the authors' code: the steps of θ and w, the starting points, the weights, β, and which clients
train. It adds 0.001·θ to the gradient of θ, which is ``Pace(weight_decay=0.001)`` here, and its local rounds are single
mini-batches, ``Pace(steps=20)``. The personal accuracy that it prints belongs to w_i, because the same tensors hold θ_i
and w_i is written to them before the test. Here it belongs to θ_i.

**Missing replies**: a lost reply is left out of the mean, and its client's own model stays as it was. A client that
never took part has the server's model.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Network(md.models.mlp(64, 10, (16,))), data=md.datasets.digits(), own_test=True,
...     partition=md.partitions.Labels(clients=10, per_client=2),
... )
>>> s = md.run(md.pFedMe(), fed, rounds=5, progress=False).summary
>>> s["personal_accuracy"] > s["accuracy"]
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ..contract import Algorithm, Client, Cohort, Message, Model, Step, Vec, at_least, on_client, positive


class Kept(Message):
    """Up: nothing."""


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Memory:
    """The client's own model θ_i; None before its first round, meaning x."""

    theta: Vec | None = None


@dataclass(frozen=True)
class pFedMe(Algorithm[Server, Memory]):
    """Personal models by Moreau envelopes.

    Attributes:
        mu: the weight λ of (λ/2)‖θ − w‖²; the paper's default is 15
        inner_steps: K, gradient steps that approximate θ on one batch; the paper's default is 5
        outer_lr: η, the step of w; None, the default, takes the pace's lr, as θ does. w moves by η·λ times its distance
            to θ
        beta: β, the server's step; the paper takes 1 to 4
        everyone: whether clients that do not take part train too, as in the paper; their w_i are not sent
    """

    mu: Annotated[float, positive] = 15.0
    inner_steps: Annotated[int, at_least(1)] = 5
    outer_lr: Annotated[float, positive] | None = None
    beta: Annotated[float, positive] = 1.0
    everyone: bool = False

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← (1 − β) x + β Σ p̃_i w_i: x moves towards the mean of the clients' w_i."""
        x = s.x
        s.x = x + self.beta * clients.ask(self.train, Model(x)).mean().delta
        if not self.everyone:
            return
        absent = tuple(i for i in clients.p if i not in clients.ids)
        if absent:
            clients.ask(self.follow, Model(x), ids=absent).each()

    @on_client
    def train(self, me: Client[Memory], request: Model) -> Step:
        """w_i − x, where w_i follows the client's own model θ_i."""
        return Step(self.solve(me, request.x) - request.x)

    @on_client
    def follow(self, me: Client[Memory], request: Model) -> Kept:
        """The same as `train`, but nothing is sent."""
        self.solve(me, request.x)
        return Kept()

    def solve(self, me: Client[Memory], x: Vec) -> Vec:
        """w_i: for each batch θ ≈ argmin f_i(θ; batch) + (λ/2)‖θ − w‖², then w ← w − ηλ (w − θ)."""
        w = theta = x
        eta = me.pace.lr if self.outer_lr is None else self.outer_lr
        for rows in me.batches():
            for _ in range(self.inner_steps):
                theta = theta - me.pace.lr * (me.gradient(theta, rows) + self.mu * (theta - w))
            w = w - eta * self.mu * (w - theta)
        me.memory.theta = theta
        return w

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: the server does not keep clients' own models."""

    def personal(self, me: Client[Memory], x: Vec) -> Vec:
        """θ_i."""
        return x if me.memory.theta is None else me.memory.theta
