"""Geometric median, by Weiszfeld's steps with smoothed weights.

**Reference**: Pillutla, Kakade & Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions on Signal
Processing 70, 2022, Algorithm 2 and eq. (9).

**Departures**: steps begin at the coordinate-wise median instead of 0 and go on until they are short. So the vector is
the same wherever they begin, and a liar cannot use up a fixed number of steps by a start far off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..contract.settings import at_least, positive
from .rule import NOTHING, Fold, Folded, Rows, Told, distances, median


@dataclass(frozen=True)
class GeometricMedian(Fold):
    """argmin_v Σ_i ‖x_i − v‖, with norms smoothed below ν.

    Attributes:
        smoothing: ν, the distance below which a weight no longer grows; default 1e-6, the paper's.
        steps: The largest number of Weiszfeld's steps; default 100.
        tolerance: Steps end at one that is shorter than this share of the median distance; default 1e-6.
    """

    smoothing: Annotated[float, positive] = 1e-6
    steps: Annotated[int, at_least(1)] = 100
    tolerance: Annotated[float, positive] = 1e-6

    def __call__(self, rows: Rows, told: Told = NOTHING) -> Folded:
        """v ← Σ β_i x_i/Σ β_i with β_i = 1/max(ν, ‖x_i − v‖)."""
        v = median(rows)
        for _ in range(self.steps):
            away = distances(rows, v)
            beta = 1 / away.clamp(min=float(self.smoothing))
            new = (beta / beta.sum()).to(rows.dtype) @ rows
            moved, v = float((new - v).norm()), new
            if moved <= self.tolerance * float(away.median()):
                break
        return v
