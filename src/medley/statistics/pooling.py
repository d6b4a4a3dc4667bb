"""How each figure of a result may be pooled, and what left each site for it: the one rule for all analyses.

"exact": the figure is that of all sites' rows together. "approximate": it is that but for an error, which is an
estimate unless the words say "at most".
"not": it is no figure of all rows together, nor is a mean of sites' figures; the analysis that has one is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..wire.ledger import Entry
from .extra import needed
from .ordinal import FINE_STEPS
from .rounding import WIDEST
from .site import SHARE, share_of

MASKS = "secure "
"""How the exchanges of keys and masks are called in a ledger."""

STOP = 5
"""How many grids a fit may be away whose sums are rounded at each step, or that needs more than its score, as Cox's."""

MASKED = "1e-6 of it, by the steps of secure sums"


class Figure(NamedTuple):
    """A figure of a result: "exact", "approximate" or "not"; its error in words; and what to use instead."""

    name: str
    how: str
    error: str = ""
    instead: str = ""


class Grids(NamedTuple):
    """What the errors of a result depend on.

    Attributes:
        coarse: whether a site rounds its sums, or may do so: rules of sites on other machines are theirs
        secure: whether sums are masked
        k: the number of coefficients, 0 if there are none
        rows: the sites' numbers of rows, where the result has them
    """

    coarse: bool
    secure: bool
    k: int
    rows: list[float]

    def of(self, name: str, error: str = "", instead: str = "") -> Figure:
        """A figure from sums, with its ``error`` if sites round."""
        if self.coarse and error:
            return Figure(name, "approximate", error, instead)
        return Figure(name, "approximate", MASKED, instead) if self.secure else Figure(name, "exact", "", instead)

    def errors(self, directions: int, steps: int = 1) -> str:
        """The error of a coefficient from so many rounded sums of an outcome at each site, see `rounding`: an estimate,
        above what was met, and no bound.

        Args:
            steps: how many times sums are rounded; beyond 1 a fit may end `STOP` grids away
        """
        shares = [share_of(n / max(2, steps) / directions, SHARE, WIDEST) for n in self.rows]
        size = (STOP if steps > 1 else 1) * math.sqrt(directions * sum(s**2 for s in shares))
        return f"about {size:.1g} standard errors"


@dataclass(frozen=True, eq=False)
class Pooling:
    """How a result may be pooled, and what left for it.

    Attributes:
        figures: a frame by figure: how it may be pooled, with which error, and what to use instead
        left: a frame by site and sums: the exchanges, numbers and bytes that it sent, from the study's ledger
    """

    figures: Any
    left: Any

    @property
    def line(self) -> str:
        """Both in a line."""
        first = self.figures.iloc[0]
        by_site = self.left.groupby(level="site")[["numbers", "bytes"]].sum()
        sent = (f"{v}" if v == w else f"{v} to {w}" for v, w in zip(by_site.min(), by_site.max(), strict=True))
        what = "; ".join(filter(None, (f"{self.figures.index[0]}: {first['how']}", first["error"], first["instead"])))
        numbers, of_bytes = sent
        return f"pooled {what}. A site sent {numbers} numbers, {of_bytes} bytes. See .pooling"

    def __str__(self) -> str:
        frames = (self.figures.to_string(justify="left"), self.left.to_string())
        return "How figures may be pooled\n{}\n\nWhat left the sites\n{}".format(*frames)

    def _repr_html_(self) -> str:
        return str(self.figures.to_html() + self.left.to_html())


