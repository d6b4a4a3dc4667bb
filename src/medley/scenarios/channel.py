"""Distributions of a channel's capacity in a round, in eigenpairs: ``Pace(pairs=Rayleigh(), redraw=True)``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..contract import Checked, RecipeError, at_least, positive
from .laws import Law, Number, is_number


@dataclass(frozen=True)
class Rayleigh(Checked):
    """A distribution: ⌊d0·log2(1 + γΓ)⌋ pairs, the capacity of a Rayleigh fading channel with gain γ ~ Exp(1).

    With the defaults, from SHED, eq. (38), it draws 3.814 pairs on average, and none in 8 of 100 rounds.

    Attributes:
        d0: Pairs per bit/s/Hz; default 2.
        snr: Γ, the mean signal-to-noise ratio; default 5.
    """

    d0: Annotated[float, positive] = 2
    snr: Annotated[float, positive] = 5

    def draw(self, rng: np.random.Generator) -> int:
        """A whole number, from 0."""
        return math.floor(self.d0 * math.log2(1 + self.snr * rng.exponential()))


@dataclass(frozen=True)
class Bandwidth(Checked):
    """A distribution: how many eigenpairs fit into a budget of bytes after the gradient; 0 if none do.

    With budget B it is ⌊(B − dw − 16) / (dw + 8)⌋: the gradient has d numbers of w bytes, ρ and a count 16 bytes, an
    eigenvector d numbers of w bytes and its eigenvalue 8 bytes.

    Attributes:
        bytes: B, the budget of a round: a number, or a distribution if it varies.
        d: The length of the model.
        width: w, the bytes of one number; default 8.
    """

    bytes: Number | Law
    d: Annotated[int, at_least(1)]
    width: Annotated[int, at_least(1)] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.bytes, Law) and (not is_number(self.bytes) or self.bytes < 0):
            raise RecipeError(
                f"Bandwidth(bytes={self.bytes!r}): must be a distribution or a number, at least 0", "bytes"
            )

    def draw(self, rng: np.random.Generator) -> int:
        """A whole number, from 0."""
        budget = self.bytes.draw(rng) if isinstance(self.bytes, Law) else self.bytes
        vector = self.d * self.width
        return max(0, math.floor((budget - vector - 16) / (vector + 8)))
