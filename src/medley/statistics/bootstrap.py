"""The bootstrap: errors of any figure of a study, from samples of each site's rows.

**Reference**: Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapters 6, 12 and 13.

A site draws as many rows as it has, with replacement; if its rules name patients by ``id``, it draws patients with all
their rows. Everything that the figure needs is fitted anew in each draw, a propensity model too. Which rows a draw has
follows from a secret, so that sums of draws cannot be told apart by row.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ..contract import BadData, MedleyError, RecipeError, Stalled
from ..runtime.streams import rng
from ..server.bookkeeping import Bookkeeping
from .cells import printed
from .extra import InNotebooks, needed
from .register import Register
from .site import Site

log = logging.getLogger("medley")

FEWEST = 20
"""The fewest draws from which errors are made."""

FAILED = 0.1
"""The largest share of draws that may fail."""


class Bootstrap(InNotebooks):
    """Errors and intervals of figures from draws of rows.

    Attributes:
        estimate: the figures of the rows themselves, a series by name [k]
        draws: the figures of each draw, a frame [draws, k]; draws that failed are left out
        failed: how many did
        bytes_up: what the sites sent for all draws
    """

    _is_table = True

    def __init__(self, estimate: Any, draws: Any, failed: int, bytes_up: int) -> None:
        self.estimate, self.draws, self.failed, self.bytes_up = estimate, draws, failed, bytes_up

    @property
    def se(self) -> Any:
        """Standard errors: the deviations of the draws [k]."""
        return self.draws.std(ddof=1)

    def interval(self, alpha: float = 0.05, kind: Literal["percentile", "normal"] = "percentile") -> Any:
        """Intervals at 1 − alpha, a frame [k, 2]: quantiles of the draws, or the estimate and z standard errors."""
        if not 0 < alpha < 1 or kind not in ("percentile", "normal"):
            raise RecipeError(f"interval({alpha!r}, {kind!r}): alpha is between 0 and 1, kind 'percentile' or 'normal'")
        if kind == "percentile":
            ends = [self.draws.quantile(alpha / 2), self.draws.quantile(1 - alpha / 2)]
        else:
            from scipy.stats import norm  # heavy

            ends = [self.estimate + side * norm.isf(alpha / 2) * self.se for side in (-1, 1)]
        return needed("pandas").concat(ends, axis=1, keys=[f"[{alpha / 2:.4g}", f"{1 - alpha / 2:.4g}]"])

    def frame(self, alpha: float = 0.05, kind: Literal["percentile", "normal"] = "percentile") -> Any:
        """Estimates, standard errors and intervals, a line a figure."""
        pandas = needed("pandas")
        first = pandas.concat([self.estimate, self.se], axis=1, keys=["estimate", "std err"])
        return first.join(self.interval(alpha, kind))

    def summary(self) -> str:
        """A text table, with how many draws there were."""
        failed = f"; {self.failed} more failed" if self.failed else ""
        head = f"Bootstrap, {len(self.draws)} draws of each site's rows{failed}; percentile intervals"
        return head + "\n" + printed(self.frame(), float_format=lambda v: f"{v:.4f}")


def bootstrap(study: Any, figure: Callable[[Any], Any], draws: int, seed: int | None) -> Bootstrap:
    """Draw and compute; see `Study.bootstrap`."""
    if not callable(figure):
        raise RecipeError(
            f"bootstrap(figure={figure!r:.40}): give a function of a study that returns figures", "figure"
        )
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < FEWEST:
        raise RecipeError(
            f"bootstrap(draws={draws!r}): give {FEWEST} or more; 200 are usual, 1000 for intervals", "draws"
        )
    refuse_rounded(study, "bootstrap()", f"{draws} draws", "use the robust errors of a fit")
    estimate = _series(figure(study))
    secret = study.secret if seed is None else seed
    found, sent, error = list[Any](), 0, MedleyError()
    for k in range(draws):
        drawn = copy.copy(study)
        drawn.books = Bookkeeping()
        drawn.sites = {i: sample(site, secret, k) for i, site in study.sites.items()}
        try:
            values = _series(figure(drawn))
            if not np.isfinite(values).all():
                raise BadData(f"{values.index[~np.isfinite(values)][0]!r} is no finite number")
            found.append(values)
        except (BadData, Stalled) as e:
            error = e
        else:
            _refuse_other_names(values, estimate)
        sent += sum(e.up for e in drawn.ledger)
        if (k + 1) % 50 == 0 and k + 1 < draws:
            log.info("bootstrap: %d of %d draws", k + 1, draws)
        if k + 1 - len(found) > FAILED * draws:
            raise RecipeError(f"bootstrap(): {k + 1 - len(found)} of {k + 1} draws failed, the last by: {error}")
    frame = needed("pandas").DataFrame(found).reset_index(drop=True)
    return Bootstrap(estimate, frame, draws - len(found), sent)


def refuse_rounded(study: Any, call: str, draws: str, remedy: str) -> None:
    """Raise RecipeError, with this remedy, unless all rows are here, under exact rules: draws would tell the digits."""
    if len(study.sites) < len(study.names):
        raise RecipeError(f"{call}: the rows are on other machines, which draw none; {remedy}")
    rounded = next((site.name for site in study.sites.values() if site.rules.rounded), None)
    if rounded is not None:
        raise RecipeError(
            f"{call}: {rounded} rounds its sums, and {draws} of them would average the rounding out; {remedy}, or give "
            "Rules(exact=True) at every site"
        )


def _refuse_other_names(values: Any, estimate: Any) -> None:
    """Raise RecipeError for a draw without one of the figures, such as that of a category that it has no row of."""
    missing = [*estimate.index.difference(values.index), *values.index.difference(estimate.index)]
    if missing or list(values.index) != list(estimate.index):
        names = ", ".join(map(repr, missing)) or "the order of the figures"
        raise RecipeError(f"bootstrap(): a draw differs from the rows in {names}; merge rare categories")


def sample(site: Site, secret: int, draw: int) -> Site:
    """The site with a draw of its rows, or of its patients with all their rows, and with a register of its own."""
    random = rng(secret, "bootstrap", site.name, draw)
    if site.rules.id:
        patients = site.frame.groupby(site.rules.id, sort=True, dropna=False).indices
        places = [*patients.values()]
        rows = np.concatenate([places[k] for k in random.integers(len(places), size=len(places))])
    else:
        rows = random.integers(site.n, size=site.n)
    frame = site.frame.iloc[rows].reset_index(drop=True)
    register = Register(frame, None, site.rules.rows)
    rules = replace(site.rules, id="")
    return replace(site, frame=frame, rules=rules, register=register, n=len(frame), kept={}, picked=None)


def _series(value: Any) -> Any:
    """Figures by name: of a fit its coefficients, of a number itself."""
    pandas = needed("pandas")
    value = getattr(value, "params", value)
    if isinstance(value, pandas.Series):
        return value.astype(float)
    try:
        numbers = np.atleast_1d(np.asarray(value, float))
    except (TypeError, ValueError):
        numbers = np.empty((0, 0))
    if numbers.ndim != 1 or not len(numbers):
        raise RecipeError(
            f"bootstrap(): the function returned a {type(value).__name__}; return a fit, a number, or a series of them"
        )
    return pandas.Series(numbers, ["figure"] if np.ndim(value) == 0 else [*map(str, range(len(numbers)))])
