"""Figures of test rows computed from sums, so that the sites' sums give the figure of all rows; and their intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..contract import Checked, RecipeError, at_least

Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


@runtime_checkable
class Summed(Protocol):
    """A metric that is a function of sums over rows. Sites send the sums, and the total gives the figure of all
    rows.
    """

    def __call__(self, outputs: Tensor, y: Tensor, /) -> float:
        """The figure of these rows."""

    def sums(self, outputs: Tensor, y: Tensor, /) -> Tensor:
        """The sums [k] over these rows."""

    def fits(self, sums: Tensor, rows: int, /) -> bool:
        """Whether so many rows can have these sums; Medley rejects a site's impossible sums."""

    def figure(self, sums: Tensor, /) -> tuple[float, float]:
        """The figure of the summed rows and its standard error; nan for a value that does not exist."""


@dataclass(frozen=True)
class AUROC(Checked):
    """The area under the ROC curve of two classes, from counts of rows by the logit of the second class.

    It counts rows of both classes in bins of asinh(4 logit), so that rare classes and sure models have their bins,
    too; the sites' counts add up to the counts of all rows. Two rows in one bin are a tie: `within` has the largest
    error that this can make, and the history's column ``<name>_within``.

    Attributes:
        bins: the number of bins; logits beyond ±1,000 share the outer ones

    Standard error: DeLong, DeLong and Clarke-Pearson, Comparing the areas under two or more correlated receiver
    operating characteristic curves, Biometrics 44 (1988).
    """

    bins: Annotated[int, at_least(2)] = 2000

    def __call__(self, outputs: Tensor, y: Tensor) -> float:
        """The area; nan without rows of both classes."""
        return self.figure(self.sums(outputs, y))[0]

    def sums(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Rows of the first class in each bin, then those of the second [2 bins]. Raises RecipeError for other outputs.

        Outputs are margins [n] or [n, 1], or one output for each of two classes [n, 2].
        """
        z = outputs.detach().double().cpu().reshape(len(outputs), -1)
        if z.shape[1] not in (1, 2):
            raise RecipeError(f"AUROC needs two classes, but the outputs are {list(outputs.shape)}", "metrics")
        logit = z[:, -1] - (z[:, 0] if z.shape[1] == 2 else 0.0)
        share = torch.asinh(4 * logit.nan_to_num()) / math.asinh(4 * 1000)  # of the way from 0 to the outer bins
        place = torch.clamp((self.bins * (1 + share) / 2).long(), 0, self.bins - 1)
        second = (y.cpu().reshape(-1) > 0).long()
        return torch.bincount(second * self.bins + place, minlength=2 * self.bins).double()

    def fits(self, sums: Tensor, rows: int) -> bool:
        """Whether so many rows can have these sums: whole numbers that add up to the number of rows."""
        return bool((sums >= 0).all() and (sums == sums.round()).all()) and float(sums.sum()) == rows

    def figure(self, sums: Tensor) -> tuple[float, float]:
        """The area and its standard error."""
        n, p = (part.numpy() for part in sums.double().reshape(2, self.bins))
        N = n.sum()
        P = p.sum()
        if not N or not P:
            return math.nan, math.nan
        below = np.cumsum(n) - n / 2
        above = np.cumsum(p[::-1])[::-1] - p / 2
        area = float(p @ below / (P * N))
        spread = (p @ (below / N - area) ** 2 / max(P - 1, 1) / P, n @ (above / P - area) ** 2 / max(N - 1, 1) / N)
        return area, math.sqrt(float(sum(spread)))

    def within(self, sums: Tensor) -> float:
        """The largest error of the area: half the share of pairs of rows of both classes that are in one bin."""
        n, p = sums.double().reshape(2, self.bins)
        return float(n @ p / (2 * n.sum() * p.sum())) if n.sum() and p.sum() else math.nan


def wilson(share: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a share of n rows: Wilson, Probable inference, JASA 22 (1927)."""
    middle = share + Z**2 / (2 * n)
    half = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return max(0.0, (middle - half) / (1 + Z**2 / n)), min(1.0, (middle + half) / (1 + Z**2 / n))


def pooled_error(parts: list[tuple[int, float, float]]) -> float:
    """The standard error of a mean over all rows, from each site's number of rows, mean and standard error.

    Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances (1979).
    """
    n = sum(k for k, _, _ in parts)
    mean = sum(k * m for k, m, _ in parts) / n
    squares = sum(k * (k - 1) * e**2 + k * (m - mean) ** 2 for k, m, e in parts)
    return math.sqrt(squares / max(1, n - 1) / n)
