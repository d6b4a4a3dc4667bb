"""A method's view of a model's low-rank adapters: where their factors are in x."""

from __future__ import annotations

from typing import NamedTuple


class Adapter(NamedTuple):
    """One layer whose weights are W + scale·BA. Places are the indices of the first numbers in x; all three are
    trainable.

    W is [m, n], B [m, r] and A [r, n]; if ``across``, x stores W transposed, as in GPT-2's Conv1D. If a problem gives
    `Need.ADAPTERS`, its objective has them as ``adapters``, and ``among(x, free)``, which is f_i as a function of some
    coordinates.
    """

    A: int
    B: int
    W: int
    m: int
    r: int
    n: int
    across: int
    scale: float
