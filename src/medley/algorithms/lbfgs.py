"""LBFGS: quasi-Newton for convex problems: the server learns curvature from gradients, and most exchanges are steps.

**Reference**: Liu & Nocedal, "On the limited memory BFGS method for large scale optimization", Mathematical Programming
45 (1989). Clients evaluate f_i and ∇f_i at the server's points; the server does the rest.

**Status**: published with corrections

**Needs**: a convex problem, and every client in every round.

**One round sends** (floats per client):

- evaluate: d down, d + 1 up; twice in the first round, and once more for every step that was too long

**Departures**: Armijo's rule chooses the step, starting from η = 1, instead of Wolfe's conditions, and pairs without
curvature are left out. A trial's gradient comes with its loss, so an accepted step costs one exchange. If other clients
reply than before, the server cannot compare losses or subtract gradients, so it empties the memory and starts again
from the latest replies.

**Missing replies**: means are over the clients that replied. If this set of clients changes from one point to the next,
the server drops all pairs and does not compare losses.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10, mu=1e-3)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> run = md.run(md.LBFGS(), fed, rounds=100, target={"gap": 1e-12}, progress=False)
>>> run.history[-1]["exchanges"] < 40
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ..contract import Algorithm, Client, Cohort, Message, Model, Need, Vec, at_least, on_client
from ..numerics.linesearch import Alpha, Beta, backtrack
from ..numerics.quasinewton import Curve


class Value(Message):
    """Up: f_i(x) and ∇f_i(x) [d]."""

    f: float
    g: Vec


@dataclass
class Server:
    """The model; its loss and gradient, once known, and the clients they are from; and the latest moves."""

    x: Vec
    way: Curve
    f: float = 0.0
    g: Vec | None = None
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class LBFGS(Algorithm[Server]):
    """Limited-memory BFGS.

    Attributes:
        pairs: the number of moves that the server remembers
        alpha: α of Armijo's rule, the share of the expected descent that a step has to reach
        beta: β of Armijo's rule: the step sizes tried are 1, β, β², ...
    """

    pairs: Annotated[int, at_least(1)] = 30
    alpha: Alpha = 0.1
    beta: Beta = 0.5

    needs = frozenset({Need.EVERYONE, Need.CONVEX})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x, Curve.none(x))

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x − η p with p = B⁻¹g, by the two-loop recursion from γI."""
        if s.g is None:
            replies = clients.ask(self.evaluate, Model(s.x))
            up = replies.mean()
            s.f = up.f
            s.g = up.g
            s.ids = replies.ids
        g = s.g
        p = s.way.solve(s.g, lambda q: s.way.scale() * q)
        evaluated: list[tuple[Value, tuple[int, ...]]] = []

        def losses(etas: Sequence[float]) -> Sequence[float]:
            replies = clients.ask(self.evaluate, Model(s.x - etas[1] * p))
            evaluated.append((replies.mean(), replies.ids))
            return (s.f if replies.ids == s.ids else math.inf), evaluated[-1][0].f

        eta, _ = backtrack(losses, float(p @ g), self.alpha, self.beta, tries=1)
        up, ids = evaluated[-1]
        s.way = s.way.after(-eta * p, up.g - g, self.pairs) if ids == s.ids else Curve.none(s.x)
        s.x = s.x - eta * p
        s.f = up.f
        s.g = up.g
        s.ids = ids
        clients.note(eta=eta)

    @on_client
    def evaluate(self, me: Client, request: Model) -> Value:
        """f_i(x) and ∇f_i(x)."""
        return Value(me.problem.loss(request.x), me.problem.grad(request.x))
