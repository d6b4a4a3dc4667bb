"""Low-rank adapters of a model, as a method sees them: where their factors lie in x."""

from __future__ import annotations

from typing import NamedTuple


class Adapter(NamedTuple):
    """One layer whose weights are W + scale·BA; places are those of first numbers in x, and all three are trainable.

    W is [m, n], B [m, r] and A [r, n]; if ``across``, W lies in x as its transpose, as in GPT-2's Conv1D. The objective
    of a problem that gives `Need.ADAPTERS` has them as ``adapters``, and ``among(x, free)``, f_i of some coordinates.
    """

    A: int
    B: int
    W: int
    m: int
    r: int
    n: int
    across: int
    scale: float
