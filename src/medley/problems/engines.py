"""Which engine runs a local descent."""

from __future__ import annotations

from ..core.client import Engine
from ..core.errors import RecipeError
from ..core.problem import Problem
from .seq import Seq

NAMES = ("auto", "seq")


def choose(name: str, problem: Problem, device: str) -> Engine:
    """The engine of this name; "auto" takes the fastest that fits the problem and the device."""
    del problem, device
    if name not in NAMES:
        raise RecipeError.unknown(name, NAMES, "run(engine=...)")
    return Seq()
