"""Long vectors in pieces that stay in a processor's cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..contract.types import Vec

ActiveVecs = Float[Tensor, "a d"]
"""One vector per active client."""

Stack = ActiveVecs | Sequence[Vec]
"""One vector per active client: stacked [a, d], or a list of a vectors [d] as they arrived."""

CPU = 1 << 17
"""Coordinates of a piece on the CPU. 512 KiB of float32 per row are long enough to hide a call, and short enough for
the cache."""

GPU = 1 << 22
"""Coordinates of a piece on an accelerator."""


def spans(d: int, device: torch.device, size: int | None = None) -> Iterator[slice]:
    """Slices of at most ``size`` coordinates that cover 0..d once, in order; by default `CPU` or `GPU` of them."""
    size = size or (CPU if device.type == "cpu" else GPU)
    return (slice(lo, min(lo + size, d)) for lo in range(0, d, size))


def gather(M: Stack, c: slice) -> Float[Tensor, "a chunk"]:
    """The columns ``c`` of a stack, [a, |c|]: a view of a stacked one, a copy of a list."""
    return M[:, c] if isinstance(M, Tensor) else torch.stack([row[c] for row in M])
