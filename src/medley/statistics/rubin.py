"""Rubin's rules: one estimate from the fits of m completed data sets.

**Reference**: Rubin, "Multiple Imputation for Nonresponse in Surveys", 1987, chapter 3; Barnard & Rubin, "Small-sample
degrees of freedom with multiple imputation", Biometrika 86, 1999.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..contract import RecipeError
from ..contract.arguments import known_keywords
from .fit import Coefficients


class PooledFit(Coefficients):
    r"""Coefficients combined from m imputations; tests and intervals are by t with these degrees of freedom.

    .. math::
        T &= \bar U + (1 + 1/m) B && \text{the covariance: within, and between imputations} \\
        \lambda &= (1 + 1/m) B / T, \quad \nu_m = (m - 1) / \lambda^2 \\
        \nu_o &= (1 - \lambda)\, \nu\, (\nu + 1) / (\nu + 3) && \nu = n - p \\
        \text{df} &= \nu_m \nu_o / (\nu_m + \nu_o)

    Attributes:
        fits: the fit of each imputation
        imputed: the imputed cells by site and column, a frame
        iterations: how often each chain visited a column
        nobs: the number of rows of each fit
        within, between: the mean covariance of the fits, and the covariance of their coefficients [p, p]
        bytes_up: what the sites sent for all fits
    """

    def __init__(self, fits: Sequence[Any], imputed: Any, iterations: int, bytes_up: int) -> None:
        names = [*fits[0].names]
        if any([*fit.names] != names for fit in fits):
            raise RecipeError("Rubin's rules: imputations differ in their coefficients; merge rare categories")
        b = np.array([fit.b for fit in fits])
        self.fits = [*fits]
        self.m = len(fits)
        self.imputed = imputed
        self.iterations = iterations
        self.bytes_up = bytes_up
        self.within = np.mean([fit.covariance for fit in fits], axis=0)
        self.between = np.cov(b.T, ddof=1).reshape(self.within.shape)
        super().__init__(names, b.mean(0), self.within + (1 + 1 / self.m) * self.between)
        self.nobs = int(fits[0].nobs)
        self._complete = self.nobs - len(getattr(fits[0], "fit", fits[0]).b)

    @property
    def _share(self) -> np.ndarray:
        """λ: the share of the variance that is between imputations."""
        out: np.ndarray = (1 + 1 / self.m) * np.diag(self.between) / np.diag(self.covariance)
        return out

    @property
    def df(self) -> Any:
        """Barnard and Rubin's degrees of freedom."""
        share = np.maximum(self._share, 1e-4)  # as in mice
        nu = float(self._complete)
        drawn = (self.m - 1) / share**2
        seen = (nu + 1) / (nu + 3) * nu * (1 - share)
        return self._series(drawn * seen / (drawn + seen))

    @property
    def fmi(self) -> Any:
        """The fraction of information that is missing, for few imputations (Rubin, 1987, equation 3.1.10)."""
        more = self._share / (1 - self._share)
        return self._series((more + 2 / (self.df + 3)) / (1 + more))

    @property
    def pvalues(self) -> Any:
        """Two-sided p-values of t."""
        from scipy.stats import t

        return self._series(2 * t.sf(np.abs(self.tvalues), self.df))

    @known_keywords
    def conf_int(self, alpha: float = 0.05) -> Any:
        """Confidence intervals of 1 − ``alpha`` by t, columns 0 and 1."""
        from scipy.stats import t

        half = t.isf(alpha / 2, self.df) * self.bse
        return half.to_frame().assign(**{"0": self.b - half, "1": self.b + half})[["0", "1"]].set_axis([0, 1], axis=1)

    @known_keywords
    def frame(self, exp: bool = False, alpha: float = 0.05) -> Any:
        """See `Coefficients.frame`; with degrees of freedom and the fraction of information that is missing."""
        return super().frame(exp, alpha).rename(columns={"z": "t", "P>|z|": "P>|t|"}).assign(df=self.df, fmi=self.fmi)

    def summary(self) -> str:
        """A text table, with what was imputed."""
        facts = [("Imputations", str(self.m)), ("Visits of a column", str(self.iterations))]
        facts += [("No. Observations", str(self.nobs)), ("Sites", str(len(self.imputed)))]
        return self._table("Combined by Rubin's rules", facts) + "\nimputed cells\n" + str(self.imputed.to_string())
