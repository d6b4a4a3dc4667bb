"""The rules of a site: which sums may leave it; see `medley.statistics.register` for what has left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..contract import BadData, Checked, at_least, in_range

MOST = 20_000
"""How many sets of few rows to try; beyond this number the figure is withheld."""


class Withheld(BadData):
    """A site's rules forbid a figure to leave."""


@dataclass(frozen=True)
class Rules(Checked):
    """A site's rules for the figures that may leave.

    Attributes:
        rows: the least number of rows that any figure, or any combination of figures, depends on. Default 5
        events: the same for rows with the event, and for rows without it. Default 5
        parameters: the most parameters of a fit, as a share of rows. Default a third
        pooled: whether that share is of all sites' rows together, and not of the site's own. Default False
        quantiles: whether quantiles and medians may leave: the histograms show single values to within a bin, about
            1/85 of a standard deviation, the least and the largest among them. Default True
        scores: whether counts of test rows by a model's probability may leave, from which an area under the ROC curve
            over all sites follows: they show single rows. Without them it is the mean of the sites' areas. Default
            False
        id: the column that names a patient, by which a register knows rows whose content was corrected; default "":
            rows are known by their content
        exact: whether figures leave with all their digits: sums of an outcome, from which whoever knows the other
            columns computes it for every row; and figures of a model on this site's rows and the gradient of its loss,
            from which whoever chooses the models learns who is among the rows. Default False: rounded or
            coarse ones; with rows=1, which lets a single row's value leave, a study's sums are not rounded
    """

    rows: Annotated[int, at_least(1)] = 5
    events: Annotated[int, at_least(1)] = 5
    parameters: Annotated[float, in_range(0.0, 1.0)] = 1 / 3
    pooled: bool = False
    quantiles: bool = True
    scores: bool = False
    id: str = ""
    exact: bool = False

    @property
    def rounded(self) -> bool:
        """Whether a study's sums leave rounded: not if a sum over a single row may leave, which tells its value."""
        return not self.exact and self.rows > 1


def recoverable(sets: Iterable[np.ndarray], least: int) -> bool:
    """Whether a linear combination of sums over these sets, bool [n] each, depends on fewer than ``least`` rows.

    Returns True, to be safe, if there are too many combinations to try.
    """
    A = np.array([s for s in sets if s.any()], dtype=bool)
    if least <= 1 or not len(A):
        return False
    atoms, counts = _atoms(A)
    if (atoms @ counts < least).any():
        return True
    return light(atoms.astype(float), counts, least)


def _atoms(sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows that are in the same sets [sets, n] as one [sets, atoms], and how many they are."""
    if len(sets) <= 12:  # a number for each combination
        places = np.arange(len(sets))[::-1, None]
        rows = np.bincount((2.0 ** places[:, 0] @ sets).astype(int))
        there = np.flatnonzero(rows)
        return there >> places & 1, rows[there]
    codes = np.zeros(sets.shape[1], np.int64)
    for k, eight in enumerate(np.packbits(sets, axis=0)):
        if k and k % 4 == 0:  # else the numbers become too large
            codes = np.unique(codes, return_inverse=True)[1]
        codes = 256 * codes + eight
    codes = codes.astype(np.uint16) if len(sets) <= 16 else codes  # which are sorted in a fifth of the time
    _, first, counts = np.unique(codes, return_index=True, return_counts=True)
    return sets[:, first], counts


def light(atoms: np.ndarray, counts: np.ndarray, least: int) -> bool:
    """The same for vectors [sets, atoms] of atoms that stand for so many rows each."""
    few = np.flatnonzero((counts < least) & atoms.any(0))
    if not len(few):
        return False
    s, u = np.linalg.eigh(atoms @ atoms.T)
    large = s > 1e-9 * s[-1]
    Q = (u[:, large] / np.sqrt(s[large])).T @ atoms  # an orthonormal basis of the row space
    # A vector of the space on the atoms T alone is there if Q_Tᵀ Q_T has the eigenvalue 1, so its trace is 1 at least.
    share = (Q**2).sum(0)
    few = few[np.argsort(-share[few])]
    for tried, places in enumerate(c for k in range(1, least) for c in _heavy(share[few].tolist(), k, 1 - 1e-7, 0)):
        T = few[places]
        if tried > MOST or (counts[T].sum() < least and np.linalg.eigvalsh(Q[:, T].T @ Q[:, T])[-1] > 1 - 1e-7):
            return True
    return False


def _heavy(share: list[float], k: int, sum: float, start: int) -> Iterator[list[int]]:
    """Places, from ``start`` on, of k of the descending shares that add up to at least this sum."""
    for i in range(start, len(share)):
        if share[i] * k < sum:
            return
        yield from ([i, *rest] for rest in (_heavy(share, k - 1, sum - share[i], i + 1) if k > 1 else [[]]))
