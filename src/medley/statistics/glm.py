"""GLM: a generalised linear model, fitted to all sites' rows by Fisher's scoring.

**Reference**: McCullagh & Nelder, "Generalized Linear Models", 1989, section 2.5. Sums of scores and of information
over sites are those of all rows, so that the iterates are those of one machine with all rows.

**One round sends** (floats per site, p parameters, t = p(p + 1)/2): 3 · sites + columns up, and 1,152 for each column
under C(), to agree on categories; under secure sums 128 (p + 2) to agree on scales; t + 6p + 2 to begin; t + p + 13,
t more where the link is not canonical and t for robust errors, until Newton's decrement is below 10⁻⁹ √n, at most 10⁻⁷.

**Departures**: steps use the observed information instead of the expected one if it is positive definite, so that
links that are not canonical converge quadratically, too. Standard errors are from the expected one, as in R; those of
the negative binomial, if α is estimated too, from the observed one, as in statsmodels. Unless its rules are exact, a
site rounds its sums of the outcome, see `medley.statistics.rounding`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, Literal, NamedTuple, cast

import numpy as np
from torch import Tensor

from ..contract import BadData, Client, Cohort, Message, RecipeError, Stalled, WireError, on_client, positive
from .analysis import Ask, Moments, Report, lower, packed, site_of, tensor, triangle, unpacked, upper
from .basis import Basis
from .families import FAMILIES, LINKS, Family, FamilyName, refuse_unknown
from .formulas import design, designed, parsed, within
from .rounding import LOCAL_STEPS, Outcome, rounded
from .scales import FINER, banded, exponents_of, scaled
from .scoring import (
    CHI2,
    DEVIANCE,
    LLF,
    NULL,
    NULL_MODEL,
    Begun,
    Curve,
    Descent,
    Fitted,
    NullModel,
    Point,
    Unfit,
    inverse,
    separation,
)
from .site import Site, within_used
from .weights import Fit, Robust, Scored, Stacked, Weighted, Weights, sandwich, sent

EVEN = 0.1
"""The share of rows with influence below which a site's own steps stop."""

APART = 1e-6
"""How far a row may go against a direction in which the likelihood grows, of a step of about 1."""

Covariance = Literal["model", "HC0", "HC1", "HC3", "cluster"]


class Rows(NamedTuple):
    """A site's rows of one fit: design matrix, outcome, weights and offset."""

    X: np.ndarray
    y: np.ndarray
    w: np.ndarray
    offset: np.ndarray
    outcome: Outcome | None
    scored: Scored | None = None


