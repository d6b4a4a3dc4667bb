"""A first dense layer in the span of the rows, for clients with fewer rows than inputs.

A step subtracts δᵀh from the weights, where h are some rows of the client's inputs H [n, i]. With fading c, drift D and
its factor e,

    W ← W − cW + eD − δᵀh.

So after any number of steps from W₀, with numbers α and γ and a matrix C [n, o],

    W = αW₀ + γD + CᵀH,
    α ← (1 − c)α,    γ ← (1 − c)γ + e,    C ← (1 − c)C, less δ in the rows of the batch.

Only α, γ and C change. A batch's outputs h Wᵀ are αhW₀ᵀ + γhDᵀ + (hHᵀ)C: rows of HW₀ᵀ, HDᵀ and the Gram matrix HHᵀ,
which are computed once, as large products (HDᵀ not for a single step, before which γ = 0). A pass over the rows,
normally 4nio operations, then costs 2n²o.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...rows.lazy import in_memory
from ..minibatches import ClientVecs, Group, Schedule
from . import products
from .layers import Back, Dense, Forward
from .products import HAS_ONEDNN, linear

TABLE_LIMIT = 1 << 22
"""Numbers in a client's table: 16 MiB in float32."""

BLOCK = 1 << 18
"""Weights whose displacement is computed at a time, 1 MiB in float32; fewer make slow products."""

PASS = 4
"""How many multiplications take as long as reading and writing a weight once."""


def cheaper(layer: Dense, s: Schedule, dtype: torch.dtype, fading: bool, drift: bool) -> bool:
    """Whether this client's first layer takes less time in the span of its rows.

    The estimate counts multiplications: n·i·(2o + n), or n·i·(3o + n) with drift and several steps, once; then b·n·o
    per step instead of 2·b·i·o. Passes over all weights count as `PASS` each. Products that oneDNN computes, at twice
    the speed, count 0.6. Returns False for small problems and tables above `TABLE_LIMIT`.

    Args:
        fading, drift: whether the update has these terms.
    """
    n = s.n
    i = layer.inputs
    o = layer.outputs
    twice = drift and s.steps > 1
    if n > i or n * i * o < products.ONEDNN or n * (n + (2 if twice else 1) * o) > TABLE_LIMIT:
        return False
    quick = dtype == torch.float32 and HAS_ONEDNN
    once = n * i * ((3 if twice else 2) * o + n)
    spanned = s.size * n * o + (PASS * n * o if fading else 0)
    plain = 2 * s.size * i * o + (PASS * i * o if fading or drift else 0)
    return once * (0.6 if quick else 1) + s.steps * spanned < s.steps * plain


