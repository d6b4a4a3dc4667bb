"""Meta: a meta-analysis, of each site's own fit of one formula, by fixed and by random effects.

**Reference**: Viechtbauer, "Bias and Efficiency of Meta-Analytic Variance Estimators in the Random-Effects Model",
J. Educ. Behav. Stat. 30, 2005, for REML; DerSimonian & Laird, Controlled Clinical Trials 7, 1986; Paule & Mandel,
J. Res. Natl. Bur. Stand. 87, 1982; Higgins & Thompson, Statistics in Medicine 21, 2002, for I²; Hartung & Knapp,
Statistics in Medicine 20, 2001; Higgins, Thompson & Spiegelhalter, JRSS A 172, 2009, for prediction intervals.

**One round sends** (floats per site, p parameters): the categories, as `GLM`; then (2p + 2) · sites.

**Departures**: none; coefficients are combined one by one. A site in which a category does not occur has no coefficient
for it; one without a row of a category's base, where there is one, has no fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..contract import Client, Cohort, Diverged, Message, RecipeError, Stalled, on_client, positive
from ..contract.text import shown
from .analysis import Analysis, Report, packed, site_of, tensor, unpacked
from .cells import in_sequence, printed, texts
from .extra import InNotebooks, needed
from .families import Family, FamilyName, refuse_unknown
from .fit import Coefficients, Cost
from .formulas import design, parsed
from .glm import GLM, design_names
from .rules import Withheld
from .scoring import Unfit
from .site import Site
from .survival import Cox

LEFT_OUT = (
    "",
    "its rules withhold its own fit",
    "it has no fit: its columns are collinear, its outcomes are separated or all alike, or its rows are too few",
    "it has no fit: none of its rows has the base of a category",
)
"""Why a site is not in a meta-analysis, by the state that it reports."""


Between = Literal["REML", "DL", "PM"]
"""Estimates of the variance between sites."""


class Shared(Message):
    """Down: the number of sites, and all sites' categories as bytes of JSON."""

    sites: int
    terms: Tensor


class SiteFit(Message):
    """Up, by site: coefficients and standard errors, 0 where there are none [s, p, 2]; rows, and a state [s, 2]."""

    estimates: Float[Tensor, "s p 2"]
    rows: Float[Tensor, "s 2"]


@dataclass(frozen=True)
class Meta(Analysis):
    """A meta-analysis.

    Attributes:
        formula: "died ~ age + C(sex)"; with ``event``, the time and what explains it
        family: the outcome's distribution, by name, or a subclass of `medley.statistics.families.Family`
        link: empty for the family's default
        offset: a column that is added to η; empty for none
        exposure: a column whose logarithm is added to η, under a log link; empty for none
        weights: a column of weights of rows, inverse variances; empty for none
        where: a condition on the rows, "age >= 18"; empty for all
        cov: the covariance of a site's coefficients: of the model, or a sandwich
        alpha: α of the negative binomial; None estimates it with the coefficients
        event: the column of events, for Cox's model; empty for a generalised linear one
        ties: how rows with equal times count, for Cox's model
        tau2: the estimate of the variance between sites: by REML, DerSimonian and Laird ("DL"), or Paule and Mandel
    """

    call = "meta"

    formula: str
    family: FamilyName | type[Family] = "gaussian"
    link: Literal["", "identity", "log", "logit", "inverse"] = ""
    offset: str = ""
    exposure: str = ""
    weights: str = ""
    where: str = ""
    cov: Literal["model", "HC0", "HC1", "HC3"] = "model"
    alpha: Annotated[float, positive] | None = None
    event: str = ""
    ties: Literal["efron", "breslow"] = "efron"
    tau2: Between = "REML"

    refuses_secure: ClassVar[str] = (
        "a meta-analysis shows each site's own fit, and secure sums hide it: leave one of both out"
    )

    def __post_init__(self) -> None:
        refuse_unknown(self.family, self.call)
        super().__post_init__()
        _ = self.site_model

    @property
    def site_model(self) -> GLM | Cox:
        """The analysis that each site does alone."""
        if self.event:
            return Cox(self.formula, self.event, self.where, self.ties)
        how = {k: getattr(self, k) for k in ("link", "offset", "exposure", "weights", "where", "cov", "alpha")}
        return GLM(self.formula, self.family, **how)

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        return self.site_model.reads

    def round(self, s: Report, clients: Cohort) -> None:
        """Agree on categories, and read each site's own fit."""
        levels, _ = self.agreed(clients)
        up = self.summed(clients, self.fit_alone, Shared(len(clients.ids), packed(levels)))
        s.result = self._names(levels), up.estimates.numpy(), np.rint(up.rows.numpy()).astype(int)

    def _names(self, levels: dict[str, list[str]]) -> list[str]:
        names = design_names(self.formula, levels)
        return [name for name in names if not self.event or name != "Intercept"]

    @on_client
    def fit_alone(self, me: Client[Any], request: Shared) -> SiteFit:
        """The site's own fit, as the model of one site."""
        site = site_of(me)
        levels = unpacked(request.terms)
        model = self.site_model
        names = self._names(levels)
        estimates = np.zeros((request.sites, len(names), 2))
        rows = np.zeros((request.sites, 2))
        try:
            used, _ = model.used(site)
            present = {c: {*texts(site.at(used), c, site.name)} for c in levels}
            mine = {c: in_sequence([v for v in levels[c] if v in present[c]]) for c in levels}
            if self._rebased(site, used, levels, mine):
                rows[me.id] = 0, 3
            else:
                fitted = model.fitted(lambda method, request: method(me, request), mine, int(used.sum()), 1)
                at = [names.index(name) for name in fitted.names]
                p = len(fitted.names)
                estimates[me.id, at] = np.stack([fitted.b[:p], np.sqrt(np.diag(fitted.cov)[:p])], 1)
                rows[me.id] = used.sum(), 0
        except Withheld:
            rows[me.id] = 0, 1
        except (Unfit, Stalled, Diverged, np.linalg.LinAlgError):
            rows[me.id] = 0, 2
        return SiteFit(tensor(estimates), tensor(rows))

    def _rebased(self, site: Site, used: np.ndarray, levels: dict[str, list[str]], mine: dict[str, list[str]]) -> bool:
        """Whether coefficients under the site's own categories would have another base than those of all sites."""
        try:
            own_names = design_names(self.formula, mine)
        except RecipeError:  # of the base that contr.treatment names
            return True
        names, X = design(parsed(self.formula), site.at(used), levels, site.name)
        return any(x.any() and name not in own_names for name, x in zip(names, X.T, strict=True))


