r"""SCAFFOLDM: SCAFFOLD whose clients mix their corrected gradient with the mean direction of the last round.

.. math::

   g_i &= \beta \, (\nabla f_i(y_i) - c_i + c) + (1 - \beta) \, g
   && \text{a client's direction} \quad (1) \\
   y_i &\leftarrow y_i - \eta \, g_i
   && \text{K local steps from x} \quad (2) \\
   c_i^+ &= \tfrac{1}{K} \textstyle\sum_k \nabla f_i(y_i^k), \quad c^+ = c + \tfrac{1}{N} \sum_{i \in S} (c_i^+ - c_i)
   && \text{as in SCAFFOLD} \quad (3) \\
   g^+ &= \tfrac{1}{\eta K |S|} \textstyle\sum_{i \in S} (x - y_i), \quad x^+ = x - \gamma \, g^+
   && \text{the mean direction} \quad (4)

**Reference**: Cheng, Huang, Wu & Yuan, "Momentum Benefits Non-IID Federated Learning Simply and Provably", ICLR 2024,
SCAFFOLD-M.

**Status**: published

**Needs**: nothing. Clients keep d floats between rounds.

**One round sends** (floats per client):

- train: 3d down, 2d + 1 up

**Departures**: the paper gives all clients the same weight and K steps of size η. Here (4) has weights p̃_i over the
clients that take part, and c moves by Σ p_i(c_i⁺ − c_i), so that c = Σ p_i c_i over all clients in every round. A
client's simulated time T_i stands for K η, and its weighted mean T̄ for that of (4); γ is ``server_lr`` times T̄. T_i
also holds under learning-rate schedules and momentum, but not under Adam. Clients do not add up gradients for (3): the
mean is ((y_i − x)/(−T_i) − (1 − β)g)/β + c_i − c. c_i, c and g begin at 0.

**Missing replies**: a lost reply is left out of both means. c_i stays as it was on both sides, and c = Σ p_i c_i over
all clients. A client that lost its memory comes back with c_i = 0. Then, and when clients join or leave, the server
sums c anew, by one exchange with all.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_quadratics(clients=10)
>>> lr = md.distributions.Uniform(0.02, 0.1)
>>> pace = md.scenarios.Pace(lr=lr, epochs=md.distributions.Integers(1, 10), batch=None)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, pace=pace, participation=0.4)
>>> md.run(md.SCAFFOLDM(beta=0.3), fed, rounds=300, progress=False).summary["gap"] < 1e-8
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch

from ..contract import Algorithm, Client, Cohort, Message, Num, Vec, above, at_most, on_client, positive
from ..contract.messages import Recall, Recalled, recall_all


class Directions(Message):
    """Down: the server's x, c = Σ p_i c_i and g, the mean direction of the last round [d]."""

    x: Vec
    c: Vec
    g: Vec


class TimedStepAndVariate(Message):
    """Up: the displacement y_i − x and the change of c_i [d], and T_i."""

    delta: Vec
    dc: Vec
    T: Num


@dataclass
class Server:
    """The model, c = Σ p_i c_i over all clients, and g, the mean direction of the last round."""

    x: Vec
    c: Vec
    g: Vec


@dataclass
class Memory:
    """c_i, the client's last estimate of ∇f_i."""

    c: Vec


@dataclass(frozen=True)
class SCAFFOLDM(Algorithm[Server, Memory]):
    """SCAFFOLD with momentum in the local steps. With ``beta=1`` it is SCAFFOLD.

    Attributes:
        beta: β in (0, 1], the share of the client's own corrected gradient in a step
        server_lr: a factor of the mean displacement: γ = server_lr·η·K; default 1
    """

    beta: Annotated[float, above(0), at_most(1)] = 0.1
    server_lr: Annotated[float, positive] = 1.0

    def start(self, x: Vec) -> Server:
        """x₀, c = 0 and g = 0."""
        return Server(x, torch.zeros_like(x), torch.zeros_like(x))

    def remember(self, x: Vec) -> Memory:
        """c_i = 0."""
        return Memory(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """(3) and (4) of the sums over the clients that replied."""
        replies = clients.ask(self.train, Directions(s.x, s.c, s.g))
        up = replies.sum()
        s.x = s.x + self.server_lr / replies.share * up.delta
        s.c = s.c + up.dc
        s.g = -up.delta / float(up.T)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """c = Σ p_i c_i once more, by an exchange with all clients, in which c_i = 0 for clients that start again."""
        del who
        s.c = recall_all(self.name, clients, self.recall, Recall())

    @on_client
    def recall(self, me: Client[Memory], request: Recall) -> Recalled:
        """The client's c_i."""
        return Recalled(me.memory.c)

    @on_client(vectorized=True)
    def train(self, me: Client[Memory], request: Directions) -> TimedStepAndVariate:
        """(1) and (2), and the mean gradient of the descent from the displacement."""
        c_i = me.memory.c
        momentum = (1 - self.beta) * request.g
        update = me.descend(request.x, scale=self.beta, shift=self.beta * (request.c - c_i) + momentum)
        me.memory.c = (-update.step / update.T - momentum) / self.beta + c_i - request.c
        return TimedStepAndVariate(update.step, me.memory.c - c_i, update.T)
