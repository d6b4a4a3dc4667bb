"""Layers and losses of the fused engine: forward, backward and the update of the weights, by hand.

With δ = ∂l/∂z of every row, times lr and the row's share in the mean, a dense layer z = W h + b has

    ∂l/∂h = Wᵀ δ,    W ← W − δ hᵀ,    b ← b − Σ δ over rows.

Activations are in one of two layouts; classes are dimension 1 of both.

- by client: [k, features, b], for dense layers of k clients at once. The operands of batched products are used as they
    are stored, and the softmax runs over a dimension that is not the last; both are several times as fast.
- by row: [k·b, features], or [b, channels, height, width] of one client in channels_last, as max-pooling needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ..minibatches import ClientVecs
from .products import linear, product, subtract

Update = Callable[[], object]
"""Subtracts the update from a layer's weights. Runs after the whole backward pass, which reads the weights."""

Back = Callable[[Tensor, bool], tuple[Tensor, Update | None]]
"""(δ by the layer's output, wanted) -> (δ by its input, the update of its weights or None).

If ``wanted`` is False, as it is in the first layer, δ by the input is not computed, and any tensor is returned.
"""

Forward = Callable[[Tensor], tuple[Tensor, Back]]
"""input -> (output, backward pass)."""

Layer = Callable[[ClientVecs], Forward]
"""Parameters X [k, d] -> forward pass. Weights are views of X: call it once while the same clients train."""

Slope = Callable[[Tensor, Tensor], Tensor]
"""(outputs [k, o, b], labels [k, b]) -> ∂l/∂z of every row's loss [k, o, b]; by row ([kb, o], [kb]) -> [kb, o]."""

aten = torch.ops.aten


@dataclass(frozen=True)
class Dense:
    """z = W h + b.

    Attributes:
        at: position in x of W, stored as [outputs, inputs].
        bias: position in x of b [outputs]; None without one.
        by_rows: True for the first dense layer, whose input by client has the data's layout, [k, b, inputs].
    """

    at: int
    inputs: int
    outputs: int
    bias: int | None
    by_rows: bool

    def __call__(self, X: ClientVecs) -> Forward:
        """The forward pass of rows [kb, inputs], or of [k, inputs, b]."""
        i = self.inputs
        o = self.outputs
        W = X[:, self.at : self.at + o * i].view(X.shape[0], o, i)
        b = None if self.bias is None else X[:, self.bias : self.bias + o]
        return partial(self.forward, W, b, None if b is None else b[:, :, None])

    def forward(self, W: Tensor, b: ClientVecs | None, column: Tensor | None, h: Tensor) -> tuple[Tensor, Back]:
        """Forward; W [k, o, i], b [k, o], ``column`` is b as [k, o, 1]."""
        if h.ndim == 2:
            return self.forward_rows(W, b, h), partial(self.back_rows, W, b, h)
        if self.by_rows and self.outputs >= 32:  # the product of long rows justifies a small transposition
            z = torch.bmm(h, W.mT).mT.contiguous()
        else:
            z = torch.bmm(W, h.mT if self.by_rows else h)
        if column is not None:
            z.add_(column)
        return z, partial(self.back, W, b, h)

    def back(self, W: Tensor, b: ClientVecs | None, h: Tensor, dz: Tensor, needs_input: bool) -> tuple[Tensor, Update]:
        """Backward by client."""
        dh = dz if not needs_input else torch.bmm(dz.mT, W) if self.by_rows else torch.bmm(W.mT, dz)
        return dh, partial(self.update, W, b, h, dz)

    def update(self, W: Tensor, b: ClientVecs | None, h: Tensor, dz: Tensor) -> None:
        """W ← W − δ hᵀ, b ← b − Σ δ."""
        # Batched accumulation into strided rows is slower than two passes.
        W.sub_(torch.bmm(dz, h if self.by_rows else h.mT))
        if b is not None:
            b.sub_(dz.sum(2))

    def forward_rows(self, W: Tensor, b: ClientVecs | None, h: Tensor) -> Tensor:
        """Forward of [kb, inputs]."""
        k = W.shape[0]
        if k == 1:
            return linear(h, W[0], None if b is None else b[0])
        z = product(h, W)
        if b is not None:
            z.view(k, -1, self.outputs).add_(b[:, None])
        return z

    def back_rows(
        self, W: Tensor, b: ClientVecs | None, h: Tensor, dz: Tensor, needs_input: bool
    ) -> tuple[Tensor, Update]:
        """Backward of [kb, inputs]."""
        return product(dz, W.mT) if needs_input else dz, partial(self.update_rows, W, b, h, dz)

    def update_rows(self, W: Tensor, b: ClientVecs | None, h: Tensor, dz: Tensor) -> None:
        """W ← W − δᵀ h, b ← b − Σ δ, with δ [kb, outputs]."""
        k = W.shape[0]
        if k == 1:
            subtract(W[0], dz, h)
        else:
            W.sub_(torch.bmm(dz.view(k, -1, self.outputs).mT, h.view(k, -1, self.inputs)))
        if b is not None:
            b.sub_(dz.view(k, -1, self.outputs).sum(1))


