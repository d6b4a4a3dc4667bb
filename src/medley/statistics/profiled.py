"""The likelihood of a linear mixed model from sums, profiled: a function of the random effects' relative covariance.

**Reference**: Bates, Mächler, Bolker & Walker, Journal of Statistical Software 67, 2015, section 2; Luo et al., "DLMM
as a lossless one-shot algorithm for collaborative multi-site distributed linear mixed models", Nature Communications
13, 2022, for sums by site.

Groups with equal M = ZᵀZ are a stratum. With B = [X y] and Λ the relative factor, the groups of a stratum
take Σ Wₐᵦ Σᵢ (ZᵢᵀBᵢ)ₐᵀ (ZᵢᵀBᵢ)ᵦ off BᵀB, W = Λ (I + ΛᵀMΛ)⁻¹ Λᵀ, and each adds log |I + ΛᵀMΛ| to the determinant. A
site's own effects come in the same way, by the sums of the site.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..contract import Stalled

STARTS = (1.0, 0.1, 0.3, 3.0)
"""Relative standard deviations, of groups and of sites, at the best of which the search begins."""

STEPS = 200
"""The most steps of Newton's from one start."""

ENOUGH = 1e-13
"""A step that promises less than this share of the criterion is the last."""

SINGULAR = 1e-4
"""A relative standard deviation below this is at the boundary, as in lme4."""

LARGEST = 1e6
"""Above this relative standard deviation the residuals are in the last digits of the sums."""


class Profile(NamedTuple):
    """The model at θ: −2 times the log-likelihood, or REML's criterion; β [p] with XᵀV⁻¹X, σ², and sums by site."""

    criterion: Tensor
    b: Tensor
    H: Tensor
    scale: Tensor
    by_site: Tensor


@dataclass
class Factor:
    """Λ [q, q] of groups, or of sites, in blocks that are lower triangular; ``turn`` [q, q] makes the effects of the
    columns' own units of those that are fitted.
    """

    sizes: list[int]
    turn: np.ndarray

    def __post_init__(self) -> None:
        starts = np.cumsum([0, *self.sizes])
        at = [np.tril_indices(size) for size in self.sizes]
        self.rows = np.concatenate([r + s for (r, _), s in zip(at, starts, strict=False)]) if at else np.zeros(0, int)
        self.columns = (
            np.concatenate([c + s for (_, c), s in zip(at, starts, strict=False)]) if at else np.zeros(0, int)
        )

    def of(self, theta: Tensor) -> Tensor:
        """Λ."""
        q = sum(self.sizes)
        places = torch.from_numpy(self.rows), torch.from_numpy(self.columns)
        return torch.zeros(q, q, dtype=torch.float64).index_put(places, theta)

    def start(self, size: float) -> np.ndarray:
        """θ of effects that have this relative deviation and are not correlated."""
        return np.where(self.rows == self.columns, size, 0.0)