class Pool(NamedTuple):
    """Estimates of one quantity, combined by fixed effects, and by random effects of variance τ²."""

    k: int
    fixed: float
    fixed_se: float
    random: float
    random_se: float
    knapp_se: float
    tau2: float
    Q: float


def pool(y: np.ndarray, se: np.ndarray, tau2: Between = "REML") -> Pool:
    """Combine estimates y [k] with standard errors [k]; with Hartung and Knapp's error, too."""
    v = se**2
    w = 1 / v
    k = len(y)
    fixed = float(w @ y / w.sum())
    Q = float(w @ (y - fixed) ** 2)
    between = _moment(w, Q) if tau2 == "DL" else _root(_paule_mandel if tau2 == "PM" else _restricted, y, v)
    u = 1 / (v + between)
    random = float(u @ y / u.sum())
    knapp = float("nan")
    if k > 1:
        knapp = float(np.sqrt(u @ (y - random) ** 2 / ((k - 1) * u.sum())))
    return Pool(k, fixed, w.sum() ** -0.5, random, u.sum() ** -0.5, knapp, between, Q)


def _moment(w: np.ndarray, Q: float) -> float:
    """DerSimonian and Laird's τ²: the one at which Q, by the weights of fixed effects, has its expected value."""
    spread = float(w.sum() - w @ w / w.sum())
    return max((Q - (len(w) - 1)) / spread, 0.0) if len(w) > 1 else 0.0


def _restricted(y: np.ndarray, v: np.ndarray, t: float) -> float:
    """Twice the slope of the restricted likelihood at τ² = t."""
    w = 1 / (v + t)
    mean = w @ y / w.sum()
    return float(w**2 @ (y - mean) ** 2 - w.sum() + w @ w / w.sum())


def _paule_mandel(y: np.ndarray, v: np.ndarray, t: float) -> float:
    """How far Q exceeds its expected value at τ² = t, where weights know τ²."""
    w = 1 / (v + t)
    return float(w @ (y - w @ y / w.sum()) ** 2 - (len(y) - 1))


def _root(slope: Callable[[np.ndarray, np.ndarray, float], float], y: np.ndarray, v: np.ndarray) -> float:
    """The τ² at which a descending function of it is 0; 0 if it is never above 0."""
    from scipy.optimize import brentq

    if len(y) < 2 or slope(y, v, 0.0) <= 0:  # of one estimate, rounding alone decides
        return 0.0
    high = float(np.var(y))
    while slope(y, v, high) > 0:
        high *= 2
    return float(brentq(lambda t: slope(y, v, t), 0.0, high, xtol=1e-15 * high, rtol=1e-14))


