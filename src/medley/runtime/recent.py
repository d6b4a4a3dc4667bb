"""Holds the last few values, by key."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

FEW = 4
"""How many values to hold."""


class Recent(Generic[K, V]):
    """Holds the last `FEW` values. A value depends on its key alone, so that it can be made again."""

    def __init__(self) -> None:
        self._values: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._values)

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key: the stored one if there is one, otherwise a new one from ``make()``."""
        if key in self._values:
            return self._values[key]
        value = make()
        self._values = dict([*self._values.items(), (key, value)][-FEW:])
        return value