@dataclass(frozen=True)
class GLM(Weighted):
    """A generalised linear model.

    Attributes:
        formula: "died ~ age + C(sex)"
        family: the outcome's distribution, by name, or a subclass of `medley.statistics.families.Family`
        link: empty for the family's default
        offset: a column that is added to η; empty for none
        exposure: a column whose logarithm is added to η, under a log link; empty for none
        weights: a column of weights of rows, inverse variances; or `Weights(...)` by the probability of a treatment;
            empty for none
        where: a condition on the rows, "age >= 18"; empty for all
        sites: "fixed" gives each site except the first an effect; empty for none
        cov: the covariance of coefficients: of the model, a sandwich, or one clustered by site
        alpha: α of the negative binomial; None estimates it with the coefficients
    """

    call = "glm"

    formula: str
    family: FamilyName | type[Family] = "gaussian"
    link: Literal["", "identity", "log", "logit", "inverse"] = ""
    offset: str = ""
    exposure: str = ""
    weights: str | Weights = ""
    where: str = ""
    sites: Literal["", "fixed"] = ""
    cov: Covariance = "model"
    alpha: Annotated[float, positive] | None = None

    def __post_init__(self) -> None:
        refuse_unknown(self.family, self.call)
        super().__post_init__()
        kind = self.kind
        links = kind.links
        for key, wrong, reason in (
            ("link", self.link and self.link not in links, f"family={self.kind.name!r} takes {' and '.join(links)}"),
            ("exposure", self.exposure and self.uses != "log", f"it is for a log link, and this is {self.uses!r}"),
            (
                "weights",
                self.weights and not self.kind.weighted,
                f"a weighted {self.kind.name}'s likelihood has no sums",
            ),
            ("alpha", self.alpha is not None and not self.kind.has_alpha, "it is for family='negative_binomial'"),
            ("alpha", self.weighting and self.free, "with Weights(...) give its value"),
            ("cov", self.weighting and self.cov != "model", "Weights(...) has robust errors of its own; leave it out"),
        ):
            if wrong:
                raise RecipeError(f"glm({key}={getattr(self, key)!r}): {reason}", key)

    @property
    def outcomes(self) -> tuple[str, ...]:
        """See `Weighted.outcomes`."""
        return (parsed(self.formula).response,)

    @cached_property
    def kind(self) -> Family:
        """The family."""
        return FAMILIES[self.family] if isinstance(self.family, str) else self.family()

    @property
    def uses(self) -> str:
        """The link's name."""
        return self.link or self.kind.links[0]

    @property
    def text(self) -> str:
        """The formula, with the sites' effects if there are any."""
        return self.formula + (" + C(site)" if self.sites else "")

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        f = parsed(self.text)
        by = parsed(self.weighting.propensity_formula) if self.weighting else f
        columns = dict.fromkeys((*f.columns, *filter(None, self.extra), *by.columns))
        return tuple(columns), tuple(dict.fromkeys((*f.categorical, *by.categorical)))

    @property
    def extra(self) -> tuple[str, str, str]:
        """The columns of offset, exposure and weights; empty if there are none."""
        return self.offset, self.exposure, "" if isinstance(self.weights, Weights) else self.weights

    @property
    def treatment(self) -> Any:
        """See `Weighted.treatment`."""
        return treatment(self)

    @property
    def free(self) -> bool:
        """Whether α is estimated with the coefficients."""
        return self.kind.has_alpha and self.alpha is None

    @cached_property
    def canonical(self) -> bool:
        """Whether observed and expected information are the same."""
        return self.uses == self.kind.canonical

    def used(self, site: Site) -> tuple[np.ndarray, int]:
        """See `Analysis.used`: rows of weight 0 are left out."""
        rows, missing = super().used(site)
        if not self.extra[2]:
            return rows, missing
        w = site.column(rows, self.extra[2], 1.0)
        if (w < 0).any():
            raise BadData(f"{site.name}: {self.weights} must be 0 or more")
        rows = rows.copy()
        rows[rows] = w > 0
        site.least(int(rows.sum()), f"rows whose {self.weights} is above 0")
        return rows, missing

    def round(self, s: Report, clients: Cohort) -> None:
        """Agree on categories, begin with a weighted regression, and step until the score is 0."""
        levels, rows = self.agreed(clients)
        ask = partial(self.summed, clients)
        fit, n = self.scored(clients, levels, rows)
        s.result = self.fitted(ask, levels, n, len(rows), self.masked(clients), fit), rows

    def fitted(
        self, ask: Ask, levels: dict[str, list[str]], n: int, sites: int, noisy: bool = False, by: Fit | None = None
    ) -> Fitted:
        """The fit to ``n`` rows of so many sites, whose sums ``ask`` has, weighted ``by`` a propensity model; masks
        make sums ``noisy``.
        """
        names = design_names(self.text, levels)
        if not names:
            raise RecipeError(f"formula {self.formula!r} has no columns on its right", "formula")
        if len(names) >= n:
            raise Unfit(f"{len(names)} parameters are too many for {n} rows: leave out columns or merge categories")
        point: dict[str, Any] = {"terms": packed(levels), "rows": n, "basis": tensor([]), "treatment": sent(by)}
        T = Basis(names)
        at = triangle(len(names))
        first: dict[str, Any] = {"b": tensor([]), "bread": tensor([]), "mean": 0.0, "alpha": self.alpha or 1e-6}
        if noisy:
            table = ask(self.magnitudes, Point(**first, **point)).sums.numpy().reshape(len(names) + 2, -1)
            *scale, unit, weight = exponents_of(table)
            weight += FINER if weight else 0
            point["units"] = tensor([unit, weight])
            T = Basis(names, scale=np.array(scale), rows=n * 2.0 ** self._powers(unit, weight)["H"])
            point["basis"] = tensor(T.T[at])

        def in_units(method: Any, request: Point) -> Any:
            """The sum of the sites' replies, in their own units."""
            return self._scaled(ask(method, request), request, 1)

        begun = in_units(self.begin, Point(**first, **point))
        x, (weight, total) = begun.x.numpy(), begun.sums.tolist()
        same = Unfit(f"{parsed(self.formula).response} has one value at all sites: there is nothing to explain")
        most = weight if self.kind.binary else np.inf
        if self._counts and min(abs(total), abs(most - total)) < 1e-9 * weight:
            raise same
        while T.improved(H := lower(begun.H)):
            point["basis"] = tensor(T.T[at])
            begun = in_units(self.begin, Point(**first, **point))
        self._refuse(names, x, levels)
        size = np.sqrt(begun.x[1].numpy() / n)
        point["mean"] = total / weight
        with np.errstate(all="ignore"):  # under some links no mean is possible at first
            eta = float(LINKS[self.uses].link(np.array([point["mean"]]))[0])
        flat = inverse(H) @ begun.x[5].numpy() * eta
        score = partial(in_units, self.score)
        even = weight / n
        descent = Descent(self, score, sites, names, point, size, flat, noisy=noisy, weight=even)
        descent.unbounded = lambda d: (
            float(in_units(self.contradicts, Point(**{**first, **point, "b": tensor(d)})).sums[0]) < 0.5
        )
        if descent.free and "Intercept" in names and not (self.offset or self.exposure):
            descent.null_model = NullModel(done=False)
        fitted = descent.fit(inverse(H) @ begun.x[4].numpy())
        if by is not None:
            stack = lambda v: in_units(self.stack, Point(**first | point | {"b": tensor(fitted.b)}, influence=v))
            fitted = fitted._replace(cov=sandwich(stack, by.n, fitted.cov))
        fitted = fitted.of_columns(T.T)._replace(point=point)
        rounding = (1e-14 if noisy else 1e-20) * (total**2 / weight if self.kind.homoscedastic else weight)
        if self.kind.dispersed and not self.offset and fitted.figures["null_deviance"] <= rounding:
            raise same
        return fitted

    def _refuse(self, names: list[str], x: np.ndarray, levels: dict[str, list[str]]) -> None:
        """Raise Stalled, naming the column, for an indicator with a single outcome; for the base of categories, too."""
        sums = {name: v for name, v in zip(names, x.T, strict=True) if name != "Intercept"}
        if "Intercept" in names:
            for base, others in bases(names, levels).items():
                sums[base] = x[:, names.index("Intercept")] - sum(x[:, k] for k in others)
        for name, (total, _, rest, events, *_) in sums.items():
            indicator = self._counts and abs(rest) < 1e-6 and total > 0.5
            none = abs(events) < 1e-6 and self.uses != "identity"
            each = abs(events - total) < 1e-6
            if indicator and (none or (each and self.uses == "logit")):
                raise Stalled(separation(f"{'none' if none else 'each'} of the rows of {name} has the event", [name]))

    def outstanding(self, names: list[str], step: np.ndarray, moved: np.ndarray, point: dict[str, Any]) -> list[str]:
        """The columns in which a direction stands out; of categories, those whose effect is far from their median."""
        T = np.eye(len(names))
        if point["basis"].numel():
            T[triangle(len(names))] = point["basis"]
        effects = dict(zip(names, moved, strict=True))
        d = T @ step
        effects.pop("Intercept", None)
        for base, others in bases(names, unpacked(point["terms"])).items():
            middle = float(np.median([0.0, *d[others]]))
            effects |= {base: abs(middle)} | {names[k]: abs(d[k] - middle) for k in others}
        most = max(effects.values(), default=0.0)
        return [name for name, effect in effects.items() if effect > 0.3 * most] or names

    def _scaled(self, up: Message, request: Point, sign: int) -> Any:
        """A reply in the request's units, or back from them."""
        outcome, weight = request.units.tolist()
        return scaled(up, self._powers(outcome, weight, type(up)), sign) if outcome or weight else up

    def _powers(self, outcome: float, weight: float, reply: type[Message] = Curve) -> dict[str, Any]:
        """The exponents by which a reply's fields are divided, from those of the outcome's and the weights' units.

        μ' is in the outcome's unit to the power s, and V(μ) to the power v.
        """
        s = {"log": 1, "inverse": 2}.get(self.uses, 0)
        v = self.kind.power
        g = weight + (1 + s - v) * outcome
        h = weight + (2 * s - v) * outcome
        of = weight + (2 - v) * outcome
        if reply is Begun:
            return {"x": np.array([[0], [0], [0], [0], [g], [h]]), "H": h, "sums": [weight, weight + outcome]}
        if reply is Stacked:
            return {"bread": h, "meat": 2 * g, "slope": g}
        if reply is not Curve:
            return {}
        sums = np.zeros(16)
        sums[[DEVIANCE, CHI2, LLF, NULL, NULL + 1]] = of
        sums[NULL_MODEL:] = weight
        sums = sums[: 16 if self.free else NULL_MODEL]
        return {"g": g, "H": h, "O": h, "meat": 2 * g, "shape": weight, "sums": sums}

    @property
    def _counts(self) -> bool:
        """Whether outcomes are events, or counts of events."""
        return self.kind.counts

    @on_client
    def begin(self, me: Client[Any], request: Point) -> Begun:
        """The site's part of the first weighted regression, at its own fit, and sums that reveal unusable columns."""
        site = site_of(me)
        r = self._rows(site, request)
        family = self.kind
        link = LINKS[self.uses]
        mu = family.first(r.y)
        if family.homoscedastic and self.uses != "identity":
            mu = np.maximum(mu, 0.1 * np.abs(mu).mean() or 1.0)
        X = r.X
        eta = link.link(mu)
        weight = r.w
        left = 0 * r.y
        # If all sites are alike, their own fits are near the fit of all rows.
        for _ in range(LOCAL_STEPS if r.outcome is None else 0):
            with np.errstate(all="ignore"):
                V = family.variance(mu, request.alpha)
                slope = link.slope(mu)
                new = r.w * slope**2 / V
                to = eta - r.offset + (r.y - mu) / slope
                if not (np.isfinite(new) & np.isfinite(to)).all() or new.sum() ** 2 < EVEN * len(mu) * (new @ new):
                    break
                weight = new
                left = to
                root = np.sqrt(weight)
                eta = r.offset + X @ np.linalg.lstsq(root[:, None] * X, root * left, rcond=None)[0]
                mu = link.mean(eta)
            if not (family.inside(mu) & np.isfinite(mu)).all():
                break
        Z = within_basis(X, request.basis)
        total = r.w @ r.y
        event = 1.0 * self._counts * (r.y > 0)
        right = Z.T @ (weight * left)
        events = X.T @ event
        if r.outcome is not None:
            weight, right = r.outcome.start(family, link, r, self.canonical, request.alpha)
            right = within_basis(np.eye(X.shape[1]), request.basis).T @ right
            total = r.outcome.total
            events = r.outcome.events(X, event) if self._counts else events
        site.effective(weight, X)
        zero_one = (((columns := X.T.copy()) == 0) | (columns == 1)).all(1)
        sums = [X.sum(0) * zero_one, (Z**2).sum(0), 1.0 * ~zero_one, events * zero_one, right, Z.T @ weight]
        up = Begun(tensor(sums), tensor(upper(Z.T @ (weight[:, None] * Z))), tensor([r.w.sum(), total]))
        return cast(Begun, self._scaled(up, request, -1))

    @on_client
    def magnitudes(self, me: Client[Any], request: Point) -> Moments:
        """The site's table of the columns' magnitudes, and of the outcome's and the weights', if they have a unit."""
        site = site_of(me)
        r = self._rows(site, request)
        y = r.y if self.kind.dispersed else 0 * r.y
        if y.any() and r.outcome is not None:
            site.spend(r.outcome.column, {"magnitude " + site.digest(r.outcome.used, r.w): 1.0})
        w = r.w if self.weights else 0 * r.w
        return Moments(tensor(banded(np.column_stack([r.X, y, w])).ravel()))

    @on_client
    def contradicts(self, me: Client[Any], request: Point) -> Moments:
        """1 if a row contradicts that the likelihood grows without end in the direction b, else 0."""
        r = self._rows(site_of(me), request)
        along = within_basis(r.X, request.basis) @ request.b.numpy()
        event = r.y > 0
        against = np.ones(len(along), bool)
        if self.uses == "logit":
            against = np.where(event, -along, along) > APART
        elif self.uses == "log" and self.kind.takes(np.zeros(1)).all():
            against = np.where(event, np.abs(along), along) > APART
        return Moments(tensor([1.0 * against.any()]))

    @on_client
    def score(self, me: Client[Any], request: Point) -> Curve:
        """The site's score and information at β."""
        site = site_of(me)
        r = self._rows(site, request)
        family = self.kind
        link = LINKS[self.uses]
        a = request.alpha
        X = within_basis(r.X, request.basis)
        y = r.y
        w = r.w
        b = request.b.numpy()
        eta = X @ b + r.offset
        with np.errstate(all="ignore"):
            mu = link.mean(eta)
            V = family.variance(mu, a)
            slope = link.slope(mu)
            bend = link.bend(mu) / V - slope**2 * family.bend(mu, a) / V**2
            bad = ~(family.inside(mu) & np.isfinite(mu * bend * (slope / V) * slope))
        if site.rules.rows > 1 and self.uses == "logit":  # there no row has a weight, and no rules would be met
            bad |= (eta > 36) | (eta < -745)
        if bad.any():  # the site sends only this fact
            mu = np.where(bad, family.first(y), mu)
            w = 0 * w
            V = family.variance(mu, a)
            slope = link.slope(mu)
            bend = 0 * mu
        expected = w * slope**2 / V
        left = y - mu
        pull = w * left * slope / V
        site.effective(expected, r.X)
        H: Any = lambda v: tensor(upper(X.T @ (v[:, None] * X)))
        total = X.T @ pull
        nothing = tensor([])
        free = self.free
        first, second, cross = family.shape(y, mu, a) if free else (0 * y, 0 * y, 0 * y)
        shaped = tensor([w @ first, -(w @ second), *(-(X.T @ (w * cross)))]) if free else nothing
        scores = pull[:, None] * X if self.cov != "model" else X[:, :0]
        if self.cov != "model":
            scores = np.column_stack([scores, w * first]) if free else scores
            if request.bread.numel():
                h = expected * np.einsum("ij,jk,ik->i", X, lower(request.bread), X)
                site.effective((1 - np.minimum(h, 1 - 1e-12)) ** -2, r.X)
                scores = scores / (1 - np.minimum(h, 1 - 1e-12))[:, None]
            scores = scores if self.cov.startswith("HC") else scores.sum(0)[None]
        meat = nothing if self.cov == "model" else tensor(upper(scores.T @ scores))
        observed = nothing
        if not self.canonical:
            observed = H(expected - w * left * bend)
        sent = r.outcome is None or not self.canonical or bad.any()  # else they follow from rounded sums
        dev: Any = lambda m: (w @ family.deviance(y, m, a), *family.sums(y, m, w, a)) if sent else (0.0, 0.0, 0.0)
        flat = np.full(len(y), request.mean)
        (fit, *likely), null = dev(mu), dev(flat)
        over = w @ family.pearson(y, flat) if family.scaled else w @ (left**2 - mu) * free
        sums = [len(y), fit, w @ (left**2 / V), *likely, *null, bad.sum(), over, w @ mu**2 * free, 0, 0]
        if free:
            slope_, bend_, _ = family.shape(y, flat, request.null)
            sums += [family.sums(y, flat, w, request.null)[0], w @ slope_, w @ bend_]
        up = Curve(tensor(total), H(expected), observed, meat, shaped, tensor(sums))
        up = up if r.outcome is None else rounded(self, r, request, up, X, mu, w * left**2 / V, scores)
        return cast(Curve, self._scaled(up, request, -1))

    @on_client
    def stack(self, me: Client[Any], request: Point) -> Stacked:
        """The site's sums for errors that know that weights were estimated."""
        site = site_of(me)
        r = self._rows(site, request)
        if r.scored is None or self.weighting is None:
            raise WireError("glm: the server asks for sums of weights by treatment, and this fit has none")
        family = self.kind
        link = LINKS[self.uses]
        X = within_basis(r.X, request.basis)
        mu = link.mean(X @ request.b.numpy() + r.offset)
        V = family.variance(mu, request.alpha)
        slope = link.slope(mu)
        bend = link.bend(mu) / V - slope**2 * family.bend(mu, request.alpha) / V**2
        left = r.y - mu
        site.effective(r.w * slope**2 / V, r.X)
        observed = r.w * (slope**2 / V - left * bend)
        pairs = triangle(X.shape[1])
        used, _ = self.used(site)
        most = float(len(mu)) if r.outcome is not None and r.outcome.integers else np.inf
        u = (left * slope / V)[:, None] * X
        robust = Robust(site, parsed(self.text).response, used, r.scored, u, most)
        squares = observed[:, None] * X[:, pairs[0]] * X[:, pairs[1]]
        inside = within_used(used, r.scored.rows)
        bread = squares.sum(0) if self.canonical else robust.sums(squares, inside)
        up = robust.reply(request.influence, bread)
        return cast(Stacked, self._scaled(up, request, -1))

    def _rows(self, site: Site, request: Point) -> Rows:
        """The site's rows of this fit, once they may leave; they are kept for the next exchange."""
        key = self, bytes(request.terms.numpy()), bytes(request.treatment.numpy())
        if key not in site.kept:
            site.kept.clear()
            site.kept[key] = self._prepared(site, unpacked(request.terms), request)
        rows: Rows = site.kept[key]
        return rows

    def _prepared(self, site: Site, levels: dict[str, list[str]], request: Point) -> Rows:
        f = parsed(self.text)
        if self.sites and site.own:
            raise RecipeError(
                f"{site.name} has a column 'site', but sites='fixed' makes one of that name: rename yours", "sites"
            )
        used, _ = self.used(site)
        scored = self.scores(site, used, levels, Fit.read(request.treatment)) if self.weighting else None
        used = used if scored is None else within_used(used, scored.rows)
        names, X = design(f, site.at(used), levels, site.name)
        y = site.column(used, f.response, 0.0)
        if not self.kind.takes(y).all():  # do not print the value: it belongs to a patient
            reason = f"the outcomes of family={self.kind.name!r} are {self.kind.outcomes}"
            raise BadData(f"{site.name}: {reason}, and {f.response} has others")
        if not self.kind.binary and len(values := np.unique(y)) <= 3:  # sums of y and y² tell how many have each
            for v in values:
                site.cell(y == v, f.response)
        w = site.column(used, self.extra[2], 1.0) if scored is None else scored.w[scored.rows]
        exposure = site.column(used, self.exposure, 1.0)
        if not (exposure > 0).all():
            raise BadData(f"{site.name}: {self.exposure} must be above 0")
        site.check_size(int((np.abs(X).sum(0) > 0).sum()), len(y), request.rows)
        event = y > 0 if self._counts else None
        robust = self.cov not in ("model", "cluster") or not self.canonical
        keys = tuple(dict.fromkeys((*f.columns, *filter(None, self.extra))))
        offset = site.column(used, self.offset, 0.0)
        others = {k: v for k, v in zip(self.extra, (offset, exposure, w), strict=True) if k}
        others |= {"the weights": w} if scored is not None else {}
        others |= within(f, site.at(used), levels, site.name, names, X)
        if not self.kind.homoscedastic or self.uses != "identity":  # else weights are equal
            site.combinations(X)
        site.admit_fit(used, X, names, keys, event, robust, others)
        rows = Rows(X, y, w, offset + np.log(exposure), None, scored)
        if site.rules.rounded:
            shifted = self.canonical and self.kind.homoscedastic
            rows = rows._replace(outcome=Outcome.of(site, f.response, used, self.kind, rows, shifted))
        return rows


