"""A window in sub-steps, in either form: the circuit's elements, one implicit step, its error, the step control."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...contract.errors import RecipeError
from ...contract.types import Vec
from ..chunks import ActiveVecs, Stack, gather, spans
from .branch import PerClient, positive, reach, sensitivity
from .central import Elements, not_negative, one_each

ActiveVecsOrColumn = Float[Tensor, "a #d"]


@dataclass(frozen=True)
class Circuit:
    """The elements of a circuit with ``a`` active branches.

    Attributes:
        p: weights [a].
        g: sensitivities, [a, 1] or diagonals [a, d].
        ell: inductance ℓ.
        C_c: the server's capacitance.
        cap: bound on the extrapolation t/T_i; one number, or one for each branch [a].

    Raises RecipeError for a negative ℓ or C_c, and for a g that is not positive, or infinite without an inductor.
    """

    p: PerClient
    g: ActiveVecsOrColumn
    ell: float
    C_c: float
    cap: float | PerClient = math.inf

    def __post_init__(self) -> None:
        for name in ("ell", "C_c"):
            not_negative("Circuit()", name, getattr(self, name))
        if len(self.g) and not float(self.g.min()) > 0:
            raise RecipeError("Circuit(): every sensitivity g must be positive.", "g")
        if self.ell == 0 and len(self.g) and math.isinf(float(self.g.max())):
            raise RecipeError("Circuit(): g = inf needs an inductor; set ell > 0 or a finite g.", "g")

    @classmethod
    def j_form(
        cls,
        T: PerClient,
        p: PerClient,
        elements: Elements = Elements(),  # noqa: B008  (frozen)
        h: PerClient | ActiveVecs | None = None,
    ) -> Circuit:
        """The J form: ℓ = λTw² has no scale of its own, and follows that of the learning rates.

        Args:
            T, p: simulated times and weights [a].
            elements: λ, q, C_c and the cap.
            h: curvatures, [a] or diagonals [a, d].
        """
        Tw = max(positive(T, "Circuit.j_form()"), default=0.0)
        cap = elements.cap[:, None] if isinstance(elements.cap, Tensor) else elements.cap
        g = sensitivity(T.double()[:, None], Tw, elements.q, _columns(h), cap)
        return cls(p, g, elements.lam * Tw**2, elements.C_c, elements.cap)

    @classmethod
    def i_form(cls, G: PerClient | ActiveVecs, L: float) -> Circuit:
        """The paper's circuit of conductances ``G`` [a] or [a, d] and inductance ``L``; the weights are inside I_i."""
        return cls(torch.ones(len(G), dtype=G.dtype, device=G.device), G[:, None] if G.ndim == 1 else G, L, 1.0)

    def at(self, c: slice) -> Circuit:
        """The same circuit for the coordinates ``c``."""
        return self if self.g.shape[1] == 1 else Circuit(self.p, self.g[:, c], self.ell, self.C_c, self.cap)


def _columns(h: PerClient | ActiveVecs | None) -> ActiveVecsOrColumn | None:
    return h[:, None] if h is not None and h.ndim == 1 else h


def be_step(circuit: Circuit, u: Vec, K: ActiveVecs, Gamma: ActiveVecs, S: Vec, dt: float) -> tuple[Vec, ActiveVecs]:
    """One implicit step to (u, K), eqs. (31)-(33), with the flows J^k frozen in the clients' response.

    With r = ℓ/dt, β = 1/(r + 1/g) and E_i = rK_i − Γ_i:

        u' = (C_c/dt·u − S − Σ p_i β_i E_i) / (C_c/dt + Σ p_i β_i)        K_i' = β_i(E_i + u')

    Args:
        u: x_c relative to the window's start [d].
        K: changes of the active flows [a, d].
        Gamma: synchronised states at the END of the step, relative to x_c at the window's start [a, d]. (33) prints
            them at the step's start.
        S: sum of all flows at the window's start [d].
        dt: length of the step.
    """
    r, c0 = circuit.ell / dt, circuit.C_c / dt
    beta = 1 / (r + 1 / circuit.g)
    W = circuit.p[:, None] * beta
    E = r * K - Gamma
    u1 = (c0 * u - S - (W * E).sum(0)) / (c0 + W.sum(0))
    return u1, beta * (E + u1)


