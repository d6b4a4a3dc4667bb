"""Matrix products of rows with weights; on the CPU, by oneDNN if that is faster."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...contract.types import Vec
from ...runtime import tricks

ONEDNN = 1 << 21
"""Number of multiplications from which oneDNN's product is worth its 20 µs of preparation."""

PART = 1 << 18
"""Numbers of a product that are in the cache while they are subtracted: 1 MiB in float32."""

HAS_ONEDNN = tricks.onednn()
"""Whether oneDNN's product may be called."""


def linear(
    h: Float[Tensor, "b i"],
    W: Float[Tensor, "o i"],
    b: Vec | None = None,
    out: Float[Tensor, "b o"] | None = None,
) -> Float[Tensor, "b o"]:
    """h Wᵀ + b; written to ``out`` if given.

    On the CPU `torch.nn.functional.linear` calls MKL, which has no kernels for the vector units of some processors.
    oneDNN has them, and is twice as fast there in float32.
    """
    if h.numel() * W.shape[0] >= ONEDNN and h.dtype == torch.float32 and h.is_cpu and HAS_ONEDNN:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(h, W, b, "none", [], "")
        return product if out is None else out.copy_(product)
    z = torch.mm(h, W.mT, out=out)
    return z if b is None else z.add_(b)  # cheaper than a product that starts with copies of b


def product(h: Float[Tensor, "kb i"], W: Float[Tensor, "k o i"]) -> Float[Tensor, "kb o"]:
    """h_j W_jᵀ of every client j; the clients' blocks of b rows lie one below the other."""
    k, _, i = W.shape
    return linear(h, W[0]) if k == 1 else torch.bmm(h.view(k, -1, i), W.mT).flatten(0, 1)


def subtract(W: Float[Tensor, "o i"], dz: Float[Tensor, "b o"], h: Float[Tensor, "b i"]) -> None:
    """W ← W − dzᵀ h, in place.

    If rows of a large W in float32 do not begin at multiples of 16 bytes, MKL takes half the time to write the product
    somewhere else.
    """
    if W.numel() <= PART or W.stride(0) % 4 == 0 or W.dtype != torch.float32 or not W.is_cpu:
        W.addmm_(dz.mT, h, alpha=-1)
        return
    rows = max(1, PART // W.shape[1])
    buffer = W.new_empty(rows, W.shape[1])
    for some, slopes in zip(torch.split(W, rows), torch.split(dz.mT, rows), strict=True):
        some.sub_(torch.mm(slopes, h, out=buffer[: len(some)]))
