"""C-FLAG as published: a loop over current rows, and one step on the memory per round (Algorithms 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ...contract import Client, Cohort, RecipeError, Vec
from ...numerics.sums import mean
from .messages import Anchor, Memory, Server, Snapshot, Update
from .walk import Form, Walk


def advance(
    s: Server,
    clients: Cohort,
    snapshots: Mapping[int, Snapshot],
    E: int,
    L: float,
    learn: Callable[[Client[Memory], Anchor], Update],
) -> None:
    """The server's step x ← x − Σ p_i Δ_i (25). Notes its Γ(t) (15).

    Args:
        snapshots: the clients' snapshots at x.
        E: the number of steps of every client.
        L: the smoothness.
        learn: the client method.
    """
    g = mean([(clients.p[i], up.g) for i, up in snapshots.items()])
    f = mean([(clients.p[i], up.f) for i, up in snapshots.items()])
    up = clients.ask(learn, Anchor(g, f, E, len(snapshots)), ids=tuple(snapshots)).mean()
    s.x = s.x - up.delta
    if f is not None:
        u = up.delta - up.alpha * f
        gamma = L / 2 * float(u @ u) - (1 - L * up.alpha) * float(f @ u)  # (15)
        clients.note(gamma=gamma, gamma_surrogate=up.gamma)


def learn(me: Client[Memory], request: Anchor, form: Form, alpha: float | None, rates: Rates) -> Update:
    """E steps of z ← z − β(g′_i + ∇g − ∇g_i), then Δ_i = α_i∇f + s_i(x − z_E) (Algorithms 2 and 3)."""
    x = me.memory.x
    g_i = me.memory.g
    beta = me.pace.lr
    assert x is not None
    me.memory = Memory()
    u = update = -Walk(me, [(me.problem, 1.0)], x, h=g_i, H=request.g, steps=request.steps, clip=None).go(form)
    if request.g is not None and g_i is not None and me.pace.optimizer == "sgd" and not me.pace.momentum:
        u = update - beta * request.steps * (request.g - g_i)  # line 4: β Σ_k g′_i
    alpha = beta if alpha is None else alpha
    if request.f is None:
        return Update(update, 0.0, alpha)
    alpha_i, s_i, gamma = rates(u, request.f, alpha, me.p, request.N)
    return Update(alpha_i * request.f + s_i * update, gamma, alpha)


@dataclass(frozen=True)
class Rates:
    """Table 1: a client's own step size on the memory, and the factor of its displacement.

    Attributes:
        adaptive: "off" for fixed rates, or the rates of the "average" or the "worst" case.
        L: the smoothness.
        bounded: whether to keep α_i ≤ 1/L and s_i ≤ 1.
    """

    adaptive: Literal["off", "average", "worst"]
    L: float
    bounded: bool

    def __call__(self, u: Vec, f: Vec, alpha: float, p: float, N: int) -> tuple[float, float, float]:
        """α_i, s_i = β_i/β, and Γ_i under these rates; Σ p_i Γ_i is the bound on forgetting.

        Γ_i = (L/2)·c·s²‖u‖² − (1 − Lα)·s·⟨f, u⟩ with c = p_i in the average case and N·p_i in the worst.

        At an exact minimum f and u are rounding errors, and the sign of ⟨f, u⟩ chooses the case. In both
        cases the displacements are no larger than these errors: ‖s_i u‖ ≤ ‖f‖/(L c) and ‖(α_i − α) f‖ ≤ ‖u‖.

        Args:
            u: β Σ_k g′_i [d].
            f: ∇f [d].
            alpha: the fixed step α.
            p, N: p_i and the number of clients.
        """
        c = p * (N if self.adaptive == "worst" else 1)
        ff = float(f @ f)
        uu = float(u @ u)
        Lambda = float(f @ u)
        alpha_i = alpha
        s_i = 1.0
        margin = 1 - self.L * alpha
        if self.adaptive != "off" and ff > 0 and uu > 0:
            if margin <= 0:
                raise RecipeError(f"CFLAG(adaptive=...): L·α = {self.L * alpha:g} must be below 1; lower L or lr", "L")
            if Lambda > 0:  # transference
                s_i = margin * Lambda / (self.L * c * uu)
                s_i = min(1.0, s_i) if self.bounded else s_i
            else:  # interference: Δ_i keeps no part of u_i along f
                alpha_i = alpha - Lambda / ff
                alpha_i = min(alpha_i, max(alpha, 1 / self.L)) if self.bounded else alpha_i
        along = s_i * Lambda + (alpha_i - alpha) * ff
        size = s_i**2 * uu + 2 * s_i * (alpha_i - alpha) * Lambda + (alpha_i - alpha) ** 2 * ff
        return alpha_i, s_i, self.L / 2 * c * size - margin * along
