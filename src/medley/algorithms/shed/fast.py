r"""This library's form of SHED: a fifth to a fifteenth of the exchanges, at a fraction of the bytes. No paper lists it.

**Reference**: Dal Fabbro, Dey, Rossi & Schenato, "SHED: A Newton-type Algorithm for Federated Learning based on
Incremental Hessian Eigenvector Sharing", JMLR 25, 2024; its Algorithms 1, 3 and 4 are `SHED`.

**Status**: this library's own

**Needs**: a convex problem whose Hessians are AᵀA + δI: Logistic, LeastSquares, Softmax. A client keeps its
eigenvectors: d² or (rows)² numbers, whichever is less. It sends ``pairs`` pairs a round; None takes ``me.pace.pairs``.

**One round sends** (floats per client; k the pairs of this round, K the candidate steps):

- report (if numbers travel whole): d + 1 down, kd + 8k bytes + d + 2 up; of all, or of those that an attempt left out
- report (if in 8 bits): d + 1 down, kd bytes + 16k bytes + d bytes + 3 up; 2d + 8 bytes for each vector in 24 bits
- losses (if there is a line search): d + 1 down, 8(K + 1) bytes up; again where no candidate passed
- attempt (if the search is speculative): d + 1 down, kd + 8k bytes + d + 8(K + 1) bytes + 2 up; the next report too
- attempt (if in 8 bits): 2d bytes + (1) + 1 down, kd bytes + 16k bytes + d bytes + 8(K + 1) bytes + 3 up

**Departures** from `SHED`, of which each works alone:

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
row. Codes then count in units of each column (roots of the Hessian's diagonal, d bytes once). If a few directions have
nearly all of the curvature, for example if the columns' mean is 20 times their spread, the rounding of their
eigenvectors would drown the others. Those eigenvectors, and that client's changes of gradients from then on, have 16
bits more per number: what 8 bits left out. A direction whose rounding would cost more than 1e-4 of the fall that the
server expects is sent in full. With standardised columns none of this happens.

**Missing replies**: the server uses the client's last gradient and eigenpairs; in the line search, the quadratic model
made of them.

**Example**

>>> import medley as md
>>> toy = md.problems.synthetic_logistic(clients=10, mu=1e-3)
>>> fed = md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star)
>>> run = md.run(md.SHED.fast(), fed, rounds=60, target={"gap": 1e-12}, progress=False)
>>> run.history[-1]["exchanges"] < run.history[-1]["round"] + 10
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch

from ...contract import Client, Cohort, Line, RecipeError, Vec, on_client
from ...contract.settings import at_least, in_range
from ...numerics.compress import restore
from ...numerics.curvature import Factor, Values, Vectors
from . import coded
from .instalments import Instalments, Pairs
from .messages import Attempt, AttemptedPoint, Memory, Server
from .paper import CandidateLosses, Exact


@dataclass(frozen=True)
class Fast(Instalments):
    """SHED with L-BFGS at the server, speculative search, differences and 8 bits.

    Attributes:
        renewal, period, b, alpha, beta, tries: as in `SHED`.
        pairs: eigenpairs per iteration: one number, a number per client, or None for the pace's.
        rho: ρ_i: √(λ_{q+1} · mean of the rest) ("geo"), or as in `SHED`.
        search: η by Armijo's rule, speculatively or not, or η = 1 ("none"), or "auto" as in `SHED`.
        lbfgs: moves that L-BFGS keeps; 0 turns L-BFGS off.
        difference: renewals send the difference between the new Hessian and the server's pairs.
        bits: bits per entry of an eigenvector or gradient; None sends plain numbers.
        above: with ``bits``, keep Ĥ ⪰ H.
    """

    call = "SHED.fast"

    pairs: Pairs | Sequence[Pairs] | None = 4
    rho: Literal["auto", "lambda", "star", "geo"] = "geo"
    search: Literal["auto", "none", "armijo", "speculative"] = "speculative"
    lbfgs: Annotated[int, at_least(0)] = 30
    difference: bool = True
    bits: Annotated[int, in_range(2, 8)] | None = 8
    above: bool = False

    def __post_init__(self) -> None:
        """Check also that ``above`` comes with ``bits``, ρ = λ_{q+1} and no ``difference``."""
        super().__post_init__()
        if self.above and (self.bits is None or self.difference or self.rho not in ("auto", "lambda")):
            raise RecipeError(
                'SHED.fast(above=True) needs bits=8, rho="lambda" and difference=False; set them, or leave above= out',
                "above",
            )

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.settings().items())})"

    @property
    def name(self) -> str:
        """The name of the constructor."""
        return self.call

    def suited(self, gives: frozenset[str]) -> Instalments:
        """As for `SHED`, except that Theorem 3 is of exact pairs: with ``bits`` there is a line search."""
        chosen = self
        if self.above and self.rho == "auto":
            chosen = replace(chosen, rho="lambda")
        settled = Instalments.suited(chosen, gives)
        return replace(settled, search="armijo") if self.search == "auto" and self.bits is not None else settled

    @property
    def wire(self) -> Exact:
        """Encodes and decodes reports."""
        return Exact() if self.bits is None else coded.Coded(self.bits, self.above)

    def direction(self, s: Server, g: Vec, c: Values, rho: float) -> Vec:
        """Ĥ⁻¹g, by L-BFGS on top of Ĥ⁻¹."""
        if s.before:
            s.curve = s.curve.after(s.x - s.before[0], g - s.before[1], self.lbfgs)
        s.before = [s.x, g] if self.lbfgs else []
        return s.curve.solve(g, lambda v: s.held.solve(c, rho, v))

    def candidate_losses(
        self, s: Server, clients: Cohort, step: Vec, p: Mapping[int, float], *, planned: int, c: Values, rho: float
    ) -> CandidateLosses:
        """What Armijo's rule asks for: with ``bits`` of a rounded step, and with the next reports if speculative."""
        codes = None if self.bits is None else coded.coded(step, lambda v: s.held.curvature(c, rho, v))
        step = step if codes is None else restore(*codes)
        losses = super().candidate_losses(s, clients, step, p, planned=planned, c=c, rho=rho)
        if self.search != "speculative":
            return losses
        x, scale = (s.x - step, None) if codes is None else codes
        return coded.Speculative(
            **vars(losses),
            attempted=AttemptedPoint(x, scale, planned),
            attempt=self.attempt,
            report=self.report,
            wire=self.wire,
        )

    @on_client
    def attempt(self, me: Client[Memory], request: AttemptedPoint) -> Attempt:
        """f_i along p, and the report of θ − p."""
        x = me.memory.x
        step = x - request.x if request.scale is None else restore(request.x, request.scale)
        f = self.losses(me, Line(step, 0)).f
        return Attempt(**vars(self.next(me, request.x if request.scale is None else x - step, request.renewals)), f=f)

    def base(self, m: Memory, A: Factor) -> Vectors:
        """The server's eigenvectors of the Hessian before, with ``difference``, if they are close enough to the new."""
        return coded.nearer(m, A) if self.difference else super().base(m, A)

    def rest(self, m: Memory, following: float, q: int) -> float:
        """ρ_i, with λ_{q+1} = ``following``."""
        assert m.spectrum is not None
        if self.rho == "geo":
            return math.sqrt(following * (m.spectrum.mean(q) + m.delta))
        return super().rest(m, following, q)

    def note_sent(self, m: Memory, sent: Vectors, lam: Values) -> None:
        """With ``difference``, a client keeps the pairs as the server decodes them."""
        if self.difference:
            m.V = [*m.V, sent]
            m.lam = torch.cat([m.lam, lam])
