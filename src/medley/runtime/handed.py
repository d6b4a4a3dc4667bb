"""Attributes that an object hands on to another one that it wraps."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def handed(inner: str, *names: str) -> tuple[Any, ...]:
    """For the body of a class: properties that are those attributes of the object's attribute ``inner``."""
    return tuple(property(attrgetter(f"{inner}.{name}")) for name in names)
