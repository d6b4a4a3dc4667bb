"""The fit of a linear mixed model, and its tables."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from .cells import printed
from .extra import needed
from .fit import Coefficients, Cost
from .mixed import Mixed
from .random_terms import SITE

log = logging.getLogger("medley")

BOUNDARY = (
    "boundary (singular) fit: a variance of the random effects is 0, or a correlation −1 or 1; the fixed effects hold, "
    "and a model without that effect has the same"
)


class MixedFit(Coefficients):
    """A linear mixed model's fit: fixed effects with standard errors, and the covariances of random effects.

    Attributes:
        mixed, sites, cost: the analysis, the sites' names, and its exchanges and bytes
        nobs: rows of all sites
        groups: how many groups there are, by column
        left_out: the rows and groups of each site that ``alike`` leaves out, a frame; see `Mixed`
        covariances: the covariance of the random effects, a frame for each group
        sigma, scale: the residuals' standard deviation and variance
        llf, criterion: the log-likelihood, restricted if ``mixed.reml``, and −2 times it, REML's criterion
        singular: whether a variance is at its boundary, as in lme4
        site_effects: the effects of each site as predicted (BLUP), a frame of sites by effects; None if there are none.
            Those of groups within sites do not leave
    """

    def __init__(self, mixed: Mixed, sites: tuple[str, ...], result: Any, cost: Cost) -> None:
        found, self.rows = result
        super().__init__(found["names"], found["b"], found["cov"])
        frame = needed("pandas").DataFrame
        self.mixed, self.sites, self.cost = mixed, sites, cost
        self.nobs = int(self.rows[:, 0].sum())
        self.groups = ({mixed.cluster: found["groups"]} if mixed.cluster else {}) | (
            {SITE: len(sites)} if SITE in found["covariances"] else {}
        )
        self.covariances = {g: frame(c, names, names) for g, (names, c) in found["covariances"].items()}
        self.scale, self.sigma = found["scale"], float(np.sqrt(found["scale"]))
        self.criterion, self.singular = found["criterion"], found["singular"]
        self.llf = -self.criterion / 2
        self.k = found["parameters"]
        effects = found["effects"]
        self.site_effects = None if effects is None else frame(effects, [*sites], self.covariances[SITE].columns)
        self.left_out = frame(found["left_out"].astype(int), [*sites], ["rows", mixed.cluster or "groups"])
        if self.singular:
            log.warning("mixed: %s", BOUNDARY)
        if left := self._left():
            log.warning("mixed: %s", left)

    def _left(self) -> str:
        """A sentence about groups that are left out, empty if there are none."""
        lines = [f"{n} rows of {k} {self.mixed.cluster} at {site}" for site, n, k in self.left_out.itertuples() if n]
        return f"left out, as too few others have such rows: {', '.join(lines)}" if lines else ""

    @property
    def aic(self) -> float:
        """Akaike's criterion, −2 llf + 2 k, where variances count as parameters; REML's, too, as in lme4."""
        return float(self.criterion + 2 * self.k)

    @property
    def bic(self) -> float:
        """Bayes' criterion, −2 llf + k log n."""
        return float(self.criterion + np.log(self.nobs) * self.k)

    def random(self) -> Any:
        """Variances, standard deviations and correlations of random effects and residuals, a frame as lme4 prints it:
        a line for each effect, with its correlation with earlier ones of its group.
        """
        lines, index = list[dict[str, float]](), list[tuple[str, str]]()
        for group, of in self.covariances.items():
            sd = np.sqrt(np.diag(of))
            with np.errstate(all="ignore"):
                correlation = of.to_numpy() / np.outer(sd, sd)
            for j, name in enumerate(of.columns):
                earlier = {f"corr {of.columns[k]}": correlation[j, k] for k in range(j) if of.iloc[j, k] != 0}
                lines.append({"variance": sd[j] ** 2, "sd": sd[j], **earlier})
                index.append((group, name))
        lines.append({"variance": self.scale, "sd": self.sigma})
        pandas = needed("pandas")
        return pandas.DataFrame(
            lines, pandas.MultiIndex.from_tuples([*index, ("residual", "")], names=["group", "effect"])
        )

    def summary(self) -> str:
        """A text table as statsmodels prints one, with the random effects below it."""
        of = "REML" if self.mixed.reml else "ML"
        facts = [("Method", of), ("No. Observations", str(self.nobs))]
        facts += [(f"No. of {name}", str(count)) for name, count in self.groups.items()]
        facts += [("Log-Likelihood", f"{self.llf:.5g}"), ("AIC", f"{self.aic:.5g}"), ("BIC", f"{self.bic:.5g}")]
        random = printed(self.random(), float_format=lambda v: f"{v:.4f}", na_rep="")
        lines = [
            self._table("Linear Mixed Model Regression Results", facts),
            self.mixed.formula,
            "Random effects:",
            random,
        ]
        return "\n".join(filter(None, [*lines, BOUNDARY * self.singular, self._left()]))
