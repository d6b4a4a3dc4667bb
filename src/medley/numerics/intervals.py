"""95 % intervals and standard errors of shares and of means over sites."""

from __future__ import annotations

import math

Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


def wilson(share: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a share of n rows: Wilson, Probable inference, JASA 22 (1927)."""
    middle = share + Z**2 / (2 * n)
    half = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return max(0.0, (middle - half) / (1 + Z**2 / n)), min(1.0, (middle + half) / (1 + Z**2 / n))


def pooled_error(parts: list[tuple[int, float, float]]) -> float:
    """The standard error of a mean over all rows, from each site's number of rows, mean and standard error.

    Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances (1979).
    """
    n = sum(k for k, _, _ in parts)
    mean = sum(k * m for k, m, _ in parts) / n
    squares = sum(k * (k - 1) * e**2 + k * (m - mean) ** 2 for k, m, e in parts)
    return math.sqrt(squares / max(1, n - 1) / n)
