"""The pairs of two settings that `make test` tries, where the slow tests try all."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def crossed(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """All pairs. Those of two values that both are not the first of their kind are slow."""
    first, second = list(first), list(second)
    quick = lambda a, b: a == first[0] or b == second[0]
    return [pytest.param(a, b, marks=() if quick(a, b) else pytest.mark.slow) for a, b in product(first, second)]
