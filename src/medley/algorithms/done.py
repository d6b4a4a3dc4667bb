"""DONE: like GIANT, but clients approximate Newton directions by Richardson's steps, with Hessian-vector products only.

**Reference**: Dinh, Tran, Nguyen, Bao, Balef, Zhou & Zomaya, "DONE: Distributed Approximate Newton-type Method for
Federated Edge Learning", IEEE Transactions on Parallel and Distributed Systems 33 (2022), Algorithm 1.

**Status**: published with corrections

**Needs**: Hessian-vector products and a convex problem. Clients keep d floats between exchanges.

**One round sends** (floats per client):

- gradient: d down, d up
- richardson: d down, d up
- losses (if a line search is made): d + (K + 1) down, 8(K + 1) bytes up

**Departures**: directions are averaged with weights p̃_i over the clients that replied. In the authors' code all
clients have the same weight. By default (``step="armijo"``) the line search of this library's other Newton methods sets
the step size. A number is the paper's fixed step, without a line search; the authors use 1. By default the rate α is
1/K_i, with K_i the client's own bound on its curvature; it must stay below 2/λ_max(H_i).

**Checked against**: the authors' code. It starts from d₀ = −g, with g the mean gradient, as here. For full batches its
source also has a branch that would start from the client's own gradient, but no run enters it, because the code
first replaces the batch size 0, which stands for all rows, by their number. With full batches its commands take 5 to 40
steps, with α from .004 to .03 on images and activities and from .06 to .2 on linear regression. Its Hessians have a
ridge, .02 by default, that its gradients lack. Here both belong to the same problem.

**Missing replies**: if a client's gradient is lost, the server does not ask it for a direction; if its direction is
lost, the server does not ask it for losses. Means are over the clients that replied.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10, mu=1e-1, rows=(80, 120), spread=0.3)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> run = md.run(md.DONE(), fed, rounds=40, target={"gap": 1e-10}, progress=False)
>>> run.status.outcome
'target'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from ..contract import Algorithm, Client, Cohort, Need, Vec, at_least, on_client, positive
from ..contract.messages import Candidates, Direction, Gradient, Losses, Model, losses_along
from ..numerics.krylov import richardson
from ..numerics.linesearch import Alpha, Beta, Tries, backtrack


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Memory:
    """The x at which the client takes its gradient and its direction [d]; and the rate α, 0 until it is known."""

    x: Vec
    rate: float = 0.0


@dataclass(frozen=True)
class DONE(Algorithm[Server, Memory]):
    """Approximate Newton by Richardson's iteration.

    Attributes:
        steps: Richardson steps.
        rate: α, the rate of these steps; "auto" is 1/K_i, where K_i is the client's own bound on its curvature.
        step: η, the step size; "armijo" is a line search.
        alpha: α of the line search, in which η = βᵏ is the largest step with f(x − ηp) ≤ f(x) − α η pᵀg.
        beta: β; the line search tries its powers as η.
        tries: how many values of η the line search tries per exchange.
    """

    steps: Annotated[int, at_least(0)] = 40
    rate: Annotated[float, positive] | Literal["auto"] = "auto"
    step: Annotated[float, positive] | Literal["armijo"] = "armijo"
    alpha: Alpha = 0.1
    beta: Beta = 0.5
    tries: Tries = 12

    needs = frozenset({Need.HESSIAN, Need.CONVEX})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def remember(self, x: Vec) -> Memory:
        """No point yet."""
        return Memory(x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: a client finds its rate by itself."""

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x − η p with p = Σ p̃_i p_i, the mean of the clients' directions."""
        first = clients.ask(self.gradient, Model(s.x))
        g = first.mean().g
        replies = clients.ask(self.richardson, Gradient(g), ids=first.ids)
        p = replies.mean().p
        losses = losses_along(clients, self.losses, p, replies.ids)
        eta = self.step
        if isinstance(eta, str):
            eta, _ = backtrack(losses, float(p @ g), self.alpha, self.beta, self.tries)
        s.x = s.x - eta * p
        clients.note(eta=eta)

    @on_client
    def gradient(self, me: Client[Memory], request: Model) -> Gradient:
        """∇f_i(x)."""
        me.memory.x = request.x
        return Gradient(me.problem.grad(request.x))

    @on_client
    def richardson(self, me: Client[Memory], request: Gradient) -> Direction:
        """p ← p − α(H_i p − g), from p = g: steps towards the Newton direction H_i⁻¹g."""
        if not me.memory.rate:
            K = me.problem.smoothness()
            me.memory.rate = self.rate if not isinstance(self.rate, str) else 1 / K if K > 0 else 1.0
        f = me.problem
        x = me.memory.x
        return Direction(richardson(lambda v: f.hvp(x, v), request.g, self.steps, me.memory.rate))

    @on_client
    def losses(self, me: Client[Memory], request: Candidates) -> Losses:
        """f_i along p, for the line search."""
        return Losses(me.problem.losses_along(me.memory.x, request.p, request.etas))
