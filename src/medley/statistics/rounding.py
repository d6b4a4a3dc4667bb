"""What leaves of an outcome is on a grid: exact sums are a knapsack, from which lattices find the outcome of each row.

Who knows the other columns, and Xᵀy to the last digit, finds the only y of zeros and ones with that sum. So a site has
orthonormal directions q of its design and rounds each qᵀy to a power of two, about a thousandth of its standard
deviation; to a larger one if it has so few rows that these numbers would tell half of a whole-number outcome's bits.
Under a canonical link score, likelihood and deviance are functions of these, so that all steps, and other
fits within the same directions, tell nothing more. What depends on the outcome in another way is rounded each time. The
site's account has the bits of each column: log₂ of six deviations over the grid's step for each number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .analysis import lower, tensor, triangle
from .families import Canonical, Family, OutcomeSums
from .scoring import BAD, CHI2, DEVIANCE, GRID, LLF, NULL, OPEN, OVER, Curve, N, Point
from .site import APART, SHARE, Site, share_of

COARSE = 0.1
"""The grid of a χ² that is only printed, as a share of its standard deviation."""

WIDEST = 0.25
"""The widest grid of a sum of an outcome, as a share of its standard deviation."""

LOCAL_STEPS = 8
"""A site's own steps before the first sum."""

CONVERGED = 1e-6
"""A site's own steps end once the last has changed each mean by less than this share: the next would by its square."""

MOST_STEPS = 12
"""The most values of an outcome in equal steps that counts as whole numbers in another code."""


