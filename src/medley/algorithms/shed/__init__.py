r"""SHED: Newton's method in instalments. In every round each client sends as many eigenpairs of its Hessian as its
connection allows. The server's approximation of the curvature improves until the clients renew their Hessians.

**Reference**: Dal Fabbro, Dey, Rossi & Schenato, "SHED: A Newton-type Algorithm for Federated Learning based on
Incremental Hessian Eigenvector Sharing", JMLR 25, 2024, Algorithms 1, 3 and 4.

**Status**: published

**Needs**: a convex problem whose Hessians are AᵀA + δI: Logistic, LeastSquares, Softmax. A client keeps its
eigenvectors: d² or (rows)² numbers, whichever is less. It sends ``me.pace.pairs`` pairs, unless ``pairs`` sets the
number.

**Equations.** Client i has sent q pairs (λ_j, v_j) of its Hessian, the largest first; ρ_i stands for the rest:

$$\begin{aligned}
\hat H_i &= \textstyle\sum_{j \le q} (\lambda_j - \rho_i)\, v_j v_j^\top + \rho_i I, \quad \rho_i = \lambda_{q+1}
  && \text{what the server knows of client } i \\
p &= -\bigl(\textstyle\sum_i p_i \hat H_i\bigr)^{-1} \textstyle\sum_i p_i \nabla f_i(x)
  && \text{Newton's direction, of all clients} \\
x &\leftarrow x + \eta\, p && \text{η by Armijo's line search over the clients' losses}
\end{aligned}$$

**One round sends** (floats per client; k the pairs of this round, K the candidate steps):

- report (if numbers travel whole): d + 1 down, kd + 8k bytes + d + 2 up; of all, or of those that an attempt left out
- report (if in 8 bits): d + 1 down, kd bytes + 16k bytes + d bytes + 3 up
- losses (if there is a line search): d + 1 down, 8(K + 1) bytes up; again where no candidate passed
- attempt (if the search is speculative): d + 1 down, kd + 8k bytes + d + 8(K + 1) bytes + 2 up; the next report too
- attempt (if in 8 bits): 2d bytes + (1) + 1 down, kd bytes + 16k bytes + d bytes + 8(K + 1) bytes + 3 up

**Departures**:

- p_i stands for 1/M everywhere. Iterations count from 1, and the first one renews.
- ``renewal="gradient_norm"`` renews if the gradient's norm grows, or falls by less than ``b`` times its fall before,
  and after d rounds at the latest. The rule as printed renews in nearly every round, or once and never again.
- Pairs stop at the rank of the data's part of the Hessian. From then on Ĥ_i is exact.

**Beyond the paper.** Each setting works alone. `SHED.fast` has all of them except ``above``:

- ``lbfgs``: the server runs L-BFGS on top of Ĥ⁻¹.
- ``search="speculative"``: with its answer to the first candidate, a client sends the next report. If η = 1 is
  accepted, the next round has already begun.
- ``difference``: a renewal sends the difference between the new Hessian and the server's pairs, the largest
  |eigenvalue| first.
- ``rho="geo"``: ρ = √(λ_{q+1} · mean of the rest). Ĥ ⪰ H no longer holds.
- ``bits``: clients send eigenvectors and changes of gradients in 8 bits, the server sends directions in 16. Ĥ ⪰ H no
  longer holds.
- ``above``: restores Ĥ ⪰ H under ``bits``, for 8 bytes more per reply. It adds to the diagonal what rounding can have
  removed.

**When codes do not fit.** If the columns' units differ by orders of magnitude, rounding would spoil more than half of a
row. Codes then count in units of each column (roots of the Hessian's diagonal, d bytes once), and directions are sent
in full. If one direction has nearly all of the curvature, for example if the columns' mean is 20 times their spread,
its rounding would drown the others. All numbers of that client, and directions, are then sent in full. With
standardised columns neither happens.

`medley.algorithms.shed.paper` is the method as published, and `medley.algorithms.shed.fast` has the rest.

**Missing replies**: the server uses the client's last gradient and eigenpairs; in the line search, the quadratic model
made of them.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10, mu=1e-3)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> run = md.run(md.SHED(), fed, rounds=60, target={"gap": 1e-12}, progress=False)
>>> run.history[-1]["hessians"] < run.history[-1]["round"] / 2
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch

from ...contract import Algorithm, Client, Cohort, Line, Losses, Need, RecipeError, TooFewReplies, Vec, on_client
from ...contract.settings import at_least, in_range, positive
from ...numerics.compress import restore
from ...numerics.curvature import Sketch
from ...numerics.linesearch import Alpha, Beta, Tries, backtrack, candidates
from ...numerics.quasinewton import Curve
from . import fast, paper
from .messages import Attempt, AttemptedPoint, Memory, Point, Report, Server
from .paper import CandidateLosses, Exact, Instalment, Renewal

Pairs = Annotated[int, at_least(0)]


@dataclass(frozen=True)
class SHED(Algorithm[Server, Memory]):
    """Incremental Hessian eigenvector sharing. Defaults are the paper's where it gives any.

    Attributes:
        renewal: when clients renew their Hessians: in rounds 1, 2, 4, 7, 12, 20, ... ("fibonacci"), every ``period``
            rounds ("periodic"), when the gradient's norm falls more slowly ("gradient_norm"), or "once". "auto" is
            "once" for least squares, whose Hessian is constant, and "fibonacci" otherwise.
        period: rounds between renewals, for "periodic".
        b: the share of its last fall by which the gradient's norm must fall, for "gradient_norm".
        pairs: eigenpairs per iteration: one number, a number per client, or None for the pace's.
        rho: ρ_i: λ_{q+1} ("lambda"), (λ_{q+1} + λ_n)/2 ("star"), or "geo", see the card. "auto" is "star" for least
            squares, which then need no line search (Theorem 3), and "lambda" otherwise.
        search: η by Armijo's rule, speculatively or not, or η = 1 ("none"). "auto" is "none" with ``rho="star"``,
            otherwise Armijo's rule.
        alpha: share of the slope by which f must fall.
        beta: candidates are η = βᵏ.
        tries: candidates per exchange.
        lbfgs: moves that L-BFGS keeps; 0 turns L-BFGS off.
        difference: renewals send the difference between the new Hessian and the server's pairs.
        bits: bits per entry of an eigenvector or gradient; None sends plain numbers.
        above: with ``bits``, keep Ĥ ⪰ H.
    """

    renewal: Renewal = "auto"
    period: Annotated[int, at_least(1)] = 10
    b: Annotated[float, positive] = 0.6
    pairs: Pairs | Sequence[Pairs] | None = None
    rho: Literal["auto", "lambda", "star", "geo"] = "auto"
    search: Literal["auto", "none", "armijo", "speculative"] = "auto"
    alpha: Alpha = 0.1
    beta: Beta = 0.5
    tries: Tries = 12
    lbfgs: Annotated[int, at_least(0)] = 0
    difference: bool = False
    bits: Annotated[int, in_range(2, 8)] | None = None
    above: bool = False

    needs = frozenset({Need.FACTOR, Need.CONVEX, Need.REPLIES})

    def __post_init__(self) -> None:
        """Check also that ``above`` comes with ``bits``, ρ = λ_{q+1} and no ``difference``."""
        super().__post_init__()
        if isinstance(self.pairs, Sequence):
            object.__setattr__(self, "pairs", tuple(self.pairs))
        if self.above and (self.bits is None or self.difference or self.rho not in ("auto", "lambda")):
            raise RecipeError(
                'SHED(above=True) needs bits=8, rho="lambda" and difference=False; set them, or leave above= out',
                "above",
            )

    @classmethod
    def fast(cls, pairs: int | Sequence[int] | None = 4) -> SHED:
        """All settings beyond the paper: a fifth to a fifteenth of the exchanges, at a fraction of the bytes.

        **Status**: this library's own
        """
        return cls(pairs=pairs, rho="geo", search="speculative", lbfgs=30, difference=True, bits=8)

    def suited(self, gives: frozenset[str]) -> SHED:
        """Least squares renew once, take ρ* and need no line search."""
        quadratic = "quadratic" in gives
        renewal = self.renewal
        rho = self.rho
        search = self.search
        if renewal == "auto":
            renewal = "once" if quadratic else "fibonacci"
        if rho == "auto":
            rho = "star" if quadratic and not self.above and search in ("auto", "none") else "lambda"
        if search == "auto":  # Theorem 3 is of exact pairs
            search = "none" if quadratic and rho == "star" and self.bits is None else "armijo"
        return replace(self, renewal=renewal, rho=rho, search=search)

    def start(self, x: Vec) -> Server:
        """θ⁰, and nothing known."""
        return Server(x, Sketch.none(x), Curve.none(x))

    def remember(self, x: Vec) -> Memory:
        """Nothing sent."""
        return Memory(x=x, g=x, V=[], lam=x[:0], off=x[:0], diagonal=x, unit=torch.ones_like(x))

    @property
    def wire(self) -> Exact:
        """Encodes and decodes reports."""
        return Exact() if self.bits is None else fast.Coded(self.bits, self.above)

    def round(self, s: Server, clients: Cohort) -> None:
        """θ ← θ − ηp with p = Ĥ⁻¹g, Ĥ = Σp_iĤ_i, Ĥ_i = Σ_{j≤q_i} (λ_j − ρ_i)v_jv_jᵀ + ρ_i I (Algorithm 4).

        With the speculative search, reports of this θ may have arrived with the last round's losses.
        """
        s.t += 1
        if isinstance(self.pairs, tuple) and len(self.pairs) != len(clients.p):
            raise RecipeError(f"SHED(pairs=...): {len(self.pairs)} numbers for {len(clients.p)} clients", "pairs")
        late = tuple(i for i in clients.ids if s.at.get(i) != s.t)
        if late:
            paper.take(s, clients.ask(self.report, Point(s.x, s.renewals), ids=late).each(), s.t, self.wire)
        if not s.g:
            raise TooFewReplies(f"round {clients.round}: none of {len(clients)} clients answered; are they reachable?")
        share = sum(clients.p[i] for i in s.g)
        p = {i: clients.p[i] / share for i in sorted(s.g)}
        g = torch.stack([p[i] * s.g[i] for i in p]).sum(0)
        if s.before:
            s.curve = s.curve.after(s.x - s.before[0], g - s.before[1], self.lbfgs)
        s.before = [s.x, g] if self.lbfgs else []
        c = s.held.weights(p, s.rho)
        rho = sum(p[i] * (s.rho[i] + s.lift[i]) for i in p)
        step = s.curve.solve(g, lambda v: s.held.solve(c, rho, v))  # Ĥ⁻¹g alone without L-BFGS
        s.norms = [*s.norms[-2:], float(g.norm())]
        due = paper.due(s, self.renewal, self.period, self.b)
        planned = s.renewals + due
        eta = 1.0
        next_reports = dict[int, Attempt]()
        if self.search != "none":
            codes = None if self.bits is None or s.whole else fast.coded(step, s.held.diagonal(c, rho))
            step = step if codes is None else restore(*codes)
            losses = CandidateLosses(s=s, clients=clients, step=step, p=p, beta=self.beta, losses=self.losses)
            if self.search == "speculative":
                x, scale = (s.x - step, None) if codes is None else codes
                losses = fast.Speculative(
                    **vars(losses),
                    attempted=AttemptedPoint(x, scale, planned),
                    attempt=self.attempt,
                    report=self.report,
                    wire=self.wire,
                )
            eta, _ = backtrack(losses, float(step @ g), self.alpha, self.beta, self.tries)
            next_reports = losses.next_reports
        clients.note(eta=eta, hessians=s.renewals, pairs=len(s.held.lam))
        s.x = s.x - eta * step
        s.renewals = max(s.renewals, planned)
        s.renewed_in = s.t + 1 if due else s.renewed_in
        if next_reports:
            paper.take(s, next_reports, s.t + 1 if eta == 1 else 0, self.wire)
            s.renewals += due and eta != 1  # these Hessians are of a point that was not taken

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Forget these clients' gradients and pairs; each renews its Hessian with its next report."""
        del clients
        s.held = s.held.after({}, renewed=who)
        s.before = []
        for name in ("g", "rho", "lift", "unit", "renewed", "at"):
            setattr(s, name, {i: v for i, v in getattr(s, name).items() if i not in who})

    @on_client
    def report(self, me: Client[Memory], request: Point) -> Report:
        """∇f_i(θ) and the next eigenpairs."""
        return self.next(me, request.x, request.renewals)

    @on_client
    def losses(self, me: Client[Memory], request: Line) -> Losses:
        """f_i along p."""
        etas = candidates(self.beta, request.first, self.tries)
        return Losses(me.problem.losses_along(me.memory.x, request.p, request.p.new_tensor(etas)))

    @on_client
    def attempt(self, me: Client[Memory], request: AttemptedPoint) -> Attempt:
        """f_i along p, and the report of θ − p."""
        x = me.memory.x
        step = x - request.x if request.scale is None else restore(request.x, request.scale)
        f = self.losses(me, Line(step, 0)).f
        return Attempt(**vars(self.next(me, request.x if request.scale is None else x - step, request.renewals)), f=f)

    def next(self, me: Client[Memory], x: Vec, renewals: int) -> Report:
        """A client's report of θ = x: its gradient, and the next pairs of the Hessian of its last renewal."""
        m = me.memory
        f = me.problem
        k = me.pace.pairs if self.pairs is None else self.pairs if isinstance(self.pairs, int) else self.pairs[me.id]
        m.x = x
        if m.renewals != renewals:
            m.renewals = renewals
            paper.renew(m, f, 4 * k + 4, fast.nearer if self.difference else paper.nothing)
        V, lam, q = paper.following(m, f, k)
        assert m.spectrum is not None
        rho = following = m.spectrum.next(q) + m.delta
        if self.rho == "star":
            rho = (following + m.spectrum.least + m.delta) / 2
        elif self.rho == "geo":
            rho = math.sqrt(following * (m.spectrum.mean(q) + m.delta))
        new = Instalment(g=f.grad(x), V=V, lam=lam, rho=rho, following=following, q=q, stored=m.base + m.sent)
        up, sent = self.wire.encode(m, new)
        if self.difference:
            m.V = [*m.V, sent]
            m.lam = torch.cat([m.lam, lam])
        m.sent = q
        return up