def pooling(
    analysis: Any, result: Any, coarse: bool, secure: Any, names: tuple[str, ...], entries: Iterable[Entry]
) -> Pooling:
    """What to say of a result.

    Args:
        coarse: whether a site rounds its sums
        secure: the study's secure sums, or None
        names: the sites
        entries: the ledger's of this analysis
    """
    pandas = needed("pandas")
    rows: Any = getattr(getattr(result, "fit", result), "rows", None)
    by_site = [float(n) for n in rows[:, 0]] if getattr(rows, "ndim", 0) == 2 else []
    grids = Grids(coarse, secure is not None, len(getattr(result, "names", ())), by_site)
    figures = FIGURES[analysis.call](grids, analysis, result)
    table = pandas.DataFrame(figures).rename(columns={"name": "figure"}).set_index("figure")
    sums: dict[tuple[str, str], list[int]] = {}
    for e in sorted(entries, key=lambda e: e.client):
        line = sums.setdefault((names[e.client], _meaning(analysis, e.method)), [0, 0, 0])
        is_masks = e.method.startswith(MASKS)
        for k, v in enumerate((1, 0 if is_masks else 8 * e.up // (64 if secure is None else secure.bits), e.up)):
            line[k] += v
    index = pandas.MultiIndex.from_tuples([*sums], names=["site", "sums"])
    left = pandas.DataFrame([*sums.values()], index, ["exchanges", "numbers", "bytes"])
    return Pooling(table, left)


def _meaning(analysis: Any, method: str) -> str:
    """What a site sends in an exchange: the first sentence about the client's part."""
    if method.startswith(MASKS):
        return "keys and masks of secure sums"
    text = " ".join((getattr(type(analysis), method).__doc__ or method).split())
    return text.partition(". ")[0].rstrip(".")


NO_MEAN = "no mean of sites' p-values: study.meta combines their estimates"
MOMENT = "about 0.001 standard deviations of the sum, for each site that rounds"


def _tests(g: Grids, error: str = "as its figures") -> Figure:
    return g.of("p-values", error, NO_MEAN)


def _fit(g: Grids, analysis: Any, result: Any) -> list[Figure]:
    g = g._replace(k=result.k)
    fit = result.glm
    each_step = not (fit.canonical or fit.kind.homoscedastic)
    error = g.errors(g.k, FINE_STEPS) if each_step else g.errors(g.k + 1)
    robust = "a few per cent where a site has about a hundred rows" if fit.cov != "model" or fit.weighting else error
    spread = g.of("standard errors", robust)
    return [g.of("coefficients", error), spread, _tests(g), g.of("log-likelihood, deviance, AIC", "about 0.001 of it")]


def _ordinal(g: Grids, analysis: Any, result: Any) -> list[Figure]:
    error = g.errors(g.k, FINE_STEPS)
    likely = g.of("log-likelihood, AIC", "about a tenth of the deviation that it has by chance")
    spread = g.of("standard errors", "a few per cent: they are by the expected information")
    return [g.of("coefficients, thresholds", error), spread, _tests(g), likely]


def _mixed(g: Grids, analysis: Any, result: Any) -> list[Figure]:
    error = g.errors(g.k + 1, 2)
    alone = Figure("effects of patients", "not", "they never leave", ".covariances for how far they differ")
    variances = g.of("standard errors, variances of random effects", "about 0.01 of them")
    return [g.of("coefficients", error), variances, _tests(g), g.of("log-likelihood, AIC", "about 0.001 of it"), alone]


def _margins(g: Grids, analysis: Any, result: Any) -> list[Figure]:
    first, *rest = _fit(g, analysis, result.fit)
    alone = Figure("predictions of a site's rows", "not", "they never leave", "fit.predict(frame) for rows of yours")
    return [first._replace(name="average predictions"), *rest[:2], alone]


def _cox(g: Grids, analysis: Any, result: Any) -> list[Figure]:
    if analysis.cuts:
        cut = "by how far times are from the next cut"
        return [Figure(name, "approximate", cut) for name in ("coefficients", "baseline hazard", "p-values")]
    error = g.errors(2 * g.k + 2, 2) + ", more if few rows are at risk last"
    baseline = Figure("baseline hazard", "not", "each site has its own", "study.cox(cuts=[...])")
    return [g.of("coefficients", error), g.of("standard errors", error), _tests(g), baseline]


def _curves(g: Grids, analysis: Any, result: Any) -> list[Figure]:
    far = max(result.moved.values(), default=0.0)
    error = f"times moved by {far:.2g} on average, and up to the next multiple of {analysis.unit:g}"
    if not far:
        error = f"times up to the next multiple of {analysis.unit:g}; none if they are multiples"
    known = [Figure("errors of weighted curves", "not", "weights are taken as known", "study.cox(weights=...)")]
    figures = [Figure(name, "approximate", error) for name in ("survival, medians, restricted means", "log-rank test")]
    return figures + (known if analysis.weighting else [])


def _table(g: Grids, analysis: Any, result: Any) -> list[Figure]:
    cells = [(name, c) for name, by in result.cells.items() for c in by.values()]
    far = {name: max(e for _, e in c.quantiles.values()) for name, c in cells if c.quantiles}
    return [
        g.of("means, standard deviations", MOMENT), g.of("counts"), _tests(g),
        *[Figure(f"quantiles of {name}", "approximate", f"{error:.2g}") for name, error in far.items()],
    ]  # fmt: skip


def _prepared(g: Grids, analysis: Any, result: Any) -> list[Figure]:
    medians = [Figure(f"median of {name}", "approximate", f"{error:.2g}") for name, error in result.errors.items()]
    return [g.of("means, standard deviations", MOMENT), g.of("categories, modes"), *medians]


def _correlations(g: Grids, analysis: Any, result: Any) -> list[Figure]:
    if analysis.method == "spearman":
        return [Figure("correlations", "approximate", f"{result.errors.max():.2g} at most"), _tests(g)]
    return [g.of("correlations", MOMENT), _tests(g)]


def _components(g: Grids, analysis: Any, result: Any) -> list[Figure]:
    alone = Figure("components of a site's single rows", "not", "they never leave", ".frame(rows) for rows of yours")
    return [g.of("variances, loadings", MOMENT), alone]


def _meta(g: Grids, analysis: Any, result: Any) -> list[Figure]:
    call = "study.cox" if analysis.event else "study.glm"
    others = Figure("estimates of sites", "not", "each is of one site", f"combined by this; all rows together: {call}")
    combined = Figure("combined estimates", "not", "they are means of sites' estimates", f"all rows together: {call}")
    return [combined, others, Figure("p-values of sites", "not", "", NO_MEAN)]


def _balance(g: Grids, analysis: Any, result: Any) -> list[Figure]:
    return [g.of("means, deviations, mean differences", MOMENT), g.of("numbers of rows")]


FIGURES: dict[str, Callable[[Grids, Any, Any], list[Figure]]] = {
    "glm": _fit, "margins": _margins, "cox": _cox, "kaplan_meier": _curves, "describe": _table, "prepare": _prepared,
    "correlation": _correlations, "pca": _components, "meta": _meta, "balance": _balance, "ordinal": _ordinal,
    "mixed": _mixed,
}  # fmt: skip
"""The figures of each analysis' result, by the analysis' name."""
