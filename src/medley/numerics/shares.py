"""Whole numbers from shares: 0.07 · 100 is 7, though it is 7.000000000000001 in floating point."""

from __future__ import annotations

import math


def least_of(share: float, n: int) -> int:
    """⌈share · n⌉, for the decimal number that ``share`` was written as."""
    return _rounded(share * n, math.ceil(share * n))


def most_of(share: float, n: int) -> int:
    """⌊share · n⌋, for the decimal number that ``share`` was written as."""
    return _rounded(share * n, math.floor(share * n))


def _rounded(product: float, rounded: int) -> int:
    """The whole number nearest to a product if they differ only by rounding errors, else ``rounded``."""
    return round(product) if math.isclose(product, round(product), rel_tol=1e-12) else rounded
