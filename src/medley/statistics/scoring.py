"""The server's side of a fit: Newton's steps on the sum of the sites' curves, until the score is 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..contract import BadData, Diverged, Message, RecipeError, Stalled
from .analysis import Json, lower, tensor, upper
from .families import LINKS, llf

STEPS = {"negative_binomial": 50}
"""Exchanges after which a fit stops without a result, by family; 25 for others."""

ALIKE = 1e-9
"""If 1 − R² of a column, regressed on the columns before it, is below this, it is a combination of them."""


class Unfit(BadData):
    """The rows do not allow a fit, because some columns are combinations of others."""


class Point(Message):
    """Down: categories, β [p], the inverse information [t] for leverages, the outcome's mean, α, all sites' rows.

    ``centre`` is subtracted from the columns, for Cox's model with one baseline.
    """

    terms: Json
    b: Float[Tensor, " p"]
    bread: Float[Tensor, " t"]
    mean: float
    alpha: float
    rows: int
    centre: Float[Tensor, " c"] = tensor([0.0])


class Curve(Message):
    """Up: the score, expected and observed information, the meat of a sandwich, α's part, and sums."""

    g: Float[Tensor, " p"]
    H: Float[Tensor, " t"]
    O: Float[Tensor, " o"]
    meat: Float[Tensor, " r"]
    shape: Float[Tensor, " e"]
    sums: Float[Tensor, " m"]


N, DEVIANCE, CHI2, LLF, NULL, BAD, OVER = 0, 1, 2, 3, 5, 8, 9
"""Places in a curve's sums: rows, deviance, χ², two of the log-likelihood, the null model's deviance and two, rows with
impossible means, Σ(y − μ)² − μ, Σμ²."""


class Fitted(NamedTuple):
    """A fit's numbers, for `GLMFit`: coefficients, log α last if it was estimated, their covariance, and figures."""

    names: list[str]
    b: np.ndarray
    cov: np.ndarray
    figures: dict[str, float]
    alpha: float | None


