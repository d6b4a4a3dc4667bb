"""Eigenvectors under a budget of bits: those with the larger eigenvalues get more of them, and later rounds refine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from ...contract import MedleyError, Objective, Vec
from ...contract.place import name_of
from ...numerics.compress import quantise, restore
from ...numerics.curvature import Values, Vectors
from . import paper
from .messages import Memory, Report, Server
from .paper import Exact, Instalment

FINEST = 16
"""The most bits that a number of an eigenvector ever has."""

Depths = Int[Tensor, " q"]


def allot(weight: Values, depth: Depths, budget: int) -> Depths:
    """The bits of each eigenvector after ``budget`` more: b minimises Σ_j w_j² 4^(−b_j), given what was sent.

    With b_j bits the rounding error of v_j has a size of about 2^(−b_j), and that of w_j v_j v_jᵀ is w_j times as
    large. The minimum over real b_j ≥ 0 is b_j = max(0, log₂ w_j − log₂ θ), where θ makes the sum right (reverse
    water-filling). In whole bits, each goes where w_j 2^(−b_j) is largest.

    Args:
        weight: w_j = λ_j − λ_n, falling [q].
        depth: the bits sent so far [q].
        budget: bits to allot; no eigenvector has more than `FINEST`.
    """
    bits = depth.clone()
    error = weight.cpu() * torch.exp2(-bits.to(weight.cpu()))
    for _ in range(budget):
        j = int(torch.where(bits < FINEST, error, 0.0).argmax()) if len(error) else 0
        if not len(error) or bits[j] == FINEST or error[j] <= 0:
            break
        bits[j] += 1
        error[j] /= 2
    return bits


def levels(V: Vectors) -> Int[Tensor, "q d"]:
    """Every number of a unit vector as a level of `FINEST` bits, between minus and plus its row's largest."""
    size = V.abs().amax(1, keepdim=True)
    part = (V / size.where(size > 0, 1) + 1) / 2
    numbers: Tensor = (part * 2**FINEST).int()
    return numbers.clamp(max=2**FINEST - 1)


def unit(codes: Int[Tensor, "q d"], depth: Depths, like: Vec) -> Vectors:
    """The unit vectors whose numbers have these leading bits: the middle of their intervals, scaled to length 1."""
    V = (codes.to(like) + 0.5) * torch.exp2(1.0 - depth.to(like))[:, None] - 1
    length: Tensor = V.norm(dim=1, keepdim=True)
    return V / length


@dataclass(frozen=True)
class Allotted(Exact):
    """Eigenvectors in ``budget`` bits a column and report, those of earlier reports included; changes of g in 16."""

    budget: int
    refines: ClassVar[bool] = True

    def following(self, m: Memory, f: Objective, k: int) -> tuple[Vectors, Values, int]:
        """The new eigenvectors that get a bit, their eigenvalues, and the number q of all that have one."""
        V, lam, q = paper.following(m, f, k)
        new = int((self.allotment(m, q) > 0).sum()) - m.sent
        return V[:new], lam[:new], m.sent + new

    def allotment(self, m: Memory, q: int) -> Depths:
        """The bits of the first q eigenvectors after this report."""
        assert m.spectrum is not None
        return allot(m.spectrum.values[:q] - m.spectrum.least, extended(m.depth[: m.sent], q), self.budget)

    def encode(self, m: Memory, new: Instalment) -> tuple[Report, Vectors]:
        """The report, and its new eigenvectors."""
        before = extended(m.depth[: m.sent], new.q)
        m.depth = self.allotment(m, new.q)
        m.V = [torch.cat([*m.V, new.V])]
        more = m.depth - before
        fine = levels(m.V[0])
        g, g_scale = quantise(new.g - m.g, 16)
        m.g = m.g + restore(g, g_scale)
        up, V = super().encode(m, new)
        return replace(up, g=g, g_scale=g_scale, V=None, bits=more, packed=pack(fine, before, more)), V

    def decode(self, s: Server, i: int, up: Report) -> tuple[Vec, Vectors]:
        """Client i's gradient and all of its eigenvectors, with the bits of this report."""
        assert up.bits is not None
        assert up.packed is not None
        assert up.g_scale is not None
        d = len(s.x)
        q = len(up.bits)
        fits = q == up.held + len(up.lam) and bool((up.bits >= 0).all())
        depth = up.bits.cpu() + extended(s.depth[i] if up.held else up.bits[:0].cpu(), q) if fits else up.bits
        if not fits or bool((depth > FINEST).any()) or len(up.packed) != -(-int(up.bits.sum()) * d // 8):
            raise MedleyError(
                f"{name_of(i)} sent {len(up.packed)} bytes of bits for {q} eigenvectors of {d} numbers, of which "
                f"{len(up.lam)} are new, and says that they have {up.bits.tolist()} bits a number more"
            )
        codes = torch.zeros(q, d, dtype=torch.int32)
        if up.held:
            codes[: up.held] = s.codes[i]
        s.codes[i] = (codes << up.bits.cpu().int()[:, None]) | unpack(up.packed, up.bits, d)
        s.depth[i] = depth
        return s.g.get(i, torch.zeros_like(s.x)) + restore(up.g, up.g_scale), unit(s.codes[i], depth, s.x)


def extended(depth: Int[Tensor, " before"], q: int) -> Depths:
    """``depth`` with zeros for the eigenvectors that are new among q."""
    return torch.cat([depth, depth.new_zeros(q - len(depth))])


def pack(fine: Int[Tensor, "q d"], before: Depths, more: Depths) -> UInt8[Tensor, " n"]:
    """The ``more`` bits after the first ``before`` of each row's levels, eight to a byte."""
    rows = [
        (row[:, None] >> torch.arange(FINEST - b - 1, FINEST - b - k - 1, -1)) & 1
        for row, b, k in zip(fine.cpu(), before.tolist(), more.tolist(), strict=True)
    ]
    bits = torch.cat([row.flatten() for row in rows] or [torch.zeros(0)])
    return torch.from_numpy(np.packbits(bits.numpy().astype(np.uint8)))


def unpack(packed: UInt8[Tensor, " n"], more: Depths, d: int) -> Int[Tensor, "q d"]:
    """What `pack` packed, as whole numbers."""
    bits = torch.from_numpy(np.unpackbits(packed.cpu().numpy())).int()
    numbers = torch.zeros(len(more), d, dtype=torch.int32)
    at = 0
    for j, k in enumerate(more.tolist()):
        powers = 2 ** torch.arange(k - 1, -1, -1, dtype=torch.int32)
        numbers[j] = (bits[at : at + d * k].view(d, k) * powers).sum(1)
        at += d * k
    return numbers
