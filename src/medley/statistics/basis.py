"""Combinations of a design's columns that are far from combinations of each other, so that a fit keeps its digits.

A date as 20240131, seconds since 1970, or a year beside its square differ from a multiple of another column by little,
and sums of squares lose the digits of that difference. Sites then sum columns X T instead, where T is upper triangular
with ones on its diagonal: first each column less its mean, then less what earlier columns explain. A fit to X T is one
to X.
"""

from __future__ import annotations

import numpy as np

from .scoring import Unfit

NEAR = 1e-4
"""If 1 − R² of a column, explained by earlier ones, is below this, it is replaced by its rest."""

SAME, SAME_MASKED = 1e-14, 1e-9
"""If a rest has less than this share of a column's squares about its mean, the column is a combination of others. Under
secure sums a share is not known to more digits."""

CONSTANT, CONSTANT_MASKED = 1e-20, 1e-13
"""The same of a column's squares about 0, beside an intercept."""


class Basis:
    """The combinations T [p, p] of the columns with these names."""

    def __init__(self, names: list[str], masked: bool = False, where: str = " over all sites") -> None:
        self.names, self.passes, self.T = names, 0, np.eye(len(names))
        self.same, self.constant = (SAME_MASKED, CONSTANT_MASKED) if masked else (SAME, CONSTANT)
        self.where, self.least, self.of = where, np.zeros(len(names)), dict[int, list[int]]()

    def improved(self, H: np.ndarray) -> bool:
        """Whether T has become another, given the squares H [p, p] of the columns X T.

        Raises Unfit, naming the column, if one is a combination of others.
        """
        squares, change = np.diag(H), np.eye(len(H))
        if (low := squares <= np.where(self.passes, self.least, 0.0)).any():
            raise Unfit(self._collinear(int(low.argmax())))
        if self.passes > 3:
            return False
        if not self.passes:
            rest = squares * self.same
            if "Intercept" in self.names:
                at = self.names.index("Intercept")
                about = np.maximum(squares - H[at] ** 2 / H[at, at], 0.0)
                far = (about < NEAR * squares) & (np.arange(len(H)) != at)
                rest = np.where(np.arange(len(H)) == at, rest, about * self.same)
                if far.any():
                    change[at, far] = -H[at, far] / H[at, at]
                    self.of, rest = (
                        {int(j): [at] for j in np.flatnonzero(far)},
                        np.where(far, self.constant * squares, rest),
                    )
            self.least = rest
        elif self.passes == 1:
            alone = [j for j, of in self.of.items() if self.names[of[0]] == "Intercept"]
            self.least[alone] = squares[alone] * self.same  # of the squares about the mean, which are known now
        if (change == np.eye(len(H))).all():
            change = self._rests(H / np.sqrt(np.outer(squares, squares)), np.sqrt(squares))
        self.passes += 1
        self.T = self.T @ change
        return not (change == np.eye(len(H))).all()

    def _rests(self, R: np.ndarray, size: np.ndarray) -> np.ndarray:
        """The change that takes from columns what earlier ones explain, from their correlations about 0."""
        change, use = np.eye(len(R)), list[int]()
        for j in range(len(R)):
            of = np.linalg.solve(R[np.ix_(use, use)], R[use, j])
            left = 1 - R[use, j] @ of
            if left < NEAR:
                change[use, j] = -of * size[j] / size[use]
                self.of[j] = [k for k, share in zip(use, of, strict=True) if abs(share) > 1e-6]
            if left > 1e-12:  # else its rest is known after the next sums
                use.append(j)
        return change

    def _collinear(self, j: int) -> str:
        of = self.of.get(j)
        what = f"a combination of {', '.join(self.names[k] for k in of)}" if of else "0 in each row"
        return f"collinear: {self.names[j]} is {what}{self.where}; leave one of them out"