@dataclass
class Span:
    """The first layer of k clients, as coefficients of their own rows; n is the most rows of any of them.

    Attributes:
        rows: H of each client, [n_i, i].
        table: one row for each of a client's rows: HW₀ᵀ [o], HDᵀ [o] if ``drifts``, HHᵀ [n]; w numbers in all.
        C: the coefficients of the rows.
        alpha: the coefficient of W₀.
        gamma: the coefficient of D; None without drift.
        push: [k, 1], −e; None for e = 1.
        drifts: whether there is a drift and more than one step.
        faded: whether alpha may differ from 1.
        at: positions [k, b] of the batch's rows in the table, set before each step.
    """

    layer: Dense
    rows: list[Float[Tensor, "_ i"]]
    table: Float[Tensor, "k n w"]
    C: Float[Tensor, "k n o"]
    alpha: Float64[Tensor, "k 1"]
    gamma: Float64[Tensor, "k 1"] | None
    push: Float[Tensor, "k 1"] | None
    drifts: bool
    faded: bool = False
    at: Tensor | None = None

    @classmethod
    def of(cls, layer: Dense, group: Group, X: ClientVecs, drift: ClientVecs | None, push: Tensor | None) -> Span:
        """At W = W₀: the clients' starting points are the rows of X [k, d]; ``drift`` is D of all parameters [k, d]."""
        k = len(group)
        n = max(s.n for s in group)
        i = layer.inputs
        o = layer.outputs
        objectives: list[Any] = [s.me.problem for s in group]
        rows = [in_memory(f.X).flatten(1) for f in objectives]
        both = [X] if drift is None or group[0].steps == 1 else [X, drift]  # the first has the most steps
        new = X.new_empty if all(s.n == n for s in group) else X.new_zeros
        table = new(k, n, len(both) * o + n)
        for h, into, *by in zip(rows, table, *both, strict=True):
            for j, v in enumerate(by):
                into[: len(h), j * o : (j + 1) * o] = linear(h, v[: o * i].view(o, i))
            into[: len(h), len(both) * o :][:, : len(h)] = linear(h, h)
        alpha = torch.ones(k, 1, dtype=torch.float64)
        gamma = None if drift is None else 0 * alpha
        return cls(layer, rows, table, X.new_zeros(k, n, o), alpha, gamma, push, len(both) > 1)

    def __call__(self, X: ClientVecs) -> Forward:
        """The forward pass of rows of the table; of X [k, d] only the biases are read."""
        k = X.shape[0]
        bias = self.layer.bias
        o = self.layer.outputs
        return partial(self.forward, self.C[:k], None if bias is None else X[:, bias : bias + o])

    def forward(self, C: Tensor, b: ClientVecs | None, h: Float[Tensor, "kb w"]) -> tuple[Tensor, Back]:
        """z = α·hW₀ᵀ + γ·hDᵀ + (hHᵀ)C + b of each row, [kb, o]."""
        k, n, o = C.shape
        parts = h.view(k, -1, h.shape[1])
        z = parts[:, :, :o]
        if self.faded:
            z = z * self.alpha[:k, :, None].to(z)
        if self.drifts and self.gamma is not None:
            z = torch.addcmul(z, parts[:, :, o : 2 * o], self.gamma[:k, :, None].to(z))
        z = torch.baddbmm(z, parts[:, :, -n:], C)
        if b is not None:
            z.add_(b[:, None])
        return z.flatten(0, 1), lambda dz, needs_input: (dz, partial(self.update, b, dz))

    def fade(self, k: int, fading: Float[Tensor, "k 1"] | None) -> None:
        """W ← W − cW + eD of the first k clients; None stands for c = 0."""
        if fading is not None:
            self.faded = True
            for v in (self.alpha, self.gamma):
                if v is not None:
                    v[:k].addcmul_(v[:k], fading.to(v), value=-1)
            self.C[:k].addcmul_(self.C[:k], fading[:, :, None], value=-1)
        if self.gamma is not None:
            self.gamma[:k].sub_(-1.0 if self.push is None else self.push[:k])

    def update(self, b: ClientVecs | None, dz: Tensor) -> None:
        """W ← W − δᵀ h, b ← b − Σ δ."""
        assert self.at is not None
        self.C.view(-1, self.layer.outputs).index_add_(0, self.at.flatten(), dz, alpha=-1)
        if b is not None:
            b.sub_(dz.view(b.shape[0], -1, b.shape[1]).sum(1))

    def displacement(self, X: ClientVecs, x: ClientVecs, drift: ClientVecs | None) -> None:
        """Write W − W₀ = CᵀH + (α − 1)W₀ + γD to X; x is W₀ and ``drift`` D, all [k, o·i].

        On a CPU, some outputs at a time, whose weights stay in a core's cache: so each vector is passed over once, and
        no further one is made, for which the system has to clear pages.
        """
        i = self.layer.inputs
        alpha = (self.alpha - 1).to(x) if self.faded else None
        gamma = None if self.gamma is None else self.gamma.to(x)
        some = max(BLOCK // i, 1) if X.is_cpu else self.layer.outputs
        for k, (h, C, into) in enumerate(zip(self.rows, self.C, X, strict=True)):
            terms = [] if alpha is None else [(x[k], alpha[k])]
            terms += [] if gamma is None or drift is None else [(drift[k], gamma[k])]
            for at in range(0, self.layer.outputs, some):
                cut = slice(at * i, (at + some) * i)
                part = into[cut]
                made = linear(C[: len(h), at : at + some].mT, h.mT, out=None if terms else part.view(-1, i)).flatten()
                for v, factor in terms:
                    made = torch.addcmul(made, v[cut], factor, out=part)
