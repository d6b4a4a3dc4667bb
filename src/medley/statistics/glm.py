"""GLM: a generalised linear model, fitted to all sites' rows by Fisher's scoring, to the last digit.

**Reference**: McCullagh & Nelder, "Generalized Linear Models", 1989, section 2.5. Sums of scores and of information
over sites are those of all rows, so that the iterates are those of one machine with all rows.

**One round sends** (floats per site, p parameters, t = p(p + 1)/2): 3 · sites + columns up, and 1,152 for each column
under C(), to agree on categories; t + 5p + 2 to begin; t + p + 11, t more where the link is not canonical and t for
robust errors, until Newton's decrement is below 3·10⁻⁹ √n, at most 3·10⁻⁷.

**Departures**: steps use the observed information instead of the expected one if it is positive definite, so that
links that are not canonical converge quadratically, too. Standard errors are from the expected one, as in R; those of
the negative binomial, if α is estimated too, from the observed one, as in statsmodels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..contract import BadData, Client, Cohort, Message, RecipeError, Stalled, on_client, positive
from .analysis import Analysis, Ask, Report, lower, packed, site_of, tensor, unpacked, upper
from .families import FAMILIES, LINKS, Family, deviance, parts, shape
from .formulas import design, needed, parsed, within
from .scoring import Curve, Descent, Fitted, Point, Unfit, dependent, separation
from .site import Site

FamilyName = Literal["gaussian", "binomial", "poisson", "gamma", "negative_binomial"]

OWN, EVEN = 8, 0.1
"""A site's own steps before the first sum, and the share of rows with influence below which it stops."""

Covariance = Literal["model", "HC0", "HC1", "HC3", "cluster"]


class Begun(Message):
    """Up: sums of x, x², (x(1 − x))², xy and of the first weighted regression's right side [5, p], its matrix, sums."""

    x: Float[Tensor, "5 p"]
    H: Float[Tensor, " t"]
    sums: Float[Tensor, " m"]


class Rows(NamedTuple):
    """A site's rows of one fit: design matrix, outcome, weights and offset."""

    X: np.ndarray
    y: np.ndarray
    w: np.ndarray
    offset: np.ndarray