@dataclass
class Descent:
    """The server's descent to the fit; ``point`` is in each request, ``size`` has the columns' root mean squares."""

    glm: Any
    ask: Callable[[Point], Curve]
    sites: int
    names: list[str]
    point: dict[str, Any]
    size: np.ndarray

    @property
    def free(self) -> bool:
        """Whether α is estimated with the coefficients."""
        return bool(self.glm.family == "negative_binomial" and self.glm.alpha is None)

    def at(self, b: np.ndarray, alpha: float, bread: Any = None) -> Curve:
        """The curve at b."""
        bread = tensor([] if bread is None else upper(bread))
        return self.ask(Point(b=tensor(b), alpha=alpha, bread=bread, **self.point))

    def fit(self, b: np.ndarray, up: Curve | None = None) -> Fitted:
        """Newton's steps from b until the decrement is small, each halved while it makes the fit worse.

        Args:
            up: the curve at b, if it is known
        """
        n, alpha, shaped = self.point["rows"], self.glm.alpha or 1e-6, not self.free
        enough, before, decrement = min(max(3e-9 * float(np.sqrt(n)), 1e-9), 3e-7), math.inf, math.inf
        x, up = b, up or self.at(b, alpha)
        if up.sums[BAD] > 0.5:  # the mean alone, then
            x = np.array(
                [float(LINKS[self.glm.uses].link(self.point["mean"])) * (v == "Intercept") for v in self.names]
            )
            up = self.at(x, alpha)
        if up.sums[BAD] > 0.5:
            raise Stalled(f"glm: the first guess gives impossible means under link={self.glm.uses!r}; give link='log'")
        for k in range(STEPS.get(self.glm.family, 25)):
            if not shaped and k == 2:  # Poisson's coefficients are near: from here on α is estimated too
                alpha, shaped = min(max(float(up.sums[OVER] / up.sums[OVER + 1]), 0.05), 20.0), True
                x, before = np.append(x, math.log(alpha)), math.inf
                up = self.at(x[:-1], alpha)
            joint = self.free and shaped
            g, A = self._newton(up, joint)
            step = np.linalg.solve(A, g)
            decrement = math.sqrt(max(float(g @ step), 0.0))
            # Under secure sums the score's noise ends the progress first.
            if shaped and (decrement <= enough or 1e-4 > decrement > before / 3):
                return self._done(x, x + step, up, alpha, joint)
            self._refuse_separation(k, step, x)
            before = decrement
            x, up, alpha = self._step(x, step, up, alpha, joint)
        raise Stalled(f"glm: no fit after {k + 1} steps; Newton's decrement is {decrement:.2g}")

    def _newton(self, up: Curve, joint: bool) -> tuple[np.ndarray, np.ndarray]:
        """The gradient and the matrix of a step; with log α last if it is estimated."""
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

    def _step(
        self, x: np.ndarray, step: np.ndarray, up: Curve, alpha: float, joint: bool
    ) -> tuple[np.ndarray, Curve, float]:
        """The point after the step, halved until the fit is no worse, with its curve and α."""
        loss: Any = lambda up: -2 * float(up.sums[LLF]) if self.free else float(up.sums[DEVIANCE])
        if joint and abs(step[-1]) > 2:
            step = step * (2 / abs(step[-1]))
        most = loss(up) + 1e-8 * (1 + abs(loss(up)))
        for half in range(12):
            y = x + step / 2**half
            a = math.exp(y[-1]) if joint else alpha
            if a < 1e-7 and joint:
                raise Stalled(
                    "glm: counts are no more dispersed than Poisson's, and α goes to 0; give family='poisson'"
                )
            new = self.at(y[:-1] if joint else y, a)
            if new.sums[BAD] < 0.5 and loss(new) <= most:
                return y, new, a
        raise Stalled("glm: no step makes the fit better; scale the columns, or give another link")

    def _refuse_separation(self, k: int, step: np.ndarray, x: np.ndarray) -> None:
        """Raise Stalled, naming the columns, if coefficients keep growing while the likelihood no longer improves."""
        p = len(self.names)
        moved = np.abs(step[:p]) * self.size
        if k >= 5 and moved.max() > 0.3 and self.glm.family != "gaussian":
            names = [self.names[j] for j in np.flatnonzero(moved > 0.3 * moved.max()) if self.names[j] != "Intercept"]
            raise Stalled(separation("outcomes are told apart without error", names or self.names))
        if not np.isfinite(step).all() or np.abs(x).max() > 1e8:
            raise Diverged("glm: coefficients grow without limit; scale the columns")

    def _done(self, x: np.ndarray, b: np.ndarray, up: Curve, alpha: float, joint: bool) -> Fitted:
        """The fit at b, from the curve at x, a negligible step before it."""
        glm, p, n, sums = self.glm, len(self.names), self.point["rows"], up.sums.numpy()
        scale = float(sums[CHI2]) / (n - p) if glm.kind.dispersed else 1.0
        inverse = np.linalg.inv(self._newton(up, joint)[1] if joint else lower(up.H))
        cov, only = inverse * scale, inverse[:p, :p]
        if glm.cov != "model":
            if glm.cov == "HC3":
                up = self.at(x[:p], alpha, only)
            bread = only if joint or glm.canonical else np.linalg.inv(lower(up.O))
            many = self.sites / max(self.sites - 1, 1) * (n - 1) / (n - p)
            cov = {"HC1": n / (n - p), "cluster": many}.get(glm.cov, 1.0) * bread @ lower(up.meat) @ bread
            if glm.cov == "cluster" and (np.diag(cov) < 1e-7 * np.diag(inverse * scale)).any():
                raise RecipeError(
                    "glm(cov='cluster'): the standard errors are 0, because each site's score is 0, as that of a "
                    "single site always is; give cov='HC1' or 'HC3'",
                    "cov",
                )
        alpha = math.exp(b[-1]) if joint else alpha
        likely, null = (llf(glm.family, sums[k : k + 2], n, scale) for k in (LLF, NULL + 1))
        of = {"deviance": DEVIANCE, "null_deviance": NULL, "pearson_chi2": CHI2}
        figures = {name: float(sums[k]) for name, k in of.items()}
        figures |= {"llf": likely, "llnull": null, "scale": scale, "nobs": n, "mean": self.point["mean"]}
        return Fitted(self.names, b, cov, figures, alpha if glm.family == "negative_binomial" else None)


def dependent(H: np.ndarray) -> tuple[int, list[int]] | None:
    """The first column that is a combination of earlier ones, and which ones; None if all are independent."""
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
        f"separation by {', '.join(names)}: {why}, so that the likelihood has no maximum; merge categories or leave "
        "the column out"
    )
