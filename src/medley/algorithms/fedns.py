"""FedNS: Newton's method from sketches: clients send a random sketch of their Hessian's square root.

**Reference**: Li, Liu, Wang, Wu & Wang, "FedNS: A Fast Sketching Newton-Type Algorithm for Federated Learning", AAAI
2024, Algorithm 1.

**Status**: published with corrections

**Needs**: Hessians of the form AᵀA + δI, a convex problem, and every client in every round. Clients keep d floats
between exchanges.

**One round sends** (floats per client):

- sketch: d down, kd + d + 1 up
- losses (if a line search is made): d + (K + 1) down, 8(K + 1) bytes up; again if no candidate passed

**Departures**: the square root is A itself, with a row for each of the client's rows, as in the paper; the authors'
code takes the root of the dense d × d matrix. A client with at most k rows sends them as they are, so a large k gives
Newton's method. By default (``step="armijo"``) the line search of this library's other Newton methods sets the step,
over all clients; the authors' FedNDES searches with the loss of one client drawn at random. ``step=1`` is the paper's
FedNS. That step is not safe if the sketches of all clients together miss a direction and δ is small.

**Missing replies**: a client whose sketch is lost is left out of the round; means are over the clients that replied.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10, mu=1e-3)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> run = md.run(md.FedNS(k=5), fed, rounds=40, target={"gap": 1e-8}, progress=False)
>>> run.status.outcome
'target'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..contract import Algorithm, Client, Cohort, Message, Need, TooFewReplies, Vec, at_least, on_client, positive
from ..contract.messages import Candidates, Losses, Model, losses_along
from ..numerics.dense import solve
from ..numerics.linesearch import Alpha, Beta, Tries, backtrack
from ..numerics.sums import mean


class Sketched(Message):
    """Up: ∇f_i(x) [d]; Υ_i = S_i A_i [k, d]; δ_i."""

    g: Vec
    root: Float[Tensor, "k d"]
    delta: float


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Memory:
    """The x of the last sketch: directions start from it [d]."""

    x: Vec


@dataclass(frozen=True)
class FedNS(Algorithm[Server, Memory]):
    """Federated Newton sketch.

    Attributes:
        k: rows of a sketch; default 20, the authors' for covtype (d = 54) and SUSY.
        entries: distribution of S_i's entries: "gaussian" (default, the authors') or "rademacher" (±1); both divided by
            √k.
        step: η; "armijo" (default) searches for it, 1 is the paper's.
        alpha: η = βᵏ is the largest with f(x − ηp) ≤ f(x) − α η pᵀg; default 0.1, the authors' in FedNDES.
        beta: β; the candidates for η are its powers; default 1/2, the authors' in FedNDES.
        tries: candidates per exchange.
    """

    k: Annotated[int, at_least(1)] = 20
    entries: Literal["gaussian", "rademacher"] = "gaussian"
    step: Annotated[float, positive] | Literal["armijo"] = "armijo"
    alpha: Alpha = 0.1
    beta: Beta = 0.5
    tries: Tries = 12

    needs = frozenset({Need.EVERYONE, Need.FACTOR, Need.CONVEX, Need.REPLIES})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def remember(self, x: Vec) -> Memory:
        """No point yet."""
        return Memory(x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: memories last from one exchange of a round to the next."""

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x − η p with p = (Σ p̃_i (Υ_iᵀΥ_i + δ_i I))⁻¹ Σ p̃_i g_i, from sketches Υ_i and gradients g_i."""
        replies = clients.ask(self.sketch, Model(s.x))
        ups = replies.each()
        if not ups:
            raise TooFewReplies(f"round {clients.round}: none of {len(clients)} clients answered; are they reachable?")
        weights = {i: clients.p[i] / replies.share for i in ups}
        # One product over all rows of all sketches instead of a d × d matrix for each client.
        rows = torch.cat([weights[i] ** 0.5 * up.root for i, up in ups.items()])
        H = rows.T @ rows
        H.diagonal().add_(sum(weights[i] * up.delta for i, up in ups.items()))
        g = mean([(clients.p[i], up.g) for i, up in ups.items()])
        assert g is not None
        p = solve(H, g)
        losses = losses_along(clients, self.losses, p, replies.ids)
        eta = self.step
        if isinstance(eta, str):
            eta, _ = backtrack(losses, float(p @ g), self.alpha, self.beta, self.tries)
        s.x = s.x - eta * p
        clients.note(eta=eta)

    @on_client
    def sketch(self, me: Client[Memory], request: Model) -> Sketched:
        """∇f_i(x), and the sketch Υ_i = S_i A_i with E S_iᵀS_i = I."""
        me.memory.x = request.x
        A, delta = me.problem.factor(request.x)
        m = len(A)
        if m <= self.k:
            S = torch.eye(m, dtype=request.x.dtype)
        else:
            me.problem.work += self.k * m
            rng = me.rng("sketch")
            S = torch.randn(self.k, m, generator=rng, dtype=request.x.dtype)
            S = (S.sign() if self.entries == "rademacher" else S) / self.k**0.5
        return Sketched(me.problem.grad(request.x), S.to(request.x.device) @ A, delta)

    @on_client
    def losses(self, me: Client[Memory], request: Candidates) -> Losses:
        """f_i along p, for the line search."""
        return Losses(me.problem.losses_along(me.memory.x, request.p, request.etas))