@dataclass(frozen=True)
class Outcome:
    """What a site tells of an outcome, with n rows, design X and weights w, rounded.

    Attributes:
        site, column, used: whose outcome it is, in which rows; ``most`` bits of whole numbers may leave
        a: by direction q of √w (1, X, offset): qᵀ √w y [k]
        R: these columns by direction [k, p + 2]
        sums: the squares of what the directions leave, for Gaussians; else Σ w y log y and Σ w log Γ(y + 1), or Σ log y
            and Σ y², for Poisson and gamma
    """

    site: Site
    column: str
    used: np.ndarray
    integers: bool
    most: int
    a: np.ndarray
    R: np.ndarray
    sums: np.ndarray

    @classmethod
    def of(
        cls, site: Site, column: str, used: np.ndarray, family: Family, r: Any, shifted: bool, most: int = 0
    ) -> Outcome:
        """The rounded sums; ``shifted`` if the offset is subtracted from the outcome; by default a bit for each row."""
        root = np.sqrt(r.w)
        y = r.y - r.offset * shifted
        n, most = len(r.y), most or len(r.y)
        Q, R = directions(root[:, None] * np.column_stack([np.ones(n), r.X, r.offset]))
        integers = in_steps(r.y)
        z = root * y
        a = Q.T @ z
        rest = z - Q @ a
        deviation = float(np.std(z))
        spread = max(float(np.sqrt(rest @ rest / n)), 1e-4 * deviation)
        outcome = cls(site, column, used, integers, most, a, R, np.zeros(2))
        keys = [site.digest(used, root * q) for q in Q.T]
        share = SHARE
        if integers:
            share = share_of(most / 2 / max(len(a), 1), SHARE, WIDEST)
        a = outcome.rounded(a, np.full(len(a), spread), keys, share, prior=APART * deviation)
        terms = family.constants(r.y, r.w, rest) if isinstance(family, Canonical) else (0 * y, 0 * y)
        V = np.array(terms).T
        of = site.digest(used, r.w) if not family.homoscedastic else "".join(sorted(keys))[:64]
        sums = outcome.rounded(V.sum(0), np.sqrt(n) * V.std(0), [f"{family.name} {k} {of}" for k in range(2)])
        return cls(site, column, used, integers, most, a, R, sums)

    def rounded(
        self, values: Any, spread: Any, keys: list[str], share: float | None = None, prior: float = 0.0
    ) -> np.ndarray:
        """These sums on their grids, in the account under their keys."""
        most = float(self.most) if self.integers else np.inf
        return self.site.rounded(self.column, np.atleast_1d(values), np.atleast_1d(spread), keys, most, share, prior)

    @cached_property
    def total(self) -> float:
        """Σ w y."""
        return float(self.R[:, 0] @ self.a)

    @cached_property
    def Xy(self) -> np.ndarray:
        """Xᵀ W y [p]."""
        out: np.ndarray = self.R[:, 1:-1].T @ self.a
        return out

    def events(self, X: np.ndarray, event: np.ndarray) -> np.ndarray:
        """Rows with the event in each column of zeros and ones [p], exact and in the account; 0 for other columns."""
        counts = np.zeros(X.shape[1])
        bits = dict[str, float]()
        for j, x in enumerate(X.T):
            if ((x == 0) | (x == 1)).all():
                counts[j] = x @ event
                bits["events " + self.site.digest(self.used, x)] = float(np.log2(1 + 3 * np.sqrt(x.sum())))
        self.site.spend(self.column, bits, float(self.used.sum()) if self.integers else np.inf)
        return counts

    def start(self, family: Any, link: Any, r: Any, canonical: bool, alpha: float) -> tuple[np.ndarray, np.ndarray]:
        """Weights [n] and right side [p] of the site's own weighted regression, from its rounded sums alone."""
        Xy = self.Xy
        if canonical and family.canonical == "identity":
            return r.w, Xy
        mean = self.total / float(r.w.sum())
        if not family.inside(np.array([mean])).all():
            mean = (self.total + 0.5) / float(r.w.sum() + 1.0)
        mu = np.full(len(r.y), mean)
        eta = link.link(mu)
        weight = r.w
        right = 0 * Xy
        converged = False
        for further in reversed(range(LOCAL_STEPS if canonical else 1)):
            with np.errstate(all="ignore"):
                V = family.variance(mu, alpha)
                slope = link.slope(mu)
                new = r.w * slope**2 / V
            if not np.isfinite(new).all() or new.sum() ** 2 < 0.1 * len(mu) * (new @ new):
                break
            weight = new
            right = r.X.T @ (weight * (eta - r.offset)) + (slope / V)[0] * (Xy - r.X.T @ (r.w * mu))
            if not further or converged:
                break
            b = np.linalg.lstsq(r.X.T @ (weight[:, None] * r.X), right, rcond=None)[0]
            before = mu
            with np.errstate(all="ignore"):
                eta = r.X @ b + r.offset
                mu = link.mean(eta)
                converged = (np.abs(mu - before) < CONVERGED * np.abs(mu)).all()
            if not (family.inside(mu) & np.isfinite(mu)).all():
                break
        return weight, right

    def figures(
        self, family: Canonical, M: np.ndarray, b: np.ndarray, r: Any, mu: np.ndarray, mean: float
    ) -> tuple[np.ndarray, OutcomeSums]:
        """Under a canonical link at β = M b: the score [p], and what the family's figures are computed from."""
        at = M @ b
        along = float(self.R[:, 1:-1] @ at @ self.a + self.R[:, -1] @ self.a)  # Σ w y η
        e = self.a - self.R[:, 1:-1] @ at
        e0 = self.a - mean * self.R[:, 0]
        sums = OutcomeSums(self.sums, self.total, along, float(e @ e), float(e0 @ e0))
        if family.homoscedastic:
            return (self.R[:, 1:-1] @ M).T @ e, sums
        g = M.T @ (self.Xy - r.X.T @ (r.w * mu))
        return -g if family.canonical == "inverse" else g, sums

    def closing(self, mu: np.ndarray, terms: np.ndarray, share: float | None) -> np.ndarray:
        """Sums of terms [n, k] that depend on the outcome in another way, at these means."""
        of = self.site.digest(self.used, mu)
        spread = np.sqrt(len(terms)) * terms.std(0)
        return self.rounded(terms.sum(0), spread, [f"{share} {of} {k}" for k in range(terms.shape[1])], share)


def in_steps(y: np.ndarray) -> bool:
    """Whether an outcome is whole numbers, or such in another code, as 0 and 0.5 or 1.5, 2.5 and 3.5 are."""
    values = np.unique(y)
    if len(values) == 1 or (values == np.rint(values)).all():
        return True
    places = (values - values[0]) / np.diff(values).min()
    return len(values) <= MOST_STEPS and bool(np.abs(places - np.rint(places)).max() < 1e-6)


