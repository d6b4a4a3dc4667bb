"""Scales of columns under secure sums, so that units do not matter.

Masked sums are fixed-point numbers: one step for all that is sent, whatever its unit. So sites agree first on the order
of magnitude of each column, and then send sums divided by powers of two, which the server multiplies again; both are
exact. Without masks nobody asks, and nothing is divided.

A column's order of magnitude is that of its root mean square, never of its largest value, which is one patient's. Each
site writes its number of rows into the band that its own mean square is in, a factor of four of the column's unit wide,
and the sum of these tables has the pooled one. A table needs no scale itself, because it has counts. It tells less than
the sum of squares that the same rows send next, under the same rules and after the same check; a column's account has
one bit for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..contract import Message

LOWEST = -128
WIDTH = 2
BANDS = 128
"""Bands of a root mean square: from 2**LOWEST on, 2**WIDTH wide each."""

FINER = 3
"""Numbers of a column that is divided by its scale are about 2**FINER, for their digits."""

CLOSER = 10
"""What is small beside its column or outcome is enlarged by up to this power of two at once."""


def banded(columns: np.ndarray) -> np.ndarray:
    """A site's table [k, bands] for columns [n, k]: the number of rows, in the band of each column's mean square."""
    out = np.zeros((columns.shape[1], BANDS))
    for j, x in enumerate(columns.T):
        top = float(np.abs(x).max(initial=0.0))
        if top:
            power = np.log2(top) + np.log2(np.mean((x / top) ** 2)) / 2  # squares of very small numbers would be 0
            out[j, min(max(int((power - LOWEST) // WIDTH), 0), BANDS - 1)] = len(x)
    return out


def exponents_of(table: np.ndarray) -> np.ndarray:
    """The exponents [k] of the columns' scales, from a sum of tables: of the pooled root mean square, rounded up, less
    `FINER`. A column of zeros has 0.
    """
    rows = np.rint(table)
    ends = LOWEST + WIDTH * np.arange(1, BANDS + 1)
    out = np.zeros(len(rows), int)
    for j, n in enumerate(rows):
        if n.any():
            last = ends[n > 0].max() - FINER
            out[j] = last + np.ceil(np.log2((n / n.sum()) @ 4.0 ** np.maximum(ends - FINER - last, -200.0)) / 2)
    return out


def scaled(message: Message, powers: Mapping[str, Any], sign: int) -> Any:
    """The message with its fields times 2**(sign · exponent), entry by entry."""
    if not any(np.any(e) for e in powers.values()):
        return message
    fields = {k: getattr(message, k) * torch.as_tensor(2.0 ** (sign * np.asarray(e, float))) for k, e in powers.items()}
    return replace(message, **fields)  # type: ignore[type-var]