@dataclass(frozen=True)
class Conv:
    """A two-dimensional convolution, of one client.

    Attributes:
        at: position in x of the weights, of this ``shape`` [outputs, inputs per group, height, width].
        bias: position in x of the biases [outputs]; None without them.
        how: stride, padding, dilation, groups.
    """

    at: int
    shape: torch.Size
    bias: int | None
    how: tuple[Any, ...]

    def __call__(self, X: ClientVecs) -> Forward:
        """The forward pass of [rows, channels, height, width]; X has one row."""
        W = X[0, self.at : self.at + self.shape.numel()].view(self.shape)
        b = None if self.bias is None else X[0, self.bias : self.bias + self.shape[0]]
        return lambda h: (F.conv2d(h, W, b, *self.how), partial(self.back, W, b, h))

    def back(self, W: Tensor, b: Tensor | None, h: Tensor, dz: Tensor, needs_input: bool) -> tuple[Tensor, Update]:
        """Backward."""
        stride, padding, dilation, groups = self.how
        dh, dW, db = aten.convolution_backward(
            dz,
            h,
            W,
            [self.shape[0]],
            stride,
            padding,
            dilation,
            False,
            [0, 0],
            groups,
            [needs_input, True, b is not None],
        )
        return dh if needs_input else dz, lambda: (W.sub_(dW), b is None or b.sub_(db))


@dataclass(frozen=True)
class Pool:
    """Max-pooling. ``how`` is kernel, stride, padding, dilation, ceil_mode."""

    how: tuple[Any, ...]

    def __call__(self, X: ClientVecs) -> Forward:
        """The forward pass; there are no weights."""
        return self.forward

    def forward(self, h: Tensor) -> tuple[Tensor, Back]:
        """Forward of [rows, channels, height, width]."""
        out, index = aten.max_pool2d_with_indices(h, *self.how)
        return out, lambda dz, needs_input: (aten.max_pool2d_with_indices_backward(dz, h, *self.how, index), None)


@dataclass(frozen=True)
class Plain:
    """A layer without weights: `relu`, `tanh` or `flatten`."""

    forward: Forward

    def __call__(self, X: ClientVecs) -> Forward:
        """The forward pass, the same for all parameters."""
        return self.forward


def relu(h: Tensor) -> tuple[Tensor, Back]:
    """max(0, h), in place: no backward pass reads the output of the layer before it."""
    out = h.relu_()
    return out, lambda dz, needs_input: (aten.threshold_backward(dz, out, 0), None)


def tanh(h: Tensor) -> tuple[Tensor, Back]:
    """tanh h; the backward pass is δ (1 − tanh² h)."""
    out = h.tanh()
    return out, lambda dz, needs_input: (aten.tanh_backward(dz, out), None)


def flatten(h: Tensor) -> tuple[Tensor, Back]:
    """From [rows, channels, height, width] to [rows, features]."""
    like = h.shape
    return h.reshape(len(h), -1), lambda dz, needs_input: (
        dz.reshape(like).contiguous(memory_format=torch.channels_last),
        None,
    )


@lru_cache
def _minus_ones(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """−1 in this shape: one number of memory."""
    return torch.full((), -1.0, dtype=dtype, device=device).expand(shape)


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    """∂l/∂z = softmax(z) − e_y of the cross-entropy."""
    p = torch.softmax(z, 1)
    at = y.unsqueeze(1)
    return p.scatter_add_(1, at, _minus_ones(at.shape, p.dtype, p.device))


def squared(z: Tensor, y: Tensor) -> Tensor:
    """∂l/∂z = (2/o)(z − y) of l = (1/o) Σ (z − y)² over o outputs."""
    return (z - (y.mT if z.ndim == 3 else y)).mul_(2 / z.shape[1])


def channels_last(h: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """Images in the channels_last layout."""
    h = h.contiguous(memory_format=torch.channels_last)
    # With one channel both layouts are the same memory, and torch takes it for the other one.
    c, height, width = h.shape[1:]
    return h.as_strided(h.shape, (c * height * width, 1, c * width, c)) if c == 1 else h
