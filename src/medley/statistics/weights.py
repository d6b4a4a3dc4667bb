"""Weights by the probability of a treatment: the scores and the weights of rows stay at their site.

The propensity model, a logistic regression of the treatment, is fitted by sums as any other. Its coefficients γ go back
to the sites, and each computes e = P(treated) and the weight of its rows:

    all patients (ATE)      a/e + (1 − a)/(1 − e)        stabilised: a p/e + (1 − a)(1 − p)/(1 − e), p the share treated
    the treated (ATT)       a + (1 − a) e/(1 − e)
    either choice (overlap) a (1 − e) + (1 − a) e

**Errors** know that γ and p were estimated. With ψ the scores of γ and p, A their information, u a row's score of the
outcome's model for each unit of its weight, and B that model's information, all summed over all sites' rows,

    D = Σ u (dw/dγ)ᵀ      V = B⁻¹ [Σ (w u + D A⁻¹ ψ)(w u + D A⁻¹ ψ)ᵀ] B⁻¹

which are the stacked estimating equations of both models. Sites send D, then with D A⁻¹ of all rows the sum of V; the
columns are combined such that A is n I. Unless rules are exact, both are rounded.

**Reference**: Lunceford & Davidian, Statistics in Medicine 23, 2004; Hirano, Imbens & Ridder, Econometrica 71, 2003,
for the treated; Li, Morgan & Zaslavsky, JASA 113, 2018, for overlap; Crump, Hotz, Imbens & Mitnik, Biometrika 96, 2009,
for trimming; Lin & Wei, JASA 84, 1989, and Shu, Young, Toh & Wang, Biometrics 77, 2021, for Cox's model.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..contract import BadData, Checked, Client, Cohort, Message, RecipeError, WireError, at_least, below, on_client
from .analysis import Analysis, Moments, lower, packed, tensor, unpacked
from .formulas import design, parsed
from .risksets import by_cluster
from .rules import Withheld
from .scoring import Begun, Curve, Fitted, Point, inverse
from .site import Site, share_of, within_used

log = logging.getLogger("medley")

LARGEST = 1e6
"""The largest weight of a row that a site accepts: with larger ones a server could pick rows by a steep model."""

FINEST = 0.02
WIDEST = 0.5
"""The finest and the widest grid of the sums for robust errors, as a share of their standard deviation: as fine as a
quarter of the bits of an outcome of 0 and 1 allows. The widest adds at most 4 % to the error of an error."""


@dataclass(frozen=True)
class Weights(Checked):
    """Weights of rows by the inverse probability of the treatment that they got.

    Attributes:
        formula: the propensity model, "treated ~ age + C(sex)"; ``treated`` is 0 or 1
        estimand: whose effect it is: "ATE" of all patients, "ATT" of the treated ones, or "overlap" of those who might
            as well have had the other treatment
        stabilised: whether weights are multiplied by the share of their treatment, which makes them smaller; for "ATE"
        trim: rows whose score is below this number, or above 1 minus it, are left out
        truncate: scores below this number, or above 1 minus it, are moved to it
        sites: "fixed" gives each site except the first an effect in the propensity model; empty for none
    """

    formula: str
    estimand: Literal["ATE", "ATT", "overlap"] = "ATE"
    stabilised: bool = False
    trim: Annotated[float, at_least(0.0), below(0.5)] = 0.0
    truncate: Annotated[float, at_least(0.0), below(0.5)] = 0.0
    sites: Literal["", "fixed"] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "~" not in self.formula:
            raise RecipeError(
                f"Weights({self.formula!r}): write the treatment, ~ and what decided on it, as in 'treated ~ age'",
                "formula",
            )
        if self.stabilised and self.estimand != "ATE":
            raise RecipeError(
                f"Weights(stabilised=True): it is for estimand='ATE', not {self.estimand!r}", "stabilised"
            )
        if self.trim and self.truncate:
            raise RecipeError("Weights(trim=, truncate=): leave rows out or move their scores, not both", "trim")

    @property
    def treatment(self) -> str:
        """The column of the treatment."""
        return parsed(self.formula).response

    @property
    def account(self) -> str:
        """The name under which a site counts the bits that weighted sums tell of the treatment.

        They have an account of their own, since a column on the right of an outcome's formula has exact sums.
        """
        return f"{self.treatment}, in weights"

    @property
    def propensity_formula(self) -> str:
        """The formula, with the sites' effects if there are any."""
        return self.formula + (" + C(site)" if self.sites else "")

    def of(self, a: np.ndarray, e: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights [n] at scores e, and their derivatives by e and by p, the share of the treated."""
        b = 1 - a
        if self.estimand == "ATT":
            return a + b * e / (1 - e), b / (1 - e) ** 2, 0 * e
        if self.estimand == "overlap":
            return a * (1 - e) + b * e, b - a, 0 * e
        one, two = (p, 1 - p) if self.stabilised else (1.0, 1.0)
        by_p = a / e - b / (1 - e) if self.stabilised else 0 * e
        return one * a / e + two * b / (1 - e), two * b / (1 - e) ** 2 - one * a / e**2, by_p


class Fit(NamedTuple):
    """A propensity model that is fitted to n rows: the share of the treated, γ [q], and combinations of columns [q, q]
    with which their information is n.
    """

    n: int
    share: float
    b: np.ndarray
    L: np.ndarray

    @classmethod
    def of(cls, fitted: Fitted, n: int) -> Fit:
        """The fit of ``n`` rows."""
        return cls(n, fitted.figures["mean"], fitted.b, np.linalg.cholesky(fitted.cov * n))

    @classmethod
    def read(cls, values: Tensor) -> Fit:
        """Inverse of `sent`. Raises WireError if the server sent none, or numbers that are not finite."""
        if not values.numel() or not values.isfinite().all():
            raise WireError("weights=Weights(...): the server asks for weighted sums without a propensity model")
        n, share, *rest = values.tolist()
        q = int((np.sqrt(4 * len(rest) + 1) - 1) / 2)
        return cls(int(n), share, np.array(rest[:q]), np.array(rest[q : q + q * q]).reshape(q, q))


def sent(fit: Fit | None) -> Tensor:
    """A propensity model as a message has it; nothing for none."""
    return tensor([] if fit is None else [fit.n, fit.share, *fit.b, *fit.L.ravel()])


class Scored(NamedTuple):
    """A site's rows [n] by the propensity model.

    Attributes:
        rows: whether a row is in the outcome's model, bool
        w, slope: its weight, and the weight's derivatives by γ in the combinations of columns, and by p [n, q + 1]
        psi: the scores of γ and p [n, q + 1]
        treated: whether a row is treated, bool
    """

    rows: np.ndarray
    w: np.ndarray
    slope: np.ndarray
    psi: np.ndarray
    treated: np.ndarray


class Stacked(Message):
    """Up: a model's information if the server does not know it [b], and what follows from the propensity's coefficients
    [p, q]; or products of the rows' influences [t]."""

    bread: Float[Tensor, " b"]
    slope: Float[Tensor, "p q"]
    meat: Float[Tensor, " t"]


class Weighted(Analysis):
    """Base of analyses whose rows may have weights by the probability of a treatment."""

    @property
    def weighting(self) -> Weights | None:
        """The weights by treatment, if it has any."""
        weights = getattr(self, "weights", None)
        return weights if isinstance(weights, Weights) else None

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The columns on which the treatment may have an effect: none of them belongs in the propensity model."""
        return ()

    @property
    @abstractmethod
    def treatment(self) -> Any:
        """The propensity model as a GLM of this analysis' rows. Raises WireError if it has none."""

    def scored(self, clients: Cohort, levels: dict[str, list[str]], rows: np.ndarray) -> tuple[Fit | None, int]:
        """The propensity model, fitted to all sites' rows, and the number of rows in the outcome's model."""
        n, weights = int(rows[:, 0].sum()), self.weighting
        if weights is None:
            return None, n
        of_model = parsed(weights.formula).columns
        wrong = next((c for c in self.outcomes if c in of_model), "")
        if wrong:
            raise RecipeError(
                f"Weights({weights.formula!r}): {wrong} is the outcome of this analysis; a propensity model has the "
                "treatment, and columns that were known before it",
                "weights",
            )

        def ask(method: Any, request: Message) -> Any:
            return self.summed(clients, getattr(self, f"treatment_{method.__name__}"), request)

        mine = {c: levels[c] for c in parsed(weights.propensity_formula).categorical}
        fit = Fit.of(self.treatment.fitted(ask, mine, n, len(rows), self.masked(clients)), n)
        if weights.trim:
            nothing = tensor([])
            point = Point(
                terms=packed(levels), b=nothing, bread=nothing, mean=0.0, alpha=0.0, rows=n, treatment=sent(fit)
            )
            n = int(np.rint(float(self.summed(clients, self.remaining, point).sums[0])))
        return fit, n

    def scores(self, site: Site, used: np.ndarray, levels: dict[str, list[str]], fit: Fit) -> Scored:
        """The site's rows by the propensity model, if sums with these weights may leave it."""
        weights = self.weighting
        assert weights is not None
        f = parsed(weights.propensity_formula)
        frame = site.at(used)
        _, Z = design(f, frame, levels, site.name)
        a = site.column(used, f.response, 0.0)
        if not np.isin(a, (0, 1)).all():
            raise BadData(f"{site.name}: a treatment is 0 or 1, and {f.response} has other values")
        if Z.shape[1] != len(fit.b):
            raise WireError("weights=Weights(...): the server's propensity model has other columns")
        raw = 1 / (1 + np.exp(-np.clip(Z @ fit.b, -700, 700)))
        least = max(weights.truncate, 1e-12)
        e = np.clip(raw, least, 1 - least)
        rows = (raw >= weights.trim) & (raw <= 1 - weights.trim)
        if weights.trim or weights.truncate:
            self._admit_edges(site, used, rows if weights.trim else raw == e, weights)
        w, by_e, by_p = weights.of(a, e, fit.share)
        Zb = Z @ fit.L
        slope = np.column_stack([(by_e * e * (1 - e) * (raw == e))[:, None] * Zb, by_p])
        psi = np.column_stack([(a - raw)[:, None] * Zb, a - fit.share])
        self._refuse_explosion(site, np.where(rows, w, 0.0), a, f.response)
        return Scored(rows, w, slope, psi, a > 0)

    def _admit_edges(self, site: Site, used: np.ndarray, inside: np.ndarray, weights: Weights) -> None:
        """Record which rows a limit of the scores concerns; raise Withheld if a comparison with another limit, or with
        none, would tell something of a few rows.
        """
        if inside.all():
            return
        key, value = ("trim", weights.trim) if weights.trim else ("truncate", weights.truncate)
        site.least(int(inside.sum()), f"rows with {key}={value:g}")
        for column in dict.fromkeys(self.reads[0]):
            try:
                site.admit(column, [used, within_used(used, ~inside)], f"the rows that {key}={value:g} concerns")
            except Withheld as e:
                raise Withheld(f"{e}; or give another {key}=") from None

    def _refuse_explosion(self, site: Site, w: np.ndarray, a: np.ndarray, name: str) -> None:
        """Raise Withheld if a few rows have nearly all the weight of their treatment; log a site with one treatment."""
        for arm, what in ((a > 0, "treated"), (a == 0, "untreated")):
            if not arm.any():
                log.warning(
                    "%s: no row is %s by %s, so that its rows are compared with other sites'", site.name, what, name
                )
                continue
            try:
                site.effective(w[arm], np.ones((int(arm.sum()), 1)))
                site.dominated(w[arm], "the weights")
                exploded = site.rules.rows > 1 and w[arm].max() > LARGEST
            except Withheld:
                exploded = True
            if exploded:
                raise Withheld(
                    f"{site.name} withholds: the weights of its {what} rows explode, fewer than {site.rules.rows} of "
                    f"them decide, or one counts for more than {LARGEST:.0g}; give Weights(estimand='overlap'), trim= "
                    f"or truncate=, or leave the site out, study.without({site.name!r})"
                )

    @on_client
    def treatment_magnitudes(self, me: Client[Any], request: Point) -> Moments:
        """`GLM.magnitudes` of the propensity model."""
        out: Moments = self.treatment.magnitudes(me, request)
        return out

    @on_client
    def treatment_begin(self, me: Client[Any], request: Point) -> Begun:
        """`GLM.begin` of the propensity model."""
        out: Begun = self.treatment.begin(me, request)
        return out

    @on_client
    def treatment_score(self, me: Client[Any], request: Point) -> Curve:
        """`GLM.score` of the propensity model."""
        out: Curve = self.treatment.score(me, request)
        return out

    @on_client
    def treatment_contradicts(self, me: Client[Any], request: Point) -> Moments:
        """`GLM.contradicts` of the propensity model."""
        out: Moments = self.treatment.contradicts(me, request)
        return out

    @on_client
    def remaining(self, me: Client[Any], request: Point) -> Moments:
        """The number of rows that are not trimmed."""
        site: Any = me.problem
        used, _ = self.used(site)
        scored = self.scores(site, used, unpacked(request.terms), Fit.read(request.treatment))
        return Moments(tensor([scored.rows.sum()]))


@dataclass(frozen=True)
class Robust:
    """A site's sums for the errors of a weighted model.

    Attributes:
        site, column: whose sums they are, and the column that is explained
        used: the rows of the propensity model [sites' n]
        scored: these rows
        u: scores for each unit of weight of the rows in the outcome's model [n, p]
        most: how many bits the column's sums may tell
        of: codes 0, 1, … of these rows' clusters; None if each row is one
    """

    site: Site
    column: str
    used: np.ndarray
    scored: Scored
    u: np.ndarray
    most: float
    of: np.ndarray | None = None

    def sums(self, terms: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Sums of terms [n, k] over these rows of the site, as they may leave."""
        (n, p), q = self.u.shape, self.scored.psi.shape[1]
        share = FINEST
        if np.isfinite(self.most):
            share = share_of(min(n, self.most) / 4 / (p * (p + 1) / 2 + p * q), FINEST, WIDEST)
        keys = [f"errors {self.site.digest(rows, t)}" for t in terms.T]
        spread = np.sqrt(len(terms)) * terms.std(0)
        return self.site.rounded(self.column, terms.sum(0), spread, keys, self.most, share)

    def reply(self, influence: Tensor, bread: Any) -> Stacked:
        """The reply to a server that has no D A⁻¹ yet, or to one that has it [p q]."""
        s, (n, p) = self.scored, self.u.shape
        if not influence.numel() and s.psi.size:
            terms = (self.u[:, :, None] * s.slope[s.rows][:, None, :]).reshape(n, -1)
            slope = self.sums(terms, within_used(self.used, s.rows)).reshape(p, -1)
            return Stacked(bread=tensor(bread), slope=tensor(slope), meat=tensor([]))
        v = s.psi @ influence.numpy().reshape(p, -1).T
        v[s.rows] += s.w[s.rows, None] * self.u
        v, rows = by_cluster(v, self.used, self.of)
        self.site.effective(np.ones(len(v)), v)
        at = np.triu_indices(p)
        meat = self.sums(v[:, at[0]] * v[:, at[1]], rows)
        return Stacked(bread=tensor([]), slope=tensor(np.zeros((0, 0))), meat=tensor(meat))


def sandwich(ask: Callable[[Tensor], Stacked], n: int, naive: np.ndarray) -> np.ndarray:
    """The covariance [p, p] of a weighted model's coefficients.

    Args:
        ask: D A⁻¹ [p q], or nothing -> the sum of the sites' replies
        n: rows of the propensity model
        naive: the inverse of the model's information, if the sites do not send it
    """
    first = ask(tensor([]))
    B = inverse(lower(first.bread)) if first.bread.numel() else naive
    out: np.ndarray = B @ lower(ask(first.slope.ravel() / n).meat) @ B
    return out
