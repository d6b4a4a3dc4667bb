"""Numbers of one client that are absurd beside those of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median_low

from ..contract.errors import WireError

TIMES = 1e6
"""A number is absurd that is more than so many times the median of all clients', and more than so much."""

FEWEST = 3
"""Clients at least: of two nobody knows which one is right."""


def outliers(numbers: Mapping[int, float], what: str) -> Iterator[tuple[int, WireError]]:
    """Clients whose number is absurd, and the errors that say so."""
    if len(numbers) < FEWEST:
        return
    usual = median_low(numbers.values())
    for i, number in numbers.items():
        if number > TIMES * max(usual, 1.0):
            error = WireError(
                f"client {i}'s {what} is {number:.3g}, and the median of {len(numbers)} clients' {usual:.3g}: look "
                'at its rows and its pace, or leave such replies out by reply_policy.faulty = "drop"'
            )
            yield i, error
