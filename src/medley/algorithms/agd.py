"""AGD: gradient descent with heavy-ball momentum for convex problems, with one gradient per exchange.

**Reference**: Polyak, "Some methods of speeding up the convergence of iteration methods", 1964. The name and the form
come from the baseline in Wang, Roosta-Khorasani, Xu & Mahoney, "GIANT: Globally Improved Approximate Newton Method for
Distributed Optimization", NeurIPS 2018. That paper calls the heavy ball, not Nesterov's method, accelerated gradient
descent.

**Status**: published

**Needs**: a convex problem, and every client in every round.

**One round sends** (floats per client):

- gradient: d + 1 down, d + 1 up; K_i goes up in the first round only, else 0

**Departures**: the step size 10 of GIANT's authors suits normalised features only, because on a quadratic with momentum
m the heavy ball is stable only if 0 < η·λ_max < 2(1 + m). By default η is 1/K, with K = Σ p_i K_i from the clients' own
curvature bounds.

**Missing replies**: the gradient is the mean over the clients that replied.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> run = md.run(md.AGD(momentum=0.8), fed, rounds=200, target={"gap": 1e-10}, progress=False)
>>> run.status.outcome
'target'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from ..contract import Algorithm, Client, Cohort, Need, Vec, at_least, below, on_client, positive
from ..contract.messages import ModelAndRate, SmoothGradient


@dataclass
class Server:
    """The model, its velocity, and lr once it is known."""

    x: Vec
    v: Vec
    lr: float


@dataclass(frozen=True)
class AGD(Algorithm[Server]):
    """Gradient descent with a heavy ball.

    Attributes:
        server_lr: the step size; "auto" is 1/K; GIANT's authors use 10
        momentum: m; GIANT's authors use 0.95 or 0.99
    """

    server_lr: Annotated[float, positive] | Literal["auto"] = "auto"
    momentum: Annotated[float, at_least(0), below(1)] = 0.95

    needs = frozenset({Need.EVERYONE, Need.CONVEX})

    def start(self, x: Vec) -> Server:
        """x₀ and v = 0."""
        return Server(x, torch.zeros_like(x), 0.0 if isinstance(self.server_lr, str) else self.server_lr)

    def round(self, s: Server, clients: Cohort) -> None:
        """v ← m v + Σ p_i ∇f_i(x), x ← x − η v: the mean gradient adds to the velocity v."""
        up = clients.ask(self.gradient, ModelAndRate(s.x, s.lr)).mean()
        if not s.lr:
            s.lr = 1 / up.K if up.K > 0 else 1.0
        s.v = self.momentum * s.v + up.g
        s.x = s.x - s.lr * s.v

    @on_client
    def gradient(self, me: Client, request: ModelAndRate) -> SmoothGradient:
        """∇f_i(x), and the curvature bound K_i if the server has no lr yet."""
        return SmoothGradient(me.problem.grad(request.x), 0.0 if request.lr else me.problem.smoothness())
