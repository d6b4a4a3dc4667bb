"""C-FLAG's correction of the last layer alone, from a table of the rows' slopes there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...contract import Client, Objective, Vec
from ...numerics.sums import bounded
from .messages import Head, Memory, Slopes

Matrix = Float[Tensor, "o w"]
"""Entries of the last layer: a row for each output, with its weights and, if there is one, its bias."""


class Block(NamedTuple):
    """The places of the last layer's first weight and first bias in x (None if it has none), its outputs and inputs."""

    weight: int
    bias: int | None
    outputs: int
    inputs: int

    def of(self, v: Vec) -> Matrix:
        """The layer's entries of v [d]."""
        W = v[self.weight :][: self.outputs * self.inputs].view(self.outputs, -1)
        return W if self.bias is None else torch.cat([W, v[self.bias :][: self.outputs, None]], 1)

    def add(self, v: Vec, c: Matrix) -> Vec:
        """v, with c added to the layer's entries in place."""
        v[self.weight :][: self.outputs * self.inputs].view(self.outputs, -1).add_(c[:, : self.inputs])
        if self.bias is not None:
            v[self.bias :][: self.outputs].add_(c[:, -1])
        return v


def block(objective: Objective, slopes: Slopes) -> Block:
    """The place of the last layer."""
    weight, bias = objective.last()
    return Block(weight, bias, slopes.R.shape[1], slopes.phi.shape[1] - (bias is not None))


def slopes_of(objective: Objective, x: Vec) -> tuple[Slopes, Head]:
    """The rows' slopes at the last layer, at x, and their mean gradient there [k]."""
    R, phi = objective.slopes(x)
    if objective.last()[1] is not None:
        phi = torch.cat([phi, phi.new_ones(len(phi), 1)], 1)
    return Slopes(R, phi), (R.T @ phi).reshape(-1) / objective.n


def snapshot(me: Client[Memory], x: Vec) -> tuple[Head | None, Head | None]:
    """The last layer's block of ∇g_i and of ∇f_i at x [k], None without rows. The client's memory keeps the slopes."""
    current, g = slopes_of(me.problem, x) if me.problem.n else (None, None)
    replayed, f = slopes_of(me.replay.problem, x) if me.replay else (None, None)
    me.memory = Memory(x, now=current, held=replayed)
    return g, f


class HeadCorrection:
    """The correction H − Σ_b s_j R_j φ_jᵀ of a step on rows b. Its mean over the draws is H − h_i.

    Args:
        at: the last layer.
        H: all clients' gradient there [k].
        parts: the rows of each kind, and the kind's share.
        clip: bound on the correction, as a share of the step's gradient at the layer; None for no bound.
    """

    def __init__(self, at: Block, H: Head, parts: Sequence[tuple[Slopes, float]], clip: float | None) -> None:
        self.at = at
        self.H = H.view(at.outputs, -1)
        self.clip = clip
        self.R = torch.cat([s.R for s, _ in parts])
        self.phi = torch.cat([s.phi for s, _ in parts])
        self.sizes = [len(s.R) for s, _ in parts]
        self.shares = [share for _, share in parts]

    def steered(self, g: Vec, rows: Sequence[Tensor | None]) -> Vec:
        """Correct the step's gradient g [d] in place and return it; ``rows`` has each part's rows, None for all."""
        picked = []
        first = 0
        for size, numbers in zip(self.sizes, rows, strict=True):
            indices = torch.arange(size, device=g.device) if numbers is None else numbers.to(g.device)
            picked.append(indices + first if first else indices)
            first += size
        at = torch.cat(picked)
        R = self.R[at]
        first = 0
        for indices, share in zip(picked, self.shares, strict=True):
            R[first : first + len(indices)] *= share / len(indices)
            first += len(indices)
        c = torch.addmm(self.H, R.T, self.phi[at], alpha=-1)
        return self.at.add(g, bounded(c, self.clip, self.at.of(g)))
