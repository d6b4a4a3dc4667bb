"""Second moments of numeric columns over all sites, for principal components and correlations.

**Reference**: Chan, Golub & LeVeque's two passes, "Algorithms for Computing the Sample Variance", The American
Statistician 37, 1983: sums of values; sums of squares about the common means; then sums of products about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..contract import BadData, Client, Cohort, Message, on_client
from .analysis import Analysis, Moments, lower, site_of, tensor, upper
from .site import APART, SHARE, Site

DUST = 1e-13
"""A deviation that is this share of the mean, or less, is of the last digits that float64 has."""


class Centre(Message):
    """Down: means and deviations over all sites [2, p], zeros and ones until they are known; and the rows of all."""

    of: Float[Tensor, "2 p"]
    rows: float


class Scatter(NamedTuple):
    """Rows, means [p], deviations [p] to scale by, and the covariance [p, p] of columns that are scaled by them."""

    n: float
    mean: np.ndarray
    deviation: np.ndarray
    of: np.ndarray


class SecondMoments(Analysis):
    """Base of analyses of the second moments of numeric columns."""

    columns: Sequence[str]
    where: str

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        return tuple(self.columns), ()

    def about(self, clients: Cohort, method: Any, mean: np.ndarray, deviation: np.ndarray, n: float) -> np.ndarray:
        """All sites' sums about these means, in units of these deviations."""
        request = Centre(tensor(np.array([mean, deviation])), n)
        sums: np.ndarray = self.summed(clients, method, request).sums.numpy()
        return sums

    def centred(self, clients: Cohort, n: float) -> tuple[np.ndarray, np.ndarray]:
        """Means and deviations [p]. Raises BadData, naming the column, for one that is the same in all rows."""
        p = len(self.columns)
        mean = self.about(clients, self.totals, np.zeros(p), np.ones(p), n) / n
        deviation = np.sqrt(np.maximum(self.about(clients, self.squares, mean, np.ones(p), n) / n, 0))
        for column, d, m in zip(self.columns, deviation, mean, strict=True):
            if d <= DUST * abs(m):
                raise BadData(
                    f"{self.call}: {column} is the same in all rows of all sites, {m:.6g}, but for the last digits of "
                    "float64; leave it out"
                )
        return mean, deviation

    def scattered(self, up: np.ndarray, mean: np.ndarray, deviation: np.ndarray, n: float) -> Scatter:
        """The covariance, from all sites' sums and products."""
        p = len(mean)
        shift = up[:p] / n
        of = (lower(tensor(up[p:])) - n * np.outer(shift, shift)) / (n - 1)
        return Scatter(n, mean + shift * deviation, deviation, of)

    def numbers_of(self, site: Site, rows: float) -> tuple[np.ndarray, np.ndarray]:
        """The site's rows [n], and its columns [n, p] there, once sums of them may leave."""
        used, _ = self.used(site)
        X = np.column_stack([site.column(used, c, 0.0) for c in self.columns])
        site.check_size(X.shape[1], len(X), int(rows))
        site.admit_fit(used, np.column_stack([np.ones(len(X)), X]), ["1", *self.columns], self.columns, None)
        return used, X

    @on_client
    def totals(self, me: Client[Any], request: Centre) -> Moments:
        """Sums of each column."""
        return self._sums(site_of(me), request, 1)

    @on_client
    def squares(self, me: Client[Any], request: Centre) -> Moments:
        """Sums of the squares of each column about its common mean, which lose no digits however far from 0 it is."""
        return self._sums(site_of(me), request, 2)

    def _sums(self, site: Site, request: Centre, power: int) -> Moments:
        used, X = self.numbers_of(site, request.rows)
        sums = []
        for name, x, mean in zip(self.columns, X.T, request.of[0].tolist(), strict=True):
            column = np.zeros(site.n)
            column[used] = x
            sums.append(site.moments(name, column, used, (power,), about=mean)[0])
        return Moments(tensor(np.array(sums)))

    @on_client
    def products(self, me: Client[Any], request: Centre) -> Moments:
        """Sums of each column and of the products of each pair, about the common means, by the deviations."""
        site = site_of(me)
        used, X = self.numbers_of(site, request.rows)
        mean, deviation = request.of.numpy()
        return self.multiplied(site, used, (X - mean) / deviation)

    def multiplied(self, site: Site, used: np.ndarray, Z: np.ndarray) -> Moments:
        """The sums of columns Z [n, p] and of the products of each pair, rounded unless rules are exact."""
        of = site.digest(used, Z @ np.arange(1, Z.shape[1] + 1))
        sums = Z.sum(0)
        scatter = Z.T @ Z
        for a, name in enumerate(self.columns):
            terms = np.column_stack([Z[:, a], Z[:, a, None] * Z[:, a:]])
            keys = [f"{name} {other} {of}" for other in ("1", *self.columns[a:])]
            values = np.array([sums[a], *scatter[a, a:]])
            values = site.rounded(name, values, np.sqrt(len(Z)) * terms.std(0), keys, np.inf)
            sums[a] = values[0]
            scatter[a, a:] = values[1:]
            for other, key in zip(self.columns[a + 1 :], keys[2:], strict=True):
                site.spend(other, {key: float(np.log2(APART / SHARE))} if site.rules.rounded else {})
        return Moments(tensor(np.concatenate([sums, upper(scatter)])))
