"""Newton: damped Newton steps for convex problems: every client sends its whole Hessian to the server.

**Reference**: the classical method; the other Newton methods send fewer bytes. The damping is Armijo's, with the
losses of all candidates in one exchange, as in Wang, Roosta-Khorasani, Xu & Mahoney, "GIANT: Globally Improved
Approximate Newton Method for Distributed Optimization", NeurIPS 2018, section 4.

**Status**: published

**Needs**: Hessians, a convex problem, and every client in every round. Clients keep d floats between exchanges.

**One round sends** (floats per client):

- curvature: d down, d(d + 1)/2 + d up
- losses: d + (K + 1) down, 8(K + 1) bytes up; again if no candidate passed

**Departures**: if Σ p_i H_i is singular (mu = 0, and fewer rows than columns or columns that depend on each other), the
step is the solution of least norm instead of being undefined.

**Missing replies**: a client whose Hessian is lost is left out of the round; means are over the clients that replied.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10, mu=1e-3)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> run = md.run(md.Newton(), fed, rounds=20, target={"gap": 1e-12}, progress=False)
>>> run.history[-1]["round"] < 10
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract import Algorithm, Candidates, Client, Cohort, Losses, Message, Model, Need, Vec, losses_along, on_client
from ..numerics.dense import Triangle, solve, symmetric, triangle
from ..numerics.linesearch import Alpha, Beta, Tries, backtrack


class Curvature(Message):
    """Up: ∇f_i(x) [d], and the upper triangle of ∇²f_i(x) [d(d + 1)/2]."""

    g: Vec
    H: Triangle


@dataclass
class Server:
    """The model."""

    x: Vec


@dataclass
class Memory:
    """The x of the last Hessian: directions start from it [d]."""

    x: Vec


@dataclass(frozen=True)
class Newton(Algorithm[Server, Memory]):
    """Exact Newton, damped.

    Attributes:
        alpha: η = βᵏ is the largest with f(x − ηp) ≤ f(x) − α η pᵀg.
        beta: β; the candidates for η are its powers.
        tries: candidates per exchange.
    """

    alpha: Alpha = 0.1
    beta: Beta = 0.5
    tries: Tries = 12

    needs = frozenset({Need.EVERYONE, Need.HESSIAN, Need.CONVEX})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def remember(self, x: Vec) -> Memory:
        """No point yet."""
        return Memory(x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Nothing: memories last from one exchange of a round to the next."""

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x − η p with p = (Σ p_i H_i)⁻¹ Σ p_i g_i, the Newton direction."""
        replies = clients.ask(self.curvature, Model(s.x))
        up = replies.mean()
        p = solve(symmetric(up.H, len(s.x)), up.g)
        losses = losses_along(clients, self.losses, p, replies.ids)
        eta, _ = backtrack(losses, float(p @ up.g), self.alpha, self.beta, self.tries)
        s.x = s.x - eta * p
        clients.note(eta=eta)

    @on_client
    def curvature(self, me: Client[Memory], request: Model) -> Curvature:
        """∇f_i(x) and ∇²f_i(x)."""
        me.memory.x = request.x
        return Curvature(me.problem.grad(request.x), triangle(me.problem.hessian(request.x)))

    @on_client
    def losses(self, me: Client[Memory], request: Candidates) -> Losses:
        """f_i along p, for the line search."""
        return Losses(me.problem.losses_along(me.memory.x, request.p, request.etas))
