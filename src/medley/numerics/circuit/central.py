"""The J form's central step: one backward-Euler step over the whole window, in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass

import torch
from torch import Tensor

from ...contract.errors import RecipeError
from ...contract.types import Vec
from ..chunks import ActiveVecs, Stack, gather, spans
from .branch import Column, PerClient, conductance, positive, reach


@dataclass(frozen=True)
class Elements:
    """The J form's elements.

    Attributes:
        lam: λ ≥ 0, the inductance ℓ = λTw² in units of the window squared.
        q: q ≥ 0, the distrust of extrapolated clients, see `branch.sensitivity`.
        C_c: the server's capacitance, ≥ 0.
        cap: bound on the extrapolation Tw/T_i; one number, or one for each client [a].

    Raises RecipeError for a negative or infinite λ, q or C_c.
    """

    lam: float = 1.0
    q: float = 0.0
    C_c: float = 0.0
    cap: float | PerClient = math.inf

    def __post_init__(self) -> None:
        for name in ("lam", "q", "C_c"):
            not_negative("Elements()", name, getattr(self, name))


def not_negative(where: str, key: str, value: float) -> None:
    """Raise RecipeError, naming the call ``where``, unless 0 ≤ value < ∞."""
    if not 0 <= value < math.inf:
        raise RecipeError(f"{where}: {key} is {value}; it must be a finite number >= 0.", key)


@dataclass(frozen=True)
class Windows:
    """The active clients' windows.

    Attributes:
        D: displacements y_i − x_c, [a, d] or a list of a vectors [d].
        T: simulated times Σ lr [a].
        p: weights p_i [a].
        h: curvatures, [a] or diagonals [a, d]; None for none.
    """

    D: Stack
    T: PerClient
    p: PerClient
    h: PerClient | Stack | None = None

    @property
    def curvature(self) -> PerClient | ActiveVecs | None:
        """``h`` as one tensor."""
        return self.h if self.h is None or isinstance(self.h, Tensor) else torch.stack([*self.h])


@dataclass(frozen=True)
class CentralStep:
    """The result of one step over the window.

    Attributes:
        dx: move of x_c [d].
        S: Kirchhoff's sum after the step [d].
        rho: ρ_i = Tw/T_i, [a, 1].
        beta: β_i [a, 1]; None under diagonal curvature, where each client computes its own.
        Tw: the window, the longest simulated time.
        J: the active clients' flows after the step, where they were given.

    Client i's flow changes by β_i(dx − ρ_i D_i), see `branch.flow`.
    """

    dx: Vec
    S: Vec
    rho: Column
    beta: Column | None
    Tw: float
    J: Stack | None = None


Beta = Column | Callable[[slice], ActiveVecs]
"""β_i as a column [a, 1]; or, under diagonal curvature, [a, |c|] of the coordinates c."""


@dataclass(frozen=True)
class Arrowhead:
    """System (33) of one step: the node, a branch per active client, and nothing between branches.

    Attributes:
        where: the public call, for errors.
        D, p, rho: displacements, weights and extrapolations of the branches.
        beta: conductances.
        C_c, Tw: the node's capacitance and the length of the step.
    """

    where: str
    D: Stack
    p: PerClient
    rho: Column
    beta: Beta
    C_c: float
    Tw: float


@dataclass(frozen=True)
class Buffers:
    """Vectors that a solve reads and writes: the sum ``S``, the move ``dx``, flows ``J`` before and ``J1`` after."""

    S: Vec
    dx: Vec
    J: Stack | None
    J1: Stack | None


def central_step(
    S: Vec,
    windows: Windows,
    elements: Elements = Elements(),
    *,
    J: Stack | None = None,
    inplace: bool = False,
    out: Vec | None = None,
    chunk: int | None = None,
) -> CentralStep:
    """One backward-Euler step of the J form over the whole window Tw = max T_i, eq. (33):

        dx = (Σ p_i β_i ρ_i D_i − S) / (C_c/Tw + Σ p_i β_i)    J_i ← J_i + β_i(dx − ρ_i D_i)    S ← −(C_c/Tw) dx

    The last is Kirchhoff's sum (31) at the step's end, over all clients. An empty cohort changes nothing.

    Args:
        S: Kirchhoff's sum over all clients before the step [d].
        windows: the active clients' displacements, times, weights and curvatures.
        elements: λ, q, C_c and the cap.
        J: the active clients' flows, shaped as ``windows.D``, updated here; None where the clients keep them.
        inplace: overwrite S and J. On long vectors fresh memory costs more than the arithmetic.
        out: takes dx [d].
        chunk: coordinates at a time; None for a size that fits the cache.

    Raises RecipeError for a T_i that is not positive.
    """
    T, h, where = windows.T, windows.h, "central_step()"
    lam, q, cap = elements.lam, elements.q, elements.cap
    times = positive(T, where)
    Tw = max(times, default=0.0)
    rho = reach(times, Tw, cap, S)[:, None]
    cap = cap[:, None] if isinstance(cap, Tensor) else cap
    beta: Beta
    if h is None or (isinstance(h, Tensor) and h.ndim == 1):
        beta = conductance(T.double()[:, None], Tw, lam, q, None if h is None else h.double()[:, None], cap)
    else:
        rows, column = h, T.to(S)[:, None]
        beta = lambda c: conductance(column, Tw, lam, q, gather(rows, c), cap)
    return _solve(Arrowhead(where, windows.D, windows.p, rho, beta, elements.C_c, Tw), S, J, inplace, out, chunk)


def steady_state(
    S: Vec,
    D: Stack,
    G: PerClient | Stack,
    *,
    J: Stack | None = None,
    inplace: bool = False,
    out: Vec | None = None,
    chunk: int | None = None,
) -> CentralStep:
    """ECADO's server at its steady state: x_c = (Σ G_i y_i − S)/Σ G_i and I_i = I_i^k + G_i(x_c − y_i).

    The limit of ever longer backward-Euler steps of the I form with the client states held still.

    Args:
        S: sum of all currents [d].
        D: y_i − x_c, [a, d] or a list.
        G: conductances, [a] or diagonals [a, d].
        J: the active clients' currents.
        inplace, out, chunk: as in `central_step`.
    """
    one = torch.ones(len(D), 1, dtype=S.dtype, device=S.device)
    beta: Beta
    if isinstance(G, Tensor) and G.ndim == 1:
        beta = G[:, None]
    else:
        rows = G
        beta = lambda c: gather(rows, c)
    system = Arrowhead("steady_state()", D, one[:, 0], one, beta, 0.0, math.inf)
    return _solve(system, S, J, inplace, out, chunk)


def _solve(
    system: Arrowhead, S: Vec, J: Stack | None, inplace: bool, out: Vec | None, chunk: int | None
) -> CentralStep:
    """Eliminate the branches, a chunk of coordinates at a time: an [a, d] temporary never exists."""
    beta, rho, a = system.beta, system.rho, len(system.p)
    one_each(system.where, a, rho=rho, D=system.D, J=system.D if J is None else J)
    column = None if callable(beta) else beta.to(S)
    dx = torch.empty_like(S) if out is None else out
    S1 = S if inplace else S.clone()
    J1: Stack | None = J
    if J is not None and not inplace:
        J1 = torch.empty_like(J) if isinstance(J, Tensor) else [*map(torch.empty_like, J)]
    if a:
        chunks, buffers = spans(S.numel(), S.device, chunk), Buffers(S1, dx, J, J1)
        if callable(beta):
            _by_coordinate(system, beta, buffers, chunks)
        else:
            _by_client(system, beta, buffers, chunks)
    else:
        dx.zero_()
    return CentralStep(dx, S1, rho, column, system.Tw, J1)


def one_each(where: str, a: int, **others: Sized) -> None:
    """Raise RecipeError, naming the call ``where``, unless each of ``others`` has a row per active client."""
    for name, value in others.items():
        if len(value) != a:
            raise RecipeError(f"{where}: {a} active clients, but {len(value)} rows of {name}.", name)


def _by_coordinate(
    system: Arrowhead, beta: Callable[[slice], ActiveVecs], buffers: Buffers, chunks: Iterator[slice]
) -> None:
    """Diagonal curvature: β_i differs by coordinate."""
    S, dx, J, J1 = buffers.S, buffers.dx, buffers.J, buffers.J1
    c0 = system.C_c / system.Tw
    for c in chunks:
        B, Dc, u = beta(c), system.rho * gather(system.D, c), dx[c]
        W = system.p.to(S)[:, None] * B
        torch.div(torch.linalg.vecdot(W, Dc, dim=0).sub_(S[c]), W.sum(0).add_(c0), out=u)
        torch.mul(u, -c0, out=S[c])
        if J is not None and J1 is not None:
            for i in range(len(system.p)):
                torch.addcmul(J[i][c], B[i], u - Dc[i], out=J1[i][c])


def _by_client(system: Arrowhead, beta: Column, buffers: Buffers, chunks: Iterator[slice]) -> None:
    """β_i is a number: dx is a matrix-vector product with D."""
    S, dx, D, J, J1 = buffers.S, buffers.dx, system.D, buffers.J, buffers.J1
    c0 = system.C_c / system.Tw
    b, r, w = beta[:, 0].tolist(), system.rho[:, 0].tolist(), system.p.tolist()
    total = c0 + math.fsum(wi * bi for wi, bi in zip(w, b, strict=True))
    if not total > 0:
        raise RecipeError(f"{system.where}: the active clients have no weight; give at least one of them p > 0.", "p")
    pull = [wi * bi * ri / total for wi, bi, ri in zip(w, b, r, strict=True)]
    pulls, back = torch.tensor(pull, dtype=S.dtype, device=S.device), -(beta * system.rho).to(S)
    for c in chunks:
        s, u = S[c], dx[c]
        if isinstance(D, Tensor):
            torch.addmv(s, D[:, c].T, pulls, beta=-1 / total, out=u)
        else:  # adding row by row beats a copy into a stacked buffer
            torch.mul(s, -1 / total, out=u)
            for row, alpha in zip(D, pull, strict=True):
                u.add_(row[c], alpha=alpha)
        torch.mul(u, -c0, out=s)  # Kirchhoff: exactly the sum of all flows after the step
        if isinstance(J, Tensor) and isinstance(J1, Tensor) and isinstance(D, Tensor):
            torch.addr(J[:, c], beta[:, 0].to(S), u, out=J1[:, c]).addcmul_(D[:, c], back)
        elif J is not None and J1 is not None:
            for i, (bi, ri) in enumerate(zip(b, r, strict=True)):
                torch.add(J[i][c], u, alpha=bi, out=J1[i][c]).add_(D[i][c], alpha=-bi * ri)