@dataclass(frozen=True)
class GLM(Analysis):
    """A generalised linear model.

    Attributes:
        formula: "died ~ age + C(sex)"
        family: the outcome's distribution
        link: "identity", "log", "logit" or "inverse"; empty for the family's default
        offset: a column that is added to η; empty for none
        exposure: a column whose logarithm is added to η, under a log link; empty for none
        weights: a column of weights of rows, inverse variances; empty for none
        where: a condition on the rows, "age >= 18"; empty for all
        sites: "fixed" gives each site except the first its own effect
        cov: the covariance of coefficients: of the model, a sandwich, or one clustered by site
        alpha: α of the negative binomial; None estimates it with the coefficients
    """

    formula: str
    family: FamilyName = "gaussian"
    link: Literal["", "identity", "log", "logit", "inverse"] = ""
    offset: str = ""
    exposure: str = ""
    weights: str = ""
    where: str = ""
    sites: Literal["", "fixed"] = ""
    cov: Covariance = "model"
    alpha: Annotated[float, positive] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        links, counts = self.kind.links, self.family == "negative_binomial"
        for key, wrong, said in (
            ("link", self.link and self.link not in links, f"family={self.family!r} takes {' and '.join(links)}"),
            ("exposure", self.exposure and self.uses != "log", f"it is for a log link, and this is {self.uses!r}"),
            ("weights", self.weights and self.family == "gamma", "a weighted gamma's likelihood has no sums"),
            ("alpha", self.alpha is not None and not counts, "it is for family='negative_binomial'"),
        ):
            if wrong:
                raise RecipeError(f"glm({key}={getattr(self, key)!r}): {said}", key)

    @property
    def kind(self) -> Family:
        """The family."""
        return FAMILIES[self.family]

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
        return tuple(dict.fromkeys((*f.columns, *filter(None, self.extra)))), f.categorical

    @property
    def extra(self) -> tuple[str, str, str]:
        """The columns of offset, exposure and weights; empty if there are none."""
        return self.offset, self.exposure, self.weights

    @property
    def canonical(self) -> bool:
        """Whether observed and expected information are the same."""
        return self.uses == self.kind.canonical

    def round(self, s: Report, clients: Cohort) -> None:
        """Agree on categories, begin with a weighted regression, and step until the score is 0."""
        levels, rows = self.agreed(clients)
        s.found = self.fitted(partial(self.summed, clients), levels, int(rows[:, 0].sum()), len(rows)), rows

    def fitted(self, ask: Ask, levels: dict[str, list[str]], n: int, sites: int) -> Fitted:
        """The fit to ``n`` rows of so many sites, whose sums ``ask`` has, with these categories."""
        names = design_names(self.text, levels)
        if not names:
            raise RecipeError(f"formula {self.formula!r} has no columns on its right", "formula")
        if len(names) >= n:
            raise Unfit(f"{len(names)} parameters of {n} rows: leave out columns or merge categories")
        point: dict[str, Any] = {"terms": packed(levels), "rows": n}
        nothing = tensor([])
        begun = ask(self.begin, Point(b=nothing, bread=nothing, mean=0.0, alpha=self.alpha or 1e-6, **point))
        x, H, (weight, total) = begun.x.numpy(), lower(begun.H), begun.sums.tolist()
        same = Unfit(f"{parsed(self.formula).response} has one value at all sites: there is nothing to explain")
        if (abs(total) < 1e-9 and self.family != "gaussian") or (
            self.family == "binomial" and abs(weight - total) < 1e-9
        ):
            raise same
        self._refuse(names, x, H)
        size, point["mean"] = np.sqrt(x[1] / n), total / weight
        fitted = Descent(self, partial(ask, self.score), sites, names, point, size).fit(np.linalg.solve(H, x[4]))
        if self.kind.dispersed and not self.offset and fitted.figures["null_deviance"] <= 1e-20 * total**2 / weight:
            raise same
        return fitted

    def _refuse(self, names: list[str], x: np.ndarray, H: np.ndarray) -> None:
        """Raise Unfit, naming the column, for a combination of others, and Stalled for one with a single outcome."""
        if found := dependent(H):
            what = f"a combination of {', '.join(names[k] for k in found[1])}" if found[1] else "0 in each row"
            raise Unfit(f"collinear: {names[found[0]]} is {what} over all sites; leave one of them out")
        for name, (total, _, rest, events, _) in zip(names, x.T, strict=True):
            indicator = self._counts and abs(rest) < 1e-6 and total > 0.5 and name != "Intercept"
            said = "none" if abs(events) < 1e-6 else "each" if abs(events - total) < 1e-6 else ""
            if indicator and (said == "none" or (said == "each" and self.family == "binomial")):
                raise Stalled(separation(f"{said} of the rows of {name} has the event", [name]))

    @property
    def _counts(self) -> bool:
        """Whether outcomes are events, or counts of events."""
        return self.family in ("binomial", "poisson", "negative_binomial")

    @on_client
    def begin(self, me: Client[Any], got: Point) -> Begun:
        """The site's part of the first weighted regression, at its own fit, and sums that reveal unusable columns."""
        site = site_of(me)
        r, family, link = self._rows(site, got), self.kind, LINKS[self.uses]
        mu = family.first(r.y)
        if self.family == "gaussian" and self.uses != "identity":
            mu = np.maximum(mu, 0.1)
        X, eta, weight, left = r.X, link.link(mu), r.w, 0 * r.y
        for _ in range(OWN):  # if all sites are alike, their own fits are near the fit of all rows
            V, slope = family.variance(mu, got.alpha), link.slope(mu)
            new = r.w * slope**2 / V
            if new.sum() ** 2 < EVEN * len(mu) * (new @ new):
                break
            weight, left = new, eta - r.offset + (r.y - mu) / slope
            eta = r.offset + X @ np.linalg.lstsq(np.sqrt(weight)[:, None] * X, np.sqrt(weight) * left, rcond=None)[0]
            mu = link.mean(eta)
            if not family.inside(mu).all():
                break
        site.effective(weight, X)
        right = X.T @ (weight * left)
        sums = np.stack(
            [X.sum(0), (X**2).sum(0), ((X * (1 - X)) ** 2).sum(0), X.T @ (1.0 * self._counts * (r.y > 0)), right]
        )
        return Begun(tensor(sums), tensor(upper(X.T @ (weight[:, None] * X))), tensor([r.w.sum(), r.w @ r.y]))

    @on_client
    def score(self, me: Client[Any], got: Point) -> Curve:
        """The site's score and information at β."""
        site = site_of(me)
        r, family, link, a = self._rows(site, got), self.kind, LINKS[self.uses], got.alpha
        X, y, w, b = r.X, r.y, r.w, got.b.numpy()
        eta = X @ b + r.offset
        with np.errstate(all="ignore"):
            mu = link.mean(eta)
            bad = ~(family.inside(mu) & np.isfinite(mu))
        if bad.any():  # the site sends only this fact
            mu, w = np.where(bad, family.first(y), mu), 0 * w
        V, slope = family.variance(mu, a), link.slope(mu)
        expected, left = w * slope**2 / V, y - mu
        pull = w * left * slope / V
        site.effective(expected, X)
        H: Any = lambda v: tensor(upper(X.T @ (v[:, None] * X)))
        scores, total, nothing = pull, X.T @ pull, tensor([])
        if got.bread.numel():
            h = expected * np.einsum("ij,jk,ik->i", X, lower(got.bread), X)
            scores = pull / (1 - np.minimum(h, 1 - 1e-12))
            site.effective((1 - np.minimum(h, 1 - 1e-12)) ** -2, X)
        meat = nothing if self.cov == "model" else tensor(upper(np.outer(total, total)))
        if self.cov.startswith("HC"):
            meat = H(scores**2)
        observed = nothing
        if not self.canonical:
            bend = link.bend(mu) / V - slope**2 * family.bend(mu, a) / V**2
            observed = H(expected - w * left * bend)
        dev: Any = lambda m: (w @ deviance(self.family, y, m, a), *parts(self.family, y, m, w, a))
        (fit, *likely), null = dev(mu), dev(np.full(len(y), got.mean))
        sums = [len(y), fit, w @ (left**2 / V), *likely, *null, bad.sum(), w @ (left**2 - mu), w @ mu**2]
        free = self.family == "negative_binomial" and self.alpha is None
        shaped = tensor(shape(y, mu, X, w, a)) if free else nothing
        return Curve(tensor(total), H(expected), observed, meat, shaped, tensor(sums))

    def _rows(self, site: Site, got: Point) -> Rows:
        """The site's rows of this fit, once they may leave; they are kept for the next exchange."""
        key = repr(self), bytes(got.terms.numpy())
        if key not in site.kept:
            site.kept.clear()
            site.kept[key] = self._prepared(site, unpacked(got.terms), got.rows)
        rows: Rows = site.kept[key]
        return rows

    def _prepared(self, site: Site, levels: dict[str, list[str]], everywhere: int) -> Rows:
        f, (columns, _) = parsed(self.text), self.reads
        if self.sites and site.own:
            raise RecipeError(
                f"{site.name} has a column 'site', but sites='fixed' makes one of that name: rename yours", "sites"
            )
        used, _ = site.rows(columns, self.where)
        names, X = design(f, site.frame[used], levels, site.name)
        y = site.column(used, f.response, 0.0)
        if not self.kind.takes(y).all():  # do not print the value: it belongs to a patient
            said = f"the outcomes of family={self.family!r} are {self.kind.outcome}"
            raise BadData(f"{site.name}: {said}, and {f.response} has others")
        if len(values := np.unique(y)) <= 3 and self.family != "binomial":  # sums of y and y² tell how many have each
            for v in values:
                site.cell(y == v, f.response)
        w, exposure = site.column(used, self.weights, 1.0), site.column(used, self.exposure, 1.0)
        if not (w > 0).all() or not (exposure > 0).all():
            raise BadData(f"{site.name}: {self.exposure if (w > 0).all() else self.weights} must be above 0")
        site.check_size(int((np.abs(X).sum(0) > 0).sum()), len(y), everywhere)
        event = y > 0 if self._counts else None
        robust = self.cov not in ("model", "cluster") or not self.canonical
        keys = tuple(dict.fromkeys((*f.columns, *filter(None, self.extra))))
        offset = site.column(used, self.offset, 0.0)
        beside = {k: v for k, v in zip(self.extra, (offset, exposure, w), strict=True) if k}
        beside |= within(f, site.frame[used], levels, site.name)
        if self.family != "gaussian" or self.uses != "identity":  # else weights are equal
            site.combinations(X)
        site.admit_fit(used, X, names, keys, event, robust, beside)
        return Rows(X, y, w, offset + np.log(exposure))


def design_names(text: str, levels: dict[str, list[str]]) -> list[str]:
    """The names of the design matrix's columns, from the categories alone."""
    f = parsed(text)
    length = max([1, *(len(v) for v in levels.values())])
    columns: dict[str, Any] = {c: np.ones(length) for c in (f.response, *f.numeric)}
    columns |= {c: [v[k % len(v)] for k in range(length)] for c, v in levels.items()}
    return design(f, needed("pandas").DataFrame(columns), levels, "the server")[0]
