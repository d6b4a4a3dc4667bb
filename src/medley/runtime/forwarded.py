"""Attributes that an object passes on to an object that it wraps."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def forwarded(inner: str, *names: str) -> tuple[Any, ...]:
    """For a class body: properties that get and set these attributes of the attribute ``inner``."""

    def of(name: str) -> property:
        return property(attrgetter(f"{inner}.{name}"), lambda self, value: setattr(getattr(self, inner), name, value))

    return tuple(map(of, names))
