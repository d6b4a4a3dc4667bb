"""Armijo's rule for a function that is spread over clients: one exchange tries a batch of candidate steps."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

from ..contract import Stalled, above, at_least, below

AskLosses = Callable[[Sequence[float]], Sequence[float]]
"""f(x − ηp) for every η, in order, by one exchange."""

Alpha = Annotated[float, above(0), below(0.5)]
"""f must fall by at least this share of the slope.

At 1/2 an exact Newton step on a quadratic gives equality, and rounding decides.
"""

Beta = Annotated[float, above(0), below(1)]
"""Candidates are η = βᵏ."""

Tries = Annotated[int, at_least(1)]
"""Candidates per exchange."""

SMALLEST = 1e-16
"""A step by a smaller share of p no longer moves x."""


def candidates(beta: float, first: int, tries: int) -> list[float]:
    """0, and the candidates βᵏ for k = first, ..., first + tries − 1."""
    return [0.0, *(beta**k for k in range(first, first + tries))]


def slack(f: float) -> float:
    """A bound on the rounding of f. Near the optimum, differences of f are only rounding."""
    return 10 * sys.float_info.epsilon * max(1.0, abs(f))


def backtrack(
    losses: AskLosses, slope: float, alpha: float = 0.1, beta: float = 0.5, tries: int = 12
) -> tuple[float, float]:
    """The largest η = βᵏ with f(x − ηp) ≤ f(x) − α η pᵀg, and f(x − ηp).

    Args:
        losses: one exchange. It also asks for f(x), as η = 0, so that both sides of the test use the same clients' f.
        slope: pᵀg.
        alpha, beta: as in the rule; by default 0.1 and 1/2.
        tries: candidates per exchange.

    Raises Stalled if p is not a descent direction, or if no step down to 1e-16 is short enough.
    """
    if not slope >= 0:
        raise Stalled(
            f"p is not a descent direction: pᵀg = {slope:.3g}. The curvature behind it is not positive "
            "definite; raise the problem's mu"
        )
    first = 0
    while beta**first >= SMALLEST:
        etas = [beta**k for k in range(first, first + tries)]
        f, *at = losses([0.0, *etas])
        for eta, f_eta in zip(etas, at, strict=True):
            if math.isfinite(f_eta) and f_eta <= f - alpha * eta * slope + slack(f):
                return eta, f_eta
        first += tries
    raise Stalled(
        f"no step along p makes f smaller, down to η = {SMALLEST:g} (pᵀg = {slope:.3g}): gradient and loss do "
        "not match, or rounding is too coarse; run in float64, without a narrow codec, or with a "
        "larger mu"
    )
