"""GLM: a generalised linear model, fitted to all sites' rows by Fisher's scoring, to the last digit.

**Reference**: McCullagh & Nelder, "Generalized Linear Models", 1989, section 2.5. Sums of scores and of information over
sites are those of all rows, so that the iterates are those of one machine with all rows.

**Status**: published

**Needs**: every site in every exchange.

**One round sends** (floats per site, p parameters, t = p(p + 1)/2):

- agreement: 1 down, columns + categories · 1,152 + 3 · sites up
- begin: levels + p + t + 4 down, t + 5p + 9 up
- score: levels + p + t + 4 down, t + p + 9 up; t more where the link is not canonical, t for robust errors, again until
  Newton's decrement is below 3·10⁻⁹ √n, at most 3·10⁻⁷

**Departures**: an observed information that is positive definite takes the place of the expected one in steps, so that
links that are not canonical converge quadratically, too. Standard errors are from the expected one, as in R; those of the
negative binomial, whose α is fitted along, from the observed one, as in statsmodels.

**Missing replies**: a site that does not answer is left out of a sum, and the fit is of no set of rows: a study stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..contract import BadData, Client, Cohort, Diverged, Message, RecipeError, Stalled, TooFewReplies, on_client, positive
from .families import FAMILIES, LINKS, Family, deviance, llf, parts, shape
from .formulas import design, parsed
from .site import (
    Agreement, Analysis, Hello, Json, Report, Site, column, levels_of, lower, packed, site_of, tensor, unpacked, upper,
)  # fmt: skip

FamilyName = Literal["gaussian", "binomial", "poisson", "gamma", "negative_binomial"]

Covariance = Literal["model", "HC0", "HC1", "HC3", "cluster"]

STEPS = {"negative_binomial": 50}
"""Exchanges after which a fit is given up, by family; 25 for others."""

ALIKE = 1e-9
"""1 − R² of a column in the columns before it, below which it is one of their combinations."""


class Point(Message):
    """Down: what all sites need for their sums.

    Attributes:
        terms: the categories of each column
        b: β [p]; empty for the first guess
        bread: the inverse information [t], for leverages; empty where none are asked for
        mean: the outcome's mean, for the null model
        alpha: α of the negative binomial
        rows: the rows of all sites
    """

    terms: Json
    b: Float[Tensor, " p"]
    bread: Float[Tensor, " t"]
    mean: float
    alpha: float
    rows: int


class Begun(Message):
    """Up: sums of x, x², (x(1 − x))², xy and of the first weighted regression's right side [5, p], its matrix, sums."""

    x: Float[Tensor, "5 p"]
    H: Float[Tensor, " t"]
    sums: Float[Tensor, " m"]


class Curve(Message):
    """Up: the score, expected and observed information, the meat of a sandwich, α's part, and sums."""

    g: Float[Tensor, " p"]
    H: Float[Tensor, " t"]
    O: Float[Tensor, " o"]
    meat: Float[Tensor, " r"]
    shape: Float[Tensor, " e"]
    sums: Float[Tensor, " m"]


SUMS = ("n", "w", "wy", "deviance", "chi2", "llf", "llf2", "null deviance", "null llf", "null llf2", "bad", "over", "mu2")
"""The entries of a curve's sums."""


@dataclass
class Rows:
    """A site's rows of one fit."""

    names: list[str]
    X: np.ndarray
    y: np.ndarray
    w: np.ndarray
    offset: np.ndarray


@dataclass
class Fitted:
    """A fit's numbers, for `medley.statistics.fit.GLMFit`.

    Attributes:
        b: coefficients [p]; log α last, where it was fitted
        cov: their covariance [p, p]
        sums: the sums at b by name, see `SUMS`
        rows: rows by site [s, 3], see `medley.statistics.site.Agreed`
        steps: exchanges after the agreement
    """

    names: list[str]
    b: np.ndarray
    cov: np.ndarray
    llf: float
    llnull: float
    scale: float
    sums: dict[str, float]
    alpha: float | None
    rows: np.ndarray
    steps: int


