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
    roots of the Hessian's diagonal. Leading eigenvectors whose rounding would outweigh the curvature of the directions
    after them, for example with columns whose mean is far above their spread, have 16 bits more, and so have changes of
    gradients from then on. ``above`` asks for a lift of Ĥ_i that restores Ĥ_i ⪰ H_i.
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
        f = drowning(m, new, sent[:-1] - new.V, metric)
        m.fine = m.fine or f > 0
        finer = [*range(f), len(new.V)] if m.fine else []
        more, more_scale = quantise((rows - sent)[finer] / m.unit, 16)
        sent[finer] += restore(more, more_scale) * m.unit
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
            fine=more,
            fine_scale=more_scale,
            unit=unit,
            lam=new.lam,
            rho=rho,
            held=new.stored,
            lift=lift,
            bits=None,
            packed=None,
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
        if up.unit is not None:
            s.unit[i] = torch.exp2(up.unit.to(s.x))
        unit = s.unit.get(i, torch.ones_like(s.x))
        assert up.g_scale is not None
        assert up.V is not None
        assert up.V_scale is not None
        sent = restore(torch.cat([up.V, up.g[None]]), torch.cat([up.V_scale, up.g_scale[None]])) * unit
        if len(up.fine):
            sent[[*range(len(up.fine) - 1), -1]] += restore(up.fine, up.fine_scale) * unit
        return s.g.get(i, torch.zeros_like(s.x)) + sent[-1], sent[:-1]


def drowning(m: Memory, new: Instalment, e: Vectors, metric: Vec) -> int:
    """The number of leading eigenvectors up to the last one whose rounding error e_j would drown directions after it.

    The server misses v_j's curvature along e_j: λ_j‖e_j‖². This must be at most a sixteenth of the curvature that
    directions after v_j have there. Both are measured after scaling the Hessian's diagonal to ones: λ_j e_jᵀMe_j, and
    per direction, the part of the trace that does not belong to v_1 … v_j. Pairs of a difference between Hessians are
    compared with the directions after v_1 of the last whole Hessian.
    """
    d = len(metric)
    after = d - torch.arange(1, len(e) + 1).to(metric)
    if new.stored == 0:
        rest = (d - (new.lam * (new.V.square() @ metric)).cumsum(0)).clamp(min=0) / after.clamp(min=1)
        m.soft = float(rest[0]) if len(rest) else 0.0
    else:
        rest = torch.full_like(after, m.soft)
    missing = new.lam.abs() * (e.square() @ metric) * after / d
    drowned = (missing > rest / 16).nonzero()
    return int(drowned[-1]) + 1 if len(drowned) else 0


def coded(step: Vec, bend: Callable[[Vec], float]) -> tuple[Codes, Scales] | None:
    """p in 16 bits; None if rounding would spoil it, if its error e has eᵀĤe > 1e-4 pᵀĤp.

    Args:
        bend: v -> vᵀĤv
    """
    codes, scale = quantise(step, 16)
    return None if bend(restore(codes, scale) - step) > 1e-4 * bend(step) else (codes, scale)


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
