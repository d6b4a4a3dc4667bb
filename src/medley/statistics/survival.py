"""Survival: Cox's model with a baseline for each site, Kaplan-Meier's curves by group, and the log-rank test.

**Reference**: Cox, "Regression Models and Life-Tables", JRSS B 34, 1972; Efron, JASA 72, 1977, and Breslow, 1974, for
ties; Kaplan & Meier, JASA 53, 1958, with Greenwood's variance; Mantel, 1966, for the log-rank test.

**Departures**: risk sets are those of a site, so that sums over sites are all that is needed: Cox's model stratified by
site. Curves are on a grid of times; a site rounds times up until each step has its least numbers of rows and events.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from ..contract import BadData, Client, Cohort, on_client, positive
from .analysis import Analysis, Ask, Moments, Report, packed, site_of, tensor, unpacked, upper
from .describe import Asked, curve_may
from .families import FAMILIES, Family
from .fit import Coefficients, Cost, Test
from .formulas import design, needed, parsed, texts, within
from .glm import design_names
from .rules import Withheld
from .scoring import BAD, DEVIANCE, LLF, NULL, Curve, Descent, Fitted, Point
from .site import Site


@dataclass(frozen=True)
class Cox(Analysis):
    """Cox's model, stratified by site.

    Attributes:
        formula: the time and what explains it, "months ~ age + C(sex)"
        event: the column that is 1 where the event came, and 0 where the row was censored
        where: the rows; empty for all
        ties: "efron" or "breslow"
    """

    formula: str
    event: str
    where: str = ""
    ties: Literal["efron", "breslow"] = "efron"

    family, uses, cov, alpha, canonical = property(lambda s: "cox"), "", "model", None, True

    @property
    def kind(self) -> Family:
        """A family without dispersion, for the descent."""
        return FAMILIES["binomial"]

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        f = parsed(self.formula)
        return (*f.columns, self.event), f.categorical

    def round(self, s: Report, clients: Cohort) -> None:
        """Agree on categories, and step from β = 0 until the score is 0."""
        levels, rows = self.agreed(clients)
        s.found = self.fitted(functools.partial(self.summed, clients), levels, int(rows[:, 0].sum()), len(rows)), rows

    def fitted(self, ask: Ask, levels: dict[str, list[str]], n: int, sites: int) -> Fitted:
        """The fit to ``n`` rows of so many sites, whose sums ``ask`` has, with these categories."""
        names, point = design_names(self.formula, levels), {"terms": packed(levels), "rows": n, "mean": 0.0}
        names = [name for name in names if name != "Intercept"]
        return Descent(self, functools.partial(ask, self.score), sites, names, point, np.ones(p := len(names))).fit(
            np.zeros(p)
        )

    @on_client
    def score(self, me: Client[Any], got: Point) -> Curve:
        """The site's partial likelihood at β."""
        site, key = site_of(me), (repr(self), bytes(got.terms.numpy()))
        if key not in site.kept:
            site.kept = {key: self._prepared(site, unpacked(got.terms), got.rows)}
        X, time, event = site.kept[key]
        risk = X @ got.b.numpy()
        site.effective(np.exp(risk - risk.max()), X)
        (value, g, H), (null, *_) = (partial(X, time, event, k * got.b.numpy(), self.ties) for k in (1, 0))
        sums, nothing = np.zeros(11), tensor([])
        sums[0], sums[DEVIANCE], sums[LLF], sums[NULL + 1], sums[BAD + 1] = len(X), -2 * value, value, null, event.sum()
        return Curve(tensor(g), tensor(upper(H)), nothing, nothing, nothing, tensor(sums))

    def _prepared(self, site: Site, levels: Any, everywhere: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        f, (columns, _) = parsed(self.formula), self.reads
        used, _ = site.rows(columns, self.where)
        names, X = design(f, site.frame[used], levels, site.name)
        time, event = site.column(used, f.response, 0.0), site.column(used, self.event, 0.0)
        check_times(site, f.response, time, self.event, event)
        site.check_size(X.shape[1], len(X), everywhere)
        beside = within(f, site.frame[used], levels, site.name)
        site.admit_fit(used, X, names, columns, event > 0, beside=beside)
        return X[:, [name != "Intercept" for name in names]], time, event > 0


def check_times(site: Site, name: str, time: np.ndarray, column: str, event: np.ndarray) -> None:
    """Raise BadData, naming site and column, for times below 0 and events that are neither 0 nor 1."""
    if (time < 0).any() or not np.isin(event, (0, 1)).all():
        raise BadData(f"{site.name}: want times {name} of at least 0, and events {column} of 0 and 1")


def partial(X: np.ndarray, time: np.ndarray, event: np.ndarray, b: np.ndarray, ties: str) -> Any:
    """Cox's log partial likelihood of these rows at β, its gradient [p], and minus its Hessian [p, p]."""
    r, p = np.exp(X @ b), X.shape[1]
    value, g, H = 0.0, np.zeros(p), np.zeros((p, p))
    sums = np.zeros((p + 1, p + 1))  # Σ r (1, x)(1, x)ᵀ over those at risk
    Z = np.column_stack([np.ones(len(X)), X])
    for t in np.unique(time)[::-1]:
        at, dead = time == t, (time == t) & event
        sums = sums + (Z[at].T * r[at]) @ Z[at]
        tied, d = (Z[dead].T * r[dead]) @ Z[dead], int(dead.sum())
        value, g = value + float((X[dead] @ b).sum()), g + X[dead].sum(0)
        for k in range(d):
            S = sums - (k / d if ties == "efron" else 0.0) * tied
            mean = S[0, 1:] / S[0, 0]
            value, g, H = value - float(np.log(S[0, 0])), g - mean, H + S[1:, 1:] / S[0, 0] - np.outer(mean, mean)
    return value, g, H


class CoxFit(Coefficients):
    """A fit of Cox's model; ``params`` are log hazard ratios, and ``frame(exp=True)`` has hazard ratios."""

    def __init__(self, cox: Cox, sites: tuple[str, ...], found: tuple[Fitted, np.ndarray], cost: Cost) -> None:
        fitted, self.rows = found
        super().__init__(fitted.names, fitted.b, fitted.cov)
        self.cox, self.sites, (self.exchanges, self.bytes_down, self.bytes_up) = cox, sites, cost
        self.llf, self.llnull, self.nobs = (fitted.figures[k] for k in ("llf", "llnull", "nobs"))

    def summary(self) -> str:
        """A text table."""
        facts = [("Time", parsed(self.cox.formula).response), ("Event", self.cox.event), ("Ties", self.cox.ties)]
        facts += [("No. Observations", str(self.nobs)), ("Strata (sites)", str(len(self.sites)))]
        return self._table("Cox regression, stratified by site", [*facts, ("Log-Likelihood", f"{self.llf:.5g}")])


@dataclass(frozen=True)
class KaplanMeier(Analysis):
    """Kaplan-Meier's curves.

    Attributes:
        time, event: the columns; the event is 1 where it came, and 0 where the row was censored
        unit: the width of the grid of times; times that are multiples of it are exact
        until: the last time; rows beyond it are censored there
        by: a column of groups; empty for none
        where: the rows; empty for all
    """

    time: str
    event: str
    unit: Annotated[float, positive]
    until: Annotated[float, positive]
    by: str = ""
    where: str = ""

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        groups = (self.by,) if self.by else ()
        return (self.time, self.event, *groups), groups

    def round(self, s: Report, clients: Cohort) -> None:
        """Agree on groups, and count events and censored rows on the grid."""
        levels, _ = self.agreed(clients)
        groups = levels.get(self.by, [""])
        sums = self.summed(clients, self.count, Asked(packed(groups))).sums.numpy()
        s.found = groups, np.rint(sums.reshape(len(groups), 2, -1))

    @on_client
    def count(self, me: Client[Any], got: Asked) -> Moments:
        """Events and censored rows of each group at each time of the grid."""
        site, steps = site_of(me), int(np.ceil(self.until / self.unit - 1e-9))
        used, _ = site.rows(self.reads[0], self.where)
        time, event = site.column(used, self.time, 0.0), site.column(used, self.event, 0.0)
        check_times(site, self.time, time, self.event, event)
        place = np.ceil(time / self.unit - 1e-9).astype(int)
        event, place = (event > 0) & (place <= steps), np.minimum(place, steps)
        out, at = [], np.flatnonzero(used)
        for group in unpacked(got.said):
            mine = texts(site.frame[used], self.by) == group if self.by else np.ones(len(time), bool)
            rows = np.isin(np.arange(site.n), at[mine])
            for c in (self.time, self.event):
                site.admit(c, [rows], f"the group {group!r}")
            grid = f"{self.unit} until {self.until} of {self.event}"  # others have other steps and totals
            curve_may(site, self.time, rows, grid, f"the group {group!r}")
            both = [np.bincount(place[mine & e], minlength=steps + 1) for e in (event, ~event)]
            counts = merged(np.array(both), (site.rules.events, site.rules.rows))
            if counts is None:
                raise Withheld(f"{site.name} withholds the curve of {group or 'all'}: too few events or censored rows")
            out.append(counts)
        return Moments(tensor(np.array(out).reshape(-1)))


def merged(counts: np.ndarray, least: tuple[int, int]) -> np.ndarray | None:
    """Counts [2, times], moved to later times until each is 0 or its least number; None where all are too few."""
    out, held, last = np.zeros(counts.shape), np.zeros(2), -1
    for k, here in enumerate(counts.T):
        held = held + here
        if held.any() and all(h == 0 or h >= n for h, n in zip(held, least, strict=True)):
            out[:, k], held, last = held, np.zeros(2), k
    out[:, last] += held
    return None if last < 0 and held.any() else out


class Curves:
    """Kaplan-Meier's curves: deaths and rows at risk by group and time of the grid [groups, times]."""

    def __init__(self, asked: KaplanMeier, sites: tuple[str, ...], found: Any, cost: Cost) -> None:
        self.asked, self.sites, self.cost, (self.groups, counts) = asked, sites, cost, found
        self.deaths, leave = counts[:, 0], counts.sum(1)
        self.at_risk = leave[:, ::-1].cumsum(1)[:, ::-1]

    def frame(self, group: str = "", alpha: float = 0.05) -> Any:
        """A row for each time with an event: at risk, events, survival, Greenwood's error, the interval of log −log."""
        from scipy.stats import norm

        k = self.groups.index(group)
        at = np.flatnonzero(self.deaths[k])
        d, n = self.deaths[k, at], self.at_risk[k, at]
        S = np.cumprod(1 - d / n)
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = np.sqrt(np.cumsum(d / (n * (n - d))))
            ends = [S ** np.exp(z * norm.isf(alpha / 2) * spread / np.log(S)) for z in (-1, 1)]
        columns = {"at_risk": n, "events": d, "survival": S, "se": S * spread, "lower": ends[0], "upper": ends[1]}
        return needed("pandas").DataFrame(columns, index=needed("pandas").Index(at * self.asked.unit, name="time"))

    def logrank(self) -> Test:
        """The log-rank test of the groups."""
        from scipy.stats import chi2

        d, n = self.deaths.sum(0), self.at_risk.sum(0)
        at = (d > 0) & (n > 1)
        share, left = self.at_risk[:, at] / n[at], d[at] * (n[at] - d[at]) / (n[at] - 1)
        gap = (self.deaths.sum(1) - (self.at_risk * np.divide(d, n, where=n > 0, out=np.zeros(len(n)))).sum(1))[:-1]
        V = (np.diag((share * left).sum(1)) - (share * left) @ share.T)[:-1, :-1]
        statistic, df = float(gap @ np.linalg.solve(V, gap)), len(gap)
        return Test(statistic, df, float(chi2.sf(statistic, df)))

    def summary(self) -> str:
        """The curves as text."""
        return "\n\n".join(f"{g or 'all'}\n{self.frame(g).to_string()}" for g in self.groups)