def directions(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal columns Q [n, k] of A [n, p], in A's order, and R = Qᵀ A; columns that add nothing have none."""
    Q = np.zeros((len(A), 0))
    for column in A.T:
        if not column.any():
            continue
        rest = column
        for _ in range(3):
            rest = rest - Q @ (Q.T @ rest)
        size = np.linalg.norm(rest)
        if size > 1e-12 * np.linalg.norm(column) > 0:
            Q = np.column_stack([Q, rest / size])
    return Q, Q.T @ A


def rounded(
    glm: Any, r: Any, request: Point, up: Curve, X: np.ndarray, mu: np.ndarray, squares: Any, scores: Any
) -> Curve:
    """A site's curve from its rounded sums, for all that depends on the outcome.

    Args:
        glm, r, request: the analysis, the site's rows, and the request
        up, mu: the exact curve, and the means [n]
        X, squares, scores: columns as they are summed, Pearson's squares and scores by row
    """
    outcome = r.outcome
    sums = up.sums.numpy().copy()
    n = len(mu)
    if sums[BAD] > 0.5:  # the site sends only this fact
        sums[LLF : NULL + 3] = 0.0
        return Curve(up.g, up.H, up.O, up.meat, up.shape, tensor(sums))
    if not glm.canonical:
        size = float(np.sqrt(sums[CHI2] / n)) if glm.kind.dispersed else 1.0
        return _each_time(outcome, up, mu, f"{request.alpha} {request.null}", size)
    gaussian = glm.kind.homoscedastic
    M = np.eye(X.shape[1])
    if request.basis.numel():
        M[triangle(len(M))] = request.basis.numpy()
    g, outcome_sums = outcome.figures(glm.kind, M, request.b.numpy(), r, mu, request.mean)
    of, null = glm.kind.figures(outcome_sums, mu, r.w, request.mean)
    sums[DEVIANCE], sums[LLF : LLF + 2], sums[NULL : NULL + 3] = of[0], of[1:], null
    sums[OVER] = glm.kind.null_chi2(outcome_sums, n, request.mean) if glm.kind.scaled else 0.0
    meat = up.meat.numpy()
    closing = request.closing or bool(request.bread.numel())
    robust = glm.cov.startswith("HC")
    sums[CHI2] = of[0] if gaussian else 0.0
    if closing and not gaussian:
        sums[CHI2] = outcome.closing(mu, squares[:, None], None if glm.kind.dispersed else COARSE)[0]
    if robust:
        pairs = triangle(scores.shape[1])
        meat = outcome.closing(mu, scores[:, pairs[0]] * scores[:, pairs[1]], None) if closing else 0 * meat
    elif glm.cov == "cluster":
        meat = np.outer(g, g)[triangle(len(g))]
    sums[OPEN] = not closing and (robust or not gaussian)
    return Curve(tensor(g), up.H, up.O, tensor(meat), up.shape, tensor(sums))


def _each_time(outcome: Outcome, up: Curve, mu: np.ndarray, at: str, size: float) -> Curve:
    """The same under a link that is not canonical, where each step tells more; ``size`` is an outcome's deviation."""
    fields = [v.numpy() for v in (up.g, up.O, up.meat, up.shape, up.sums)]
    values = np.concatenate(fields)
    start = sum(map(len, fields[:-1]))
    spread = np.abs(values) / np.sqrt(len(mu))
    expected = np.maximum(np.diag(lower(up.H)), 0.0)
    spread[: len(expected)] = size * np.sqrt(expected)  # of a score, if the model is right
    spread[start + np.array([N, BAD, OPEN, GRID])] = 0.0
    of = outcome.site.digest(outcome.used, mu)
    values = outcome.rounded(values, spread, [f"{of} {at} {k}" for k in range(len(values))])
    values[start + GRID] = 1.0
    g, O, meat, shaped, sums = map(tensor, np.split(values, np.cumsum([len(v) for v in fields])[:-1]))
    return Curve(g, up.H, O, meat, shaped, sums)
