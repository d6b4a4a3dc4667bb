"""Which engine runs a local descent."""

from __future__ import annotations

from ..core.client import Engine
from ..core.errors import RecipeError
from ..core.problem import Problem
from .fused import fused
from .seq import Seq

NAMES = ("auto", "seq", "fused")


def choose(name: str, problem: Problem, device: str) -> Engine:
    """The engine of this name; "auto" takes the fastest that fits the problem and the device.

    Raises RecipeError for a name that there isn't, or whose engine doesn't fit the problem.
    """
    del device
    if name not in NAMES:
        raise RecipeError.unknown(name, NAMES, "run(engine=...)")
    if name == "seq":
        return Seq()
    found = fused(problem)
    if found is None and name == "fused":
        raise RecipeError(
            "run(engine='fused'): it takes linear models, and networks of Linear, Conv2d, MaxPool2d, Flatten, ReLU and "
            "Tanh that end in a Linear and are trained on cross_entropy or mse; leave engine= out",
            "engine",
        )
    return found or Seq()


def crew(d: int) -> int:
    """How many clients are served together: 1 MiB of float32, which stays in one core's cache, and at most 32, so that
    there is work for several processes; 128 where the work is too little for that. It depends on the problem only, and
    so do the bits of a sum over clients.
    """
    return max(1, min(128 if d < 1024 else 32, (1 << 18) // d))
