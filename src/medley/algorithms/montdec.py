"""MontDec: Newton's method for convex problems, from each round's leading eigenpairs; earlier pairs are dropped.

**Reference**: Erdogdu & Montanari, "Convergence rates of sub-sampled Newton methods", NeurIPS 2015, for many agents as
in Dal Fabbro, Dey, Rossi & Schenato, "SHED", JMLR 25, 2024, section 6, where the comparison with it shows how much
accumulating pairs helps.

**Status**: published

**Needs**: a convex problem whose Hessians are AᵀA + δI: Logistic, LeastSquares, Softmax. Every client decomposes its
Hessian every round. The number of pairs is ``me.pace.pairs``, unless ``pairs`` sets it. Clients are the same from the
first round to the last.

**One round sends** (floats per client; k the pairs of this round, K the candidate steps):

- report: d down, k(d + 1) + d + 1 up
- losses: d + 1 down, 8(K + 1) bytes up; again if no candidate passed

**Departures**: weights are p_i instead of 1/M. If a client misses a round, the server uses its last report.

**Missing replies**: the server uses the client's last gradient and eigenpairs; in the line search, the quadratic model
made of them.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10, mu=1e-2)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> md.run(md.MontDec(pairs=4), fed, rounds=40, progress=False).summary["gap"] < 1e-12
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch

from ..contract import Client, Cohort, Line, Losses, Message, Model, Need, TooFewReplies, Vec, at_least
from ..contract.algorithm import Algorithm, on_client
from ..numerics.curvature import Sketch, Values, Vectors, decompose
from ..numerics.linesearch import Alpha, Beta, Tries, backtrack, candidates


class Report(Message):
    """Up: ∇f_i(θ) [d], the leading eigenpairs of ∇²f_i(θ), [k, d] and [k], and the next eigenvalue."""

    g: Vec
    V: Vectors
    lam: Values
    rho: float


@dataclass
class Server:
    """θ [d], and every client's last pairs, gradient [d] and ρ_i."""

    x: Vec
    held: Sketch
    g: dict[int, Vec] = field(default_factory=dict)
    rho: dict[int, float] = field(default_factory=dict)


@dataclass
class Memory:
    """The θ of the last report: directions start from it [d]."""

    x: Vec


@dataclass(frozen=True)
class MontDec(Algorithm[Server, Memory]):
    """Ĥ_i = Σ_{j≤d_i} (λ_j − ρ_i)v_jv_jᵀ + ρ_i I, ρ_i = λ_{d_i+1}, of the current Hessian; η by Armijo's rule.

    Attributes:
        pairs: the number of eigenpairs per round; None takes the pace's.
        alpha: η = βᵏ is the largest with f(θ − ηp) ≤ f(θ) − α η pᵀg.
        beta: β; the candidates for η are its powers.
        tries: candidates per exchange.
    """

    pairs: Annotated[int, at_least(0)] | None = None
    alpha: Alpha = 0.1
    beta: Beta = 0.5
    tries: Tries = 12

    needs = frozenset({Need.FACTOR, Need.CONVEX, Need.REPLIES})

    def start(self, x: Vec) -> Server:
        """θ⁰, and nothing known."""
        return Server(x, Sketch.none(x))

    def remember(self, x: Vec) -> Memory:
        """No point yet."""
        return Memory(x)

    def round(self, s: Server, clients: Cohort) -> None:
        """θ ← θ − ηp with p = (Σp_iĤ_i)⁻¹g, from the approximate Hessians Ĥ_i and the mean gradient g."""
        reports = clients.ask(self.report, Model(s.x)).each()
        s.held = s.held.after({i: (up.V, up.lam) for i, up in reports.items()}, renewed=reports)
        s.g |= {i: up.g for i, up in reports.items()}
        s.rho |= {i: up.rho for i, up in reports.items()}
        if not reports:
            raise TooFewReplies(f"round {clients.round}: none of {len(clients)} clients answered; are they reachable?")
        share = sum(clients.p[i] for i in s.g)
        p_i = {i: clients.p[i] / share for i in sorted(s.g)}
        g = torch.stack([p_i[i] * s.g[i] for i in p_i]).sum(0)
        p = s.held.solve(s.held.weights(p_i, s.rho), sum(p_i[i] * s.rho[i] for i in p_i), g)

        def losses(etas: Sequence[float]) -> Sequence[float]:
            line = Line(p, round(math.log(etas[1], self.beta)))
            f = {i: up.f for i, up in clients.ask(self.losses, line, ids=tuple(reports)).each().items()}
            if not f:
                raise TooFewReplies(f"round {clients.round}: no client sent its loss; are they reachable?")
            return s.held.along(p, etas, p=p_i, rho=s.rho, g=s.g, reported=f)

        eta, _ = backtrack(losses, float(p @ g), self.alpha, self.beta, self.tries)
        s.x = s.x - eta * p
        clients.note(eta=eta)

    @on_client
    def report(self, me: Client[Memory], request: Model) -> Report:
        """∇f_i(θ), and the leading eigenpairs of ∇²f_i(θ)."""
        f = me.problem
        none = request.x.new_empty(0, len(request.x))
        me.memory.x = request.x
        k = me.pace.pairs if self.pairs is None else self.pairs
        A, delta = f.factor(request.x)
        f.work += min(A.shape) * f.n
        spectrum = decompose(A, none, none[:, 0], k + 1)
        k = min(k, len(spectrum.values))
        V = spectrum.vectors(0, k, A, none, none[:, 0])
        return Report(f.grad(request.x), V, spectrum.values[:k] + delta, spectrum.next(k) + delta)

    @on_client
    def losses(self, me: Client[Memory], request: Line) -> Losses:
        """f_i along p, for the line search."""
        etas = candidates(self.beta, request.first, self.tries)
        return Losses(me.problem.losses_along(me.memory.x, request.p, request.p.new_tensor(etas)))
