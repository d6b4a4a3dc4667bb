"""Centred clipping.

**Reference**: Karimireddy, He & Jaggi, "Learning from History for Byzantine Robust Optimization", ICML 2021,
Algorithm 2.

**Departures**: without ``radius``, τ is the median of the distances in every step. So you need not tune a radius to
messages whose size changes over a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..contract.settings import at_least, positive
from .rule import NOTHING, Combined, Context, Rows, Rule, distances


@dataclass(frozen=True)
class CentredClipping(Rule):
    """The last vector, moved by the mean of the replies' differences from it, each scaled down to a radius.

    Attributes:
        radius: τ, the largest part of one reply, in units of the message; default None: the median distance.
        steps: L, the number of steps in one round; default 5, from the last round's vector, or 0 in the first.
    """

    radius: Annotated[float, positive] | None = None
    steps: Annotated[int, at_least(1)] = 5

    remembers = True

    def __call__(self, rows: Rows, context: Context = NOTHING) -> Combined:
        """v ← v + (1/a) Σ_i (x_i − v)·min(1, τ/‖x_i − v‖)."""
        before = context.before
        v = rows.new_zeros(rows.shape[1:]) if before is None or before.shape != rows.shape[1:] else before
        for _ in range(self.steps):
            distance = distances(rows, v)
            tau = float(distance.median()) if self.radius is None else float(self.radius)
            weight = (tau / distance.clamp(min=tau)).nan_to_num(nan=1.0) / len(rows)
            v = v + (weight.to(rows.dtype) @ rows - float(weight.sum()) * v)
        return v
