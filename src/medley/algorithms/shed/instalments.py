"""The round and the reports of both forms of SHED: the paper's, `SHED`, and this library's, `SHED.fast`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch

from ...contract import Algorithm, Client, Cohort, Line, Losses, Need, RecipeError, TooFewReplies, Vec, on_client
from ...contract.settings import at_least, positive
from ...numerics.curvature import Factor, Sketch, Values, Vectors
from ...numerics.linesearch import Alpha, Beta, Tries, backtrack, candidates
from ...numerics.quasinewton import Curve
from . import paper
from .messages import Attempt, Memory, Point, Report, Server
from .paper import CandidateLosses, Exact, Instalment, Renewal

Pairs = Annotated[int, at_least(0)]


@dataclass(frozen=True)
class Instalments(Algorithm[Server, Memory]):
    """Newton's method with eigenpairs in instalments. `SHED` explains its settings."""

    renewal: Renewal = "auto"
    period: Annotated[int, at_least(1)] = 10
    b: Annotated[float, positive] = 0.6
    pairs: Pairs | Sequence[Pairs] | None = None
    rho: Literal["auto", "lambda", "star", "geo"] = "auto"
    search: Literal["auto", "none", "armijo", "speculative"] = "auto"
    alpha: Alpha = 0.1
    beta: Beta = 0.5
    tries: Tries = 12

    needs = frozenset({Need.FACTOR, Need.CONVEX, Need.REPLIES})

    def __post_init__(self) -> None:
        """Keep numbers per client as a tuple."""
        super().__post_init__()
        if isinstance(self.pairs, Sequence):
            object.__setattr__(self, "pairs", tuple(self.pairs))

    def suited(self, gives: frozenset[str]) -> Instalments:
        """Least squares renew once, take ρ* and need no line search."""
        quadratic = "quadratic" in gives
        renewal = self.renewal
        rho = self.rho
        search = self.search
        if renewal == "auto":
            renewal = "once" if quadratic else "fibonacci"
        if rho == "auto":
            rho = "star" if quadratic and search in ("auto", "none") else "lambda"
        if search == "auto":
            search = "none" if quadratic and rho == "star" else "armijo"
        return replace(self, renewal=renewal, rho=rho, search=search)

    def start(self, x: Vec) -> Server:
        """θ⁰, and nothing known."""
        return Server(x, Sketch.none(x), Curve.none(x))

    def remember(self, x: Vec) -> Memory:
        """Nothing sent."""
        none = torch.zeros(0, dtype=torch.int8)
        return Memory(x=x, g=x, V=[], lam=x[:0], off=x[:0], diagonal=x, unit=torch.ones_like(x), depth=none)

    @property
    def wire(self) -> Exact:
        """Encodes and decodes reports."""
        return Exact()

    def round(self, s: Server, clients: Cohort) -> None:
        """θ ← θ − ηp with p = Ĥ⁻¹g, Ĥ = Σp_iĤ_i, Ĥ_i = Σ_{j≤q_i} (λ_j − ρ_i)v_jv_jᵀ + ρ_i I (Algorithm 4).

        Reports of this θ may have arrived with the last round's losses.
        """
        s.t += 1
        if isinstance(self.pairs, tuple) and len(self.pairs) != len(clients.p):
            raise RecipeError(
                f"{self.name}(pairs=...): {len(self.pairs)} numbers for {len(clients.p)} clients", "pairs"
            )
        late = tuple(i for i in clients.ids if s.at.get(i) != s.t)
        if late:
            paper.take(s, clients.ask(self.report, Point(s.x, s.renewals), ids=late).each(), s.t, self.wire)
        if not s.g:
            raise TooFewReplies(f"round {clients.round}: none of {len(clients)} clients answered; are they reachable?")
        share = sum(clients.p[i] for i in s.g)
        p = {i: clients.p[i] / share for i in sorted(s.g)}
        g = torch.stack([p[i] * s.g[i] for i in p]).sum(0)
        c = s.held.weights(p, s.rho)
        rho = sum(p[i] * (s.rho[i] + s.lift[i]) for i in p)
        step = self.direction(s, g, c, rho)
        s.norms = [*s.norms[-2:], float(g.norm())]
        due = paper.due(s, self.renewal, self.period, self.b)
        planned = s.renewals + due
        eta = 1.0
        next_reports = dict[int, Attempt]()
        if self.search != "none":
            losses = self.candidate_losses(s, clients, step, p, planned=planned, c=c, rho=rho)
            step = losses.step
            eta, _ = backtrack(losses, float(step @ g), self.alpha, self.beta, self.tries)
            next_reports = losses.next_reports
        clients.note(eta=eta, hessians=s.renewals, pairs=len(s.held.lam))
        s.x = s.x - eta * step
        s.renewals = max(s.renewals, planned)
        s.renewed_in = s.t + 1 if due else s.renewed_in
        if next_reports:
            paper.take(s, next_reports, s.t + 1 if eta == 1 else 0, self.wire)
            s.renewals += due and eta != 1  # these Hessians are of a point that was not taken

    def direction(self, s: Server, g: Vec, c: Values, rho: float) -> Vec:
        """Ĥ⁻¹g."""
        return s.held.solve(c, rho, g)

    def candidate_losses(
        self, s: Server, clients: Cohort, step: Vec, p: Mapping[int, float], *, planned: int, c: Values, rho: float
    ) -> CandidateLosses:
        """What Armijo's rule asks for.

        Args:
            step: the direction [d]; the result's ``step`` is what all clients can decode
            planned: the number of Hessian renewals if the step is taken
            c, rho: Ĥ = VᵀcV + ρI
        """
        del planned, c, rho
        return CandidateLosses(s=s, clients=clients, step=step, p=p, beta=self.beta, losses=self.losses)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Forget these clients' gradients and pairs; each renews its Hessian with its next report."""
        del clients
        s.held = s.held.after({}, renewed=who)
        s.before = []
        for name in ("g", "rho", "lift", "unit", "renewed", "at", "depth", "codes"):
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

    def next(self, me: Client[Memory], x: Vec, renewals: int) -> Report:
        """A client's report of θ = x: its gradient, and the next pairs of the Hessian of its last renewal."""
        m = me.memory
        f = me.problem
        k = self.most(me)
        m.x = x
        if m.renewals != renewals:
            m.renewals = renewals
            paper.renew(m, f, 4 * k + 4, self.base)
        V, lam, q = self.wire.following(m, f, k)
        assert m.spectrum is not None
        following = m.spectrum.next(q) + m.delta
        rho = self.rest(m, following, q)
        new = Instalment(g=f.grad(x), V=V, lam=lam, rho=rho, following=following, q=q, stored=m.base + m.sent)
        up, sent = self.wire.encode(m, new)
        self.note_sent(m, sent, lam)
        m.sent = q
        return up

    def most(self, me: Client[Memory]) -> int:
        """The number of pairs in a report, unless the Hessian has fewer left."""
        return me.pace.pairs if self.pairs is None else self.pairs if isinstance(self.pairs, int) else self.pairs[me.id]

    def base(self, m: Memory, A: Factor) -> Vectors:
        """The eigenvectors that the server keeps when a Hessian is renewed: none."""
        return paper.nothing(m, A)

    def rest(self, m: Memory, following: float, q: int) -> float:
        """ρ_i, with λ_{q+1} = ``following``."""
        del q
        assert m.spectrum is not None
        return (following + m.spectrum.least + m.delta) / 2 if self.rho == "star" else following

    def note_sent(self, m: Memory, sent: Vectors, lam: Values) -> None:
        """What a client notes of the pairs that it sends: nothing more than their number."""
