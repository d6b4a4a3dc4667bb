"""Low-rank adapters of a model, as a method sees them: where their factors lie in x."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jaxtyping import Bool
from torch import Tensor

from .problem import Objective
from .types import Vec


class Adapter(NamedTuple):
    """One layer whose weights are W + scale·BA; places are those of first numbers in x, and all three are trainable.

    W is [m, n], B [m, r] and A [r, n]; if ``across``, W lies in x as its transpose, as in GPT-2's Conv1D.
    """

    A: int
    B: int
    W: int
    m: int
    r: int
    n: int
    across: int
    scale: float


class AdaptedObjective(Objective, Protocol):
    """The objective of a problem that gives `Need.ADAPTERS`."""

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The layers that have an adapter."""

    def among(self, x: Vec, free: Bool[Tensor, " d"]) -> Objective:
        """f_i as a function of the coordinates ``free``, for a descent; the others stand still at x."""
