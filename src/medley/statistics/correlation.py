"""Correlation: Pearson's of all rows from one matrix of second moments, Spearman's from histograms and then ranks.

**Reference**: Fisher, Metron 1, 1921, for the intervals of Pearson's; Bonett & Wright, Psychometrika 65, 2000, for
those of Spearman's.

**One round sends** (floats per site, p columns): what `PCA` sends; for Spearman's also two histograms of at most 1,024
bins for each column, with at least the rules' number of rows in each bin, and whether all values have at most 0 to 4
decimals [p, 5].

**Departures**: for Spearman's a row has the middle of the ranks that its bin may have. With δ_i the largest distance of
a row's true rank from it, and u' the centred middles, the angle between u' and the true ranks is at most
asin(√Σδ_i² / |u'|), and Spearman's correlation is the cosine of an angle: this is the stated error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..contract import Client, Cohort, Message, RecipeError, on_client
from ..contract.arguments import known_keywords
from ..contract.text import shown
from .analysis import Moments, Report, site_of, tensor
from .cells import printed
from .describe import BINS, Grid, curve_may, ends
from .extra import InNotebooks, needed
from .fit import Cost
from .moments import SecondMoments
from .rules import Withheld
from .site import Site

FEW = 7
"""Of scores with at most so many values each combination is counted."""

DECIMALS = 5
"""Of how many numbers of decimals, from 0 on, sites say whether all values have no more."""

WIDEST_JUMP = 0.5
"""The largest step between the scores of successive groups of a site's rows, as a share of their range."""


class Grids(Message):
    """Down: the bins of each column's histogram, see `describe.Grid` [p, 3]; the score of each bin [p, b], 0 until they
    are known; and the rows of all sites.
    """

    grids: Float[Tensor, "p 3"]
    scores: Float[Tensor, "p b"]
    rows: float


@dataclass(frozen=True)
class Correlation(SecondMoments):
    """Correlations of each pair of columns.

    Attributes:
        columns: numeric columns, at least two; rows with a missing value in one of them are left out
        method: Pearson's correlation, or Spearman's of ranks
        where: a condition on the rows, "age >= 18"; empty for all
    """

    call = "correlation"

    columns: Sequence[str]
    method: Literal["pearson", "spearman"] = "pearson"
    where: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.columns) < 2 or len({*self.columns}) < len(self.columns):
            raise RecipeError(
                f"correlation(columns={[*self.columns]}): name at least two columns, each once", "columns"
            )

    def round(self, s: Report, clients: Cohort) -> None:
        """Rows; means; deviations; for Spearman's histograms about them; then products."""
        _, rows = self.agreed(clients)
        n = float(rows[:, 0].sum())
        mean, deviation = self.centred(clients, n)
        angles = np.zeros(len(mean))
        if self.method == "spearman":
            p = len(mean)
            grids = np.array([_grid(m, d) for m, d in zip(mean, deviation, strict=True)], float)
            ask: Any = lambda method, scores: self.summed(clients, method, Grids(tensor(grids), tensor(scores), n))
            up = ask(self.histograms, np.zeros((p, 0))).sums.numpy()
            bins = up[DECIMALS * p :].reshape(p, 2, -1)
            alike = np.rint(up[: DECIMALS * p].reshape(p, -1)) == len(clients.ids)  # sites, by number of decimals
            steps = 10.0 ** -np.where(alike.any(1), alike.argmax(1), np.inf)
            tied = [step > 0.999 * 2.0**power for step, power in zip(steps, grids[:, 0], strict=True)]
            scores, wide = (np.array(v) for v in zip(*map(ranked, bins, tied), strict=True))
            up = ask(self.ranks, scores).sums.numpy()
        else:
            up = self.about(clients, self.products, mean, deviation, n)
        of = self.scattered(up, mean, deviation, n).of
        by = np.sqrt(np.maximum(np.diag(of), 1e-300))
        if self.method == "spearman":
            angles = np.arcsin(np.minimum(wide / (by * n / np.sqrt(12) * np.sqrt(n - 1)), 1.0))
        s.result = n, np.clip(of / np.outer(by, by), -1.0, 1.0), angles

    @on_client
    def histograms(self, me: Client[Any], request: Grids) -> Moments:
        """Rows by the first and by the last bin of groups of at least the rules' number of rows, by column."""
        site = site_of(me)
        used, X = self.numbers_of(site, request.rows)
        grids = [Grid(*map(int, g)) for g in request.grids.tolist()]
        most = max(g.bins for g in grids)
        out = np.zeros((len(grids), 2, most))
        decimals = [[np.allclose(x * 10**k, np.rint(x * 10**k), 1e-12, 1e-9) for k in range(DECIMALS)] for x in X.T]
        for k, (c, grid) in enumerate(zip(self.columns, grids, strict=True)):
            if not site.rules.quantiles:
                raise Withheld(
                    f"{site.name} withholds a histogram of {c}, as it does quantiles; method='pearson' needs none"
                )
            curve_may(site, c, used, str(tuple(grid)), "the histogram")
            out[k, :, : grid.bins] = ends(X[:, k], grid, site.rules.rows)
        return Moments(tensor(np.append(np.array(decimals, float), out)))

    @on_client
    def ranks(self, me: Client[Any], request: Grids) -> Moments:
        """Sums of the rows' scores by bin, and of the products of each pair, in units of all ranks' deviation."""
        site = site_of(me)
        used, X = self.numbers_of(site, request.rows)
        Z = np.zeros(X.shape)
        n = request.rows
        for k, (g, scores) in enumerate(zip(request.grids.tolist(), request.scores.numpy(), strict=True)):
            place = _places(X[:, k], Grid(*map(int, g)))
            self._refuse_steps(site, self.columns[k], used, scores, place)
            Z[:, k] = (scores[place] - (n + 1) / 2) / (n / np.sqrt(12))
        for j, k in combinations(range(len(self.columns)), 2) if site.rules.rows > 1 else ():
            site.combinations(Z[:, [j, k]])
        return self.multiplied(site, used, Z)

    def _refuse_steps(self, site: Site, c: str, used: np.ndarray, scores: np.ndarray, place: np.ndarray) -> None:
        """Raise Withheld for scores that are no ranks, by which the server would count the rows beyond a value; and for
        others than those that had their sums of these rows before.
        """
        if site.rules.rows <= 1:
            return
        mine = np.unique(scores[place])
        steps = np.diff(mine)
        steep = len(mine) > FEW and steps.max() > WIDEST_JUMP * (mine[-1] - mine[0])
        if (np.diff(scores) < 0).any() or steep:
            raise Withheld(
                f"{site.name} withholds ranks of {c}: its rows are at few places among those of all sites, so that "
                "ranks would count them; method='pearson' needs none"
            )
        digest = site.digest(used, scores[place])
        key = f"ranks of {c} {site.digest(used, np.ones(len(place)))}"
        if site.register.note(key, lambda: digest) != digest:
            raise Withheld(
                f"{site.name} withholds ranks of {c}: among other sites' rows its own had other ranks before"
            )


