"""FedNew: clients agree on the Newton direction by one ADMM step per round, and never send a gradient or a Hessian.

**Reference**: Elgabli, Ben Issaid, Bedi, Rajawat, Bennis & Aggarwal, "FedNew: A Communication-Efficient and
Privacy-Preserving Newton-Type Method for Federated Learning", ICML 2022, Algorithm 1.

**Status**: published

**Needs**: Hessians, a convex problem, and every client in every round. Clients keep 2d floats between rounds, and d²
more unless ``period`` is 1. Clients are the same from the first round to the last.

**One round sends** (floats per client):

- direct: 2d down, d up

**Departures**: the reply is y_i + λ_i/ρ, whose mean is ADMM's direction, as in the authors' code. The paper's reply is
y_i, which has the same mean as long as Σ p_i λ_i = 0; here that sum comes back to 0 after a lost reply. The request has
x as well as the last direction; the paper's clients compute x from the direction. Directions are weighted by p_i.
Losses are means over rows; the authors' are sums, so their ρ and α are divided by a client's number of rows. Q-FedNew
is this method with a codec.

**Checked against**: the authors' code for r = 1, 0.1 and 0, and for Q-FedNew: y_i, y, λ_i, x and the starting values.
With r = 0.1 it takes Hessians in rounds 1, 10, 20. Here they are taken in rounds 1, 11, 21. Q-FedNew encodes changes of
y_i. A codec here encodes y_i + λ_i/ρ, and the error of the mean stays in Σ p_i λ_i, which makes up for it in the next
round.

**Missing replies**: a client whose reply is lost is left out of the direction, and its λ_i stays as it was.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10, mu=1e-1, rows=(80, 120), spread=0.3)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> md.run(md.FedNew(), fed, rounds=100, target={"gap": 1e-8}, progress=False).status.outcome
'target'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from ..contract import Algorithm, Client, Cohort, Message, Need, Vec, at_least, on_client, positive
from ..numerics.dense import Matrix, solve


class Told(Message):
    """Down: the server's x [d], and the last round's direction y [d], 0 before the first."""

    x: Vec
    y: Vec


class Direction(Message):
    """Up: y_i + λ_i/ρ [d]."""

    z: Vec


@dataclass
class Server:
    """The model, and the last direction y."""

    x: Vec
    y: Vec


@dataclass
class Memory:
    """A client's memory.

    Attributes:
        y: its last direction y_i [d].
        dual: λ_i [d].
        round: the round of ``y``; 0 before the first.
        H: the Hessian that it keeps [d, d]; None if it keeps none.
        of: the round of ``H``; 0 if none is kept.
    """

    y: Vec
    dual: Vec
    round: int = 0
    H: Matrix | None = None
    of: int = 0


@dataclass(frozen=True)
class FedNew(Algorithm[Server, Memory]):
    """Newton's direction by ADMM.

    Attributes:
        rho: ρ, the weight of agreement; default 0.16, the authors' 50 for w7a divided by its 308 rows per client.
        alpha: α, a ridge on every H_i; default 0.003, the authors' 1 for w7a divided by its 308 rows per client.
        period: rounds between a client's Hessians; 1 (default) takes one in every round, the paper's r = 1; 10 is its
            r = 0.1. 0 keeps the first one, its r = 0.
    """

    rho: Annotated[float, positive] = 0.16
    alpha: Annotated[float, at_least(0)] = 0.003
    period: Annotated[int, at_least(0)] = 1

    needs = frozenset({Need.EVERYONE, Need.HESSIAN, Need.CONVEX})

    def start(self, x: Vec) -> Server:
        """x₀ and y = 0."""
        return Server(x, torch.zeros_like(x))

    def remember(self, x: Vec) -> Memory:
        """y_i = λ_i = 0."""
        return Memory(x, x)

    def round(self, s: Server, clients: Cohort) -> None:
        """y = Σ p̃_i (y_i + λ_i/ρ), the common direction; then x ← x − y."""
        s.y = clients.ask(self.direct, Told(s.x, s.y)).mean().z
        s.x = s.x - s.y

    @on_client
    def direct(self, me: Client[Memory], request: Told) -> Direction:
        """λ_i ← λ_i + ρ(y_i − y), then y_i = (H_i + αI + ρI)⁻¹(g_i − λ_i + ρy)."""
        m = me.memory
        rho = self.rho
        if m.round > 0 and m.round == me.round - 1:  # its last reply is in y
            m.dual = m.dual + rho * (m.y - request.y)
        damped = self._hessian(me, request.x).clone()
        damped.diagonal().add_(self.alpha + rho)
        m.y = solve(damped, me.problem.grad(request.x) - m.dual + rho * request.y)
        m.round = me.round
        return Direction(m.y + m.dual / rho)

    def _hessian(self, me: Client[Memory], x: Vec) -> Matrix:
        """∇²f_i at x, or the last one, if this round does not renew it."""
        m = me.memory
        if self.period == 1:
            return me.problem.hessian(x)
        if m.H is None or (self.period and me.round - m.of >= self.period):
            m.H = me.problem.hessian(x)
            m.of = me.round
        return m.H
