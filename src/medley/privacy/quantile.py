"""Adaptive clipping: the bound follows a quantile of the replies' norms.

**Source**: Andrew, Thakkar, McMahan & Ramaswamy, "Differentially Private Learning with Adaptive Clipping", NeurIPS
2021, Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from ..contract import Checked, RecipeError, above, below, positive


@dataclass(frozen=True)
class Quantile(Checked):
    """A bound S that follows a quantile of the norms: S ← S·exp(−η(b̃ − γ)) after each sum.

    b̃ is the noisy share of replies within the bound. The count of these replies is released too, and accounted for.

    Attributes:
        quantile: γ, the share of replies to leave as they are, in (0, 1); default 0.5, the median
        start: S before the first sum, in the reply's unit; default 0.1, as in the source
        lr: η; default 0.2, as in the source
        count_noise: the standard deviation of the count's noise, as a share of the expected cohort; default 0.05, as
            in the source
    """

    quantile: Annotated[float, above(0), below(1)] = 0.5
    start: Annotated[float, positive] = 0.1
    lr: Annotated[float, positive] = 0.2
    count_noise: Annotated[float, positive] = 0.05

    def beside_count(self, noise: float, expected: float) -> float:
        """The noise that the sum needs so that sum and count together are as private as one sum with noise ``noise``.

        Args:
            noise: z of both together
            expected: the expected number of clients in a cohort

        Raises RecipeError if the count alone reveals more.
        """
        count = 2 * self.count_noise * expected  # b_i − ½ is bounded by ½
        if noise and count <= noise:
            raise RecipeError(
                f"Quantile(count_noise={self.count_noise:g}): with {expected:g} expected clients the count alone "
                f"reveals more than noise = {noise:.4g} allows; use at least {noise / (2 * expected):.2g}, or "
                "a larger cohort",
                "count_noise",
            )
        return (noise**-2 - count**-2) ** -0.5 if noise else 0.0

    def after(self, bound: float, share: float) -> float:
        """The bound after a sum with this noisy share of replies within it."""
        return bound * math.exp(-self.lr * (share - self.quantile))
