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

from ..contract import BadData, Cohort, RecipeError, at_least
from ..contract.arguments import known_keywords
from ..rows.columns import columns_of, is_frame, is_hugging_face
from .analysis import Report
from .extra import InNotebooks, needed
from .fit import Cost
from .moments import SecondMoments


@dataclass(frozen=True)
class PCA(SecondMoments):
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

    def round(self, s: Report, clients: Cohort) -> None:
        """Rows; means; deviations about them; then the second moments, whose eigenvectors are the components."""
        _, rows = self.agreed(clients)
        n = float(rows[:, 0].sum())
        mean, deviation = self.centred(clients, n)
        up = self.about(clients, self.products, mean, deviation, n)
        _, mean, deviation, scatter = self.scattered(up, mean, deviation, n)
        by = np.sqrt(np.diag(scatter))
        scale = deviation * by if self.scale else np.ones(len(by))
        between = 1 / by if self.scale else deviation
        values, vectors = np.linalg.eigh(scatter * np.outer(between, between))
        vectors = vectors[:, ::-1]
        vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(0), np.arange(len(by))])
        s.result = n, mean, scale, np.maximum(values[::-1], 0), vectors


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
