"""The server's side of a fit: Newton's steps on the sum of the sites' curves, until the score is 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..contract import BadData, Diverged, Message, RecipeError, Stalled
from .analysis import Json, lower, tensor, upper
from .scales import CLOSER, FINER

GROWS = 30
"""Further exchanges of a fit whose coefficients still grow."""


class Unfit(BadData):
    """The rows do not allow a fit, because some columns are combinations of others."""


class Point(Message):
    """Down: categories, β [p], the inverse information [t] for leverages, the outcome's mean, α, all sites' rows.

    ``basis`` has the combinations of columns that are summed, see `medley.statistics.basis`; empty for the columns
    themselves. ``null`` is α of the model with only the mean, and ``closing`` says that the fit is near.
    For Cox's model ``marks`` has the points so far at which sites told more of their events, see
    `medley.statistics.events`; with one baseline ``centre`` is subtracted from the columns. ``units``
    has the exponents of the outcome's and of the weights' units, see `medley.statistics.scales`. ``treatment`` has the
    propensity model by which rows are weighted, see `medley.statistics.weights.Fit`, and ``influence`` how its scores
    move those of this model [p q].
    """

    terms: Json
    b: Float[Tensor, " p"]
    bread: Float[Tensor, " t"]
    mean: float
    alpha: float
    rows: int
    basis: Float[Tensor, " u"] = tensor([])
    null: float = 1.0
    closing: bool = False
    centre: Float[Tensor, " c"] = tensor([0.0])
    marks: Float[Tensor, " m"] = tensor([])
    units: Float[Tensor, " 2"] = tensor([0.0, 0.0])
    treatment: Float[Tensor, " g"] = tensor([])
    influence: Float[Tensor, " i"] = tensor([])


class Begun(Message):
    """Up: for columns of zeros and ones, sums of x and of x over events, rows 0 and 3, and whether a column is another,
    row 2; sums of z², of the first weighted regression's right side, and of its weights times z [6, p]; its matrix;
    sums. Columns z are combinations of x, see `medley.statistics.basis`."""

    x: Float[Tensor, "6 p"]
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


N = 0
DEVIANCE = 1
CHI2 = 2
LLF = 3
NULL = 5
BAD = 8
OVER = 9
OPEN = 11
GRID = 12
NULL_MODEL = 13
"""Places in a curve's sums: rows, deviance, χ², two of the log-likelihood, the null model's deviance and two, rows with
impossible means, Σ(y − μ)² − μ (or the null model's χ²), Σμ²; sites that leave out χ² and meat until the end, and sites
that round each score. If α is estimated: the likelihood of the null model at its own α, and its first and second
derivative by log α."""


FIGURES = {"deviance": DEVIANCE, "null_deviance": NULL, "pearson_chi2": CHI2}


class Fitted(NamedTuple):
    """A fit's numbers, for `GLMFit`: coefficients, log α last if it was estimated, their covariance, and figures.

    The figure "largest" is the likelihood at the most likely dispersion, as `GLMFit.lr_test` needs it; "coarse" is the
    number of sites whose sums are rounded. ``point`` has what each request of the fit had, and ``root`` is C [p, p]
    with C Cᵀ the coefficients' covariance, exact for columns far from 0, too.
    """

    names: list[str]
    b: np.ndarray
    cov: np.ndarray
    figures: dict[str, float]
    alpha: float | None
    point: Mapping[str, Any] = MappingProxyType({})
    root: np.ndarray = np.zeros((0, 0))

    def of_columns(self, T: np.ndarray) -> Fitted:
        """The fit to columns X, if this is the fit to X T."""
        all_columns = np.eye(len(self.b))
        p = len(self.names)
        all_columns[:p, :p] = T
        of = all_columns[: len(self.cov), : len(self.cov)]
        errors = np.sqrt(np.maximum(np.diag(self.cov)[:p], 1e-300))
        size, turn = np.linalg.eigh(self.cov[:p, :p] / np.outer(errors, errors))
        root = (T * errors) @ (turn * np.sqrt(np.maximum(size, 0.0)))
        return self._replace(b=all_columns @ self.b, cov=of @ self.cov @ of.T, root=root)


@dataclass
class NullModel:
    """The likelihood of the negative binomial with only the mean, at its own α: Newton's steps in t = log α.

    Its steps go along with those of the fit; ``done`` is false while it needs more.
    """

    t: float = 0.0
    low: float = math.log(1e-7)
    high: float = math.log(1e5)
    value: float = math.nan
    done: bool = True

    def read(self, value: float, slope: float, bend: float) -> None:
        """Step, from the likelihood at t and its derivatives."""
        step = -slope / bend if bend < 0 else math.copysign(2.0, slope)
        self.low, self.high = (self.t, self.high) if slope > 0 else (self.low, self.t)
        self.value = value + (slope * step / 2 if bend < 0 and abs(step) < 0.1 else 0.0)
        self.done = self.high - self.low < 1e-9 or (bend < 0 and slope * step < 1e-12 * (1 + abs(value)))
        to = self.t + min(max(step, -2.0), 2.0)
        self.t = to if self.low < to < self.high else (self.low + self.high) / 2


@dataclass
class Descent:
    """The server's descent to the fit.

    Attributes:
        point: in each request
        size: the columns' root mean squares
        flat: coefficients of nearly the same mean in each row, if the first guess is impossible
        unbounded: whether no row contradicts that the likelihood grows without end in a direction; None if nobody can
            say
        noisy: whether sums have the noise of masks
        weight: the mean weight of a row
        null_model: the search for the null model's α
    """

    glm: Any
    ask: Callable[[Point], Curve]
    sites: int
    names: list[str]
    point: dict[str, Any]
    size: np.ndarray
    flat: np.ndarray
    unbounded: Callable[[np.ndarray], bool] | None = None
    noisy: bool = False
    weight: float = 1.0
    null_model: NullModel = field(default_factory=NullModel)
    blocked: int = 0
    """Successive steps that were cut short because means became impossible."""
    growing: list[str] = field(default_factory=list)

    @property
    def free(self) -> bool:
        """Whether α is estimated with the coefficients."""
        return bool(self.glm.kind.has_alpha and self.glm.alpha is None)

    def at(self, b: np.ndarray, alpha: float, bread: Any = None, closing: bool = False) -> Curve:
        """The curve at b."""
        bread = tensor([] if bread is None else upper(bread))
        null = math.exp(self.null_model.t)
        up = self.ask(Point(b=tensor(b), alpha=alpha, bread=bread, null=null, closing=closing, **self.point))
        if not self.null_model.done:
            self.null_model.read(*up.sums[NULL_MODEL : NULL_MODEL + 3].tolist())
        return up

    def fit(self, b: np.ndarray, up: Curve | None = None) -> Fitted:
        """Newton's steps from b until the decrement is small, each halved while it makes the fit worse.

        Args:
            up: the curve at b, if it is known
        """
        n = self.point["rows"]
        alpha = self.glm.alpha or 1e-6
        shaped = not self.free
        enough = min(1e-9 * math.sqrt(n), 1e-7)
        before = math.inf
        decrement = math.inf
        x = b
        up = up or self._in_units(b, alpha)
        if up.sums[BAD] > 0.5 or (up.sums[DEVIANCE] > 2 * up.sums[NULL] and self.glm.uses):  # far worse than the mean
            x = self.flat
            up = self.at(x, alpha)
        if up.sums[BAD] > 0.5:
            raise Stalled(f"glm: the first guess gives impossible means under link={self.glm.uses!r}; give link='log'")
        most = self.glm.kind.steps
        for k in range(most + GROWS):
            if k >= most and not self.growing:
                break
            if not shaped and k == 2:  # Poisson's coefficients are near: from here on α is estimated too
                alpha = min(max(float(up.sums[OVER] / up.sums[OVER + 1]), 0.05), 20.0)
                shaped = True
                x = np.append(x, math.log(alpha))
                before = math.inf
                up = self.at(x[:-1], alpha)
            joint = self.free and shaped
            g, A = self._newton(up, joint)
            step = inverse(A) @ g
            decrement = math.sqrt(max(float(g @ step), 0.0))
            # The score is in the weights' unit; of Gaussians, in the outcome's, too.
            unit = float(up.sums[CHI2]) / n if self.glm.kind.homoscedastic else self.weight
            decrement /= math.sqrt(unit) or math.inf
            coarse = up.sums[GRID] > 0.5  # a score's grid is about a thousandth of its deviation
            enough = max(enough, 1e-3 * math.sqrt(len(g))) if coarse else enough
            # The noise of masks ends the progress earlier, and so does rounding.
            if shaped and (
                decrement <= enough or (0.02 if coarse else 1e-4 if self.noisy else 1e-7) > decrement > before / 3
            ):
                return self._done(x, x + step, up, alpha, joint)
            self._watch(k, step, x)
            before = decrement
            x, up, alpha = self._step(x, step, up, alpha, joint, decrement < 1e-3)
        self._refuse_edge(up)
        what = type(self.glm).__name__.lower()
        of = f"; {', '.join(self.growing)} still grows: leave it out, or merge categories" if self.growing else ""
        raise Stalled(f"{what}: no fit after {k + 1} steps; Newton's decrement is {decrement:.2g}{of}")

    def _in_units(self, b: np.ndarray, alpha: float) -> Curve:
        """The curve at b. If Gaussian outcomes that masks hide are far from 0, their unit is that of their spread."""
        up = self.at(b, alpha)
        for _ in range(4 if self.noisy and self.glm.kind.homoscedastic else 0):
            outcome, weight = self.point["units"].tolist()
            spread = max(float(up.sums[NULL]) / self.point["rows"] * 2.0**-weight, 4.0 ** (outcome + FINER - CLOSER))
            power = math.ceil(math.log2(spread) / 2) - FINER
            if power > outcome - 2:
                break
            self.point["units"] = tensor([power, weight])
            up = self.at(b, alpha)
        return up

    def _newton(self, up: Curve, joint: bool) -> tuple[np.ndarray, np.ndarray]:
        """The gradient and the matrix of a step; with log α last if it is estimated."""
        g = up.g.numpy()
        observed = self._observed(up, joint)
        if joint:
            g = np.append(g, float(up.shape[0]))
        if definite(observed):
            return g, observed
        A = lower(up.H)
        return g, np.pad(A, (0, 1)) + np.diag([*0 * A[0], max(abs(float(up.shape[1])), 0.1)]) if joint else A

    def _observed(self, up: Curve, joint: bool) -> np.ndarray:
        """The observed information; with log α last if it is estimated."""
        A = lower(up.O if up.O.numel() else up.H)
        if not joint:
            return A
        _, second, *cross = up.shape.tolist()
        return np.block([[A, np.array(cross)[:, None]], [np.array(cross)[None], np.array([[second]])]])

    def _step(
        self, x: np.ndarray, step: np.ndarray, up: Curve, alpha: float, joint: bool, closing: bool
    ) -> tuple[np.ndarray, Curve, float]:
        """The point after the step, halved until the fit is no worse, with its curve and α."""
        loss: Any = lambda up: -2 * float(up.sums[LLF]) if self.free else float(up.sums[DEVIANCE])
        if joint and abs(step[-1]) > 2:
            step = step * (2 / abs(step[-1]))
        most = loss(up) + 1e-8 * ((not self.glm.kind.homoscedastic) * self.weight + abs(loss(up)))
        most += 2e-3 * abs(loss(up)) * math.sqrt(float(up.sums[GRID]) / self.point["rows"])
        for half in range(12):
            y = x + step / 2**half
            a = math.exp(y[-1]) if joint else alpha
            if a < 1e-7 and joint:
                raise Stalled(
                    "glm: counts are no more dispersed than Poisson's, and α goes to 0; give family='poisson'"
                )
            new = self.at(y[:-1] if joint else y, a, closing=closing)
            if not half:
                self.blocked = self.blocked + 1 if new.sums[BAD] > 0.5 else 0
            if new.sums[BAD] < 0.5 and loss(new) <= most:
                return y, new, a
        self._refuse_edge(up)
        raise Stalled("glm: no step makes the fit better; scale the columns, or give another link")

    def _refuse_edge(self, up: Curve) -> None:
        """Raise Stalled if means became impossible in the last steps, or nothing is left of a Gaussian outcome."""
        if self.glm.kind.homoscedastic and up.sums[DEVIANCE] < 1e-12 * up.sums[NULL]:
            raise Stalled("glm: the columns give the outcome without error, so that nothing is left to estimate")
        if self.blocked and self.glm.uses not in ("logit", ""):
            binomial = self.glm.kind.binary
            edge = "above 1" if binomial and self.glm.uses == "log" else "out of 0 to 1" if binomial else "below 0"
            raise Stalled(
                f"glm: under link={self.glm.uses!r} the steps to a larger likelihood lead to means {edge}, so that its "
                "maximum is at this edge, or cannot be reached from here; give the family's default link"
                + (", or family='poisson' with cov='HC1' for ratios of risks" * binomial)
            )

    def _watch(self, k: int, step: np.ndarray, x: np.ndarray) -> None:
        """Note columns whose coefficients keep growing. Raises Stalled, naming them, if there is no maximum."""
        p = len(self.names)
        self.growing = []
        limit = 1e8 if self.glm.uses in ("log", "logit", "") else math.inf  # of η, whose exponential is a mean
        if not np.isfinite(step).all() or (np.abs(x[:p]) * self.size).max() > limit:
            raise Diverged("glm: coefficients grow without limit; scale the columns")
        moved = np.abs(step[:p]) * self.size
        if k < 5 or moved.max() < 0.03 or self.glm.kind.homoscedastic or self.blocked:
            return
        self.growing = self.glm.outstanding(self.names, step[:p], moved, self.point)
        if k % 3 == 2 and self.unbounded is not None and self.unbounded(step[:p] / moved.max()):
            raise Stalled(separation("outcomes are told apart without error", self.growing))

    def _done(self, x: np.ndarray, b: np.ndarray, up: Curve, alpha: float, joint: bool) -> Fitted:
        """The fit at b, from the curve at x, a negligible step before it."""
        up = self.at(x[: len(self.names)], alpha, closing=True) if up.sums[OPEN] > 0.5 else up
        glm = self.glm
        p = len(self.names)
        n = self.point["rows"]
        sums = up.sums.numpy()
        scale = float(sums[CHI2]) / (n - p) if glm.kind.dispersed else 1.0
        observed = self._observed(up, joint)
        if (joint or glm.cov != "model") and not definite(observed):
            raise Stalled("glm: the likelihood is flat where the score is 0, so that there are no standard errors")
        only = inverse(observed if joint else lower(up.H))
        cov = only * scale
        if glm.cov != "model":
            if glm.cov == "HC3":
                up = self.at(x[:p], alpha, only[:p, :p])
            bread = inverse(observed)
            rest = n - len(x)
            many = self.sites / max(self.sites - 1, 1) * (n - 1) / rest
            cov = {"HC1": n / rest, "cluster": many}.get(glm.cov, 1.0) * bread @ lower(up.meat) @ bread
            if glm.cov == "cluster" and (np.diag(cov) < 1e-7 * np.diag(only * scale)).any():
                raise RecipeError(
                    "glm(cov='cluster'): the standard errors are 0, because each site's score is 0, as that of a "
                    "single site always is; give cov='HC1' or 'HC3'",
                    "cov",
                )
        for _ in range(40):
            if self.null_model.done:
                break
            self.at(x[:p], alpha)
        alpha = math.exp(b[-1]) if joint else alpha
        null_scale = float(sums[OVER]) / (n - 1) if glm.kind.scaled else scale
        likely, null = (glm.kind.loglik(sums[k : k + 2], n, s) for k, s in ((LLF, scale), (NULL + 1, null_scale)))
        figures = {name: float(sums[k]) for name, k in FIGURES.items()}
        figures |= {"llf": likely, "llnull": self.null_model.value if self.free else null, "scale": scale, "nobs": n}
        figures |= {"mean": self.point["mean"], "coarse": float(sums[GRID])}
        figures["largest"] = glm.kind.most_likely(sums[LLF : LLF + 2], n, scale)
        return Fitted(self.names, b, cov, figures, alpha if glm.kind.has_alpha else None)


def definite(A: np.ndarray) -> bool:
    """Whether a symmetric matrix is positive definite, whatever the scales of its columns."""
    size = np.sqrt(np.maximum(np.diag(A), 0.0))
    return bool((size > 0).all() and np.linalg.eigvalsh(A / np.outer(size, size))[0] > 1e-14)


def inverse(A: np.ndarray) -> np.ndarray:
    """The inverse of an information matrix, whatever the scales of its columns."""
    size = np.sqrt(np.maximum(np.abs(np.diag(A)), 1e-300))
    out: np.ndarray = np.linalg.inv(A / size / size[:, None]) / size / size[:, None]
    return out


def separation(why: str, names: list[str]) -> str:
    """The sentence for a fit without a finite optimum."""
    return (
        f"separation by {', '.join(names)}: {why}, so that the likelihood has no maximum; merge categories or leave "
        "the column out"
    )
