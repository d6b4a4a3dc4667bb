"""Fits, with statsmodels' names, and their tables."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from ..contract import RecipeError
from ..contract.arguments import known_keywords
from ..contract.text import shown
from .cells import printed
from .extra import InNotebooks, needed
from .formulas import latex, parsed
from .glm import GLM
from .predictions import predicted
from .rounding import WIDEST
from .scoring import Fitted
from .site import SHARE, share_of
from .weights import Weights

FEW_CLUSTERS = 30
"""Below this number of sites, errors clustered by site are too small."""


class Cost(NamedTuple):
    """The exchanges of an analysis, and its bytes."""

    exchanges: int
    bytes_down: int
    bytes_up: int


class Test(NamedTuple):
    """A test's statistic, its degrees of freedom and its p-value."""

    statistic: float
    df: float
    pvalue: float


def probability(p: float) -> str:
    """A p-value in words: "<0.001", else to three digits."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


@dataclass(eq=False)
class Coefficients(InNotebooks):
    """Coefficients b [p] with their names and their covariance [p, p]: the base of all fits."""

    _is_table = True

    names: list[str]
    b: np.ndarray
    covariance: np.ndarray

    def _series(self, values: Any) -> Any:
        return needed("pandas").Series(values, index=self.names)

    @property
    def params(self) -> Any:
        """Coefficients, by name."""
        return self._series(self.b)

    @property
    def bse(self) -> Any:
        """Standard errors."""
        return self._series(np.sqrt(np.diag(self.covariance)))

    @property
    def tvalues(self) -> Any:
        """z: coefficients divided by their standard errors."""
        return self._series(self.b / np.sqrt(np.diag(self.covariance)))

    zvalues = tvalues

    @property
    def pvalues(self) -> Any:
        """Two-sided p-values of z under the normal distribution."""
        from scipy.stats import norm

        return self._series(2 * norm.sf(np.abs(self.tvalues)))

    def cov_params(self) -> Any:
        """The covariance of the coefficients."""
        return needed("pandas").DataFrame(self.covariance, self.names, self.names)

    @known_keywords
    def conf_int(self, alpha: float = 0.05) -> Any:
        """Confidence intervals of 1 − ``alpha``, columns 0 and 1."""
        from scipy.stats import norm

        half = norm.isf(alpha / 2) * np.sqrt(np.diag(self.covariance))
        return needed("pandas").DataFrame({0: self.b - half, 1: self.b + half}, index=self.names)

    @known_keywords
    def frame(self, exp: bool = False, alpha: float = 0.05) -> Any:
        """A table of coefficients: coef, std err, z, P>|z|, and the interval.

        ``exp`` gives e to the power of coefficients and of their intervals; standard errors stay as they are.
        """
        ends = self.conf_int(alpha)
        f = np.exp if exp else (lambda v: v)
        return needed("pandas").DataFrame(
            {
                "exp(coef)" if exp else "coef": f(self.params),
                "std err of coef" if exp else "std err": self.bse,
                "z": self.tvalues,
                "P>|z|": self.pvalues,
                f"[{alpha / 2:.3g}": f(ends[0]),
                f"{1 - alpha / 2:.4g}]": f(ends[1]),
            }
        )

    @known_keywords
    def latex(self, exp: bool = False, digits: int = 3) -> str:
        """The same as a LaTeX table, for booktabs."""
        frame = self.frame(exp)
        name = "P>|z|" if "P>|z|" in frame else "P>|t|"
        return latex(frame.assign(**{name: [probability(p) for p in frame[name]]}), digits)

    def _table(self, title: str, facts: list[tuple[str, str]]) -> str:
        """A text table as statsmodels prints it: facts in two columns, then the coefficients."""
        body = printed(self.frame(), float_format=lambda v: f"{v:.4f}").split("\n")
        facts = [(f"{a}:", shown(b)) for a, b in facts]
        facts += [("", "")] * (len(facts) % 2)
        width = max(78, len(body[0]))
        half = len(facts) // 2
        each = width // 2 - 1
        lines = [
            f"{a:<{each - len(b)}}{b}   {c:<{width - each - 3 - len(d)}}{d}".rstrip()
            for (a, b), (c, d) in zip(facts[:half], facts[half:], strict=True)
        ]
        rule = "=" * width
        return "\n".join([f"{title:^{width}}".rstrip(), rule, *lines, rule, body[0], "-" * width, *body[1:], rule])


class GLMFit(Coefficients):
    """A generalised linear model's fit; names are those of statsmodels' results.

    Attributes:
        glm, sites: the analysis, and the sites' names
        exchanges, bytes_down, bytes_up: the costs of the fit
        llnull, null_deviance: for a model with only the mean; not with an offset or exposure
        scale, alpha: the dispersion φ; α of the negative binomial, None for other families
    """

    def __init__(self, glm: GLM, sites: tuple[str, ...], result: tuple[Fitted, np.ndarray], cost: Cost) -> None:
        fitted, rows = result
        names, b, cov, figures, self.alpha, self.point, *_ = fitted
        if self.alpha is not None and len(b) > len(names):  # log α → α
            scale = np.append(np.ones(len(names)), self.alpha)
            b = np.append(b[:-1], self.alpha)[: len(cov)]
            cov = cov * np.outer(scale, scale)[: len(cov), : len(cov)]
            names = [*names, "alpha"][: len(cov)]
        super().__init__(names, b, cov)
        self.glm, self.sites, self.rows, self.k, self.cov_type = glm, sites, rows, len(fitted.b), glm.cov
        self.exchanges, self.bytes_down, self.bytes_up = cost
        self._mean = figures["mean"]
        self._largest = figures["largest"]
        self._coarse = figures["coarse"]
        plain = not (glm.offset or glm.exposure) and "Intercept" in names
        figures |= {} if plain else {"null_deviance": math.nan, "llnull": math.nan}
        self.llf, self.llnull, self.scale, self.nobs = (figures[k] for k in ("llf", "llnull", "scale", "nobs"))
        self.deviance, self.null_deviance, self.pearson_chi2 = (
            figures[k] for k in ("deviance", "null_deviance", "pearson_chi2")
        )
        self.df_model, self.df_resid = len(fitted.names) - ("Intercept" in names), self.nobs - len(fitted.names)
        if glm.cov == "cluster" and len(sites) < FEW_CLUSTERS:
            warnings.warn(
                f"standard errors clustered by {len(sites)} sites are too small, and their tests too sure: below "
                f"{FEW_CLUSTERS} clusters give cov='HC1' or 'HC3', with sites='fixed'",
                UserWarning,
                stacklevel=3,
            )

    @known_keywords
    def weights(
        self,
        estimand: Literal["ATE", "ATT", "overlap"] = "ATE",
        stabilised: bool = False,
        trim: float = 0.0,
        truncate: float = 0.0,
    ) -> Weights:
        """Weights of rows by the probability of the treatment that this fit explains; see `Weights`.

        Raises RecipeError for a fit that is not a logistic regression, or has settings that weights do not have.
        """
        g = self.glm
        if (g.family, g.uses) != ("binomial", "logit") or g.offset or g.weights:
            raise RecipeError("weights(): they are of a propensity model, study.propensity('treated ~ age + C(sex)')")
        return Weights(g.formula, estimand, stabilised, trim, truncate, g.sites)

    @property
    def aic(self) -> float:
        """Akaike's criterion, −2 llf + 2 k."""
        return -2 * self.llf + 2 * self.k

    @property
    def bic(self) -> float:
        """The Bayesian criterion by the likelihood, −2 llf + k log n; statsmodels' ``bic_llf``."""
        return -2 * self.llf + self.k * float(np.log(self.nobs))

    @known_keywords
    def predict(self, rows: Any, alpha: float = 0.05) -> Any:
        """The means that the fit predicts for rows of yours, a frame: with the delta method's error and an interval.

        Nothing leaves a site for it: it reads the coefficients and their covariance. The interval is that of η under
        the link. Raises BadData for rows without one of the columns, or with a category that no site has.
        """
        return predicted(self, rows, alpha)

    @cached_property
    def rows_by_site(self) -> Any:
        """Rows used, rows left out for a missing value, and rows that the study left out, by site."""
        columns = ("used", "missing", "incomplete")
        return needed("pandas").DataFrame(self.rows.astype(int), index=[*self.sites], columns=columns)

    @property
    def _grid_of_mean(self) -> float:
        """The most by which this fit's mean of the outcome is off, where sites round: grids depend on the formula."""
        shares = [
            (n, share_of(n / 2 / (self.k + 1), SHARE, WIDEST)) for n in self.rows[:, 0].tolist()
        ]  # see `Outcome.of`
        variance = float(self.glm.kind.variance(np.array([self._mean]), self.alpha or 1.0)[0]) * self.scale
        return math.sqrt(variance) * sum(share * math.sqrt(n) for n, share in shares) / self.nobs

    @known_keywords
    def lr_test(self, smaller: GLMFit) -> Test:
        """The likelihood-ratio test of this fit against a smaller one on the same rows.

        Raises RecipeError if the fits differ in rows, outcome or settings, or if their numbers show that they are not
        nested.
        """
        from scipy.stats import chi2

        if self.glm.weighting:
            raise RecipeError(
                "lr_test: weights by treatment make no likelihood, so that a ratio of two has no distribution; read "
                "the p-value of the coefficient"
            )
        df = self.k - smaller.k
        mine = self._explained
        other = smaller._explained
        unlike = [key for key in mine if mine[key] != other[key]]
        columns = {*smaller.glm.reads[0]} - {*self.glm.reads[0]}  # if missing in a row, it is in one of the fits only
        if "rows" not in unlike and columns and (self.rows[:, 1].any() or smaller.rows[:, 1].any()):
            unlike.append("rows")
        grids = self._grid_of_mean + smaller._grid_of_mean
        if not unlike and not math.isclose(self._mean, smaller._mean, rel_tol=1e-6, abs_tol=1e-9 + grids):
            unlike = ["the data"]
        if unlike or df < 1:
            reason = (
                f"they differ in {', '.join(unlike)}; give both the same" if unlike else "want the larger one first"
            )
            raise RecipeError(
                f"lr_test: {self.glm.formula!r} of {self.nobs} rows with {self.k} parameters, against "
                f"{smaller.glm.formula!r} of {smaller.nobs} with {smaller.k}: {reason}"
                + ("; a study's complete=[...] drops rows with missing values from the start" * ("rows" in unlike))
            )
        statistic = 2 * (self._largest - smaller._largest)
        grid = 2e-3 * (max(self._coarse, smaller._coarse) / self.nobs) ** 0.5  # of the likelihoods, if sites round
        if statistic < -(1e-7 + grid) * (1 + abs(self.llf)):
            raise RecipeError(
                f"lr_test: {smaller.glm.formula!r} fits better than {self.glm.formula!r}, so it cannot be a special "
                "case of it; compare a fit with one that has all its columns and more"
            )
        statistic = max(statistic, 0.0)
        return Test(statistic, df, float(chi2.sf(statistic, df)))

    @property
    def _explained(self) -> dict[str, Any]:
        """What the likelihoods of two fits have to share, by name."""
        g = self.glm
        keys = ("where", "family", "alpha", "weights", "offset", "exposure")
        same = {"sites": self.sites, "outcome": parsed(g.formula).response, "link": g.uses}
        return same | {key: getattr(g, key) for key in keys} | {"rows": self.rows[:, 0].tolist()}

    def summary(self) -> str:
        """A text table as statsmodels prints it."""
        g = self.glm
        facts = [("Dep. Variable", parsed(g.formula).response), ("Model", "GLM"), ("Model Family", g.kind.name)]
        facts += [("Link Function", g.uses), ("Covariance Type", self.cov_type)]
        facts += [("Exchanges", str(self.exchanges)), ("Sites", str(len(self.sites)))]
        facts += [("No. Observations", str(self.nobs)), ("Df Residuals", str(self.df_resid))]
        facts += [("Df Model", str(self.df_model)), ("Scale", f"{self.scale:.5g}")]
        facts += [("Log-Likelihood", f"{self.llf:.5g}"), ("Deviance", f"{self.deviance:.5g}")]
        facts += [("Pearson chi2", f"{self.pearson_chi2:.5g}")]
        gone = {s: int(n) for s, n in zip(self.sites, self.rows[:, 1] + self.rows[:, 2], strict=True) if n}
        left_out = (
            f"\nleft out for missing values: {', '.join(f'{n} at {shown(s)}' for s, n in gone.items())}" if gone else ""
        )
        return self._table("Generalized Linear Model Regression Results", facts) + left_out


__all__ = ["Coefficients", "GLMFit", "Test"]
