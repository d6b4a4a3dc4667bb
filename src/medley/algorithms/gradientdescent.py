"""GradientDescent: for convex problems, x ← x − g/K, with K from the clients' own bounds on their curvature.

**Reference**: Cauchy, "Méthode générale pour la résolution des systèmes d'équations simultanées", 1847; the step is
Nesterov's 1/K, "Introductory Lectures on Convex Optimization", 2004, theorem 2.1.14.

**Status**: published

**Needs**: a convex problem, and every client in every round.

**One round sends** (floats per client):

- gradient: d + 1 down, d + 1 up; K_i goes up in the first round only, else 0

**Departures**: K = Σ p_i K_i, K_i = λ_max(X_iᵀX_i/N_i)·max l″ + μ; the N_i rows X_i do not leave client i.

**Missing replies**: the gradient is the mean over the clients that replied.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> run = md.run(md.GradientDescent(), fed, rounds=200, target={"gap": 1e-10}, progress=False)
>>> run.status.outcome
'target'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ..contract import Algorithm, Client, Cohort, ModelAndRate, Need, SmoothGradient, Vec, on_client, positive


@dataclass
class Server:
    """The model, and 1/K once it is known."""

    x: Vec
    lr: float


@dataclass(frozen=True)
class GradientDescent(Algorithm[Server]):
    """Gradient descent. ``server_lr`` is the step size; "auto" is 1/K."""

    server_lr: Annotated[float, positive] | Literal["auto"] = "auto"

    needs = frozenset({Need.EVERYONE, Need.CONVEX})

    def start(self, x: Vec) -> Server:
        """x₀."""
        return Server(x, 0.0 if isinstance(self.server_lr, str) else self.server_lr)

    def round(self, s: Server, clients: Cohort) -> None:
        """x ← x − η Σ p_i ∇f_i(x), with η = 1/K by default."""
        up = clients.ask(self.gradient, ModelAndRate(s.x, s.lr)).mean()
        if not s.lr:
            s.lr = 1 / up.K if up.K > 0 else 1.0
        s.x = s.x - s.lr * up.g

    @on_client
    def gradient(self, me: Client, request: ModelAndRate) -> SmoothGradient:
        """∇f_i(x), and the curvature bound K_i if the server does not know its step size yet."""
        return SmoothGradient(me.problem.grad(request.x), 0.0 if request.lr else me.problem.smoothness())
