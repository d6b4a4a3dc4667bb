"""Checks of what a method's ``start``, ``round`` and ``model`` return."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..contract import Algorithm, Diverged, MedleyError, Vec, is_finite
from ..runtime import deferred


def check_model(name: str, x: Vec, d: int, round: int) -> None:
    """Raise Diverged if the model is not finite; on an accelerator within `deferred.gathered`, only at its end.

    Raises MedleyError if the model is not a tensor [d].
    """
    if not isinstance(x, torch.Tensor) or x.shape != (d,):
        form = list(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
        raise MedleyError(
            f"{name}'s model after round {round} is {form}, but must be a tensor [{d}]: look at what start() "
            "and round() put into s.x, and what model(s) returns"
        )

    def fail(_: int) -> NoReturn:
        raise Diverged(f"{name}'s model is not finite after round {round}: the run diverges", unexplained=True)

    checks = deferred.gathering(x)
    if checks is not None:
        checks.put(~x.isfinite().all(), fail)
    elif not is_finite(x):
        fail(0)


def started(algorithm: Algorithm[Any, Any], x: Vec) -> Any:
    """The server's state before round 1.

    Raises MedleyError if ``start`` returns nothing, changes x [d] in place, or makes a model of another shape.
    """
    version = x._version
    s = algorithm.start(x)
    if x._version != version:
        raise MedleyError(f"{algorithm.name}.start() changed x in place: write v = torch.zeros_like(x)")
    if s is None:
        raise MedleyError(f"{algorithm.name}.start() returns nothing: end it with return Server(x)")
    check_model(algorithm.name, algorithm.model(s), len(x), 0)
    return s


def refuse_return(name: str, returned: object) -> None:
    """Raise MedleyError if a method's ``round`` returned something: Medley would ignore it."""
    if returned is not None:
        raise MedleyError(
            f"{name}.round() returns a {type(returned).__name__}, which Medley ignores: assign to the state that it "
            "is given, s.x = s.x + ..."
        )
