"""FedECADO's round where replies are late: branches as Norton equivalents, and what of their flows lasts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from ...contract.cohort import Cohort
from ...contract.types import Vec
from ...numerics.circuit.norton import Branch, Reach, Refreshed, steadiness
from .messages import Request, Server, Window

GAPS = 3.0
"""The most mean times between a client's replies for which one counts."""


class Lasting(NamedTuple):
    """The shares of the flows that last, both ρ where no reply is late.

    Attributes:
        net: ρ', the share of J_i − S with which a client descends.
        node: ρ'', the share with which it is taken from the reply.
    """

    net: float | torch.Tensor
    node: float | torch.Tensor

    @classmethod
    def of(cls, s: Server, p: Mapping[int, float]) -> Lasting:
        """By the last visits of the clients that replied since replies came late, with σ = Σ p_i|ε_i|²/Σ p_i|J_i|².

        ρ'' = 1 − σ/2 is the factor on J_i − S that leaves the least noise. ρ' = 1 − √σ is smaller: what a client is
        pushed along and no longer holds, it moves for the whole of its time.
        """
        late = min(1.0, s.late)
        size = sum(p[i] * b.flow**2 for i, b in s.branches.items())
        if late == 0 or size == 0:
            return cls(s.steady, s.steady)
        changed = sum(p[i] * b.error**2 for i, b in s.branches.items()) / size
        now = (1 - late) * float(s.steady)
        return cls(now + late * (1 - min(1.0, math.sqrt(changed))), now + late * max(0.0, 1 - changed / 2))


def refresh(
    s: Server,
    S: Vec,
    clients: Cohort,
    got: dict[int, tuple[Request, Window]],
    reach: Reach,
    m: float,
    rho: float,
    common: float,
) -> Refreshed:
    """Flows and conductances after replies that began at different x, some of them long ago.

    ``ahead`` is Σ p_i (Te S + w_i ε_i) + (Σ p_i) (1 − ρ'') √(T̄ T_h) Σ p_i g_i (J_i − S), sums over the replies.

    Args:
        s: the server's state, whose J, S, branches, GX and G become those after the replies.
        S: Kirchhoff's sum at x, before the replies [d].
        clients: the cohort.
        got: the replies and their requests, by client.
        reach: their T_i, p_i and w_i.
        m: the factor on conductances.
        rho: ρ''.
        common: the window of what does not last, in units of the scale of w_i.
    """
    S1, ahead, GX = S.clone(), torch.zeros_like(S), torch.zeros_like(S) if s.GX is None else s.GX.clone()
    J, branches, sums, powers = dict(s.J), dict(s.branches), s.S.clone(), S.new_zeros(2)
    for (i, (began, w)), w_i in zip(got.items(), reach.w, strict=True):
        p, old, known = clients.p[i], branches.get(i), i in J
        flow = began.flow - w.delta / float(w.T)
        at = began.x + w.delta / 4  # a client that saturates is near its end for most of its way; measured best
        new = Branch(at) if old is None else old.moved(at, flow - J[i])
        innovation = flow + m * new.h * (s.x - at)
        net = -S
        if known:
            innovation -= J[i]
            net += J[i]
        sums.add_(flow - J[i] if known else flow, alpha=p)
        GX.add_(at, alpha=p * new.h)
        if old is not None:
            innovation.sub_(s.x - old.at, alpha=m * old.h)
            GX.sub_(old.at, alpha=p * old.h)
        s.G += p * (new.h - (0.0 if old is None else old.h))
        new.flow, new.error = float(flow.norm()), float(innovation.norm())
        S1.add_(innovation, alpha=p)
        ahead.add_(innovation, alpha=p * w_i)
        g = min(s.turns - s.met.get(i, 0), GAPS / s.times.mean_share)
        ahead.add_(net, alpha=p * g * reach.share * (1 - rho) * reach.scale * common)
        J[i], branches[i] = flow, new
        powers += p * torch.stack([innovation @ innovation * known, flow @ flow])
    s.J, s.branches, s.GX, s.S = J, branches, GX, sums
    ahead.add_(S, alpha=reach.Te * reach.share)
    return Refreshed([J[i] for i in got], S1, ahead, steadiness(*powers))