def truncation(
    circuit: Circuit,
    u: tuple[Vec, Vec],
    K: tuple[ActiveVecs, ActiveVecs],
    Gamma: tuple[ActiveVecs, ActiveVecs],
    dt: float,
) -> tuple[float, float]:
    """Largest local truncation errors (ε_C of x_c, ε_L of the flows) of a step, eqs. (34)-(36).

    Half the step times the change of the derivative, both O(dt²). A quantity without its element (C_c = 0, ℓ = 0) is
    algebraic and has no such error: 0.

    Args:
        u, K, Gamma: as in `be_step`, each a pair: before the step and after it.
        dt: length of the step.
    """
    eps_C = eps_L = 0.0
    if circuit.C_c:
        node = (circuit.p[:, None] * (K[1] - K[0])).sum(0)  # the inactive flows are constant and drop out
        eps_C = dt / (2 * circuit.C_c) * float(node.abs().max())
    if circuit.ell:
        v0, v1 = (x - G - k / circuit.g for x, k, G in zip(u, K, Gamma, strict=True))
        eps_L = dt / (2 * circuit.ell) * float((v1 - v0).abs().max())
    return eps_C, eps_L


@dataclass(frozen=True)
class Controller:
    """Chooses the step h, a fraction of the window, so that every step's relative error stays below ``delta``.

    Attributes:
        delta: tolerance, > 0.
        first: first step of the first window.
        floor: smallest step. There any error is accepted, so a window has at most 1/floor + 1 steps.

    The square roots are there because the error of a backward-Euler step is O(h²).
    Raises RecipeError unless delta > 0 and 0 < floor ≤ first ≤ 1.
    """

    delta: float
    first: float = 0.2
    floor: float = 1 / 64

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise RecipeError(f"Controller(): delta is {self.delta}; a tolerance must be positive.", "delta")
        if not 0 < self.floor <= self.first <= 1:
            raise RecipeError("Controller(): needs 0 < floor <= first <= 1, in fractions of the window.", "first")

    def rejects(self, h: float, error: float) -> bool:
        """Whether a step of length ``h`` and this relative error must be done again, shorter."""
        return error > self.delta and h > self.floor * (1 + 1e-6)  # a halved rest may miss the floor by a rounding

    def shorter(self, h: float, error: float) -> float:
        """The length to try after a rejection."""
        return max(self.floor, h * max(0.2, 0.9 * math.sqrt(self.delta / error)))

    def next(self, h: float, error: float) -> float:
        """The length to try after an accepted step."""
        ideal = 0.9 * math.sqrt(self.delta / error) if error else math.inf
        return min(1.0, max(self.floor, h * min(2.0, max(0.3, ideal))))


@dataclass(frozen=True)
class Solution:
    """A window's result.

    Attributes:
        dx: move of x_c [d].
        K: changes of the active flows [a, d].
        S: sum of all flows after the window [d].
        Tw: length of the window.
        dts: accepted steps in simulated time; ``rejected`` counts the others.
        worst: largest error of an accepted step, relative to the clients' longest way.
        h: first step to try in the next window.
    """

    dx: Vec
    K: ActiveVecs
    S: Vec
    Tw: float
    dts: tuple[float, ...]
    rejected: int
    worst: float
    h: float

    @property
    def steps(self) -> int:
        """Number of accepted steps."""
        return len(self.dts)


