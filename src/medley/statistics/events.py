"""What a fit of Cox's model tells of who had the event: sums along directions of the design, on a grid.

With event indicators e [n], the partial likelihood at β is eᵀ L, its gradient eᵀ A and minus its Hessian Σ e_i V_i,
where

    L_i = x_i β − log S_i      A_i = x_i − m_i      V_i = M_i − m_i m_iᵀ

have no events in them; with weights of rows, L and A are multiplied by them. S_i, m_i and M_i are the sum of the
weights exp(xβ) of those at risk at i's time, and the means of x and x xᵀ under these weights. So the site tells qᵀe,
rounded as in `medley.statistics.rounding`, for orthonormal directions q of A and L at β = 0 and at the marks, points
near the fit that the server names. Every other answer is that of the projection Q Qᵀe in the place of e: exact to the
grid in A and L at the marks, and near in between.

If several rows leave at one time, Efron's method takes shares from 0 to 1 of the weights of the others with the event
from S_i; here it is those shares of the others' weights times their projections. So e is in L, and the directions told
are those of the derivatives. A site does not send a direction in which a few rows dominate, such as the last ones at
risk.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from .risksets import AtRisk, grouped
from .rounding import WIDEST
from .site import APART, DOMINANT, SHARE, Site, share_of


@cache
def shares() -> list[tuple[float, float]]:
    """Gauss's places and weights for the mean of Efron's logarithms over shares from 0 to 1."""
    return [(0.5 + 0.5 * u, 0.5 * w) for u, w in zip(*np.polynomial.legendre.leggauss(4), strict=True)]


class Events:
    """The rounded sums of one site's events.

    Args:
        site, column, used: whose events these are, the column that has them, and the rows [sites' n]
        X, at, event: the fit's rows [n, p], when they are at risk, and whether they have the event [n]
        ties: "efron" or "breslow"
        w: the rows' weights [n]
        marks: β at which directions are added, one after another [m, p]
        of: codes of the patient whose row it is [n]: they have no more bits than patients. None if each row is one
    """

    def __init__(  # noqa: PLR0913
        self, site: Site, column: str, used: np.ndarray, X: np.ndarray, at: AtRisk, event: np.ndarray,
        ties: str, marks: np.ndarray, w: np.ndarray, of: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        n, p = X.shape
        self.site = site
        self.column = column
        self.used = used
        self.X = X
        self.event = 1.0 * event
        self.w = w
        self.at = at
        self.of = np.arange(n) if of is None else of
        self.rows = np.bincount(self.of)
        self.patients = len(self.rows)
        self.ties, count = ties, float(self.event.sum())
        bits = float(np.log2(1 + APART * np.sqrt(n) * self.event.std()))
        site.spend(column, {f"count {site.digest(used, np.ones(n))}": bits}, self.patients)
        self.Q, self.sums = np.full((n, 1), n**-0.5), np.array([count * n**-0.5])
        self.spread = float(np.sqrt(count / n))
        self.share = share_of(self.patients / 2 / (2 * p + 2), SHARE, WIDEST)
        for b in (np.zeros(p), *marks):
            self._add_directions(np.column_stack(self.terms(b)[3:]))

    @property
    def weights(self) -> np.ndarray:
        """The projection of the events on the directions [n]."""
        out: np.ndarray = self.Q @ self.sums
        return out

    def _add_directions(self, columns: np.ndarray) -> None:
        """Tell the directions of these columns [n, k] that are new, each as exactly as its part in the column wants."""
        for column in columns.T:
            size = float(np.linalg.norm(column - column.mean()))
            rest = column
            for _ in range(3):
                rest = rest - self.Q @ (self.Q.T @ rest)
            new = float(np.linalg.norm(rest))
            if new > SHARE * size:
                q = rest / new
                few = np.sort(grouped(q**2, self.of))[1 - self.site.rules.rows :]
                if few[-1] > 0.5 or few.sum() > DOMINANT or self._most_told(q) > DOMINANT:
                    continue
                key = self.site.digest(self.used, q)
                share = self.share * size / new
                at = np.array([q @ self.event]), np.array([self.spread])
                new_sum = self.site.rounded(self.column, *at, [key], self.patients, share)
                self.Q, self.sums = np.column_stack([self.Q, q]), np.append(self.sums, new_sum)

    def _most_told(self, q: np.ndarray) -> float:
        """The largest share of a row's event, or of a patient's number of events, that the directions and q tell."""
        Q = np.column_stack([self.Q, q])
        by_patient = grouped(Q, self.of) / np.sqrt(self.rows)[:, None]
        return float(max((Q**2).sum(1).max(), (by_patient**2).sum(1).max()))

    def terms(self, b: np.ndarray) -> tuple[np.ndarray, ...]:
        """L [n] and A [n, p] at β, minus the Hessian [p, p] of the projection, and the directions of A and L."""
        X = self.X - self.X[(self.X @ b).argmax()]  # leaves them as they are, and no weight exceeds 1
        Z = np.column_stack([np.ones(len(X)), X])
        e = self.weights
        L = X @ b
        r = self.w * np.exp(L)
        A = X.copy()
        H = np.zeros((len(b), len(b)))
        slope = np.zeros(len(L))
        pull = np.zeros(X.shape)
        later = self.at.sums(r[:, None] * Z)[self.at.place]
        for share, w in shares() if self.ties == "efron" else [(0.0, 1.0)]:
            part = share * np.clip(e, 0.0, 1.0)  # of each other row of the same time
            taken = (part * r)[:, None] * Z
            S, *M = (later - self._at_same_time(taken) + taken).T
            m = np.array(M).T / S[:, None]
            v = w * self.w * e / S
            rest = self._at_same_time(v[:, None])[:, 0] - v
            pairs = self._at_same_time(v[:, None] * m) - v[:, None] * m
            before = self.at.over(
                np.bincount(self.at.place, v, self.at.k)
            )  # Σ v of rows that leave while it is at risk
            H = H + (X * (r * (before - part * rest))[:, None]).T @ X - (m * (w * self.w * e)[:, None]).T @ m
            L = L - w * np.log(S)
            A = A - w * m
            slope = slope + share * r * rest
            pull = pull + (share * r)[:, None] * (X * rest[:, None] - pairs)
        L, A = self.w * L, self.w[:, None] * A
        return L, A, H, A + pull, L + slope

    def untold(self, b: np.ndarray) -> float:
        """The largest share of a column's terms of the score at β that no direction tells, because few rows have it."""
        A = self.terms(b)[3]
        rest = np.linalg.norm(A - self.Q @ (self.Q.T @ A), axis=0)
        size = np.linalg.norm(A - A.mean(0), axis=0)
        at = size > SHARE * np.linalg.norm(A, axis=0)
        return float((rest[at] / size[at]).max(initial=0.0))

    def likelihood(self, b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The log partial likelihood of the projection at β, its gradient [p], and minus its Hessian [p, p]."""
        (L, A, H, *_), e = self.terms(b), self.weights
        return float(e @ L), e @ A, (H + H.T) / 2

    def _at_same_time(self, v: np.ndarray) -> np.ndarray:
        """Sums of v [n, k] over the rows that leave at each row's time."""
        return np.asarray(grouped(v, self.at.place)[self.at.place])
