"""What `SHED.fast` adds: speculative search, reports in a few bits, differences between Hessians."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ...contract import Client, Losses, Vec
from ...numerics.compress import Codes, Scales, exponents, quantise, restore, spoils
from ...numerics.curvature import Factor, Vectors, excess
from .messages import Attempt, AttemptedPoint, Memory, Point, Report, Server
from .paper import CandidateLosses, Exact, Instalment, none, nothing, take


def nearer(m: Memory, A: Factor) -> Vectors:
    """For ``difference``: the server's pairs stay as the base if they are close enough to the new AᵀA."""
    W = torch.cat([none(m), *m.V])
    return W if excess(A, W, m.lam) < 0 else nothing(m, A)


@dataclass(frozen=True)
class Coded(Exact):
    """Eigenvectors and changes of gradients in ``bits`` bits, with a scale each.

    If one unit for all columns would spoil more than half of a row, codes count in units of each column from then on:
    roots of the Hessian's diagonal. If rounding would add about as much curvature to all other directions as they have,
    for example with columns whose mean is far above their spread, the client sends plain numbers from then on.
    ``above`` asks for a lift of Ĥ_i that restores Ĥ_i ⪰ H_i.
    """

    bits: int
    above: bool

    def encode(self, m: Memory, new: Instalment) -> tuple[Report, Vectors]:
        """The report in codes, and its eigenvectors as the server will decode them."""
        rows = torch.cat([new.V, (new.g - m.g)[None]])
        unit = None
        lift = None
        rho = new.rho
        codes, scale = quantise(rows / m.unit, self.bits)
        # The cost of an error in g or v is measured by the Hessian's diagonal, which knows no units.
        metric = torch.where(m.diagonal > 0, 1 / m.diagonal, 0.0)
        if m.same and spoils(rows, restore(codes, scale) * m.unit, metric):
            unit = exponents(m.diagonal.sqrt())
            m.same = False
            m.unit = torch.exp2(unit.to(new.g))
            codes, scale = quantise(rows / m.unit, self.bits)
        sent = restore(codes, scale) * m.unit
        m.whole = m.whole or (new.stored == 0 and drowns(new, sent[:-1] - new.V, metric))
        if m.whole:
            m.g = new.g
            return super().encode(m, new)
        V = sent[:-1]
        m.g = m.g + sent[-1]
        if new.following <= m.delta and m.same:  # no pair is left: ρ stands for the rounding of those sent
            m.lost = max(m.lost, float(new.lam.abs() @ (V - new.V).square().sum(1)))
            rho = max(rho, m.lost)
        if self.above:
            lift = self.lift(m, new, V, rho)
        up = Report(
            g=codes[-1],
            g_scale=scale[-1],
            V=codes[:-1],
            V_scale=scale[:-1],
            unit=unit,
            lam=new.lam,
            rho=rho,
            held=new.stored,
            lift=lift,
        )
        return up, V

    def lift(self, m: Memory, new: Instalment, sent: Vectors, rho: float) -> float:
        """a with Ĥ_i + aI ⪰ H_i.

        With v̂ = v + e, ‖v‖ = 1: v̂v̂ᵀ − vvᵀ = veᵀ + evᵀ + eeᵀ ⪰ (vᵀe − ‖e‖)I, as the eigenvalues of veᵀ + evᵀ are
        vᵀe ± ‖e‖. So H_i ⪯ Σ(λ_j − ρ)v_jv_jᵀ + ρI ⪯ Ĥ_i + Σ(λ_j − ρ)(‖e_j‖ − v_jᵀe_j)I for λ_j ≥ ρ.
        """
        assert m.spectrum is not None
        e = sent - new.V
        m.off = torch.cat([m.off[: m.sent], e.norm(dim=1) - (new.V * e).sum(1)])
        return float((m.spectrum.values[: new.q] + m.delta - rho) @ m.off)

    def decode(self, s: Server, i: int, up: Report) -> tuple[Vec, Vectors]:
        """Client i's gradient and eigenvectors from their codes."""
        if up.g_scale is None:
            s.whole = True
            return super().decode(s, i, up)
        if up.unit is not None:
            s.unit[i] = torch.exp2(up.unit.to(s.x))
        unit = s.unit.get(i, torch.ones_like(s.x))
        assert up.V_scale is not None
        g = s.g.get(i, torch.zeros_like(s.x)) + restore(up.g, up.g_scale) * unit
        return g, restore(up.V, up.V_scale) * unit


def drowns(new: Instalment, e: Vectors, metric: Vec) -> bool:
    """Whether the rounding errors e of the eigenvectors add more than a quarter of the curvature of the other
    directions.

    Both are measured after scaling the Hessian's diagonal to ones: Σ λ_j e_jᵀMe_j, and per direction, the part of the
    trace that does not belong to v_1.
    """
    if not len(new.V) or len(metric) < 2:
        return False
    rest = len(metric) - float(new.lam[0] * (new.V[0].square() @ metric))
    return float(new.lam.abs() @ (e.square() @ metric)) > max(rest, 0.0) / (len(metric) - 1) / 4


def coded(step: Vec, diagonal: Vec) -> tuple[Codes, Scales] | None:
    """p in 16 bits; None if rounding would spoil it, measured by Ĥ's ``diagonal`` [d].

    The squared error of 16 bits is about 1e-9 of the step's squared length; at 1e-4 the loss might no longer fall.
    """
    codes, scale = quantise(step, 16)
    return None if spoils(step, restore(codes, scale), diagonal, 1e-4) else (codes, scale)


@dataclass(kw_only=True)
class Speculative(CandidateLosses):
    """Armijo's rule whose first exchange brings the reports of θ − p: an accepted η = 1 has begun the next round.

    Attributes:
        attempted: the point to try.
        attempt, report: the client methods.
        wire: decodes reports.
    """

    attempted: AttemptedPoint
    attempt: Callable[[Client[Memory], AttemptedPoint], Attempt]
    report: Callable[[Client[Memory], Point], Report]
    wire: Exact

    def replies(self, first: int) -> Mapping[int, Losses | Attempt]:
        """The replies of one exchange: attempts first, then losses for smaller steps."""
        if self.next_reports:
            self.go_back()
        if first:
            return super().replies(first)
        self.next_reports.update(self.clients.ask(self.attempt, self.attempted, ids=self.reporting).each())
        return self.next_reports

    def go_back(self) -> None:
        """Return to θ: no candidate of the first exchange passed, but the clients have gone ahead."""
        s = self.s
        renewed = self.attempted.renewals > s.renewals
        s.renewals = self.attempted.renewals
        take(s, self.next_reports, 0, self.wire)
        self.next_reports.clear()
        s.renewals += renewed  # those Hessians are of a point that was not taken
        take(s, self.clients.ask(self.report, Point(s.x, s.renewals)).each(), s.t, self.wire)
