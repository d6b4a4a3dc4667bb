"""Margins: averages over all rows of what a generalised linear model predicts, adjusted for the other columns.

**Reference**: Lane & Nelder, Biometrics 38, 1982, for standardisation; Agresti, "Categorical Data Analysis", 2013,
section 14.1, for the delta method. The figures are those of statsmodels' ``get_margeff``.

With μ_i(v) the mean that the model predicts for row i if its column had the value v, and C Cᵀ the covariance of β,

    m(v) = Σ_i μ_i(v) / n          the average prediction
    J(v) = Σ_i μ'_i(v) x_i(v) C / n    so that the covariance of m is J Jᵀ

For a slope, μ is replaced by its derivative by the column.

**One round sends** (floats per site, p parameters): what the fit sends; then p + 1 for each value, and n.

**Departures**: the standard error is that of β; the rows that are averaged over are taken as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from ..contract import BadData, Client, Cohort, RecipeError, WireError, on_client
from ..contract.arguments import known_keywords
from ..contract.text import shown
from .analysis import Moments, Report, packed, site_of, tensor, unpacked
from .cells import numbers, printed
from .families import LINKS, Link
from .fit import Coefficients, Cost, GLMFit
from .formulas import design, parsed, within
from .glm import GLM, Rows
from .scoring import Fitted, Point
from .site import Site, within_used

STEP = 1e-3
"""The step of a derivative of the columns, as a share of a column's deviation, or of a value under a logarithm."""

MOST_VALUES = 20
"""The most values of one question."""


class Chosen(Point):
    """Down: what a request of the fit has, the root C [p, p] of the covariance of β, the unit of means, and the values;
    none for a slope.
    """

    root: Float[Tensor, "p p"] = tensor(np.zeros((0, 0)))
    unit: float = 1.0
    values: UInt8[Tensor, " v"] = packed([])


