"""Long vectors in blocks that stay in a core's cache, so that several operations pass over their memory once."""

from __future__ import annotations

from ..contract.types import Vec

BLOCK = 1 << 17
"""The numbers of a block, 512 KiB in float32; fewer make operations that cost more to call than to carry out."""


def blocks(x: Vec) -> list[slice]:
    """Coordinates of x [..., d] in blocks; an accelerator takes all at once."""
    d = x.shape[-1]
    size = BLOCK if x.is_cpu else max(d, 1)
    return [slice(k, k + size) for k in range(0, d, size)]
