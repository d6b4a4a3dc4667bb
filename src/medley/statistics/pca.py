"""PCA: principal components of numeric columns over all sites, from one matrix of second moments.

**Reference**: Jolliffe, "Principal Component Analysis", Springer 2002; sums are Chan, Golub & LeVeque's two passes,
"Algorithms for Computing the Sample Variance", The American Statistician 37, 1983.

**One round sends** (floats per site, p columns): rows and which columns are text; p sums of values; p sums of squares
about the common means; then p sums and the triangle of p(p + 1)/2 products about them.

**Departures**: a component's sign is that of its largest loading, which is positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..contract import BadData, Client, Cohort, Message, RecipeError, at_least, on_client
from ..contract.arguments import known_keywords
from ..rows.columns import columns_of, is_frame, is_hugging_face
from .analysis import Analysis, Moments, Report, lower, site_of, tensor, upper
from .extra import InNotebooks, needed
from .fit import Cost
from .site import APART, SHARE, Site

DUST = 1e-13
"""A deviation that is this share of the mean, or less, is of the last digits that float64 has."""


class Centre(Message):
    """Down: means and deviations over all sites [2, p], zeros and ones until they are known; and the rows of all."""

    of: Float[Tensor, "2 p"]
    rows: float


@dataclass(frozen=True)
class PCA(Analysis):
    """Principal components.

    Attributes:
        columns: numeric columns, at least two; rows with a missing value in one of them are left out
        components: how many to show; default None: all
        scale: whether columns are divided by their deviations, so that their units do not matter. Default True
        where: a condition on the rows, "age >= 18"; empty for all
    """

    call = "pca"

    columns: Sequence[str]
    components: Annotated[int, at_least(1)] | None = None
    scale: bool = True
    where: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.columns) < 2 or len({*self.columns}) < len(self.columns):
            raise RecipeError(f"pca(columns={[*self.columns]}): name at least two columns, each once", "columns")
        if self.components is not None and self.components > len(self.columns):
            raise RecipeError(
                f"pca(components={self.components}): {len(self.columns)} columns have no more components", "components"
            )

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        return tuple(self.columns), ()

    def round(self, s: Report, clients: Cohort) -> None:
        """Rows; means; deviations about them; then the second moments, whose eigenvectors are the components."""
        _, rows = self.agreed(clients)
        n = float(rows[:, 0].sum())
        p = len(self.columns)

        def summed_about(method: Any, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
            """All sites' sums about these means, in units of these deviations."""
            sums: np.ndarray = self.summed(clients, method, Centre(tensor(np.array([mean, deviation])), n)).sums.numpy()
            return sums

        mean = summed_about(self.totals, np.zeros(p), np.ones(p)) / n
        deviation = np.sqrt(np.maximum(summed_about(self.squares, mean, np.ones(p)) / n, 0))
        for column, d, m in zip(self.columns, deviation, mean, strict=True):
            if d <= DUST * abs(m):
                raise BadData(
                    f"pca: {column} is the same in all rows of all sites, {m:.6g}, but for the last digits of float64; "
                    "leave it out"
                )
        up = summed_about(self.products, mean, deviation)
        shift = up[:p] / n
        scatter = (lower(tensor(up[p:])) - n * np.outer(shift, shift)) / (n - 1)
        mean = mean + shift * deviation
        by = np.sqrt(np.diag(scatter))
        scale = deviation * by if self.scale else np.ones(p)
        between = 1 / by if self.scale else deviation
        values, vectors = np.linalg.eigh(scatter * np.outer(between, between))
        vectors = vectors[:, ::-1]
        vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(0), np.arange(p)])
        s.result = n, mean, scale, np.maximum(values[::-1], 0), vectors

    def _numbers(self, site: Site, rows: float) -> tuple[np.ndarray, np.ndarray]:
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
        used, X = self._numbers(site, request.rows)
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
        used, X = self._numbers(site, request.rows)
        mean, deviation = request.of.numpy()
        Z = (X - mean) / deviation
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


class Components(InNotebooks):
    """Principal components of all sites' rows.

    Attributes:
        analysis, sites, cost: the analysis, the sites' names, and its exchanges and bytes
        n: rows of all sites
        mean, scale: what is taken off each column, and what it is divided by [p]
        variances: of the components, descending [k]
        explained: their shares of the variance of all columns [k]
        loadings: the components' coefficients in columns [p, k], each of length 1
    """

    def __init__(self, analysis: PCA, sites: tuple[str, ...], result: Any, cost: Cost) -> None:
        self.analysis = analysis
        self.sites = sites
        self.cost = cost
        n, self.mean, self.scale, values, vectors = result
        self.n = int(n)
        k = analysis.components or len(values)
        self.variances = values[:k]
        self.explained = self.variances / values.sum()
        self.loadings = vectors[:, :k]

    @known_keywords
    def frame(self, table: Any) -> Any:
        """The scores of a table's rows, a pandas frame with a column for each component, "PC1", "PC2" and so on.

        Raises BadData for what is no table, and for a table without one of the columns.
        """
        call = "components.frame(table)"
        if not is_frame(table) and not is_hugging_face(table):
            raise BadData(
                f"{call}: a {type(table).__name__} has no columns by name; give a frame, pandas.DataFrame(...)"
            )
        cells = columns_of(table, call)
        absent = [c for c in self.analysis.columns if c not in cells]
        if absent:
            raise BadData(f"{call}: the table has no column {absent[0]!r}; it has {', '.join(cells)}")
        columns = [np.asarray(table[cells[c]], np.float64) for c in self.analysis.columns]
        scores = (np.column_stack(columns) - self.mean) / self.scale @ self.loadings
        return needed("pandas").DataFrame(scores, columns=self._names)

    @property
    def _names(self) -> list[str]:
        return [f"PC{k + 1}" for k in range(len(self.variances))]

    def summary(self) -> str:
        """Shares of the variance, and loadings, as text."""
        width = max(map(len, [*self.analysis.columns, "share of variance"]))
        rows = [("", self._names), ("share of variance", [f"{v:.3f}" for v in self.explained])]
        rows += [(c, [f"{v:.3f}" for v in w]) for c, w in zip(self.analysis.columns, self.loadings, strict=True)]
        head = f"Principal components of {self.n} rows at {len(self.sites)} sites"
        return "\n".join([head, *(f"{name:<{width}}" + "".join(f"{v:>8}" for v in cells) for name, cells in rows)])
