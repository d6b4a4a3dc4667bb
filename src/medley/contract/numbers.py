"""Converts a user's numbers, including NumPy's, to Python numbers. Python treats a bool as a number; no argument
does."""

from __future__ import annotations

import operator
from numbers import Integral, Real
from typing import Any

import numpy as np


def integer(value: Any) -> int | None:
    """The value as an int; None if it is not a whole number, such as True, 3.0 or "3"."""
    if isinstance(value, bool | np.bool_):  # older NumPy gives np.bool_ an __index__
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def real(value: Any) -> int | float | None:
    """The value as an int or a float; None if it is not a number, such as True or "3"."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def take(instance: object, kind: Any, *names: str) -> None:
    """Convert these attributes of a frozen dataclass to Python numbers if they are numbers; leave others unchanged.

    Args:
        instance: the dataclass
        kind: `integer` or `real`
        names: the attributes
    """
    for name in names:
        value = kind(getattr(instance, name))
        if value is not None:
            object.__setattr__(instance, name, value)
