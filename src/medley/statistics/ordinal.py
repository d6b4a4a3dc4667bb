"""Ordinal logit: a regression of levels that have an order, by proportional odds.

**Reference**: McCullagh, "Regression models for ordinal data", JRSS B 42, 1980. With levels 1 … K, thresholds
θ₁ < … < θ_{K−1} and F the logistic function,

    P(y ≤ k) = F(θ_k − xβ)

as R's MASS::polr and statsmodels' OrderedModel have it: a positive β makes higher levels likelier. The likelihood is
concave in (β, θ) (Burridge, JRSS B 43, 1981), so that Newton's steps, halved if they pass the top, find its maximum.

**One round sends** (floats per site, p coefficients, K levels, q = p + K − 1): 3 · sites + columns up, and 1,152 for
the levels and each column under C(); under secure sums 128 (p + 1) to agree on scales; K + (p + 1)(p + 2)/2 to begin;
then q + q(q + 1)/2 + 3 a step.

**Departures**: where a site's rules are not exact, its score and its likelihood are rounded, see
`medley.statistics.rounding`, and its information is the expected one, which does not depend on the outcome; else it is
the observed one, as in R. Scores far from the fit are rounded more coarsely: they only lead to the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from ..contract import Client, Cohort, Message, RecipeError, Stalled, WireError, on_client
from ..contract.arguments import known_keywords
from ..contract.text import shown
from .analysis import Analysis, Ask, Moments, Report, lower, packed, site_of, tensor, unpacked, upper
from .basis import Basis
from .cells import texts
from .extra import needed
from .fit import Coefficients, Cost
from .formulas import design, parsed, within
from .glm import design_names, within_basis
from .predictions import design_of
from .rounding import COARSE, WIDEST
from .rules import Withheld
from .scales import banded, exponents_of
from .scoring import Curve, Point, Unfit, inverse, separation
from .site import SHARE, Site, share_of

MOST_LEVELS = 20
"""The most levels of an outcome."""

FINE_STEPS = 5
"""A score near the fit tells a fifth of an outcome's bits at most, all its numbers together."""

NEAR = 1.0
"""Newton's decrement below which scores are rounded finely."""

STEPS = 30
"""The most steps of a fit."""

LIMIT = 36.0
"""The farthest that xβ may be from a threshold: beyond it a probability is 0 or 1 to all digits."""


class Rows(NamedTuple):
    """A site's rows of one fit: its design with a first column of ones, the places of the outcomes' levels, which rows
    these are, and the bits that the outcomes can hide.
    """

    X: np.ndarray
    y: np.ndarray
    used: np.ndarray
    bits: float


class Likelihood(NamedTuple):
    """Sums over rows [n] with levels y at β [p] and θ [K − 1]: log-likelihoods by row, scores by row [n, q], expected
    and observed information [q, q], and the weights with which rows count for xβ and for each threshold [K, n].
    """

    logs: np.ndarray
    scores: np.ndarray
    expected: np.ndarray
    observed: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, Z: np.ndarray, y: np.ndarray, b: np.ndarray, thresholds: np.ndarray) -> Likelihood:
        """The sums of columns Z [n, p] without a constant one."""
        (n, p), k = Z.shape, len(thresholds)
        to = np.full((n, k + 2), np.inf)
        to[:, 0] = -np.inf
        to[:, 1:-1] = thresholds - (Z @ b)[:, None]
        below, above = (1 / (1 + np.exp(-sign * to)) for sign in (1, -1))  # both tails keep their digits
        f = below * above
        bend = f * (above - below)
        P = np.where(to[:, :-1] > 0, above[:, :-1] - above[:, 1:], below[:, 1:] - below[:, :-1])
        logs, scores, weights = np.zeros(n), np.zeros((n, p + k)), np.zeros((k + 1, n))
        expected, observed = np.zeros((2, p + k, p + k))
        for level in range(k + 1):
            ends = [np.column_stack([-Z, np.tile(np.arange(k) == level - 1 + e, (n, 1))]) for e in (0, 1)]
            s = (f[:, level + 1] * ends[1].T - f[:, level] * ends[0].T).T / P[:, [level]]
            expected += s.T @ (P[:, [level]] * s)
            weights[0] += P[:, level] * (below[:, level] - above[:, level + 1]) ** 2
            mine = y == level
            logs[mine], scores[mine] = np.log(P[mine, level]), s[mine]
            observed += s[mine].T @ s[mine]
            for e, sign in ((0, 1), (1, -1)):
                J = ends[e][mine]
                observed += sign * J.T @ ((bend[mine, level + e] / P[mine, level])[:, None] * J)
        weights[1:] = (f[:, 1:-1] ** 2 * (1 / P[:, :-1] + 1 / P[:, 1:])).T
        return cls(logs, scores, expected, observed, weights)