@dataclass(frozen=True)
class Treatment(GLM):
    """A propensity model of the rows of another analysis.

    Attributes:
        further: columns that a row must have, too
    """

    further: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        columns, categorical = super().reads
        return tuple(dict.fromkeys((*self.further, *columns))), categorical


def treatment(analysis: Any) -> Treatment:
    """The propensity model of an analysis' rows. Raises WireError if it has no weights by treatment."""
    weights: Weights | None = analysis.weighting
    if weights is None:
        raise WireError(f"{analysis.call}: the server asks for a propensity model, and this analysis has none")
    return Treatment(weights.formula, "binomial", sites=weights.sites, where=analysis.where, further=analysis.reads[0])


def within_basis(X: np.ndarray, basis: Tensor) -> np.ndarray:
    """The combinations X T [n, p]; X if there are none."""
    if not basis.numel():
        return X
    T = np.eye(X.shape[1])
    T[triangle(len(T))] = basis.numpy()
    return X @ T


def bases(names: list[str], levels: dict[str, list[str]]) -> dict[str, list[int]]:
    """The base of each categorical column that has one, by a name, with the places of its other categories."""
    out = dict[str, list[int]]()
    for column, all_levels in levels.items():
        pattern = re.compile(rf"(C\({re.escape(column)}(?:, .*)?\))\[T\.(.*)\]")
        places = {m[2]: (k, m[1]) for k, name in enumerate(names) if (m := pattern.fullmatch(name))}
        rest = [v for v in all_levels if v not in places]
        if len(rest) == 1 and len(places) == len(all_levels) - 1 > 0:
            out[f"{next(iter(places.values()))[1]}[{rest[0]}] (the base)"] = [k for k, _ in places.values()]
    return out


def design_names(text: str, levels: dict[str, list[str]]) -> list[str]:
    """The names of the design matrix's columns, from the categories alone."""
    return [column.name for column in designed(parsed(text), levels)]