@dataclass
class Likelihood:
    """Sums of all sites; e columns of B, the first p of them X, the last y.

    Attributes:
        gram: BᵀB by site [s, e, e]
        site: the site of each stratum [h]
        counts: its groups [h]
        M: its ZᵀZ [h, q, q]
        C: its sums of products of ZᵀB, symmetric in both effects [h, q, q, e, e]
        groups, sites: Λ of groups, and of sites
        S: the columns of the sites' effects as combinations of B's [e, k]
        total: Σy²
        n, p, reml: rows, fixed effects, and whether the likelihood is restricted
    """

    gram: Tensor
    site: Tensor
    counts: Tensor
    M: Tensor
    C: Tensor
    groups: Factor
    sites: Factor
    S: Tensor
    n: int
    p: int
    reml: bool
    total: float

    def at(self, theta: Tensor) -> Profile:
        """The model at θ: first of groups, then of sites."""
        k = len(self.groups.rows)
        K, logdet = self.gram, torch.zeros((), dtype=torch.float64)
        if k:
            L = self.groups.of(theta[:k])
            inner = torch.eye(len(L), dtype=torch.float64) + L.T @ self.M @ L
            W = L @ torch.linalg.solve(inner, L.T.expand_as(inner))
            K = K.index_add(0, self.site, -torch.einsum("hab,habjk->hjk", W, self.C))
            logdet = logdet + self.counts @ torch.logdet(inner)
        by_site = K
        if len(theta) > k:
            L = self.sites.of(theta[k:])
            across = self.S.T @ K
            inner = torch.eye(len(L), dtype=torch.float64) + L.T @ (across @ self.S) @ L
            half = L.T @ across
            K = K - half.mT @ torch.linalg.solve(inner, half)
            logdet = logdet + torch.logdet(inner).sum()
        A, p = K.sum(0), self.p
        b = torch.linalg.solve(A[:p, :p], A[:p, -1])
        rest = A[-1, -1] - A[:p, -1] @ b
        n = self.n - p * self.reml
        criterion = logdet + n * (1 + torch.log(2 * math.pi * rest / n))
        if self.reml:
            criterion = criterion + torch.logdet(A[:p, :p])
        return Profile(criterion, b, A[:p, :p], rest / n, by_site)

    def fit(self) -> np.ndarray:
        """θ of the least criterion. Raises Stalled if nothing is left of the outcome's variance."""
        pairs = ((a, b) for a in STARTS for b in STARTS)
        starts = [np.append(self.groups.start(a), self.sites.start(b)) for a, b in pairs]
        theta = self._descended(min(starts, key=self._value))
        if not float(self.at(torch.from_numpy(theta)).scale) * self.n > 1e-20 * self.total:
            raise Stalled("mixed: nothing is left of the outcome's variance, and the likelihood has no maximum")
        if np.abs(theta).max() > LARGEST:
            raise Stalled(
                "mixed: rows of a group differ in nothing that the fixed effects do not give, and the likelihood has "
                "no maximum; give one row for each group, and fit study.glm"
            )
        return theta

    def _value(self, theta: np.ndarray) -> float:
        with torch.no_grad():
            value = float(self.at(torch.from_numpy(theta)).criterion)
        return value if math.isfinite(value) else math.inf

    def _descended(self, x: np.ndarray) -> np.ndarray:
        """Newton's steps from x, each halved until the criterion falls; where it curves down, along that direction."""
        loss = lambda theta: self.at(theta).criterion
        of: Any = torch.autograd.functional
        f = self._value(x)
        for _ in range(STEPS):
            at = torch.from_numpy(x)
            g: np.ndarray = of.jacobian(loss, at).numpy()
            H: np.ndarray = of.hessian(loss, at).numpy()
            if not np.isfinite(H).all():
                break
            size, u = np.linalg.eigh(H)
            floor = 1e-10 * max(float(np.abs(size).max()), 1.0)
            along = u.T @ g
            saddle = (size < -1e-6) & (np.abs(along) < 1e-6)
            step = np.asarray(-u @ np.where(saddle, 0.1, along / np.maximum(np.abs(size), floor)))
            if not saddle.any() and abs(float(g @ step)) < ENOUGH * (1 + abs(f)):
                return np.asarray(x + step)
            step *= min(1.0, 2.0 * (1 + np.abs(x).max()) / max(float(np.abs(step).max()), 1e-300))
            to = next((y for y in (x + step / 2**k for k in range(30)) if self._value(y) < f), None)
            if to is None:  # in the last digits of the criterion
                return np.asarray(x + step) if not saddle.any() and np.abs(step).max() < 1e-4 else x
            x, f = to, self._value(to)
        return x

    def effects(self, theta: np.ndarray) -> np.ndarray:
        """The sites' effects [s, k], as predicted (BLUP), in the columns' own units."""
        k = len(self.groups.rows)
        found = self.at(torch.from_numpy(theta))
        L, K, p = self.sites.of(torch.from_numpy(theta[k:])), found.by_site, self.p
        across = self.S.T @ K
        left = across[:, :, -1] - across[:, :, :p] @ found.b
        inner = torch.eye(len(L), dtype=torch.float64) + L.T @ (across @ self.S) @ L
        own = L @ torch.linalg.solve(inner, (left @ L)[..., None])
        out: np.ndarray = own[..., 0].numpy() @ self.sites.turn.T
        return out
