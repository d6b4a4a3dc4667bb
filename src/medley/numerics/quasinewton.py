"""Limited-memory BFGS: H⁻¹g from the last moves and gradient changes, starting from any first guess of H⁻¹.

Source: Nocedal, "Updating Quasi-Newton Matrices with Limited Storage", Mathematics of Computation 35 (1980).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..contract.types import Vec

Moves = Float[Tensor, "m d"]


@dataclass(frozen=True)
class Curve:
    """Pairs of a move s and its gradient change y, oldest first: ``S`` and ``Y`` [m, d]."""

    S: Moves
    Y: Moves

    @classmethod
    def none(cls, x: Vec) -> Curve:
        """No moves yet; ``x`` gives shape, dtype and device."""
        return cls(x.new_empty(0, len(x)), x.new_empty(0, len(x)))

    def __len__(self) -> int:
        return len(self.S)

    def after(self, s: Vec, y: Vec, memory: int) -> Curve:
        """With the move ``s`` and its change ``y`` [d] added, and at most ``memory`` pairs.

        If a move shows no curvature, sᵀy ≤ eps‖s‖‖y‖, it is left out, because it would make H⁻¹ indefinite or infinite.
        """
        if not float(s @ y) > torch.finfo(s.dtype).eps * float(s.norm() * y.norm()):
            return self
        keep = slice(max(0, len(self) + 1 - memory), None)
        return Curve(torch.cat([self.S, s[None]])[keep], torch.cat([self.Y, y[None]])[keep])

    def scale(self) -> float:
        """γ = sᵀy/yᵀy of the last move, for a first guess γI; 1 before the first move."""
        return float(self.S[-1] @ self.Y[-1] / (self.Y[-1] @ self.Y[-1])) if len(self) else 1.0

    def solve(self, g: Vec, first: Callable[[Vec], Vec]) -> Vec:
        """H⁻¹g by the two-loop recursion; ``first`` multiplies by the first guess, which is symmetric and positive."""
        rho = 1 / (self.S * self.Y).sum(1)
        alpha = torch.empty_like(rho)
        q = g
        for j in reversed(range(len(self))):
            alpha[j] = rho[j] * (self.S[j] @ q)
            q = q - alpha[j] * self.Y[j]
        r = first(q)
        for j in range(len(self)):
            r = r + (alpha[j] - rho[j] * (self.Y[j] @ r)) * self.S[j]
        return r
