"""Survival: Cox's model with one baseline for all sites or one for each.

**Reference**: Cox, "Regression Models and Life-Tables", JRSS B 34, 1972; Efron, JASA 72, 1977, and Breslow, 1974, for
ties; Andersen & Gill, Annals of Statistics 10, 1982, for intervals of one patient; Lin & Wei, JASA 84, 1989, and Lee,
Wei & Amato, 1992, for errors by cluster.

**Departures**: without ``cuts`` each risk set belongs to one site, so that sums over all its rows suffice: Cox's model
stratified by site, and by further columns. Unless its rules are exact, a site rounds what depends on its events then,
see `medley.statistics.events`. With cuts, a site sums the rows that leave at each cut, and each sum must meet the rules
for a fit.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..contract import Client, Cohort, Message, RecipeError, WireError, on_client
from .analysis import Ask, Moments, Report, lower, packed, site_of, tensor, unpacked, upper
from .basis import Basis
from .curves import check_times
from .describe import curve_may
from .events import Events
from .extra import needed
from .families import FAMILIES, Family
from .fit import Coefficients, Cost
from .formulas import design, parsed, within
from .glm import APART, design_names, treatment, within_basis
from .risksets import (
    AtRisk,
    admit_patients,
    admit_strata,
    by_patient,
    check_intervals,
    codes,
    patients,
    refuse_isolated,
    without_noise,
)
from .rules import Withheld
from .scales import banded, exponents_of
from .scoring import BAD, DEVIANCE, GRID, LLF, NULL, OVER, Curve, Descent, Fitted, Point, Unfit, inverse
from .site import Site, within_used
from .steps import Steps
from .weights import Fit, Robust, Scored, Stacked, Weighted, Weights, sandwich, sent

log = logging.getLogger("medley")

FAR = 1e4
"""If the square of a column's mean exceeds its variance by this factor, sums with cuts begin again with it centred."""

MARKS = 3
NEAR = 3e-3
"""At how many points sites tell more of their events at most; one this near to the fit, in standard errors, is the
last."""

UNTOLD = 0.1
"""The share of the score's spread that sites do not tell from which on the fit's log says so."""


class Leaving(Message):
    """Up: the numbers of `Steps` at each time; ``tied`` is empty under Breslow's ties."""

    leave: Float[Tensor, "k t"]
    tied: Float[Tensor, "q t"]
    counts: Float[Tensor, "k 2"]
    dead: Float[Tensor, "k p"]


class SurvivalRows(NamedTuple):
    """A site's rows of one fit: the design, times, events, weights by a propensity model if there are any, when rows
    are at risk, and the codes of their clusters if there are any; ``everyone`` has these codes of trimmed rows, too.
    """

    X: np.ndarray
    time: np.ndarray
    event: np.ndarray
    w: np.ndarray | None
    scored: Scored | None
    at: AtRisk
    of: np.ndarray | None = None
    everyone: np.ndarray | None = None


