"""One client's branch: its state at a common time, and the flow per unit of its move."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ...contract.errors import RecipeError
from ...contract.types import Num, Vec
from ..chunks import ActiveVecs

PerClient = Float[Tensor, " a"]
"""A number per active client."""

Column = Float[Tensor, "a 1"]
"""A number per active client, as a column that multiplies rows."""

Broad = Float[Tensor, "..."]
"""A number, a diagonal, or a column of either."""

Factor = float | Broad
"""A client's number or diagonal [d]; for a stack of k clients [k, 1] or [k, d]."""

FIRM = 0.8742174657987167
"""z at which `stiffness` is 3/2."""


def gamma(start: Float[Tensor, "*#b d"], end: ActiveVecs, T: PerClient, t: float, cap: float = math.inf) -> ActiveVecs:
    """Γ_i(t) = start + min(t/T_i, cap)·(end_i − start): client states at one simulated time, eq. (28).

    Args:
        start: state at time 0, [d] for all clients or [a, d].
        end: state at time T_i, [a, d].
        T: simulated times [a].
        t: the common time. Beyond T_i the line is extrapolated.
        cap: bound on the extrapolation, in units of the client's own way.

    Raises RecipeError for a T_i that is not positive.
    """
    return start + reach(positive(T, "gamma()"), t, cap, end)[:, None] * (end - start)


def reach(T: Sequence[float], t: float, cap: float | PerClient, like: Tensor) -> PerClient:
    """min(t/T_i, cap_i) [a]: the share of its way at which (28) puts each client; dtype and device of ``like``."""
    caps = cap.tolist() if isinstance(cap, Tensor) else [cap] * len(T)
    return torch.tensor([min(t / Ti, c) for Ti, c in zip(T, caps, strict=True)], dtype=like.dtype, device=like.device)


def positive(T: PerClient, where: str) -> list[float]:
    """Simulated times as numbers. Raises RecipeError, naming the call ``where``, unless all are positive and finite."""
    times: list[float] = T.tolist()
    for i, t in enumerate(times):
        if not 0 < t < math.inf:
            raise RecipeError(
                f"{where}: client {i} of the cohort reports the simulated time {t}. It is the sum of the learning rates"
                " of its steps: every client needs at least one step with lr > 0, or must be left out of the cohort.",
                "T",
            )
    return times


def stiffness(z: Broad) -> Broad:
    """z/(1 − e^(−z)), 1 at z = 0, 0 for z → −∞: the factor by which z = hT, curvature times window, stiffens a client.

    Exact for linear gradients.
    """
    ratio = z / -torch.expm1(-z)
    return ratio.masked_fill_(z == 0, 1.0)


def sensitivity(T: Num, Tw: float, q: float = 0.0, h: Factor | None = None, cap: float | Broad = math.inf) -> Broad:
    """g: the flow per unit of a client's synchronised state over the window Tw, eq. (22).

    1/g = Tw·ρ^q / stiffness(hT) with ρ = Tw/T.

    Args:
        T: the client's simulated time; a stack's [k, 1].
        Tw: the window, the longest T.
        q: q > 0 trusts a client less, the further it is extrapolated.
        h: curvature, a number or the diagonal [d]; a stack's [k, 1] or [k, d]; None for none.
        cap: bound on ρ; a stack's [k, 1].
    """
    t = T if isinstance(T, Tensor) else torch.tensor(T, dtype=torch.float64)  # without a dimension: promotes nothing
    g = 1 / (t * (Tw / t).clamp(max=cap) ** (1 + q))
    return g if h is None else g * stiffness(h * t)


def conductance(
    T: Num, Tw: float, lam: float = 1.0, q: float = 0.0, h: Factor | None = None, cap: float | Broad = math.inf
) -> Broad:
    """β = 1/(λTw + 1/g): the inductor ℓ = λTw² over one step of length Tw, in series with the client's 1/g.

    The other arguments, and shapes, are those of `sensitivity`. A client with diagonal curvature computes its own β.
    """
    return 1 / (lam * Tw + 1 / sensitivity(T, Tw, q, h, cap))


def passive(T: Broad, h: Broad, trace: Broad) -> tuple[Broad, Broad]:
    """The curvature and the bound on ρ with which a branch is passive, whatever curvatures a_k its f_i has.

    In the direction of a_k ≥ 0 the branch answers, with φ = T a_k/(1 − (1 − lr a_k)^steps) ≥ 1 and m = βρT/φ,

        j⁺ = (1 − m) j + m a_k e + β dx        Z(z) = (m a_k + β(z − 1))/(z − 1 + m)

    Z is positive real, so that the branch gives no energy to the circuit, where m ≤ 2 and ρT a_k/φ ≤ 2. A mean of the
    curvatures says little about the flattest direction, φ = 1, and nothing about the steepest but a_k ≤ tr H. Hence
    βρT ≤ 3/2, which halves an error of the flow in each round at least, and ρ min(1, T tr H) ≤ 2.

    Args:
        T: simulated times.
        h: the curvature, its mean or the diagonal.
        trace: tr H.
    """
    return torch.minimum(h, FIRM / T), 2 / (T * trace).clamp(max=1)


def passivity(gradient: Vec, J: Vec, kappa: Factor = 1.0) -> Float[Tensor, "*k 1"]:
    """s = min(1, κ‖∇f‖/‖J‖): a flow may not push harder than the client's own gradient resists.

    [d] gives [1], a stack's [k, d] gives [k, 1]. The client then runs with sJ, and S changes by Σ p_i (s_i − 1)J_i.
    κ ≥ 1 keeps the fixed point, where J_i = ∇f_i.
    """
    limit, size = kappa * gradient.norm(dim=-1, keepdim=True), J.norm(dim=-1, keepdim=True)
    return torch.where(size > limit, limit / size, torch.ones_like(size))


def flow(J: Vec | float, D: Vec, dx: Float[Tensor, " d"], rho: Factor, beta: Factor) -> Vec:
    """J + β(dx − ρD): a client's update of its flow (42) once it knows the move dx of x_c; of J = 0 the change alone.

    Args:
        J, D: flow and displacement [d]; a stack's [k, d].
        dx: move of x_c [d].
        rho: Tw/T; a stack's [k, 1].
        beta: `conductance`, a number or a diagonal; a stack's [k, 1] or [k, d].
    """
    return (D * -rho).add_(dx).mul_(beta).add_(J)
