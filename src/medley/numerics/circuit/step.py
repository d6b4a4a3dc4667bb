"""The server's ODE of one round by backward Euler: equations (28) and (31)-(36) and Algorithm 1 of FedECADO.

Source: Agarwal, Joshi & Pileggi, "FedECADO", ICML 2025, with the signs of its appendix (41)-(43).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...contract.types import Vec
from ..chunks import ActiveVecs, Stack, gather, spans

SHORTEST = 1 / 64
"""The shortest step, in windows: Algorithm 1 accepts any error there, and so ends even if a run diverges."""

EVERY = slice(None)
"""All coordinates."""


@dataclass(frozen=True)
class Window:
    """The circuit of one round: equations (29) and (30), with flows and sensitivities per unit of a client's weight.

        dx_c/dt = −Σ_i w_i J_i        L dJ_i/dt = x_c − Γ_i(t) − (J_i − J_i^k)/G_i

    The paper's flow is I_i = w_i J_i, its sensitivity w_i G_i, and J_i^k is the flow under which the client trained.
    States are relative to the window's start: the node's move u = x_c(t) − x_c(0), and the changes K_i = J_i − J_i^k.

    Attributes:
        S: Kirchhoff's sum Σ_i w_i J_i^k over ALL clients [d]; clients that do not take part are constant sources
        D: x_i(T_i) − x_c(0) of the clients that replied, [a, d] or a vectors [d]
        T: their times T_i, (27), above 0
        G: their sensitivities per unit of weight
        L: the inductance per unit of weight
    """

    S: Vec
    D: Stack
    T: Sequence[float]
    w: Sequence[float]
    G: Sequence[float]
    L: float

    def gamma(self, t: float, c: slice = EVERY) -> ActiveVecs:
        """Γ_i(t) − x_c(0) [a, |c|]: every client's state at one time, by a line through both ends, (28)."""
        return self.column([t / T for T in self.T]) * gather(self.D, c)

    def step(self, u: Vec, K: ActiveVecs, t: float, dt: float, c: slice = EVERY) -> tuple[Vec, ActiveVecs]:
        """The backward-Euler step from (u, K) at t to (u', K') at t + Δt, which solves (33):

            u' = u − Δt (S + Σ_i w_i K_i')                                (31)
            K_i' = K_i + Δt/L (u' − K_i'/G_i − Γ_i(t + Δt))               (32)

        By (32) K_i' = β_i (E_i + u'), and (31) is then one equation for u'.
        """
        beta = self.column([1 / (self.L / dt + 1 / G) for G in self.G])
        E = self.L / dt * K - self.gamma(t + dt, c)
        w = self.column(self.w) * beta
        u1 = (u - dt * (self.S[c] + (w.T @ E)[0])) / (1 + dt * w.sum())
        return u1, beta * (E + u1)

    def error(self, before: State, after: State, t: float, dt: float, c: slice = EVERY) -> float:
        """max |ε_BE| of a step, (36): half the step times the change of each derivative."""
        du = after.u - before.u
        dK = after.K - before.K
        eps_C = dt / 2 * self.column(self.w).T @ dK  # (34); the other clients' flows don't change
        change = du - dK / self.column(self.G) - (self.gamma(t + dt, c) - self.gamma(t, c))
        eps_L = dt / (2 * self.L) * change  # (35)
        return max(float(eps_C.abs().max()), float(eps_L.abs().max()))

    def column(self, values: Sequence[float]) -> Tensor:
        """One number per client, as a column [a, 1]."""
        return torch.tensor(values, dtype=self.S.dtype, device=self.S.device)[:, None]


class State(NamedTuple):
    """The node's move [d], and the changes of the active clients' flows [a, d]."""

    u: Vec
    K: ActiveVecs


class Solution(NamedTuple):
    """The state at the window's end, the times at which its steps end, and the number of rejected steps."""

    u: Vec
    K: ActiveVecs
    times: list[float]
    rejected: int


def integrate(window: Window, delta: float, chunk: int | None = None) -> Solution:
    """Steps 12-16 of FedECADO's Algorithm 2: from t = 0 to max T_i, by steps with max |ε_BE| ≤ δ.

    Args:
        window: the circuit
        delta: δ, above 0
        chunk: coordinates at a time; default None: as many as fit the cache
    """
    S = window.S
    end = max(window.T)
    times = [0.0]
    rejected = 0
    chunks = [*spans(S.numel(), S.device, chunk)]
    u = torch.zeros_like(S)
    u1 = torch.empty_like(S)
    K = S.new_zeros(len(window.T), S.numel())
    while (t := times[-1]) < end:
        dt = end - t  # Algorithm 1, from Δt₀ = the rest of the window
        least = SHORTEST * end
        while True:
            error = 0.0
            for c in chunks:
                u1[c], K1 = window.step(u[c], K[:, c], t, dt, c)
                error = max(error, window.error(State(u[c], K[:, c]), State(u1[c], K1), t, dt, c))
            if error <= delta or dt <= least:
                break
            dt = max(least, delta / error * dt)
            rejected = rejected + 1
        for c in chunks:  # computed again: storing a second [a, d] would cost more
            K[:, c] = window.step(u[c], K[:, c], t, dt, c)[1]
        u, u1 = u1, u
        times.append(end if dt == end - t else t + dt)
    return Solution(u, K, times[1:], rejected)


__all__ = ["Solution", "State", "Window", "integrate"]
