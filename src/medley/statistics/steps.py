"""Cox's partial likelihood from sums over the rows that leave at each time, of one site or of all together.

With r = exp(xβ) and Z = (1, x), the risk set at a time has Σ r Z Zᵀ over the rows that leave then or later. If d rows
have the event at one time, Efron's method subtracts the share i/d of their own sums for the i-th, i = 0 … d − 1;
Breslow's subtracts nothing. If rows have weights, r is multiplied by them, and each of the d counts for their mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from .extra import needed
from .fit import Test
from .risksets import AtRisk

ROUNDING = 1e-12
"""A column's information at β = 0, if it is below this share of its squares, is only rounding."""


class Steps(NamedTuple):
    """Sums over the rows that leave at each of k times.

    Attributes:
        leave, tied: Σ r Z Zᵀ of all rows, and of rows with the event [k, p + 1, p + 1]
        n, d: the numbers of these rows [k]
        dead: Σ x of rows with the event, times their weights [k, p]
        shift: what has been subtracted from xβ of each row
        mass: the weights of rows with the event [k]; None if each is 1
        risk: Σ r Z Zᵀ of the rows at risk [k, p + 1, p + 1], if rows enter late or have strata
    """

    leave: np.ndarray
    tied: np.ndarray
    n: np.ndarray
    d: np.ndarray
    dead: np.ndarray
    shift: float = 0.0
    mass: np.ndarray | None = None
    risk: np.ndarray | None = None

    @classmethod
    def of(cls, X: np.ndarray, at: AtRisk, event: np.ndarray, b: np.ndarray, w: np.ndarray | None = None) -> Steps:
        """The sums of rows X [n, p] that are at risk at these places, and with weights w [n]."""
        place, k = at.place, at.k
        Z = np.column_stack([np.ones(len(X)), X])
        r = np.exp(X @ b) if w is None else w * np.exp(X @ b)
        ZZ = r[:, None, None] * Z[:, :, None] * Z[:, None, :]
        leave, tied, n, d, dead = (np.zeros((k, *v)) for v in (ZZ.shape[1:], ZZ.shape[1:], (), (), X.shape[1:]))
        out = cls(leave, tied, n, d, dead)
        for to, places, what in (
            (out.leave, place, ZZ),
            (out.tied, place[event], ZZ[event]),
            (out.n, place, 1.0),
            (out.d, place[event], 1.0),
            (out.dead, place[event], X[event] if w is None else w[event, None] * X[event]),
        ):
            np.add.at(to, places, what)
        out = out if at.first is None else out._replace(risk=at.sums(ZZ))
        return out if w is None else out._replace(mass=np.bincount(place[event], w[event], k))

    def of_columns(self, T: np.ndarray) -> Steps:
        """The sums of columns X, if these are the sums of X T."""
        back = np.pad(np.linalg.inv(T), ((1, 0), (1, 0)))
        back[0, 0] = 1.0
        leave, tied = (back.T @ A @ back for A in (self.leave, self.tied))
        return self._replace(leave=leave, tied=tied, dead=self.dead @ back[1:, 1:])

    def each(self, ties: str) -> Iterator[tuple[int, np.ndarray, float, float]]:
        """For each row with the event, from the last time on: its place, the risk set's Σ r Z Zᵀ, the share of tied
        rows that this lacks, and how much the row counts.
        """
        sums = np.zeros(self.leave.shape[1:])
        for k in reversed(range(len(self.d))):
            sums = sums + self.leave[k] if self.risk is None else self.risk[k]
            d = round(self.d[k])
            for i in range(d):
                share = i / d if ties == "efron" else 0.0
                yield k, sums - share * self.tied[k], share, 1.0 if self.mass is None else self.mass[k] / d

    def likelihood(self, b: np.ndarray, ties: str) -> tuple[float, np.ndarray, np.ndarray]:
        """The log partial likelihood at β, its gradient [p], and minus its Hessian [p, p]."""
        value = float(self.dead.sum(0) @ b)
        g = self.dead.sum(0)
        H = np.zeros((len(b), len(b)))
        squares = np.zeros(len(b))
        for _, S, _, w in self.each(ties):
            mean = S[0, 1:] / S[0, 0]
            second = S[1:, 1:] / S[0, 0]
            value = value - w * float(np.log(S[0, 0]))
            g = g - w * mean
            H = H + w * (second - np.outer(mean, mean))
            squares += w * np.diag(second)
        if not b.any():  # the server refuses such columns then
            same = np.diag(H) <= ROUNDING * squares
            H[same] = 0.0
            H[:, same] = 0.0
        return value, g, H

    def by_weight(self, X: np.ndarray, at: AtRisk, event: np.ndarray, b: np.ndarray, ties: str) -> np.ndarray:
        """The score's derivatives by the weights of the rows whose sums these are [n, p]: score residuals.

        Reference: Lin & Wei, JASA 84, 1989.
        """
        k, p = self.dead.shape
        hazard, tied = np.zeros((2, k, p + 1))
        middle = np.zeros((k, p))
        for j, S, share, w in self.each(ties):
            mean = S[0, 1:] / S[0, 0]
            step = w / S[0, 0] * np.append(1.0, mean)
            hazard[j] += step
            tied[j] += share * step
            middle[j] += mean / round(self.d[j])
        so_far = at.over(hazard) - event[:, None] * tied[at.place]
        out: np.ndarray = event[:, None] * (X - middle[at.place])
        out -= np.exp(X @ b)[:, None] * (X * so_far[:, :1] - so_far[:, 1:])
        return out

    def baseline(self, times: Any, ties: str) -> Any:
        """A frame by time: the hazard of a row with x = 0, its sum so far, and the survival exp(−sum)."""
        hazard = np.zeros(len(self.d))
        for k, S, *_ in self.each(ties):
            hazard[k] += np.exp(-self.shift) / S[0, 0]
        cumulative = np.cumsum(hazard)
        index = needed("pandas").Index(times, name="time")
        columns = {"hazard": hazard, "cumulative": cumulative, "survival": np.exp(-cumulative)}
        return needed("pandas").DataFrame(columns, index)

    def proportional(self, times: Any, ties: str, transform: Literal["km", "identity", "log"]) -> list[Test]:
        """Score tests of θ = 0 under β + θ g(t), for each column and for all: Schoenfeld's residuals against g.

        Reference: Grambsch & Therneau, Biometrika 81, 1994; R's cox.zph since survival 3.0.
        """
        from scipy.stats import chi2

        at_risk = self.n[::-1].cumsum()[::-1]
        left = np.cumprod(1 - self.d / np.maximum(at_risk, 1))
        g = {"km": 1 - np.append(1.0, left[:-1]), "log": np.log(np.maximum(times, 1e-300)), "identity": np.array(times)}
        p = self.dead.shape[1]
        way = g[transform]
        U = way @ self.dead
        I = np.zeros((3, p, p))
        for k, S, *_ in self.each(ties):
            mean = S[0, 1:] / S[0, 0]
            V = S[1:, 1:] / S[0, 0] - np.outer(mean, mean)
            U = U - way[k] * mean
            I = I + np.array([1.0, way[k], way[k] ** 2])[:, None, None] * V
        A = I[2] - I[1] @ np.linalg.solve(I[0], I[1])
        tests = [(float(U[j] ** 2 / A[j, j]), 1) for j in range(p)] + [(float(U @ np.linalg.solve(A, U)), p)]
        return [Test(statistic, df, float(chi2.sf(statistic, df))) for statistic, df in tests]
