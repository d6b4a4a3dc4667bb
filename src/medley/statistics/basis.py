"""Combinations of a design's columns that are far from combinations of each other, so that a fit keeps its digits.

Some columns are almost a multiple of another column: dates written as 20240131, seconds since 1970, or a year next to
its square. Sums of squares lose the digits of the small difference. Sites then sum columns X T instead, where T is
upper triangular with ones on its diagonal: first each column less its mean, then less what earlier columns explain. A
fit to X T is one to X. Under secure sums T multiplies each column by a power of two, too, see
`medley.statistics.scales`.
"""

from __future__ import annotations

import numpy as np

from .scales import CLOSER, FINER
from .scoring import Unfit

NEAR = 1e-4
NEAR_MASKED = 0.1
"""If 1 − R² of a column, explained by earlier ones, is below this, it is replaced by its rest. Under secure sums,
which have fewer digits, it is replaced sooner."""

SAME = 1e-14
"""If a rest has less than this share of a column's squares about its mean, the column is a combination of others."""

SAME_MASKED = 1e-13
"""The same under secure sums, where a share is not known to more digits."""

CONSTANT = 1e-20
"""The same of a column's squares about 0, beside an intercept."""

CONSTANT_MASKED = 1e-13
"""The same of a column's squares about 0, under secure sums."""


class Basis:
    """The combinations T [p, p] of the columns with these names.

    Args:
        scale: under secure sums, the exponents of the columns' root mean squares
        rows: the squares that such a column would have if its numbers were about 1
    """

    def __init__(
        self, names: list[str], where: str = " over all sites", scale: np.ndarray | None = None, rows: float = 1.0
    ) -> None:
        self.names = names
        self.passes = 0
        self.masked = scale is not None
        self.size = rows * 4.0**FINER
        self.T = np.eye(len(names)) if scale is None else np.diag(2.0**-scale)
        plain = (SAME, CONSTANT, NEAR)
        masked = (SAME_MASKED, CONSTANT_MASKED, NEAR_MASKED)
        self.same, self.constant, self.near = masked if self.masked else plain
        self.where, self.least, self.of, self.faint = where, np.zeros(len(names)), dict[int, list[int]](), 0

    def improved(self, H: np.ndarray) -> bool:
        """Whether T has become another, given the squares H [p, p] of the columns X T.

        Raises Unfit, naming the column, if one is a combination of others.
        """
        squares = np.diag(H)
        change = np.eye(len(H))
        if self.masked and self.faint < 3 and not self.passes and (squares < self.size / 4.0 ** (CLOSER / 2)).any():
            self.faint += 1  # too few digits to tell what explains a column
            self.T = self.T * self._larger(H)
            return True
        low = squares <= np.where(self.passes, self.least, 0.0)
        if low.any():
            raise Unfit(self._collinear(int(low.argmax())))
        if self.passes > (6 if self.masked else 3):
            return False
        if not self.passes:
            rest = squares * self.same
            if "Intercept" in self.names:
                at = self.names.index("Intercept")
                about = np.maximum(squares - H[at] ** 2 / H[at, at], 0.0)
                far = (about < self.near * squares) & (np.arange(len(H)) != at)
                rest = np.where(np.arange(len(H)) == at, rest, about * self.same)
                if far.any():
                    change[at, far] = -H[at, far] / H[at, at]
                    self.of, rest = (
                        {int(j): [at] for j in np.flatnonzero(far)},
                        np.where(far, self.constant * squares, rest),
                    )
            self.least = rest
        elif self.passes == 1:
            constant = [j for j, of in self.of.items() if self.names[of[0]] == "Intercept"]
            self.least[constant] = squares[constant] * self.same  # of the squares about the mean, which are known now
        if (change == np.eye(len(H))).all():
            change = self._rests(H / np.sqrt(np.outer(squares, squares)), np.sqrt(squares))
        self.passes += 1
        if self.masked:
            change = change * self._larger(change.T @ H @ change)
        self.T = self.T @ change
        return not (change == np.eye(len(H))).all()

    def _larger(self, H: np.ndarray) -> np.ndarray:
        """Powers of two [p] that scale the next columns, if their squares are about as large as the diagonal of H."""
        power = np.round(np.log2(self.size / np.maximum(np.diag(H), self.size / 4.0**CLOSER)) / 2)
        larger: np.ndarray = 2.0 ** np.where(np.abs(power) > 2, power, 0.0)
        self.least = self.least * larger**2
        return larger

    def _rests(self, R: np.ndarray, size: np.ndarray) -> np.ndarray:
        """The change that subtracts from each column what earlier columns explain, computed from their correlations
        about 0.
        """
        change = np.eye(len(R))
        use = list[int]()
        for j in range(len(R)):
            of = np.linalg.solve(R[np.ix_(use, use)], R[use, j])
            left = 1 - R[use, j] @ of
            if left < self.near:
                change[use, j] = -of * size[j] / size[use]
                self.of[j] = [k for k, share in zip(use, of, strict=True) if abs(share) > 1e-6]
            if left > 1e-12:  # else its rest is known after the next sums
                use.append(j)
        return change

    def _collinear(self, j: int) -> str:
        of = self.of.get(j)
        what = f"a combination of {', '.join(self.names[k] for k in of)}" if of else "0 in each row"
        return f"collinear: {self.names[j]} is {what}{self.where}; leave one of them out"
