"""Correlated noise for runs in which a client's turns are far apart.

**Sources**: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta & Xu, "(Amplified) Banded Matrix Factorization",
NeurIPS 2023; the coefficients of Fichtenberger, Henzinger & Upadhyay, "Constant Matters", ICML 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from torch import Tensor

from ..contract.settings import Checked, at_least


@dataclass(frozen=True)
class Banded(Checked):
    """Noise C⁻¹Z with a banded lower-triangular Toeplitz matrix C whose columns have norm 1.

    The noise of a round partly cancels that of earlier rounds, so the sum over rounds, which is the model, has less
    noise. A client whose turns are at least ``bands`` rounds apart enters orthogonal columns of C: k turns have the
    sensitivity √k, as with independent noise.

    Attributes:
        bands: nonzero diagonals of C, at most the number of rounds between two turns of a client; 1 is independent
            noise
    """

    bands: Annotated[int, at_least(1)] = 16

    @cached_property
    def diagonals(self) -> tuple[float, ...]:
        """c_j/‖c‖ with c_j = C(2j, j)/4^j, the coefficients of (1 − x)^(−1/2)."""
        c = [1.0]
        for j in range(1, self.bands):
            c.append(c[-1] * (2 * j - 1) / (2 * j))
        norm = math.sqrt(sum(v * v for v in c))
        return tuple(v / norm for v in c)

    def next(self, fresh: Tensor, past: Sequence[Tensor]) -> Tensor:
        """This round's noise: (z_t − Σ_{j≥1} c_j n_{t−j})/c_0.

        Args:
            fresh: z_t, independent standard normal numbers
            past: n_{t−1}, n_{t−2}, ..., the noise of earlier rounds, at most ``bands`` − 1 of them
        """
        first, *others = self.diagonals
        for c, n in zip(others, past, strict=False):
            fresh = fresh - c * n
        return fresh / first
