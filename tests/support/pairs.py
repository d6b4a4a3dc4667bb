"""The settings that `make test` tries, where the slow tests try all."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def crossed(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """All pairs. Those of two values that both are not the first of their kind are slow."""
    first = list(first)
    second = list(second)
    quick = lambda a, b: a == first[0] or b == second[0]
    return [pytest.param(a, b, marks=() if quick(a, b) else pytest.mark.slow) for a, b in product(first, second)]


def quick(count: int, values: Iterable[Any]) -> list[Any]:
    """All values. Those after the first ``count`` are slow."""
    values = list(values)
    return values[:count] + [_slow(v) for v in values[count:]]


def _slow(value: Any) -> Any:
    """A value, or a tuple of one for each argument, as a slow one."""
    if isinstance(value, ParameterSet):
        return pytest.param(*value.values, marks=[*value.marks, pytest.mark.slow], id=value.id)
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