@dataclass(frozen=True)
class Ordinal(Analysis):
    """A regression of levels that have an order, by proportional odds.

    Attributes:
        formula: "severity ~ age + C(sex)"
        levels: the outcome's levels from the lowest on; empty for an outcome of numbers, in their order
        where: a condition on the rows, "age >= 18"; empty for all
        sites: "fixed" gives each site except the first an effect; empty for none
    """

    call = "ordinal"
    uses = "logit"

    formula: str
    levels: Sequence[str | float] = ()
    where: str = ""
    sites: Literal["", "fixed"] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.levels, str) or len({*self.names}) < len(self.names):
            raise RecipeError(f"ordinal(levels={self.levels!r}): give a list of the levels, each once", "levels")

    @property
    def names(self) -> list[str]:
        """The levels as texts."""
        return [f"{v:g}" if isinstance(v, float) else str(v).strip() for v in self.levels]

    @property
    def whole(self) -> str:
        """The formula, with the sites' effects if there are any."""
        return self.formula + (" + C(site)" if self.sites else "")

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        f = parsed(self.whole)
        return f.columns, (f.response, *f.categorical)

    def round(self, s: Report, clients: Cohort) -> None:
        """Agree on levels and categories, sum the columns' squares, and step until the score is 0."""
        agreed, rows = self.agreed(clients)
        response = parsed(self.formula).response
        order = self.ordered(agreed[response])
        terms = {**agreed, response: order}
        names = design_names(self.whole, agreed)
        n = int(rows[:, 0].sum())
        if names[:1] != ["Intercept"] or len(names) < 2:
            why = "the thresholds are its intercepts: leave out 0 and -1, and name a column on the right"
            raise RecipeError(f"ordinal({self.formula!r}): {why}", "formula")
        if len(names) + len(order) - 2 >= n:
            raise Unfit(f"{len(names) + len(order) - 2} parameters are too many for {n} rows: leave out columns")

        def ask(method: Any, request: Message) -> Any:
            return self.summed(clients, method, request)

        s.result = self._descended(ask, terms, names, order, n, self.masked(clients)), rows

    def ordered(self, present: list[str]) -> list[str]:
        """The levels in their order. Raises RecipeError, naming the level, for one that the user or no site has."""
        what = f"ordinal({self.formula!r}"
        given = self.names
        if not given:
            try:
                given = sorted(present, key=float)
            except ValueError:
                of = ", ".join(map(repr, present[:6]))
                raise RecipeError(
                    f"{what}): texts have no order; give levels=[...], the lowest first, of {of}", "levels"
                ) from None
        nobody = [v for v in given if v not in present]
        unsaid = [v for v in present if v not in given]
        if nobody or unsaid:
            why = f"no row at any site has {nobody[0]!r}: leave it out" if nobody else f"rows have {unsaid[0]!r}, too"
            raise RecipeError(f"{what}, levels={given!r}): {why}", "levels")
        if not 2 < len(given) <= MOST_LEVELS:
            why = f"give at most {MOST_LEVELS} levels, or a regression of a number" if len(given) > 2 else ""
            two = "an outcome of two levels is recoded to 0 and 1, for glm(family='binomial')"
            one = "the outcome has one value at all sites, and there is nothing to explain"
            raise RecipeError(f"{what}): {len(given)} levels: {why or (two if len(given) == 2 else one)}", "levels")
        return given

    def _descended(
        self, ask: Ask, terms: dict[str, list[str]], names: list[str], order: list[str], n: int, noisy: bool
    ) -> dict[str, Any]:
        """The fit of all sites' rows: coefficients and thresholds with their covariance, and figures."""
        k, p = len(order), len(names) - 1
        nothing = tensor([])
        point: dict[str, Any] = {"terms": packed(terms), "bread": nothing, "mean": 0.0, "alpha": 0.0, "rows": n}
        T = Basis(names)
        at = np.triu_indices(p + 1)
        if noisy:
            table = ask(self.magnitudes, Point(b=nothing, **point)).sums.numpy().reshape(p + 1, -1)
            T = Basis(names, scale=exponents_of(table), rows=float(n))
        while True:
            point["basis"] = tensor(T.T[at])
            begun = ask(self.begin, Point(b=nothing, **point)).sums.numpy()
            if not T.improved(lower(tensor(begun[k:]))):
                break
        counts = np.rint(begun[:k])
        share = counts.cumsum()[:-1] / n
        size = np.sqrt(np.diag(lower(tensor(begun[k:])))[1:] / n)
        x, up = self._stepped(ask, point, np.append(np.zeros(p), np.log(share / (1 - share))), names, size, noisy)
        back = np.zeros((p + k - 1, p + k - 1))  # columns X T with a first one of T[0, 0]: θ moves by T[0, 1:] β
        back[:p, :p], back[p:, :p], back[p:, p:] = T.T[1:, 1:], -T.T[0, 1:], np.eye(k - 1)
        return {
            "names": names[1:], "levels": order, "b": back @ x, "cov": back @ inverse(lower(up.H)) @ back.T,
            "llf": float(up.sums[0]), "llnull": float(counts @ np.log(counts / n)), "terms": terms,
            "counts": counts.astype(int), "rounded": float(up.sums[1]) > 0.5,
        }  # fmt: skip

    def _stepped(
        self, ask: Ask, point: dict[str, Any], x: np.ndarray, names: list[str], size: np.ndarray, noisy: bool
    ) -> tuple[np.ndarray, Curve]:
        """Newton's steps from x until the decrement is small, with the last curve; ``size`` is of the columns."""
        p, n = len(names) - 1, point["rows"]
        up: Curve = ask(self.score, Point(b=tensor(x), **point))
        closing, before, fine = False, np.inf, 0
        for _ in range(STEPS):
            g = up.g.numpy()
            step = inverse(lower(up.H)) @ g
            decrement = float(np.sqrt(max(g @ step, 0.0)))
            rounded = up.sums[1] > 0.5
            enough = 1e-3 * np.sqrt(len(g)) if rounded else min(1e-9 * np.sqrt(n), 1e-7)
            slow = (0.02 if rounded else 1e-4 if noisy else 1e-7) > decrement > before / 3
            fine += closing
            if closing and (decrement <= enough or slow or (rounded and fine > 2)):
                return x + step, up
            before = decrement
            closing = decrement < NEAR or closing
            for half in range(12):
                to = x + step / 2**half
                if not np.isfinite(to).all() or (np.diff(to[p:]) <= 0).any():
                    continue
                new: Curve = ask(self.score, Point(b=tensor(to), closing=closing, **point))
                if new.sums[2] < 0.5 and (decrement < NEAR or new.g.numpy() @ step >= -(g @ step)):
                    break
            else:
                break
            x, up = to, new
        moved = np.abs(step[:p]) * size
        growing = [name for name, m in zip(names[1:], moved, strict=True) if m > 0.3 * moved.max()]
        raise Stalled(separation("levels are told apart without error", growing))

    @on_client
    def magnitudes(self, me: Client[Any], request: Point) -> Moments:
        """The site's table of the columns' magnitudes."""
        return Moments(tensor(banded(self._rows(site_of(me), request).X).ravel()))

    @on_client
    def begin(self, me: Client[Any], request: Point) -> Moments:
        """Rows by level, and the columns' products."""
        site = site_of(me)
        r = self._rows(site, request)
        Z = within_basis(r.X, request.basis)
        counts = np.bincount(r.y, minlength=self._levels(request))
        if site.rules.rounded:
            of = site.digest(r.used, np.ones(len(r.y)))
            bits = {f"level {k} {of}": float(np.log2(1 + 3 * np.sqrt(len(r.y)))) for k in range(len(counts))}
            site.spend(parsed(self.formula).response, bits, r.bits)
        return Moments(tensor([*counts, *upper(Z.T @ Z)]))

    @on_client
    def score(self, me: Client[Any], request: Point) -> Curve:
        """The site's score and information at β and θ; near the fit also its likelihood."""
        site = site_of(me)
        r = self._rows(site, request)
        Z = within_basis(r.X, request.basis)[:, 1:]
        p = Z.shape[1]
        b, thresholds = request.b.numpy()[:p], request.b.numpy()[p:]
        if len(thresholds) != self._levels(request) - 1 or not (np.diff(thresholds) > 0).all():
            raise WireError("ordinal: the server's thresholds do not ascend, or are not one fewer than the levels")
        far = np.abs(thresholds - (Z @ b)[:, None]).max() > (LIMIT if site.rules.rows > 1 else 20 * LIMIT)
        nothing, q = tensor([]), len(request.b)
        if far:  # the site sends only this fact
            zeros = tensor(np.zeros(q)), tensor(np.zeros(q * (q + 1) // 2))
            return Curve(*zeros, nothing, nothing, nothing, tensor([0.0, 1.0 * site.rules.rounded, 1.0]))
        at = Likelihood.of(Z, r.y, b, thresholds)
        site.effective(at.weights[0], r.X)
        for weights in at.weights[1:]:
            site.effective(weights, np.ones((len(r.y), 1)))
        g, llf = at.scores.sum(0), at.logs.sum() * request.closing
        if site.rules.rounded:
            mean = 1 / (1 + np.exp(Z @ b - thresholds[0]))
            of = f"{site.digest(r.used, mean)} {' '.join(f'{v:.8g}' for v in thresholds)}"
            g, llf = self._rounded(site, r, at, of, request.closing)
        H = at.expected if site.rules.rounded else at.observed
        sums = tensor([llf, 1.0 * site.rules.rounded, 0.0])
        return Curve(tensor(g), tensor(upper(H)), nothing, nothing, nothing, sums)

    def _rounded(self, site: Site, r: Rows, at: Likelihood, of: str, closing: bool) -> tuple[np.ndarray, float]:
        """The score on a grid along directions in which its deviation is 1, and near the fit the log-likelihood."""
        column, q = parsed(self.formula).response, len(at.expected)
        share = share_of(r.bits / FINE_STEPS / q, SHARE, WIDEST) if closing else WIDEST
        size = np.sqrt(np.diag(at.expected)) + 1e-300
        s, u = np.linalg.eigh(at.expected / np.outer(size, size))
        root = size[:, None] * u[:, s > 1e-10] * np.sqrt(s[s > 1e-10])
        along = np.linalg.lstsq(root / size[:, None], at.scores.sum(0) / size, rcond=None)[0]
        keys = [f"score {j} {of} {share}" for j in range(len(along))]
        g = root @ site.rounded(column, along, np.ones(len(along)), keys, r.bits, share)
        if not closing:
            return g, 0.0
        spread = np.array([np.sqrt(len(r.y)) * at.logs.std()])
        llf = site.rounded(column, at.logs.sum()[None], spread, [f"likelihood {of}"], r.bits, max(share, COARSE))
        return g, float(llf[0])

    def _levels(self, request: Point) -> int:
        return len(unpacked(request.terms)[parsed(self.formula).response])

    def _rows(self, site: Site, request: Point) -> Rows:
        """The site's rows of this fit, once they may leave; they are kept for the next exchange."""
        key = repr(self), bytes(request.terms.numpy())
        if key not in site.kept:
            site.kept.clear()
            site.kept[key] = self._prepared(site, unpacked(request.terms), request.rows)
        rows: Rows = site.kept[key]
        return rows

    def _prepared(self, site: Site, terms: dict[str, list[str]], everywhere: int) -> Rows:
        f = parsed(self.whole)
        if self.sites and site.own:
            why = f"{site.name} has a column 'site', but sites='fixed' makes one of that name: rename yours"
            raise RecipeError(why, "sites")
        used, _ = self.used(site)
        frame = site.at(used)
        names, X = design(f, frame, terms, site.name)
        levels = terms[f.response]
        values = texts(frame, f.response, site.name)
        if {*values} - {*levels} or (self.levels and self.names != levels):
            raise WireError(f"ordinal: the server's levels of {f.response} are not those of this analysis")
        y = np.array([levels.index(v) for v in values])
        site.check_size(int((np.abs(X).sum(0) > 0).sum()) + len(levels) - 2, len(y), everywhere)
        site.combinations(X)
        others = within(f, frame, terms, site.name, names, X)
        for k in np.unique(y):
            site.cell(y == k, f.response)
            site.admit_fit(used, X, names, f.columns, y == k, site.rules.exact, others)
        shares = np.unique(y, return_counts=True)[1] / len(y)
        if site.rules.rounded and len(shares) < 2:
            raise Withheld(
                f"{site.name} withholds: all its rows have one level of {f.response}, so that their number tells it of "
                f"each; study.without({site.name!r})"
            )
        return Rows(X, y, used, float(-len(y) * shares @ np.log2(shares)))


class OrdinalFit(Coefficients):
    """An ordinal logit's fit: coefficients, then the thresholds between successive levels, "mild|severe".

    Attributes:
        ordinal, sites: the analysis, and the sites' names
        levels, counts: the levels from the lowest on, and the numbers of their rows
        nobs, llf, llnull: rows, and the log-likelihoods of the model and of one with only thresholds
        exchanges, bytes_down, bytes_up: the costs of the fit
    """

    def __init__(
        self, ordinal: Ordinal, sites: tuple[str, ...], result: tuple[dict[str, Any], Any], cost: Cost
    ) -> None:
        found, self.rows = result
        self.levels: list[str] = found["levels"]
        between = [f"{a}|{b}" for a, b in zip(self.levels, self.levels[1:], strict=False)]
        super().__init__([*found["names"], *between], found["b"], found["cov"])
        self.ordinal, self.sites, self.terms = ordinal, sites, found["terms"]
        self.llf: float = found["llf"]
        self.llnull: float = found["llnull"]
        self.counts = needed("pandas").Series(found["counts"], self.levels)
        self.nobs, self.k = int(found["counts"].sum()), len(self.b)
        self._rounded = found["rounded"]
        self.exchanges, self.bytes_down, self.bytes_up = cost

    @property
    def aic(self) -> float:
        """Akaike's criterion, −2 llf + 2 k, with the thresholds among the k parameters."""
        return -2 * self.llf + 2 * self.k

    @cached_property
    def rows_by_site(self) -> Any:
        """Rows used, rows left out for a missing value, and rows that the study left out, by site."""
        columns = ("used", "missing", "incomplete")
        return needed("pandas").DataFrame(self.rows.astype(int), index=[*self.sites], columns=columns)

    @known_keywords
    def frame(self, exp: bool = False, alpha: float = 0.05) -> Any:
        """See `Coefficients.frame`; with ``exp`` odds ratios, without the thresholds."""
        out = super().frame(exp, alpha)
        return out.iloc[: self.k - len(self.levels) + 1] if exp else out

    @known_keywords
    def predict(self, rows: Any) -> Any:
        """The probabilities of the levels for rows of yours, a frame: a column for each level.

        Nothing leaves a site for it. Raises BadData for rows without one of the columns, or with a category that no
        site has.
        """
        X, _ = design_of("predict(rows)", self.ordinal, self.terms, rows)
        p = X.shape[1] - 1
        to = self.b[p:] - (X[:, 1:] @ self.b[:p])[:, None]
        below = np.column_stack([np.zeros(len(X)), 1 / (1 + np.exp(-to)), np.ones(len(X))])
        return needed("pandas").DataFrame(np.diff(below, axis=1), columns=self.levels)

    def summary(self) -> str:
        """A text table, with the order of the levels."""
        facts = [("Dep. Variable", parsed(self.ordinal.formula).response), ("Model", "Ordinal logit")]
        facts += [("No. Observations", str(self.nobs)), ("Sites", str(len(self.sites)))]
        facts += [("Log-Likelihood", f"{self.llf:.5g}"), ("LL-Null", f"{self.llnull:.5g}")]
        facts += [("AIC", f"{self.aic:.5g}"), ("Exchanges", str(self.exchanges))]
        facts += [("Information", "expected" if self._rounded else "observed"), ("Levels", str(len(self.levels)))]
        order = " < ".join(f"{shown(v)} ({c} rows)" for v, c in self.counts.items())
        return self._table("Ordinal Logit Regression Results", facts) + f"\norder of the levels: {order}"
