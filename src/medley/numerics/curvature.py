"""Leading eigenpairs of an agent's Hessian, and the server's solves with the pairs of all agents.

An agent decomposes AᵀA − Wᵀdiag(c)W: its data's part of the Hessian, minus the part that the server already holds. A d
× d matrix is made only if d is the smallest side.

Source: SHED (Dal Fabbro, Dey, Rossi & Schenato, "SHED: A Newton-type Algorithm for Federated Learning based on
Incremental Hessian Eigenvector Sharing", JMLR 25, 2024), sections 2 to 4.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..contract.types import Vec
from ..runtime import streams
from . import dense

Factor = Float[Tensor, "m d"]
"""A of a Hessian AᵀA + δI."""

Vectors = Float[Tensor, "q d"]
"""Eigenvectors, one per row."""

Values = Float[Tensor, " q"]
"""Their eigenvalues."""

LARGE = 1000
"""The order from which on Lanczos finds one in `FEW` of the eigenpairs sooner than LAPACK finds all of them."""

FEW = 20
"""See `LARGE`."""


@dataclass(frozen=True)
class Spectrum:
    """Eigenpairs of a matrix, the largest |eigenvalue| first.

    Attributes:
        d: order of the matrix.
        values: eigenvalues [r].
        basis: eigenvectors by rows [r, d]; or, if its rows are shorter, the factors B with eigenvectors B·Z, Z = [A;
            √|c| W].
        least: the eigenvalues that are not listed; unknown for a partial list.
        total: Σ|λ| over all eigenvalues; for a partial list their trace Σλ.
        partial: only some of the eigenpairs are listed.
    """

    d: int
    values: Float[Tensor, " r"]
    basis: Float[Tensor, "r k"]
    least: float
    total: float
    partial: bool = False

    def vectors(self, first: int, last: int, A: Factor, W: Vectors, c: Values) -> Float[Tensor, "r d"]:
        """Eigenvectors from number ``first`` up to before ``last``, by rows; A, W, c as in the decomposition."""
        rows = self.basis[first:last]
        return rows if rows.shape[1] == self.d else rows @ _stack(A, W, c)

    def next(self, q: int) -> float:
        """The largest |eigenvalue| not among the first ``q`` pairs."""
        return abs(float(self.values[q])) if q < len(self.values) else self.least

    def mean(self, q: int) -> float:
        """The mean |eigenvalue| not among the first ``q`` pairs."""
        if q == len(self.values) and not self.partial:
            return self.least
        return max(self.total - float(self.values[:q].abs().sum()), 0.0) / (self.d - q)

    def extended(self, A: Factor, W: Vectors, c: Values, few: int) -> Spectrum:
        """A partial list with ``few`` more pairs, the leading ones of the rest. The listed ones stay."""
        V = self.basis
        more = decompose(A, torch.cat([W, V]), torch.cat([c, self.values]), few)
        basis = torch.cat([V, more.vectors(0, len(more.values), A, torch.cat([W, V]), torch.cat([c, self.values]))])
        return replace(self, values=torch.cat([self.values, more.values]), basis=basis, partial=more.partial)


def decompose(A: Factor, W: Vectors, c: Values, few: int | None = None) -> Spectrum:
    """Eigenpairs of AᵀA − Wᵀdiag(c)W that are not zero; of AᵀA alone, those above its smallest eigenvalue.

    Uses the Gram matrix of the rows if these are fewer than d, otherwise the matrix itself.

    Args:
        A: [m, d].
        W, c: rows [q, d] and their weights [q]; may be empty.
        few: if this is few enough of many, Lanczos finds them, and the list is partial.
    """
    d = A.shape[1]
    rows = len(A) + len(W)
    order = min(d, rows)
    if few is not None and order >= LARGE and few * FEW <= order:
        spectrum = _lanczos(A, W, c, few)
        if spectrum is not None:
            return spectrum
    if rows < d:
        values, basis = _by_gram(A, W, c)
    else:
        values, U = torch.linalg.eigh(A.T @ A - (W.T * c) @ W if len(W) else A.T @ A)
        basis = U.T
    least = 0.0 if rows < d or len(W) else max(float(values[0]), 0.0)
    size = values.abs()
    keep = torch.argsort(size, descending=True, stable=True)
    most = float(size.max()) if len(size) else 0.0  # the Gram matrix of zeros has no eigenpairs
    keep = keep[size[keep] - least > order * sys.float_info.epsilon * most]
    return Spectrum(d, values[keep], basis[keep], least, float(size[keep].sum()) + least * (d - len(keep)))


def excess(A: Factor, W: Vectors, c: Values) -> float:
    """‖AᵀA − Wᵀdiag(c)W‖² − ‖AᵀA‖², Frobenius norms: below 0 if Wᵀdiag(c)W is nearer to AᵀA than 0 is."""
    return float(c @ (W @ W.T).square() @ c - 2 * c @ (W @ A.T).square().sum(1))


def _stack(A: Factor, W: Vectors, c: Values) -> Float[Tensor, "z d"]:
    return torch.cat([A, c.abs().sqrt()[:, None] * W]) if len(W) else A


def _by_gram(A: Factor, W: Vectors, c: Values) -> tuple[Float[Tensor, " r"], Float[Tensor, "r k"]]:
    """With Z = [A; √|c| W] = UΘ^½Pᵀ and S = diag(1, −sign c) the matrix is ZᵀSZ: the eigenproblem of Θ^½UᵀSUΘ^½."""
    Z = _stack(A, W, c)
    theta, U = torch.linalg.eigh(Z @ Z.T)
    keep = theta > len(Z) * sys.float_info.epsilon * theta[-1]
    theta = theta[keep]
    U = U[:, keep]
    if not len(W):
        return theta, (U / theta.sqrt()).T
    signs = torch.cat([A.new_ones(len(A)), -c.sign()])
    half = U * theta.sqrt()
    values, E = torch.linalg.eigh(half.T @ (signs[:, None] * half))
    return values, ((U / theta.sqrt()) @ E).T


def _lanczos(A: Factor, W: Vectors, c: Values, few: int) -> Spectrum | None:
    """The ``few`` pairs of largest |λ|; None if it did not converge, as on clustered spectra."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh  # many modules for one method

    d = A.shape[1]

    def times(v: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        return A.T @ (A @ v) - W.T @ (c * (W @ v))

    operator = LinearOperator((d, d), lambda v: times(torch.from_numpy(v.reshape(-1)).to(A)).cpu().numpy())
    try:
        values, U = eigsh(operator, few, which="LM", v0=streams.rng(0, "lanczos").normal(size=d))
    except ArpackNoConvergence:
        return None
    trace = float(A.square().sum() - c @ W.square().sum(1))
    lam = torch.from_numpy(values).to(A)
    basis = torch.from_numpy(U.T.copy()).to(A)
    first = torch.argsort(lam.abs(), descending=True)
    return Spectrum(d, lam[first], basis[first], 0.0, trace, partial=True)


@dataclass(frozen=True)
class Sketch:
    """All agents' eigenpairs at the server: Ĥ_i = Σ_j (λ_j − ρ_i)v_jv_jᵀ + Σ_base λ_j v_jv_jᵀ + ρ_i I.

    Attributes:
        V, lam: eigenvectors by rows [q, d], and eigenvalues [q].
        owner: the agent of each pair [q].
        base: marks pairs of an earlier Hessian, which later pairs correct [q].
        gram: VVᵀ [q, q]; None once there are more pairs than dimensions.
    """

    V: Vectors
    lam: Values
    owner: Int[Tensor, " q"]
    base: Bool[Tensor, " q"]
    gram: Float[Tensor, "q q"] | None

    @classmethod
    def none(cls, x: Vec) -> Sketch:
        """Nothing held; ``x`` gives shape, dtype and device."""
        V = x.new_empty(0, len(x))
        owner = torch.empty(0, dtype=torch.int64, device=x.device)
        return cls(V, V[:, 0], owner, owner > 0, V @ V.T)

    def count(self, agent: int) -> int:
        """Number of pairs of this agent."""
        return int((self.owner == agent).sum())

    def after(
        self, pairs: Mapping[int, tuple[Vectors, Values]], renewed: Collection[int] = (), based: Collection[int] = ()
    ) -> Sketch:
        """With more pairs.

        Args:
            pairs: eigenvectors and eigenvalues by agent.
            renewed: agents whose earlier pairs are dropped.
            based: agents whose earlier pairs become a base from now on.
        """
        keep = torch.tensor([i not in renewed for i in self.owner.tolist()], dtype=torch.bool, device=self.owner.device)
        old, gram = (self.V, self.gram) if bool(keep.all()) else (self.V[keep], None)
        if gram is None and self.gram is not None:
            gram = self.gram[keep][:, keep]
        new = torch.cat([V for V, _ in pairs.values()]) if pairs else old[:0]
        V = torch.cat([old, new]) if len(new) else old
        if len(V) > V.shape[1]:
            gram = None
        elif gram is None:
            gram = V @ V.T
        elif len(new):
            side = old @ new.T
            gram = torch.cat([torch.cat([gram, side], 1), torch.cat([side.T, new @ new.T], 1)])
        agents = list[int]()
        for i, (W, _) in pairs.items():
            agents += [i] * len(W)
        owner = torch.cat([self.owner[keep], torch.tensor(agents, dtype=torch.int64, device=keep.device)])
        marked = torch.tensor([i in based for i in owner.tolist()], dtype=torch.bool, device=keep.device)
        base = torch.cat([self.base[keep], keep.new_zeros(len(new))])
        base[: len(old)] |= marked[: len(old)]
        return Sketch(V, torch.cat([self.lam[keep], *(lam for _, lam in pairs.values())]), owner, base, gram)

    def weights(self, p: Mapping[int, float], rho: Mapping[int, float]) -> Values:
        """c with Σp_iĤ_i = VᵀcV + Σp_iρ_i I; 0 for agents not in ``p``."""
        agents = torch.arange(1 + int(self.owner.max())) if len(self.owner) else self.owner
        share = self.lam.new_tensor([p.get(i, 0.0) for i in agents.tolist()])
        floor = self.lam.new_tensor([rho.get(i, 0.0) for i in agents.tolist()])
        return share[self.owner] * (self.lam - torch.where(self.base, 0.0, floor[self.owner]))

    def bend(self, p: Mapping[int, float], rho: Mapping[int, float], v: Vec) -> float:
        """Σp_i vᵀĤ_iv over the agents in ``p``."""
        isotropic = sum(p_i * rho[i] for i, p_i in p.items()) * float(v @ v)
        return isotropic + float(self.weights(p, rho) @ (self.V @ v).square()) if p else 0.0

    def along(
        self,
        v: Vec,
        etas: Sequence[float],
        p: Mapping[int, float],
        rho: Mapping[int, float],
        g: Mapping[int, Vec],
        reported: Mapping[int, Values],
    ) -> list[float]:
        """Σp_i f_i(x − ηv) for every η, up to one constant: reported by the agents that answered, else modelled.

        The model of an agent that did not answer is −η·g_iᵀv + η²/2·vᵀĤ_iv.

        Args:
            v: direction [d].
            p, rho, g: weights, ρ_i and gradients of the agents.
            reported: losses at every η, from the agents that answered; at least one.
        """
        rest = {i: w for i, w in p.items() if i not in reported}
        down = sum(w * float(v @ g[i]) for i, w in rest.items())
        bend = self.bend(rest, rho, v)
        f = torch.stack([p[i] * reported[i] for i in sorted(reported)]).sum(0).tolist()
        return [f_k - eta * down + eta**2 / 2 * bend for eta, f_k in zip(etas, f, strict=True)]

    def curvature(self, c: Values, rho: float, v: Vec) -> float:
        """vᵀ(VᵀcV + ρI)v, at least ρ‖v‖²: pairs of an earlier Hessian may be subtracted."""
        return rho * float(v @ v) + max(float(c @ (self.V @ v).square()), 0.0)

    def solve(self, c: Values, rho: float, g: Vec) -> Vec:
        """(VᵀcV + ρI)⁻¹g: by Woodbury's identity while there are fewer pairs than dimensions, else by Cholesky.

        If that matrix is not positive, ρ gets a floor. Only then, since a permanent floor would affect well-posed
        problems too.
        """
        if self.gram is None:
            return dense.solve((self.V.T * c) @ self.V + rho * torch.eye(len(g)).to(g), g)
        scale = float(c.abs().max()) if len(c) else 1.0
        while rho < math.inf:
            if rho > 0 and (p := self._woodbury(c, rho, g)) is not None:
                return p
            rho = max(10 * rho, len(g) * sys.float_info.epsilon * scale)
        return g

    def _woodbury(self, c: Values, rho: float, g: Vec) -> Vec | None:
        """None if the matrix is not positive. U = √|c| V, with added rows + and subtracted rows −:
        it is positive iff ρI − U₋(I − U₊ᵀ(ρI + U₊U₊ᵀ)⁻¹U₊)U₋ᵀ is.
        """
        assert self.gram is not None
        root = c.abs().sqrt()
        plus = c >= 0
        G = root[:, None] * self.gram * root
        eye = torch.eye(len(c)).to(g)
        L, failed = torch.linalg.cholesky_ex((G + rho * eye)[plus][:, plus])
        if int(failed):
            return None
        X = torch.linalg.solve_triangular(L, G[plus][:, ~plus], upper=False)
        M, failed = torch.linalg.cholesky_ex((rho * eye - G)[~plus][:, ~plus] + X.T @ X)
        if int(failed):
            return None
        y = (root * (self.V @ g))[:, None]
        a = torch.linalg.solve_triangular(L, y[plus], upper=False)
        z = torch.empty_like(y)
        z[~plus] = torch.cholesky_solve(X.T @ a - y[~plus], M)
        z[plus] = torch.linalg.solve_triangular(L.T, a - X @ z[~plus], upper=True)
        return (g - self.V.T @ (root * z[:, 0])) / rho