def _grid(mean: float, deviation: float) -> Grid:
    """Bins over six standard deviations on either side of the mean, of a width that is a power of 2."""
    power = int(np.ceil(np.log2(12 * deviation / BINS)))
    first = int(np.floor((mean - 6 * deviation) / 2.0**power))
    return Grid(power, first, int(np.floor((mean + 6 * deviation) / 2.0**power)) - first + 1)


def _places(x: np.ndarray, grid: Grid) -> np.ndarray:
    """The bins of rows; the outer ones are open."""
    places: np.ndarray = np.clip(np.floor(x / 2.0**grid.power).astype(int) - grid.first, 0, grid.bins - 1)
    return places


def ranked(bins: np.ndarray, tied: bool) -> tuple[np.ndarray, float]:
    """The middle of the ranks that a row in each bin may have [bins], and the root of the sum of squares of how far all
    rows' ranks may be from these.

    Args:
        bins: rows by the first and by the last bin of their group [2, bins]
        tied: whether all values in a bin are the same, so that they have one rank
    """
    begun, ended = np.rint(np.cumsum(bins, axis=1))
    before = np.append(0.0, ended[:-1])  # rows that are certainly in lower bins
    most = np.maximum(begun, before + 1)
    least = (before + 1 + np.maximum(ended, before + 1)) / 2 if tied else before + 1
    largest = (np.minimum(np.append(0.0, begun[:-1]), most - 1) + 1 + most) / 2 if tied else most
    far = np.maximum(largest - least, 0.0) / 2
    worst = np.zeros(int(ended[-1]))  # by place in the order of rows: of all bins that the row there may be in
    for a, b, d in zip(before.astype(int), most.astype(int), far, strict=True):
        np.maximum(worst[a:b], d, out=worst[a:b])
    return (least + largest) / 2, float(np.linalg.norm(worst))


class Correlations(InNotebooks):
    """Correlations of each pair of columns over all sites.

    Attributes:
        analysis, sites, cost: the analysis, the sites' names, and its exchanges and bytes
        n: rows of all sites
        errors: the largest error of each correlation [p, p]; 0 for Pearson's
    """

    def __init__(self, analysis: Correlation, sites: tuple[str, ...], result: Any, cost: Cost) -> None:
        self.analysis, self.sites, self.cost = analysis, sites, cost
        n, self._r, angles = result
        self.n = int(n)
        wide = np.add.outer(angles, angles)
        at = np.arccos(self._r)
        far = [np.cos(np.clip(at + sign * wide, 0.0, np.pi)) for sign in (-1, 1)]
        self.errors = np.maximum(far[0] - self._r, self._r - far[1]) * (wide > 0)
        np.fill_diagonal(self.errors, 0.0)

    def frame(self) -> Any:
        """The matrix of correlations."""
        columns = [*self.analysis.columns]
        return needed("pandas").DataFrame(self._r, columns, columns)

    @known_keywords
    def table(self, alpha: float = 0.05) -> Any:
        """A row for each pair: its correlation, the interval of 1 − ``alpha``, the p-value of Student's t, and the
        largest error by bins, which the interval does not have.
        """
        from scipy.stats import norm, t

        lines = {}
        for j, k in combinations(range(len(self._r)), 2):
            r = float(self._r[j, k])
            inside = min(max(r, -1 + 1e-16), 1 - 1e-16)
            spread = (1 + r**2 / 2) if self.analysis.method == "spearman" else 1.0
            half = float(norm.isf(alpha / 2) * np.sqrt(spread / (self.n - 3))) if self.n > 3 else np.inf
            low, high = np.tanh(np.arctanh(inside) + half * np.array([-1, 1]))
            statistic = abs(inside) * np.sqrt((self.n - 2) / (1 - inside**2)) if self.n > 2 else np.nan
            name = f"{self.analysis.columns[j]}, {self.analysis.columns[k]}"
            lines[name] = r, low, high, 2 * t.sf(statistic, self.n - 2), self.errors[j, k]
        columns = ["correlation", "lower", "upper", "p", "error"]
        return needed("pandas").DataFrame([*lines.values()], [*lines], columns=columns)

    def summary(self) -> str:
        """The pairs as text."""
        kind = shown(self.analysis.method.capitalize())
        head = f"{kind}'s correlations of {self.n} rows at {len(self.sites)} sites"
        return f"{head}\n{printed(self.table(), float_format=lambda v: f'{v:.4f}')}"