@dataclass(frozen=True)
class GLM(Analysis):
    """A generalised linear model.

    Attributes:
        formula: "died ~ age + C(sex)"
        family: the outcome's distribution
        link: "identity", "log", "logit" or "inverse"; empty for the family's own
        offset: a column that is added to η; empty for none
        exposure: a column whose logarithm is added to η, under a log link; empty for none
        weights: a column of weights of rows, inverse variances; empty for none
        where: the rows, "age >= 18"; empty for all
        sites: "fixed" gives each site but the first an effect of its own
        cov: the covariance of coefficients: of the model, a sandwich, or one clustered by site
        alpha: of the negative binomial; None fits it along
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
        links = self.kind.links
        if self.link and self.link not in links:
            raise RecipeError(f"glm(family={self.family!r}, link={self.link!r}): it takes {' and '.join(links)}", "link")
        if self.exposure and self.uses != "log":
            raise RecipeError(f"glm(exposure={self.exposure!r}) is for a log link, and this is {self.uses!r}", "exposure")
        if self.weights and self.family == "gamma":
            raise RecipeError("glm(family='gamma', weights=...) is not there: its likelihood has no sums", "weights")
        if self.alpha is not None and self.family != "negative_binomial":
            raise RecipeError("glm(alpha=...) is for family='negative_binomial'", "alpha")

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
        """The formula, with the sites' effects where there are any."""
        return self.formula + (" + C(site)" if self.sites else "")

    @property
    def reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Analysis.reads`."""
        f = parsed(self.text)
        return tuple(dict.fromkeys((*f.columns, *filter(None, self.extra)))), f.categorical

    @property
    def extra(self) -> tuple[str, str, str]:
        """The columns of offset, exposure and weights; empty where there are none."""
        return self.offset, self.exposure, self.weights

    @property
    def canonical(self) -> bool:
        """Whether observed and expected information are the same."""
        return self.uses == self.kind.canonical

    def round(self, s: Report, clients: Cohort) -> None:
        """Agree on categories, begin with a weighted regression, and step until the score is 0."""
        agreed = self.agreed(clients, self.agree)
        point = {"terms": packed(agreed.levels), "rows": int(agreed.rows[:, 0].sum()), "bread": tensor([])}
        names = design_names(self.text, agreed.levels)
        if len(names) > point["rows"] - 1:
            raise BadData(f"{len(names)} parameters of {point['rows']} rows: leave out columns or merge categories")
        first = Point(b=tensor([]), mean=0.0, alpha=self.alpha or 1e-6, **point)
        begun = self.summed(clients, self.begin, first)
        x, H = begun.x.numpy(), lower(begun.H)
        self._refuse(names, x, H, begun.sums.numpy())
        mean = float(begun.sums[2] / begun.sums[1])
        s.found = Descent(self, clients, names, point, mean, np.sqrt(x[1] / point["rows"])).fit(
            np.linalg.solve(H, x[4]), agreed.rows
        )

    def _refuse(self, names: list[str], x: np.ndarray, H: np.ndarray, sums: np.ndarray) -> None:
        """Raise BadData, naming the column, for one that the others make up, and for a category with one outcome."""
        if found := dependent(H):
            j, others = found
            by = ", ".join(names[k] for k in others)
            raise BadData(
                f"collinear: {names[j]} is {f'a combination of {by}' if others else 'constant, 0'} over all sites; leave "
                "one of them out"
            )
        if self.family not in ("binomial", "poisson", "negative_binomial"):
            return
        for j, (total, _, rest, events, _) in enumerate(x.T):
            indicator = abs(rest) < 1e-6 and total > 0.5 and names[j] != "Intercept"
            said = "none" if abs(events) < 1e-6 else "each" if abs(events - total) < 1e-6 else ""
            if indicator and (said == "none" or (said == "each" and self.family == "binomial")):
                raise Stalled(separation(f"{said} of the rows of {names[j]} has the event", [names[j]]))
        if abs(sums[2]) < 1e-9 or (self.family == "binomial" and abs(sums[1] - sums[2]) < 1e-9):
            raise BadData(f"all sites' outcomes are the same: {parsed(self.formula).response} has one value")

    @on_client
    def agree(self, me: Client[Any], got: Hello) -> Agreement:
        """The site's categories and numbers of rows."""
        return self.agreement(site_of(me), me.id, got.sites)

    @on_client
    def begin(self, me: Client[Any], got: Point) -> Begun:
        """The site's part of the first weighted regression, and what tells of columns that cannot be used."""
        r, family, link = self._rows(site_of(me), got), self.kind, LINKS[self.uses]
        mu = family.first(r.y)
        if self.family == "gaussian" and self.uses != "identity":
            mu = np.maximum(mu, 0.1)
        eta, V = link.link(mu), family.variance(mu, got.alpha)
        slope = link.slope(mu)
        weight = r.w * slope**2 / V
        right = r.X.T @ (weight * (eta - r.offset + (r.y - mu) / slope))
        X = r.X
        sums = np.stack([X.sum(0), (X**2).sum(0), ((X * (1 - X)) ** 2).sum(0), X.T @ (r.y > 0).astype(float), right])
        H = upper(X.T @ (weight[:, None] * X))
        return Begun(tensor(sums), tensor(H), tensor([len(r.y), r.w.sum(), r.w @ r.y]))

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
        if bad.any():  # nothing is told but that
            mu, w = np.where(bad, family.first(y), mu), 0 * w
        V, slope = family.variance(mu, a), link.slope(mu)
        expected, left = w * slope**2 / V, y - mu
        pull = w * left * slope / V
        site.effective(expected)
        H = lambda v: tensor(upper(X.T @ (v[:, None] * X)))
        bent = lambda: link.bend(mu) / V - slope**2 * family.bend(mu, a) / V**2
        observed = lambda: expected - w * left * bent()
        nothing, scores = tensor([]), pull
        if got.bread.numel():
            h = expected * np.einsum("ij,jk,ik->i", X, lower(got.bread), X)
            scores = pull / (1 - np.minimum(h, 1 - 1e-12))
        total = X.T @ pull
        meat = {"model": nothing, "cluster": tensor(upper(np.outer(total, total)))}
        null = np.full(len(y), got.mean)
        sums = [
            len(y), w.sum(), w @ y, w @ deviance(self.family, y, mu, a), w @ (left**2 / V), *parts(self.family, y, mu, w, a),
            w @ deviance(self.family, y, null, a), *parts(self.family, y, null, w, a), bad.sum(), w @ (left**2 - mu),
            w @ mu**2,
        ]  # fmt: skip
        fitted = self.family == "negative_binomial" and self.alpha is None
        return Curve(
            tensor(total),
            H(expected),
            nothing if self.canonical else H(observed()),
            meat.get(self.cov, nothing) if self.cov in meat else H(scores**2),
            tensor(shape(y, mu, X, w, a)) if fitted else nothing,
            tensor(sums),
        )

    def _rows(self, site: Site, got: Point) -> Rows:
        """The site's rows of this fit, once they may leave; they are kept for the next exchange."""
        key = repr(self), bytes(got.terms.numpy())
        if key not in site.kept:
            site.kept.clear()
            site.kept[key] = self._prepared(site, levels_of(unpacked(got.terms)), got.rows)
        rows: Rows = site.kept[key]
        return rows

    def _prepared(self, site: Site, levels: dict[str, list[str]], everywhere: int) -> Rows:
        f, (columns, _) = parsed(self.text), self.reads
        if self.sites and site.own:
            raise RecipeError(f"{site.name} has a column 'site' of its own, and sites='fixed' needs the name: rename it")
        used, _ = site.rows(columns, self.where)
        names, X = design(f, site.frame[used], levels, site.name)
        y = column(site, used, f.response, 0.0)
        if not (takes := self.kind.takes(y)).all():
            raise BadData(
                f"{site.name}: {f.response} is {y[~takes][0]:g} in a row, and the outcomes of family={self.family!r} are "
                f"{self.kind.outcome}"
            )
        w, exposure = column(site, used, self.weights, 1.0), column(site, used, self.exposure, 1.0)
        if not (w > 0).all() or not (exposure > 0).all():
            raise BadData(f"{site.name}: {self.weights if self.exposure == '' else self.exposure} must be above 0")
        site.check_size(int((np.abs(X).sum(0) > 0).sum()), len(y), everywhere)
        event = y > 0 if self.family in ("binomial", "poisson", "negative_binomial") else None
        robust = self.cov not in ("model", "cluster") or not self.canonical
        keys = tuple(dict.fromkeys((*f.columns, *filter(None, self.extra))))
        offset = column(site, used, self.offset, 0.0)
        beside = {k: v for k, v in zip(self.extra, (offset, exposure, w), strict=True) if k}
        site.admit_fit(used, X, names, keys, event, robust, beside)
        return Rows(names, X, y, w, offset + np.log(exposure))


@dataclass
class Descent:
    """The server's way to the fit."""

    glm: GLM
    clients: Cohort
    names: list[str]
    point: dict[str, Any]
    mean: float
    size: np.ndarray
    """The root mean square of each column."""
    asked: int = 1

    def ask(self, b: np.ndarray, alpha: float, bread: Any = None) -> Curve:
        """The sum of the sites' curves at b. Raises TooFewReplies where a site is missing."""
        self.asked += 1
        point = self.point if bread is None else {**self.point, "bread": tensor(upper(bread))}
        up: Curve = self.glm.summed(self.clients, self.glm.score, Point(b=tensor(b), mean=self.mean, alpha=alpha, **point))
        if abs(float(up.sums[0]) - self.point["rows"]) > 0.5:
            raise TooFewReplies(f"a site did not answer: {up.sums[0]:.0f} of {self.point['rows']} rows are in the sums")
        return up

    def fit(self, b: np.ndarray, rows: np.ndarray) -> Fitted:
        """Newton's steps from b until the decrement is small, each halved while it makes the fit worse."""
        glm, n = self.glm, self.point["rows"]
        free = glm.family == "negative_binomial" and glm.alpha is None
        alpha, shaped = glm.alpha or 1e-6, not free
        enough, before = float(np.clip(3e-9 * np.sqrt(n), 1e-9, 3e-7)), np.inf
        x, up = b, self._good(b, self.ask(b, alpha), alpha)
        for k in range(STEPS.get(glm.family, 25)):
            if not shaped and k == 2:  # Poisson's coefficients are near: from here on α is fitted along
                over = float(up.sums[SUMS.index("over")] / up.sums[SUMS.index("mu2")])
                alpha, shaped = float(np.clip(over, 0.05, 20.0)), True
                x, before = np.append(x, np.log(alpha)), np.inf
                up = self.ask(x[:-1], alpha)
            joint = free and shaped
            g, A = self._newton(up, joint)
            step = np.linalg.solve(A, g)
            decrement = float(np.sqrt(max(g @ step, 0.0)))
            if decrement <= enough or (decrement < 1e-4 and decrement > before / 3 and shaped):
                if shaped:
                    return self._done(x, x + step, up, alpha, joint, rows)
            self._refuse_separation(k, step, x)
            before = decrement
            x, up, alpha = self._step(x, step, up, alpha, joint)
        raise Stalled(f"glm: no fit after {self.asked} exchanges; Newton's decrement is {decrement:.2g}")

    def _newton(self, up: Curve, joint: bool) -> tuple[np.ndarray, np.ndarray]:
        """The gradient and the matrix of a step; with log α last where it is fitted along."""
        g, A = up.g.numpy(), lower(up.H)
        if up.O.numel() and np.linalg.eigvalsh(O := lower(up.O))[0] > 0:
            A = O
        if not joint:
            return g, A
        first, second, *cross = up.shape.tolist()
        whole = np.block([[A, np.array(cross)[:, None]], [np.array(cross)[None], np.array([[second]])]])
        if np.linalg.eigvalsh(whole)[0] <= 0:
            whole[:-1, -1] = whole[-1, :-1] = 0.0
            whole[-1, -1] = max(abs(second), 0.1)
        return np.append(g, first), whole

    def _loss(self, up: Curve) -> float:
        fitted = self.glm.family == "negative_binomial" and self.glm.alpha is None
        return -2 * float(up.sums[5]) if fitted else float(up.sums[3])

    def _step(
        self, x: np.ndarray, step: np.ndarray, up: Curve, alpha: float, joint: bool
    ) -> tuple[np.ndarray, Curve, float]:
        """The point after the step, halved until the fit is no worse, with its curve and its α."""
        loss = self._loss(up)
        if joint and abs(step[-1]) > 2:
            step = step * (2 / abs(step[-1]))
        for half in range(12):
            y = x + step / 2**half
            a = float(np.exp(y[-1])) if joint else alpha
            if joint and a < 1e-7:
                raise Stalled("glm: the counts are no more dispersed than Poisson's, and α goes to 0; fit family='poisson'")
            new = self.ask(y[:-1] if joint else y, a)
            if new.sums[10] < 0.5 and self._loss(new) <= loss + 1e-8 * abs(loss) + 1e-8:
                return y, new, a
        raise Stalled("glm: no step makes the fit better; scale the columns, or give another link")

    def _good(self, b: np.ndarray, up: Curve, alpha: float) -> Curve:
        """The first curve, if all of its means are possible."""
        if up.sums[10] > 0.5:
            raise Stalled(
                f"glm: the first guess gives impossible means under link={self.glm.uses!r}; give another link, as 'log'"
            )
        return up

    def _refuse_separation(self, k: int, step: np.ndarray, x: np.ndarray) -> None:
        """Raise Stalled, naming the columns, where coefficients go on growing while nothing is gained."""
        p = len(self.names)
        moved = np.abs(step[:p]) * self.size
        if k >= 5 and moved.max() > 0.3 and self.glm.family != "gaussian":
            names = [self.names[j] for j in np.flatnonzero(moved > 0.3 * moved.max()) if self.names[j] != "Intercept"]
            raise Stalled(separation("outcomes are told apart without error", names or self.names))
        if not np.isfinite(step).all() or np.abs(x).max() > 1e8:
            raise Diverged("glm: coefficients run away; scale the columns")

    def _done(
        self, x: np.ndarray, b: np.ndarray, up: Curve, alpha: float, joint: bool, rows: np.ndarray
    ) -> Fitted:  # fmt: skip
        """The fit at b, from the curve at x, a negligible step before it."""
        glm, p, n = self.glm, len(self.names), self.point["rows"]
        sums = dict(zip(SUMS, up.sums.tolist(), strict=True))
        # Of weighted rows the degrees of freedom are those of rows, as R has it.
        scale = sums["chi2"] / (n - p) if glm.kind.dispersed else 1.0
        inverse = np.linalg.inv(self._newton(up, joint)[1] if joint else lower(up.H))
        cov = inverse * scale
        if glm.cov != "model":
            if glm.cov == "HC3":
                up = self.ask(x[:p], alpha, inverse[:p, :p])
            sites, bread = len(self.clients.ids), inverse[:p, :p] if joint or glm.canonical else np.linalg.inv(lower(up.O))
            factor = {"HC1": n / (n - p), "cluster": sites / max(sites - 1, 1) * (n - 1) / (n - p)}.get(glm.cov, 1.0)
            cov = factor * bread @ lower(up.meat) @ bread
        alpha = float(np.exp(b[-1])) if joint else alpha
        found = [llf(glm.family, up.sums[k : k + 2].numpy(), n, scale) for k in (5, 8)]
        fitted = alpha if glm.family == "negative_binomial" else None
        return Fitted(self.names, b, cov, *found, scale, sums, fitted, rows, self.asked)


def design_names(text: str, levels: dict[str, list[str]]) -> list[str]:
    """The names of the design matrix's columns, from the categories alone."""
    from .formulas import needed

    f = parsed(text)
    length = max([1, *(len(v) for v in levels.values())])
    columns: dict[str, Any] = {c: np.ones(length) for c in (f.response, *f.numeric)}
    columns |= {c: [v[k % len(v)] for k in range(length)] for c, v in levels.items()}
    return design(f, needed("pandas").DataFrame(columns), levels, "the server")[0]


def dependent(H: np.ndarray) -> tuple[int, list[int]] | None:
    """The first column that those before it make up, and which of them; None where all are independent."""
    size = np.sqrt(np.maximum(np.diag(H), 0.0))
    if (size == 0).any():
        return int((size == 0).argmax()), []
    R = H / np.outer(size, size)
    for j in range(1, len(R)):
        of = np.linalg.solve(R[:j, :j], R[:j, j])
        if 1 - R[j, :j] @ of < ALIKE:
            return j, [k for k in range(j) if abs(of[k]) > 1e-6]
    return None


def separation(why: str, names: list[str]) -> str:
    """The sentence for a fit without a finite optimum."""
    return (
        f"separation by {', '.join(names)}: {why}, so that the likelihood has no maximum; merge categories or leave the "
        "column out"
    )
