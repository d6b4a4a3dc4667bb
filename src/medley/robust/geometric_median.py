"""Geometric median by Weiszfeld's steps, changed so that they cannot get stuck at a reply.

**Reference**: Pillutla, Kakade & Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions on Signal
Processing 70, 2022, Algorithm 2 and eq. (9); Vardi & Zhang, "The multivariate L1-median and associated data depth",
PNAS 97, 2000, for the step at a reply.

**Departures**: the steps begin at the coordinate-wise median instead of 0 and continue until they are short. So the
result does not depend on the start, and a Byzantine client cannot use up a fixed number of steps with a start far off.
At a reply the paper's smoothed step hardly moves, so a single Byzantine reply at the start would hold it there. We take
Vardi and Zhang's step instead: a reply holds v only if the pull of all others is at most its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..contract.settings import at_least, positive
from .rule import NOTHING, Combined, Context, Rows, Rule, distances, median


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """argmin_v Σ_i ‖x_i − v‖.

    Attributes:
        smoothing: ν, the distance within which v counts as being at a reply; default 1e-6, as in the paper.
        steps: The largest number of Weiszfeld steps; default 100.
        tolerance: The iteration ends when a step is shorter than this share of the median distance, and than a
            thousandth of the smallest distance; default 1e-6.
    """

    smoothing: Annotated[float, positive] = 1e-6
    steps: Annotated[int, at_least(1)] = 100
    tolerance: Annotated[float, positive] = 1e-6

    def __call__(self, rows: Rows, context: Context = NOTHING) -> Combined:
        """v ← v + (1 − η/‖R‖)⁺ (T − v), with T = Σ β_i x_i/Σ β_i, β_i = 1/‖x_i − v‖, R = (T − v) Σ β_i.

        The sums leave out the η replies that v is at. In the first step these are all replies within a hundredth of the
        median distance: otherwise a Byzantine reply close to the start would cause many short steps.
        """
        v = median(rows)
        for step in range(self.steps):
            distance = distances(rows, v)
            middle = float(distance.median())
            at = distance <= max(float(self.smoothing), 0.0 if step else middle / 100)
            if bool(at.all()):
                break
            beta = (1 / distance).masked_fill(at, 0)
            new = (beta / beta.sum()).to(rows.dtype) @ rows
            count = int(at.sum())
            if count:
                pull = float(beta.sum() * (new - v).norm())
                new = v + max(0.0, 1 - count / pull) * (new - v) if pull > 0 else v
            moved = float((new - v).norm())
            v = new
            if moved <= min(self.tolerance * middle, float(distance[~at].min()) / 1000) and step:
                break
        return v
