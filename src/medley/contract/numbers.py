"""Numbers of a user's, NumPy's among them, as Python's own. To Python a bool is a number; no argument means that."""

from __future__ import annotations

import operator
from numbers import Integral, Real
from typing import Any

import numpy as np


def integer(value: Any) -> int | None:
    """The value as an int; None where it is no whole number, as True, 3.0 and "3" are not."""
    if isinstance(value, bool | np.bool_):  # the latter has an index in older NumPy
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def real(value: Any) -> int | float | None:
    """The value as an int or a float; None where it is no number, as True and "3" are not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def take(made: object, kind: Any, *names: str) -> None:
    """Put these attributes of a frozen dataclass as Python's own numbers, where they are numbers; others stay.

    Args:
        made: the dataclass
        kind: `integer` or `real`
        names: the attributes
    """
    for name in names:
        if (value := kind(getattr(made, name))) is not None:
            object.__setattr__(made, name, value)