@dataclass(frozen=True)
class Cox(Weighted):
    """Cox's model, stratified by site, or with one baseline for all sites on a grid of times.

    Attributes:
        formula: the time and what explains it, "months ~ age + C(sex)"
        event: the column that is 1 if the event occurred, and 0 if the row was censored
        where: a condition on the rows, "age >= 18"; empty for all
        ties: how rows with equal times count
        cuts: times for one common baseline, in the time's unit and ascending; other times are rounded up to them, and
            rows beyond the last are censored there. Empty for a separate baseline for each site, at its own times
        weights: `Weights(...)` of rows by the probability of a treatment; empty for none
        strata: a column, or several, each of whose values (or combinations of values) has a baseline of its own at each
            site; empty for none
        entry: the column of the time from which on a row is at risk, in the unit of the formula's time: a late entry,
            or the start of an interval if a patient has several rows; empty for 0
        cluster: the column that says which rows belong together, for example a patient's: errors are robust (sandwich),
            and rules count its values instead of rows. Equal values at two sites are two clusters. Empty for none
    """

    call = "cox"

    formula: str
    event: str
    where: str = ""
    ties: Literal["efron", "breslow"] = "efron"
    cuts: Sequence[float] = ()
    weights: Weights | Literal[""] = ""
    strata: str | Sequence[str] = ""
    entry: str = ""
    cluster: str = ""

    uses = ""
    cov = "model"
    alpha = None
    canonical = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cuts and not (min(self.cuts) > 0 and (np.diff(self.cuts) > 0).all()):
            raise RecipeError("cox(cuts=...): give times above 0, in ascending order", "cuts")
        if self.cuts and self.weighting:
            raise RecipeError("cox(weights=...): weighted fits have a baseline for each site; leave cuts= out", "cuts")
        for key in ("strata", "entry", "cluster"):
            if self.cuts and getattr(self, key):
                raise RecipeError(
                    f"cox(cuts=..., {key}=...): only fits with a baseline for each site have {key}; leave one out", key
                )
        if self.weighting and self.entry and self.cluster:
            raise RecipeError(
                "cox(weights=..., entry=..., cluster=...): weights by treatment are of one row for each patient; leave "
                "cluster= out if each has one, else weights=",
                "cluster",
            )
        columns = (*self.strata_columns, *filter(None, (self.entry, self.cluster)))
        twice = [c for c in columns if columns.count(c) > 1 or c in (*self.outcomes, *parsed(self.formula).columns)]
        if twice:
            raise RecipeError(
                f"cox: {twice[0]} has two roles; strata=, entry= and cluster= are columns of their own", "strata"
            )

    @property
    def strata_columns(self) -> tuple[str, ...]:
        """The columns of the strata."""
        return tuple(filter(None, (self.strata,) if isinstance(self.strata, str) else self.strata))

    @property
    def outcomes(self) -> tuple[str, ...]:
        """See `Weighted.outcomes`."""
        return parsed(self.formula).response, self.event

    @property
    def kind(self) -> Family:
        """A family without dispersion, which the descent needs."""
        return FAMILIES["binomial"]

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        f = parsed(self.formula)
        by = parsed(self.weighting.propensity_formula) if self.weighting else f
        more = (*self.strata_columns, *filter(None, (self.entry, self.cluster)))
        columns = dict.fromkeys((*f.columns, self.event, *by.columns, *more))
        return tuple(columns), tuple(dict.fromkeys((*f.categorical, *by.categorical, *self.strata_columns)))

    @property
    def unit(self) -> str:
        """What has a baseline of its own, in words."""
        return "site and stratum" if self.strata_columns else "site"

    @property
    def treatment(self) -> Any:
        """See `Weighted.treatment`."""
        return treatment(self)

    def round(self, s: Report, clients: Cohort) -> None:
        """Agree on categories, and step from β = 0 until the score is 0."""
        levels, rows = self.agreed(clients)
        ask = functools.partial(self.summed, clients)
        last = list[Steps]()
        noisy = self.masked(clients)
        fit, n = self.scored(clients, levels, rows)
        s.result = self.fitted(ask, levels, n, len(rows), noisy, last, fit), rows, last

    def fitted(
        self, ask: Ask, levels: Any, n: int, sites: int, noisy: bool = False, last: list[Steps] | None = None,
        by: Fit | None = None,
    ) -> Fitted:  # fmt: skip
        """The fit to ``n`` rows of so many sites, whose sums ``ask`` has, with these categories; masks are ``noisy``.

        With cuts, ``last`` has the sums of the last exchange. Rows are weighted ``by`` a propensity model.
        """
        names = [name for name in design_names(self.formula, levels) if name != "Intercept"]
        zero = np.zeros(len(names))
        null = list[float]()
        point: dict[str, Any] = {"terms": packed(levels), "rows": n, "mean": 0.0, "centre": tensor(zero)}
        point["treatment"] = sent(by)
        where = f", up to a constant {'over all sites' if self.cuts else f'for each {self.unit}'}"
        T = Basis(names, where)
        at = np.triu_indices(len(names))
        if noisy:
            begin = Point(b=tensor(zero), bread=tensor([]), alpha=0.0, **point)
            table = ask(self.magnitudes, begin).sums.numpy().reshape(len(names), -1)
            T = Basis(names, where, exponents_of(table), n)
            point["basis"] = tensor(T.T[at])

        def pooled(at: Point) -> Curve:
            """The likelihood of all sites' rows, from their sums at each time."""
            up = ask(self.leaving, at)
            centre = at.centre.numpy()
            b = at.b.numpy()
            leave, tied = (np.array([lower(v) for v in t]) for t in (up.leave, up.tied))
            n, d = np.rint(up.counts.numpy()).T
            steps = Steps(leave, tied if len(tied) else 0 * leave, n, d, up.dead.numpy(), float(centre @ T.T @ b))
            if not null and not centre.any():  # the first sums, at β = 0, have the columns' means
                S = leave.sum(0) / leave[:, 0, 0].sum()
                mean = S[0, 1:]
                point["centre"] = tensor(mean / np.diag(T.T))
                if (mean**2 > FAR * (np.diag(S)[1:] - mean**2)).any():
                    return descent.at(zero, at.alpha)
            value, g, H = steps.likelihood(b, self.ties)
            null.append(value)
            if last is not None:
                last[:] = [steps.of_columns(T.T)]
            return curve((value if n.sum() > at.rows - 0.5 else math.nan, g, H), null[0], float(n.sum()))

        way = pooled if self.cuts else functools.partial(ask, self.score)
        descent = Descent(self, way, sites, names, point, np.ones(len(names)), zero, noisy=noisy)
        start = descent.at(zero, 1e-6)
        self._refuse(names, start)
        while T.improved(lower(start.H)):
            point["basis"] = tensor(T.T[at])
            start = descent.at(zero, 1e-6)
        descent.size = np.sqrt(np.diag(lower(start.H)) * math.log(n) / -start.sums.numpy()[LLF])  # about a row's spread
        if not self.cuts:
            descent.unbounded = functools.partial(self._is_unbounded, ask, point)
        fit = descent.fit(zero, start)
        fit = self._marked(descent, fit)
        fit = self._robust(ask, fit, point, by)
        return fit.of_columns(T.T)

    def _robust(self, ask: Ask, fit: Fitted, point: dict[str, Any], by: Fit | None) -> Fitted:
        """The fit with errors that know that weights were estimated, or with those of clusters."""
        near = point | {"b": tensor(fit.b), "bread": tensor([]), "alpha": 0.0}
        stack: Any = lambda influence: ask(self.stack, Point(**near, influence=influence))
        if by is not None:
            return fit._replace(cov=sandwich(stack, by.n, fit.cov))
        if self.cluster:
            return fit._replace(cov=fit.cov @ lower(stack(tensor([])).meat) @ fit.cov)
        return fit

    def _marked(self, descent: Descent, fit: Fitted) -> Fitted:
        """The fit after sites that round told more of their events near it."""
        point = descent.point
        untold = 0.0
        for _ in range(MARKS if fit.figures["coarse"] and not self.cuts else 0):
            point["marks"] = tensor([*point.get("marks", tensor([])).tolist(), *fit.b])
            up = descent.at(fit.b, 1e-6)  # here each site's answer is now exact to its grid
            untold = math.sqrt(float(up.sums[OVER]) / point["rows"])
            far = float(up.g.numpy() @ inverse(lower(up.H)) @ up.g.numpy()) ** 0.5
            fit = descent.fit(fit.b, up)
            if far < NEAR:
                break
        if untold > UNTOLD:
            log.warning(
                "cox: in some column a few patients decide, of whom sites tell no more, and coefficients may be off by "
                "about %.1f of their standard errors; if a column is skewed, take its logarithm",
                untold,
            )
        return fit

    def _is_unbounded(self, ask: Ask, point: dict[str, Any], direction: np.ndarray) -> bool:
        """Whether no row contradicts that the likelihood grows without end in this direction."""
        request = Point(b=tensor(direction), bread=tensor([]), alpha=0.0, **point)
        return float(ask(self.contradicts, request).sums[0]) < 0.5

    def _refuse(self, names: list[str], start: Curve) -> None:
        """Raise Unfit, naming columns, if β is not determined: the information at 0 says so for each β."""
        if not start.sums[LLF]:  # the null model explains all
            raise Unfit(f"{self.event} is 0 at all sites in the rows that others outlive: there is nothing to explain")
        H = lower(start.H)
        flat = [name for name, v in zip(names, np.diag(H), strict=True) if v <= 0]
        if flat:
            within = "" if self.cuts else f"within each {self.unit}, "
            alone = self.cuts or self.strata or self.entry or self.cluster
            rest = "" if alone else ", or share one baseline: cox(cuts=[...])"
            raise Unfit(
                f"collinear: {within}all rows at risk when an event occurs are alike in {' and '.join(flat)}, so that "
                f"the effect belongs to the baseline; leave the column out{rest}"
            )

    def outstanding(self, names: list[str], step: np.ndarray, moved: np.ndarray, point: dict[str, Any]) -> list[str]:
        """The columns in which a direction stands out."""
        return [name for name, move in zip(names, moved, strict=True) if move > 0.3 * moved.max()]

    @on_client
    def magnitudes(self, me: Client[Any], request: Point) -> Moments:
        """The site's table of the columns' magnitudes."""
        return Moments(tensor(banded(self._rows(site_of(me), request).X).ravel()))

    @on_client
    def contradicts(self, me: Client[Any], request: Point) -> Moments:
        """1 if a row contradicts that the likelihood grows without end in the direction b, else 0."""
        rows = self._rows(site_of(me), request)
        along = within_basis(rows.X, request.basis) @ request.b.numpy()
        most = rows.at.most(along)[rows.at.place]
        return Moments(tensor([1.0 * (rows.event & (along < most - APART)).any()]))

    @on_client
    def score(self, me: Client[Any], request: Point) -> Curve:
        """The site's partial likelihood at β."""
        site = site_of(me)
        rows = self._rows(site, request)
        X, _, event, w, *_ = rows
        Z = within_basis(X, request.basis)
        b = request.b.numpy()
        marks = request.marks.numpy().reshape(-1, len(b))
        try:
            for at in (b, *marks):
                risk = Z @ at
                site.effective(
                    *by_patient(np.exp(risk - risk.max()) if w is None else w * np.exp(risk - risk.max()), X, rows.of)
                )
        except Withheld as e:
            names = [name for name in design_names(self.formula, unpacked(request.terms)) if name != "Intercept"]
            widest = names[int(np.ptp(Z * at, axis=0).argmax())]
            raise Withheld(f"{e}; {widest} does most of it: if it is skewed, take its logarithm") from None
        if not site.rules.rounded:
            at_b, (null, *_) = (partial(Z, rows.at, event, k * b, self.ties, w) for k in (1, 0))
            return curve(at_b, null, len(X))
        events = self._events(site, Z, rows, request, marks)
        (value, g, H), null = events.likelihood(b), events.likelihood(0 * b)[0]
        if not b.any():  # what the server refuses is as exact as ever: columns that are alike, and no events
            exact, _, information = partial(Z, rows.at, event, b, self.ties, w)
            same = np.diag(information) <= 0
            H[same] = 0.0
            H[:, same] = 0.0
            value, null = (value, null) if exact else (0.0, 0.0)
        up = curve((value, g, H), null, len(X))
        up.sums[GRID] = 1.0
        if len(marks) and np.array_equal(b, marks[-1]):
            up.sums[OVER] = len(X) * events.untold(b) ** 2
        return up

    def _events(self, site: Site, Z: np.ndarray, rows: SurvivalRows, request: Point, marks: np.ndarray) -> Events:
        """What the site tells of its events up to the request's marks; it is kept for the next exchange."""
        key = "events", bytes(request.basis.numpy()), bytes(request.marks.numpy())
        if key not in site.kept:
            first = next(iter(site.kept.items()))
            used = self._used(site, rows.scored)
            w = np.ones(len(Z)) if rows.w is None else rows.w
            events = Events(site, self.event, used, Z, rows.at, rows.event, self.ties, marks, w, rows.of)
            site.kept = {first[0]: first[1], key: events}
        out: Events = site.kept[key]
        return out

    def _used(self, site: Site, scored: Scored | None) -> np.ndarray:
        """The site's rows in the fit, bool: without those that are trimmed."""
        used, _ = self.used(site)
        return used if scored is None else within_used(used, scored.rows)

    @on_client
    def stack(self, me: Client[Any], request: Point) -> Stacked:
        """The site's sums for errors that know that weights were estimated, or of clusters."""
        site = site_of(me)
        rows = self._rows(site, request)
        X, _, event, w, scored, at, of, everyone = rows
        if scored is None and not self.cluster:
            raise WireError("cox: the server asks for sums for robust errors, and this fit has none")
        plain = Scored(np.ones(len(X), bool), np.ones(len(X)), X[:, :0], X[:, :0], event)
        Z = within_basis(X, request.basis)
        b = request.b.numpy()
        Z = Z - Z[(Z @ b).argmax()]
        site.effective(*by_patient(np.exp(Z @ b) * (1.0 if w is None else w), X, of))
        u = Steps.of(Z, at, event, b, w).by_weight(Z, at, event, b, self.ties)
        used, _ = self.used(site)
        count = float(len(X) if of is None else of.max() + 1)
        return Robust(site, self.event, used, scored or plain, u, count, everyone).reply(request.influence, [])

    @on_client
    def leaving(self, me: Client[Any], request: Point) -> Leaving:
        """The site's sums over the rows that leave at each of the cuts."""
        (X, time, event, *_), site = self._rows(site_of(me), request), site_of(me)
        place, event = self._places(time, event)
        risk = within_basis(X, request.basis) @ request.b.numpy()
        Z = np.column_stack([np.ones(len(X)), X])
        for k in np.unique(place):
            at = place == k
            site.effective(np.exp(risk[at] - risk[at].max()), X[at])
            for part in (at & event, at & ~event) if self.ties == "efron" else ():  # these sums leave, too
                if part.any():
                    site.effective(np.exp(risk[part] - risk[part].max()), Z[part], "events")
        with np.errstate(all="ignore"):
            centred = within_basis(X - request.centre.numpy(), request.basis)
            s = Steps.of(centred, AtRisk(place, None, len(self.cuts)), event, request.b.numpy())
        if not np.isfinite(s.leave).all():  # the site sends only this fact
            s = Steps._make(map(np.zeros_like, s))
        leave, tied = (tensor([upper(A) for A in sums]) for sums in (s.leave, s.tied))
        count = leave.numel() + tied.numel() + s.dead.size
        site_of(me).spend_exact(self.event, f"{self!r} {request.b.tolist()} {request.centre.tolist()}", count)
        tied = tied if self.ties == "efron" else tied[:0]
        return Leaving(leave, tied, tensor(np.stack([s.n, s.d], 1)), tensor(s.dead))

    def _places(self, time: np.ndarray, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows' places among the cuts, and their events; rows beyond the last cut are censored there."""
        place = np.searchsorted(np.array(self.cuts) * (1 + 1e-12), time)
        return np.minimum(place, len(self.cuts) - 1), event & (place < len(self.cuts))

    def _rows(self, site: Site, request: Point) -> SurvivalRows:
        """The site's rows of this fit, once they may leave; they are kept for the next exchange."""
        key = repr(self), bytes(request.terms.numpy()), bytes(request.treatment.numpy())
        if key not in site.kept:
            site.kept = {key: self._prepared(site, unpacked(request.terms), request)}
        rows: SurvivalRows = site.kept[key]
        return rows

    def _prepared(self, site: Site, levels: Any, request: Point) -> SurvivalRows:
        f = parsed(self.formula)
        columns = (*f.columns, self.event)
        used, _ = self.used(site)
        scored = self.scores(site, used, levels, Fit.read(request.treatment)) if self.weighting else None
        used = self._used(site, scored)
        w = None if scored is None else scored.w[scored.rows]
        names, X = design(f, site.at(used), levels, site.name)
        time = site.column(used, f.response, 0.0)
        event = site.column(used, self.event, 0.0)
        check_times(site, f.response, time, self.event, event)
        site.check_size(X.shape[1], len(X), request.rows)
        others = within(f, site.at(used), levels, site.name, names, X)
        others |= {} if w is None else {"the weights": w}
        site.admit_fit(used, X, names, columns, event > 0, beside=others, outcome_column=self.event)
        kept = [name != "Intercept" for name in names]
        at, of = self._at_risk(site, used, [n for n in names if n != "Intercept"], X[:, kept], time, event > 0)
        if self.cuts and site.rules.rows > 1:  # each time's rows must meet the rules for a fit
            curve_may(site, f.response, used, f"{self.cuts} of {self.event}", "the times")
            place, dead = self._places(time, event > 0)
            for k in np.unique(place):
                here = place == k
                rows = np.zeros(len(used), bool)
                rows[np.flatnonzero(used)[here]] = True
                try:
                    site.check_size(X.shape[1], int(here.sum()), int(here.sum()))
                    beside = {name: v[here] for name, v in others.items()}
                    site.admit_fit(rows, X[here], names, columns, dead[here], self.ties == "efron", beside, self.event)
                    for part in (here, here & dead, here & ~dead) if self.ties == "efron" else (here,):
                        site.combinations(X[part])
                except Withheld as e:
                    raise Withheld(f"{e}; that is of rows until {self.cuts[k]:g}: give fewer cuts") from None
        everyone = codes(site, self.used(site)[0], (self.cluster,)) if self.cluster else None
        return SurvivalRows(X[:, kept], time, event > 0, w, scored, at, of, everyone)

    def _at_risk(
        self, site: Site, used: np.ndarray, names: list[str], X: np.ndarray, time: np.ndarray, event: np.ndarray
    ) -> tuple[AtRisk, np.ndarray | None]:
        """When rows are at risk, and the codes of their clusters if there are any, once their sums may leave."""
        f = parsed(self.formula)
        keys = (*f.columns, self.event)
        stratum = codes(site, used, self.strata_columns) if self.strata_columns else None
        of = codes(site, used, (self.cluster,)) if self.cluster else None
        entry = site.column(used, self.entry, 0.0) if self.entry else None
        time, *rest = without_noise(time, *([] if entry is None else [entry]))
        if entry is not None:
            entry = rest[0]
            together = np.zeros(len(time), int) if of is None else of
            together = together if stratum is None else together * (stratum.max(initial=0) + 1) + stratum
            check_intervals(site, (self.entry, f.response, self.cluster), entry, time, together)
        at = AtRisk.of(time, entry, stratum)
        if stratum is not None:
            admit_strata(site, used, self.strata_columns, stratum, of, keys)
        if entry is not None:
            late = within_used(used, entry >= time.min())
            site.cell(patients(entry >= time.min(), of), f"late entry by {self.entry}")
            for key in (*keys, self.entry):
                site.admit(f"{key} after an entry", [late], f"the rows that are not at risk at first, by {self.entry}")
        if of is not None:
            site.check_size(X.shape[1], int(of.max(initial=-1)) + 1, len(X))
            admit_patients(site, used, self.cluster, of, names, X, event, keys)
        what = " and ".join((*self.strata_columns, *filter(None, (self.entry, self.cluster))))
        if what:
            refuse_isolated(site, at, X, event, np.arange(len(X)) if of is None else of, what)
        return at, of


def curve(likelihood: tuple[float, np.ndarray, np.ndarray], null: float, rows: float) -> Curve:
    """A likelihood, its gradient and minus its Hessian at β, and its value at 0, as the descent reads them."""
    (value, g, H), sums, nothing = likelihood, np.zeros(13), tensor([])
    if not np.isfinite(value) or not np.isfinite(H).all():
        value = 0.0
        g = np.zeros_like(g)
        H = np.zeros_like(H)
        sums[BAD] = 1.0
    sums[0] = rows
    sums[DEVIANCE] = -2 * value
    sums[LLF] = value
    sums[NULL + 1] = null
    return Curve(tensor(g), tensor(upper(H)), nothing, nothing, nothing, tensor(sums))


def partial(X: np.ndarray, at: AtRisk, event: np.ndarray, b: np.ndarray, ties: str, w: np.ndarray | None = None) -> Any:
    """Cox's log partial likelihood of these rows at β, its gradient [p], and minus its Hessian [p, p]."""
    X = X - X[(X @ b).argmax()]  # leaves the likelihood as it is, and no risk exceeds 1
    with np.errstate(all="ignore"):
        return Steps.of(X, at, event, b, w).likelihood(b, ties)


class CoxFit(Coefficients):
    """A fit of Cox's model; ``params`` are log hazard ratios, and ``frame(exp=True)`` has hazard ratios."""

    def __init__(self, cox: Cox, sites: tuple[str, ...], result: Any, cost: Cost) -> None:
        fitted, self.rows, self._last = result
        super().__init__(fitted.names, fitted.b, fitted.cov)
        self.cox, self.sites, (self.exchanges, self.bytes_down, self.bytes_up) = cox, sites, cost
        self.llf, self.llnull, self.nobs = (fitted.figures[k] for k in ("llf", "llnull", "nobs"))

    @property
    def steps(self) -> Steps:
        """Sums at each of the cuts. Raises RecipeError for a fit without cuts."""
        if not self._last:
            raise RecipeError(
                "this fit has a separate baseline for each site; for one baseline give times, cox(cuts=[...])", "cuts"
            )
        steps: Steps = self._last[0]
        return steps

    @property
    def baseline_hazard(self) -> Any:
        """The hazard of a row whose columns are all 0, its sum and its survival, by cut. Raises as `steps`."""
        return self.steps.baseline(self.cox.cuts, self.cox.ties)

    def zph(self, transform: Literal["km", "identity", "log"] = "km") -> Any:
        """Tests of proportional hazards, by column and for all: small p-values suggest effects that change over time.

        Args:
            transform: the function of time to test against; "km" is 1 minus Kaplan-Meier's curve

        Raises as `steps`.
        """
        tests = self.steps.proportional(self.cox.cuts, self.cox.ties, transform)
        return needed("pandas").DataFrame(tests, [*self.names, "GLOBAL"], columns=["chi2", "df", "p"])

    def summary(self) -> str:
        """A text table."""
        facts = [("Time", parsed(self.cox.formula).response), ("Event", self.cox.event), ("Ties", self.cox.ties)]
        by = self.cox.strata_columns
        strata = "1" if self.cox.cuts else f"{len(self.sites)}{' × strata' if by else ''}"
        facts += [("No. Observations", str(self.nobs)), ("Baselines", strata)]
        facts += [(k, v) for k, v in (("Entry", self.cox.entry), ("Errors clustered by", self.cox.cluster)) if v]
        within = f"stratified by {' and '.join(('site', *by))}"
        title = f"Cox regression, {'one baseline for all sites' if self.cox.cuts else within}"
        return self._table(title, [*facts, ("Log-Likelihood", f"{self.llf:.5g}")])