@dataclass(frozen=True)
class Margins(GLM):
    """Average predictions of a generalised linear model, or the average slope of a column.

    Attributes:
        of: the column whose values are compared
        values: the values of this column, numbers or categories, the first of them to compare the others with; empty
            for all categories, and for the average slope of a number
        over: a condition on the rows of the fit to average over, "treated == 1"; empty for all
    """

    call = "margins"

    of: str = ""
    values: Sequence[float | str] = ()
    over: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting:
            remedy = (
                "weights by a propensity model compare treatments already: read the coefficient of glm(weights=...)"
            )
            raise RecipeError(f"margins(weights=...): {remedy}", "weights")
        f = parsed(self.formula)
        columns = (*f.numeric, *f.categorical)
        if self.of not in columns:
            raise RecipeError(
                f"margins(of={self.of!r}): name a column on the right of {self.formula!r}: {', '.join(columns)}", "of"
            )
        if len(self.values) > MOST_VALUES or len({*map(str, self.values)}) < len(self.values):
            raise RecipeError(f"margins(values=...): give at most {MOST_VALUES} values, each once", "values")
        wrong = [v for v in self.values if self.of in f.numeric and (isinstance(v, str) or not np.isfinite(v))]
        if wrong:
            raise RecipeError(f"margins(values=...): {self.of} has numbers, and {wrong[0]!r} is none", "values")

    @property
    def is_slope(self) -> bool:
        """Whether the result is an average slope."""
        return not self.values and self.of in parsed(self.formula).numeric

    def round(self, s: Report, clients: Cohort) -> None:
        """Fit, and ask for averages at the fit."""
        super().round(s, clients)
        fitted: Fitted = s.result[0]
        levels: dict[str, list[str]] = unpacked(fitted.point["terms"])
        values = self._checked_values(levels)
        p = len(fitted.names)
        size = abs(fitted.figures["mean"]) + np.sqrt(fitted.figures["scale"]) * self.kind.homoscedastic
        if self.is_slope:  # in the unit of a mean by that of the column, which errors have
            errors = np.linalg.norm(fitted.root, axis=1)
            size *= max(errors[[self.of in name for name in fitted.names]]) * np.sqrt(fitted.figures["nobs"])
        unit = 2.0 ** np.ceil(np.log2(size or 1.0))
        request = Chosen(
            **fitted.point, b=tensor(fitted.b[:p]), bread=tensor([]), alpha=fitted.alpha or 0.0,
            root=tensor(fitted.root), unit=float(unit), values=packed(values),
        )  # fmt: skip
        sums = self.summed(clients, self.averages, request).sums.numpy()
        each = sums[1:].reshape(-1, p + 1) / sums[0] * unit
        names = [f"{self.of}={v:g}" if not isinstance(v, str) else f"{self.of}={v}" for v in values]
        s.result = s.result, names or [f"slope of {self.of}"], each[:, 0], each[:, 1:], round(float(sums[0]))

    def _checked_values(self, levels: dict[str, list[str]]) -> list[Any]:
        """The values to compare, none for a slope. Raises RecipeError for a category that no site has."""
        if self.of not in levels:
            return [float(v) for v in self.values]
        categories = levels[self.of]
        values = [f"{v:g}" if isinstance(v, float) else str(v) for v in self.values]
        for value in values:
            if value not in categories:
                raise RecipeError.unknown(value, categories, "margins(values=...)")
        return values or categories

    @on_client
    def averages(self, me: Client[Any], request: Chosen) -> Moments:
        """Rows; and for each value the sums of the means, and of their derivatives by β times C."""
        site = site_of(me)
        levels = unpacked(request.terms)
        values = unpacked(request.values)
        if values != self._checked_values(levels):
            raise WireError("margins: the server asks for values that are not in this analysis")
        r = self._rows(site, request)
        used, _ = self.used(site)
        used = used if r.scored is None else within_used(used, r.scored.rows)
        at = self._averaged(site, used, levels, r, len(values))
        b = request.b.numpy()
        f = parsed(self.text)
        frame = site.at(used)
        if self.is_slope:
            X, change = r.X, self._changes(site, frame, levels)
            rows = [self._sums(site, X[at], r.offset[at], request, change[at])]
        else:
            rows = []
            for value in values:
                _, X = design(f, frame.assign(**{self.of: value}), levels, site.name)
                rows.append(self._sums(site, X[at], r.offset[at], request))
        sums = np.array(rows)
        if not np.isfinite(sums).all() or len(b) != r.X.shape[1]:
            raise BadData(f"{site.name}: margins(of={self.of!r}): no mean is possible there; give other values")
        return Moments(tensor([int(at.sum()), *(sums / request.unit).ravel()]))

    def _averaged(self, site: Site, used: np.ndarray, levels: Any, r: Rows, values: int) -> np.ndarray:
        """Which of the fit's rows are averaged over, once sums over them may leave."""
        p = r.X.shape[1]
        site.combinations(r.X, further=max(values, 1) * (p + 1))
        if not self.over:
            return np.ones(len(r.X), bool)
        f = parsed(self.text)
        columns, _ = self.reads
        picked, _ = site.rows(columns, self.over)
        both = picked & used
        site.least(int(both.sum()), f"over={self.over!r}")
        at = both[used]
        names, X = design(f, site.at(both), levels, site.name)
        others = within(f, site.at(both), levels, site.name, names, X)
        site.admit_fit(both, X, names, columns[1:], None, beside=others)
        site.combinations(X, further=max(values, 1) * (p + 1))
        return cast(np.ndarray, at)

    def _sums(
        self, site: Site, X: np.ndarray, offset: np.ndarray, request: Chosen, change: np.ndarray | None = None
    ) -> np.ndarray:
        """The sum of the means of rows X, or of their derivatives along a ``change`` of X, and its slopes [1 + p].

        Raises Withheld if coefficients, which the server chose, let a few rows decide these sums.
        """
        link: Link = LINKS[self.uses]
        b = request.b.numpy()
        C = request.root.numpy()
        with np.errstate(all="ignore"):
            mu = link.mean(X @ b + offset)
            slope = link.slope(mu)
            if not (self.kind.inside(mu) & np.isfinite(mu)).all() or not np.isfinite(slope).all():
                return np.full(len(b) + 1, np.nan)
        one = np.ones((len(mu), 1))
        site.effective(np.abs(slope), X)
        for weights in (np.abs(mu), 1 - mu) if self.uses == "logit" else ():
            site.effective(weights, one)
        if change is None:
            return np.append(mu.sum(), slope @ (X @ C))
        along = change @ b
        bend = link.bend(mu)
        return np.append(slope @ along, (bend * along) @ (X @ C) + slope @ (change @ C))

    def _changes(self, site: Site, frame: Any, levels: Any) -> np.ndarray:
        """The derivative of the design by the column [n, p], by differences that are exact for products and powers."""
        x = numbers(frame, self.of, site.name)
        f = parsed(self.text)
        size = np.full(len(x), float(x.std()) or 1.0)
        if any(name in f.right for name in ("log", "sqrt")):
            size = np.minimum(size, np.where(x, np.abs(x), size))
        h = 2.0 ** np.floor(np.log2(STEP * size))
        moved = [design(f, frame.assign(**{self.of: x + k * h}), levels, site.name)[1] for k in (-2, -1, 1, 2)]
        return cast(np.ndarray, (8 * (moved[2] - moved[1]) - (moved[3] - moved[0])) / (12 * h)[:, None])