class MetaFit(InNotebooks):
    """A meta-analysis' results.

    Attributes:
        meta, sites, cost: the analysis, the sites' names, and its exchanges and bytes
        by_site: each site's coefficients, a frame of sites by names; NaN if it has none
        by_site_se: their standard errors
        rows: the rows of each site's fit
        left_out: the sites that are not in the analysis, with the reason
        fixed, random: combined coefficients, with ``params``, ``bse``, ``conf_int()`` and ``frame(exp=True)``
    """

    def __init__(self, meta: Meta, sites: tuple[str, ...], result: Any, cost: Cost) -> None:
        pandas, (names, estimates, rows) = needed("pandas"), result
        self.meta = meta
        self.sites = sites
        self.cost = cost
        self.rows = pandas.Series(rows[:, 0], index=[*sites], name="rows")
        self.left_out = {name: LEFT_OUT[state] for name, state in zip(sites, rows[:, 1], strict=True) if state}
        estimates = np.where((estimates[:, :, 1:] > 0) & (rows[:, None, 1:] == 0), estimates, np.nan)
        self.by_site, self.by_site_se = (pandas.DataFrame(estimates[:, :, k], [*sites], names) for k in (0, 1))
        present = [~np.isnan(estimates[:, j, 1]) for j in range(len(names))]
        if not any(t.any() for t in present):
            reasons = "; ".join(f"{name}: {why}" for name, why in self.left_out.items())
            raise Unfit(f"meta: there is nothing to combine, because no site sent its own fit ({reasons})")
        estimated = [j for j, t in enumerate(present) if t.any()]
        each = {names[j]: estimates[present[j], j].T for j in estimated}
        self.pools = {name: pool(y, se, meta.tau2) for name, (y, se) in each.items()}
        self.fixed, self.random = (
            Coefficients([*self.pools], self._each(kind), np.diag(self._each(f"{kind}_se") ** 2))
            for kind in ("fixed", "random")
        )

    def _each(self, key: str) -> np.ndarray:
        return np.array([getattr(p, key) for p in self.pools.values()], dtype=float)

    @property
    def heterogeneity(self) -> Any:
        """Cochran's Q with its p-value, I² from 0 to 1, and τ², by coefficient."""
        from scipy.stats import chi2

        Q = self._each("Q")
        df = self._each("k") - 1
        share = np.where(df < Q, 1 - df / np.maximum(Q, 1e-300), 0.0)
        columns = {"sites": df + 1, "Q": Q, "df": df, "p": chi2.sf(Q, df), "I2": share, "tau2": self._each("tau2")}
        return needed("pandas").DataFrame(columns, [*self.pools]).astype({"sites": int, "df": int})

    def table(self, name: str, pooled: Coefficients | None = None, exp: bool = False, alpha: float = 0.05) -> Any:
        """One coefficient as a forest plot has it: by site, by fixed and random effects, and of the ``pooled`` fit.

        Columns are estimate, lower and upper end of its interval, and a site's weight in the random effects. Hartung
        and Knapp's interval is by Student's t with k − 1 degrees of freedom. The prediction interval, where the
        coefficient of another such site lies, is by t with k − 2, so for three sites or more. ``exp`` gives e to the
        power of each.
        Raises RecipeError if no coefficient has this name.
        """
        from scipy.stats import norm, t

        if name not in self.pools:
            raise RecipeError.unknown(name, self.pools, "meta.table()")
        p = self.pools[name]
        y = self.by_site[name].dropna()
        se = self.by_site_se[name].dropna()
        share = 1 / (se**2 + p.tau2)
        z = norm.isf(alpha / 2)
        lines = {s: (y[s], z * se[s], share[s] / share.sum()) for s in y.index}
        lines["fixed effects"] = p.fixed, z * p.fixed_se, np.nan
        lines["random effects"] = p.random, z * p.random_se, np.nan
        if p.k > 1:
            lines["Hartung-Knapp"] = p.random, t.isf(alpha / 2, p.k - 1) * p.knapp_se, np.nan
        if p.k > 2:
            lines["prediction"] = p.random, t.isf(alpha / 2, p.k - 2) * (p.tau2 + p.random_se**2) ** 0.5, np.nan
        if pooled is not None:
            lines["all rows together"] = pooled.params[name], z * pooled.bse[name], np.nan
        intervals: Sequence[Any] = [
            (f(b), f(b - half), f(b + half), w) for b, half, w in lines.values() for f in [np.exp if exp else float]
        ]
        return needed("pandas").DataFrame(intervals, [*lines], columns=["estimate", "lower", "upper", "weight"])

    def summary(self) -> str:
        """Combined coefficients by random effects, and how far the sites differ, as text."""
        figures = self.random.frame().join(self.heterogeneity)
        head = f"Meta-analysis of {int((self.rows > 0).sum())} sites, {self.rows.sum()} rows: random effects by "
        lines = [head + self.meta.tau2]
        lines += [printed(figures, float_format=lambda v: f"{v:.4f}")]
        return "\n".join(lines + [f"left out: {shown(name)}: {shown(why)}" for name, why in self.left_out.items()])