@dataclass(frozen=True)
class _Window:
    """A window's constants: the circuit, the sum before it, the clients' lines, the chunks of coordinates."""

    circuit: Circuit
    S: Vec
    D: Stack
    times: list[float]
    start: ActiveVecs | None
    chunks: list[slice]

    def states(self, t: float, c: slice) -> ActiveVecs:
        """Γ_i(t) relative to x_c at the window's start [a, |c|]."""
        way = reach(self.times, t, self.circuit.cap, self.S)[:, None] * gather(self.D, c)
        return way if self.start is None else self.start[:, c] + way

    def attempt(self, u: Vec, u1: Vec, K: ActiveVecs, t: float, t1: float) -> float:
        """The step from t to t1: writes x_c's move into ``u1``, and returns the largest error, in units of x."""
        Tw, dt, error = max(self.times), t1 - t, 0.0
        for c in self.chunks:
            G0, G1, local, k = self.states(t, c), self.states(t1, c), self.circuit.at(c), K[:, c]
            u1[c], k1 = be_step(local, u[c], k, G1, self.S[c], dt)
            eps_C, eps_L = truncation(local, (u[c], u1[c]), (k, k1), (G0, G1), dt)
            error = max(error, eps_C, Tw * eps_L)
        return error

    def accept(self, u: Vec, K: ActiveVecs, t: float, t1: float) -> None:
        """Write the step's flows into ``K``; computed again, since a rejected step then costs no second [a, d]."""
        for c in self.chunks:
            K[:, c] = be_step(self.circuit.at(c), u[c], K[:, c], self.states(t1, c), self.S[c], t1 - t)[1]


def integrate(
    circuit: Circuit,
    S: Vec,
    D: Stack,
    T: PerClient,
    *,
    start: ActiveVecs | None = None,
    controller: Controller | None = None,
    h: float | None = None,
    chunk: int | None = None,
) -> Solution:
    """Integrate the circuit from 0 to the window's end Tw = max T_i (Algorithm 1). The caller adds K to the flows.

    Args:
        circuit: elements of the active branches.
        S: sum of all flows before the window [d].
        D: displacements of the active clients, [a, d] or a list.
        T: their simulated times [a].
        start: where they started, relative to x_c [a, d]; None for x_c.
        controller: step control; None takes exactly one step.
        h: the last window's ``Solution.h``; None for the controller's first.
        chunk: coordinates at a time; None for a size that fits the cache.

    An empty cohort changes nothing. Raises RecipeError for a T_i that is not positive.
    """
    times = positive(T, "integrate()")
    one_each("integrate()", len(T), D=D, p=circuit.p, g=circuit.g, start=D if start is None else start)
    K = torch.zeros(len(times), S.numel(), dtype=S.dtype, device=S.device)
    u, u1 = torch.zeros_like(S), torch.empty_like(S)
    h = h or (1.0 if controller is None else controller.first)
    if not times:
        return Solution(u, K, S.clone(), 0.0, (), 0, 0.0, h)
    circuit = Circuit(circuit.p.to(S), circuit.g.to(S), circuit.ell, circuit.C_c, circuit.cap)
    Tw, window = max(times), _Window(circuit, S, D, times, start, [*spans(S.numel(), S.device, chunk)])
    scale = max((float(window.states(Tw, c).abs().max()) for c in window.chunks), default=0.0)
    t, dts, rejected, worst = 0.0, list[float](), 0, 0.0
    while t < Tw:
        left = (Tw - t) / Tw
        pieces = 1 if controller is None else max(1, math.ceil(left / h - 1e-9))
        step = left / pieces if pieces <= 2 else h  # halving what is left of two avoids a sliver at the end
        t1 = Tw if pieces == 1 else t + step * Tw
        error = window.attempt(u, u1, K, t, t1)
        if error:
            error = error / scale if scale else math.inf
        if controller is not None and controller.rejects(step, error):
            h, rejected = controller.shorter(step, error), rejected + 1
            continue
        window.accept(u, K, t, t1)
        if controller is not None and step >= h:  # a step clipped at the window's end says nothing about the next
            h = controller.next(step, error)
        dts.append(t1 - t)
        u, u1, t, worst = u1, u, t1, max(worst, error)
    return Solution(u, K, (u - u1) * (-circuit.C_c / dts[-1]), Tw, tuple(dts), rejected, worst, h)