class MarginsFit(Coefficients):
    """Average predictions, or an average slope, with the names of other fits: ``params``, ``bse``, ``conf_int()``.

    Attributes:
        margins, sites, nobs: the analysis, the sites' names, and the number of rows averaged over
        fit: the `GLMFit` that predicts
    """

    def __init__(self, margins: Margins, sites: tuple[str, ...], result: Any, cost: Cost) -> None:
        fitted, names, values, root, self.nobs = result
        super().__init__(names, values, root @ root.T)
        self.margins, self.sites = margins, sites
        self.fit = GLMFit(margins, sites, fitted, cost)
        self.exchanges, self.bytes_down, self.bytes_up = cost

    @known_keywords
    def contrasts(self, ratio: bool = False) -> Coefficients:
        """Differences of the averages from the first one; with ``ratio`` logarithms of ratios to it, for which
        ``frame(exp=True)`` gives ratios.

        Raises RecipeError if there is one value only, or for ratios of averages that are not above 0.
        """
        if len(self.b) < 2:
            raise RecipeError("contrasts(): there is one value, and nothing to compare it with; give two values=")
        if ratio and (self.b <= 0).any():
            raise RecipeError("contrasts(ratio=True): an average is not above 0; compare differences", "ratio")
        b = np.log(self.b) if ratio else self.b
        scale = 1 / self.b if ratio else np.ones(len(b))
        J = np.column_stack([-np.ones(len(b) - 1), np.eye(len(b) - 1)])
        sign = "/" if ratio else "-"
        names = [f"{name} {sign} {self.names[0]}" for name in self.names[1:]]
        return Coefficients(names, J @ b, J @ (self.covariance * np.outer(scale, scale)) @ J.T)

    def summary(self) -> str:
        """Averages, and their differences from the first, as text."""
        what = "Average slope" if self.margins.is_slope else "Average predictions"
        over = f" with {shown(self.margins.over)}" if self.margins.over else ""
        four: Any = lambda v: f"{v:.4f}"
        lines = [f"{what} of {shown(self.margins.formula)} over {self.nobs} rows{over} at {len(self.sites)} sites"]
        lines.append(printed(self.frame(), float_format=four))
        if len(self.b) > 1:
            lines.append(printed(self.contrasts().frame(), float_format=four))
        return "\n".join(lines)
