"""GIANT: Newton's method for convex problems: clients solve with their own Hessians, the server averages the results.

**Reference**: Wang, Roosta-Khorasani, Xu & Mahoney, "GIANT: Globally Improved Approximate Newton Method for Distributed
Optimization", NeurIPS 2018.

**Status**: published

**Needs**: Hessians, a convex problem, and every client in every round. Clients keep d floats between exchanges.

**One round sends** (floats per client):

- gradient (if none came along with the last losses): d down, d up. With ``speculative`` this happens only in the first
  round, after a step that the line search shortened, and after lost replies
- solve: d + 1 bytes down, d up
- losses (if not speculative): d + (K + 1) down, 8(K + 1) bytes up; again if no candidate passed
- losses (if speculative): d + (K + 1) down, d + 8(K + 1) bytes up

**Departures**: directions are weighted by p_i. The line search is the same as in this library's other Newton methods: α
= 0.1, β = 1/2, and no smallest step that is taken even if it does not help. The authors' code has α = 0.01, β = 1/4.
The effective Hessian is the harmonic mean of the clients' Hessians, so if clients differ much, it may need very many
rounds.

**Missing replies**: if a client's gradient is lost, the server does not ask it for a direction; if its direction is
lost, not for losses. Means are over the clients that replied. Unless all have replied, the gradients that come with the
losses are not used.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10, mu=1e-1, rows=(80, 120), spread=0.3)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> run = md.run(md.GIANT(), fed, rounds=30, target={"gap": 1e-10}, progress=False)
>>> run.history[-1]["exchanges"] / run.history[-1]["round"]
3.0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from ..contract import Algorithm, Client, Cohort, Message, Need, Vec, at_least, on_client
from ..contract.messages import Candidates, Direction, Gradient, Model
from ..numerics.dense import solve
from ..numerics.krylov import conjugate_gradients
from ..numerics.linesearch import Alpha, Beta, Tries, backtrack


class System(Message):
    """Down: g = Σ p_i ∇f_i(x) [d]; whether x is the x − p of the last trial."""

    g: Vec
    moved: bool


class LossesAndGradient(Message):
    """Up: f_i(x − ηp) for every η [k]; and ∇f_i(x − p) [d], in case the next round begins there."""

    exact: ClassVar[frozenset[str]] = frozenset({"f"})
    f: Float[Tensor, " k"]
    g: Vec | None


@dataclass
class Server:
    """The model, and the gradient there if it came with the last line search [d]."""

    x: Vec
    g: Vec | None = None


@dataclass
class Memory:
    """The round's x, and the x − p of the last trial [d]."""

    x: Vec
    trial: Vec


@dataclass(frozen=True)
class GIANT(Algorithm[Server, Memory]):
    """Globally improved approximate Newton.

    Attributes:
        solver: "exact" factorises H_i; "cg" takes conjugate-gradient steps on Hessian-vector products, to a residual of
            1e-10.
        steps: the maximum number of steps of "cg".
        alpha: η = βᵏ is the largest with f(x − ηp) ≤ f(x) − α η pᵀg.
        beta: β; the candidates for η are its powers.
        tries: candidates per exchange.
        speculative: clients send the gradient at η = 1 with its losses. If that step is taken, the next round has
            begun, and needs two exchanges instead of three.
    """

    solver: Literal["exact", "cg"] = "exact"
    steps: Annotated[int, at_least(1)] = 100
    alpha: Alpha = 0.1
    beta: Beta = 0.5
    tries: Tries = 12
    speculative: bool = False

    needs = frozenset({Need.EVERYONE, Need.HESSIAN, Need.CONVEX})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x)

    def remember(self, x: Vec) -> Memory:
        """No point yet."""
        return Memory(x, x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Ask for gradients in the next round, because the current gradient is a mean over other clients."""
        del clients, who
        s.g = None

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x − η p with p = Σ p_i H_i⁻¹g, the mean of the clients' Newton directions."""
        moved = s.g is not None
        g = s.g
        ids = clients.ids
        if g is None:
            first = clients.ask(self.gradient, Model(s.x))
            g = first.mean().g
            ids = first.ids
        replies = clients.ask(self.solve, System(g, moved), ids=ids)
        p = replies.mean().p
        ahead: Vec | None = None

        def losses(etas: Sequence[float]) -> Sequence[float]:
            nonlocal ahead
            answers = clients.ask(self.losses, Candidates(p, p.new_tensor(etas)), ids=replies.ids)
            up = answers.mean()
            # All or nothing: a client that has not answered does not know the next round's x.
            ahead = up.g if etas[1] == 1 and answers.ids == clients.ids else None
            return up.f.tolist()

        eta, _ = backtrack(losses, float(p @ g), self.alpha, self.beta, self.tries)
        s.x = s.x - eta * p
        s.g = ahead if eta == 1 else None
        clients.note(eta=eta)

    @on_client
    def gradient(self, me: Client[Memory], request: Model) -> Gradient:
        """∇f_i(x)."""
        me.memory.x = request.x
        return Gradient(me.problem.grad(request.x))

    @on_client
    def solve(self, me: Client[Memory], request: System) -> Direction:
        """The client's direction p_i, from H_i p_i = g."""
        if request.moved:
            me.memory.x = me.memory.trial
        f = me.problem
        x = me.memory.x
        if self.solver == "exact":
            return Direction(solve(f.hessian(x), request.g))
        return Direction(conjugate_gradients(lambda v: f.hvp(x, v), request.g, self.steps, tol=1e-10))

    @on_client
    def losses(self, me: Client[Memory], request: Candidates) -> LossesAndGradient:
        """f_i along p, and the gradient at x − p if the step η = 1 is among the candidates."""
        f = me.problem.losses_along(me.memory.x, request.p, request.etas)
        if not self.speculative or float(request.etas[1]) != 1:
            return LossesAndGradient(f, None)
        me.memory.trial = me.memory.x - request.p
        return LossesAndGradient(f, me.problem.grad(me.memory.trial))
