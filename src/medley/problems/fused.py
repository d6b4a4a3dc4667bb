"""Local descent with the backward pass written out, for a whole crew at once.

For stacks of linear and convolutional layers under a loss whose slope is known, and for updates that are affine in the
gradient. Three things make it fast. No autograd. The step size goes into the loss' slope, so that what comes out of the
backward pass is the update itself and is taken off the weights as it is made: W ← W − δhᵀ. And a crew's clients share
every operation, as long as they have steps left: they are sorted by their number of steps, and step t works on the
contiguous rows X[:K_t].

A crew's dense activations are [k, features, rows]: the operands of batched products lie as they are stored, and the
softmax runs over a dimension that is not the last, both several times as fast. Large models, and those with
convolutions, go client by client on [rows, features], and on [rows, channels, height, width] in channels_last, which
max-pooling wants. The outputs' classes are dimension 1 of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.client import Client, Engine, Window
from ..core.pace import Optimizer
from ..core.problem import Correction, LocalLoss, Problem
from ..core.sparse import Sparse
from ..core.types import Num, Vec
from .linear import LinearProblem, Softmax
from .network import NetworkProblem
from .seq import Seq
from .walk import Crew, Mat, Walker, faded, groups, steps, strengths

Update = Callable[[], object]
Back = Callable[[Tensor, bool], tuple[Tensor, Update | None]]
"""(the slope by a layer's output, is the slope by its input wanted) -> that slope, and what moves the weights."""


Layer = Callable[[Mat, Tensor], tuple[Tensor, Back]]
"""(weights, input) -> output, and the way back."""

Slope = Callable[[Tensor, Tensor], Tensor]
"""(outputs [k, o, b], labels [k, b]) -> the slope of every row's loss [k, o, b]; of one client without the k,
[b, o]."""

ALONE = 1 << 17
"""Parameters beyond which a model fills a core's cache by itself."""

ONEDNN = 1 << 21
"""Multiplications from which oneDNN's product is worth its 20 µs of preparation."""

aten = torch.ops.aten


def linear(h: Float[Tensor, "b i"], W: Float[Tensor, "o i"], b: Vec | None = None) -> Float[Tensor, "b o"]:
    """h Wᵀ + b. On CPU `torch.nn.functional.linear` asks MKL, which has no kernels for the vector units of some
    processors (191 against 86 GFLOP/s on a Zen 4); oneDNN has."""
    if h.numel() * len(W) >= ONEDNN and h.dtype == torch.float32 and h.is_cpu and torch._C._has_mkldnn:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(h, W, b, "none", [], "")
        return out
    z = torch.mm(h, W.mT)
    return z if b is None else z.add_(b)  # cheaper than a product that begins with copies of b


@dataclass(frozen=True)
class Dense:
    """z = W h + b. A crew's first dense layer gets its rows as data has them, [k, rows, inputs] (``by_rows``)."""

    at: int
    inputs: int
    outputs: int
    bias: int | None
    by_rows: bool

    def __call__(self, X: Mat, h: Tensor) -> tuple[Tensor, Back]:
        """Forward."""
        i, o = self.inputs, self.outputs
        if h.ndim == 2:
            w = X[0, self.at : self.at + o * i].view(o, i)
            b = None if self.bias is None else X[0, self.bias : self.bias + o]
            return linear(h, w, b), partial(self.back_alone, w, b, h)
        W = X[:, self.at : self.at + o * i].view(len(X), o, i)
        if self.by_rows and o >= 32:  # the product of long rows is worth a small transposition
            z = torch.bmm(h, W.mT).mT.contiguous()
        else:
            z = torch.bmm(W, h.mT if self.by_rows else h)
        if self.bias is not None:
            z.add_(X[:, self.bias : self.bias + o, None])
        return z, partial(self.back, X, W, h)

    def back(self, X: Mat, W: Tensor, h: Tensor, dz: Tensor, wanted: bool) -> tuple[Tensor, Update]:
        """Backward; without ``wanted``, the slope by the input is anything."""
        dh = dz if not wanted else torch.bmm(dz.mT, W) if self.by_rows else torch.bmm(W.mT, dz)
        return dh, partial(self.update, X, W, h, dz)

    def update(self, X: Mat, W: Tensor, h: Tensor, dz: Tensor) -> None:
        """W ← W − dz hᵀ, b ← b − Σ dz."""
        # Into strided rows, batched accumulation is slower than two passes.
        W.sub_(torch.bmm(dz, h if self.by_rows else h.mT))
        if self.bias is not None:
            X[:, self.bias : self.bias + self.outputs].sub_(dz.sum(2))

    def back_alone(self, W: Tensor, b: Vec | None, h: Tensor, dz: Tensor, wanted: bool) -> tuple[Tensor, Update]:
        """Backward of one client."""
        return linear(dz, W.mT) if wanted else dz, partial(self.update_alone, W, b, h, dz)

    def update_alone(self, W: Tensor, b: Vec | None, h: Tensor, dz: Tensor) -> None:
        """W ← W − dzᵀ h, b ← b − Σ dz."""
        W.addmm_(dz.mT, h, alpha=-1)
        if b is not None:
            b.sub_(dz.sum(0))


@dataclass(frozen=True)
class Conv:
    """A convolution of one client's rows."""

    at: int
    shape: torch.Size
    bias: int | None
    how: tuple[Any, ...]
    """stride, padding, dilation, groups."""

    def __call__(self, X: Mat, h: Tensor) -> tuple[Tensor, Back]:
        """Forward."""
        W = X[0, self.at : self.at + self.shape.numel()].view(self.shape)
        b = None if self.bias is None else X[0, self.bias : self.bias + self.shape[0]]
        return F.conv2d(h, W, b, *self.how), partial(self.back, W, b, h)

    def back(self, W: Tensor, b: Tensor | None, h: Tensor, dz: Tensor, wanted: bool) -> tuple[Tensor, Update]:
        """Backward; without ``wanted``, the slope by the input is anything."""
        stride, padding, dilation, groups = self.how
        dh, dW, db = aten.convolution_backward(
            dz, h, W, [self.shape[0]], stride, padding, dilation, False, [0, 0], groups, [wanted, True, b is not None]
        )
        return dh if wanted else dz, lambda: (W.sub_(dW), b is None or b.sub_(db))


@dataclass(frozen=True)
class Pool:
    """Max-pooling."""

    how: tuple[Any, ...]
    """kernel, stride, padding, dilation, ceil_mode."""

    def __call__(self, X: Mat, h: Tensor) -> tuple[Tensor, Back]:
        """Forward."""
        out, index = aten.max_pool2d_with_indices(h, *self.how)
        return out, lambda dz, wanted: (aten.max_pool2d_with_indices_backward(dz, h, *self.how, index), None)


def relu(X: Mat, h: Tensor) -> tuple[Tensor, Back]:
    """max(0, h), in place: no layer before it asks for its own output."""
    out = h.relu_()
    return out, lambda dz, wanted: (aten.threshold_backward(dz, out, 0), None)


def tanh(X: Mat, h: Tensor) -> tuple[Tensor, Back]:
    """tanh h."""
    out = h.tanh()
    return out, lambda dz, wanted: (aten.tanh_backward(dz, out), None)


def flatten(X: Mat, h: Tensor) -> tuple[Tensor, Back]:
    """From maps [rows, channels, height, width] to a dense layer's rows."""
    like = h.shape
    return h.reshape(len(h), -1), lambda dz, wanted: (
        dz.reshape(like).contiguous(memory_format=torch.channels_last),
        None,
    )


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    """softmax(z) − e_y."""
    p, at = torch.softmax(z, 1), y[:, None]
    return p.scatter_add_(1, at, p.new_full((), -1.0).expand(at.shape))


def squared(z: Tensor, y: Tensor) -> Tensor:
    """The slope of the mean over outputs of (z − y)²."""
    return (z - (y.mT if z.ndim == 3 else y)).mul_(2 / z.shape[1])


def layers_of(problem: Problem) -> tuple[list[Layer], Slope] | None:
    """The problem as layers and a slope, or None where it isn't made of those known here."""
    if isinstance(problem, LinearProblem):
        family = problem.family
        slope: Slope = lambda z, y: family.slope(z, y[:, None])
        slope = cross_entropy if isinstance(family, Softmax) else slope
        return [Dense(0, problem.features, problem.width, None, True)], slope
    if not isinstance(problem, NetworkProblem) or callable(problem.family.loss) or problem.buffers() is not None:
        return None
    modules = [*_flat(problem.module)]
    if any(m._forward_hooks or m._forward_pre_hooks for m in problem.module.modules()):
        return None
    layers: list[Layer] = []
    at, maps, rows = 0, len(problem.row or ()) == 3, len(problem.row or ()) == 1
    for m in modules:
        sizes = [p.numel() for p in m.parameters()]
        bias = at + sizes[0] if len(sizes) == 2 else None
        if type(m) is nn.Linear and rows:
            layers.append(Dense(at, m.in_features, m.out_features, bias, not any(isinstance(o, Dense) for o in layers)))
            maps = False
        elif type(m) is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1):
            layers += [flatten] if layers and maps else []
            maps, rows = False, True
        elif type(m) is nn.Conv2d and maps and m.padding_mode == "zeros" and not isinstance(m.padding, str):
            layers.append(Conv(at, m.weight.shape, bias, (m.stride, m.padding, m.dilation, m.groups)))
        elif type(m) is nn.MaxPool2d and maps and not m.return_indices:
            how = (*(_pair(v) for v in (m.kernel_size, m.stride, m.padding, m.dilation)), m.ceil_mode)
            # The largest of the positive parts is the positive part of the largest, and a quarter of the work.
            layers.insert(len(layers) - (layers[-1:] == [relu]), Pool(how))
        elif type(m) in (nn.ReLU, nn.Tanh) and layers:
            layers.append(relu if type(m) is nn.ReLU else tanh)
        elif type(m) is not nn.Identity:
            return None
        at += sum(sizes)
    # Frozen or shared parameters: x has fewer than the layers.
    if not layers or not isinstance(layers[-1], Dense) or at != problem.d:
        return None
    return layers, cross_entropy if problem.family.loss == "cross_entropy" else squared


def _flat(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for m in module:
            yield from _flat(m)
    else:
        yield module


def _pair(v: int | tuple[int, ...]) -> list[int]:
    return [v, v] if isinstance(v, int) else list(v)


@dataclass(frozen=True)
class Fused:
    """``layers`` and the loss' ``slope``, as `layers_of` finds them; ``ridge`` is the problem's own weight decay.

    What is not affine in the gradient (momentum, clipping, Adam, a loss or a correction of the method's own) is left to
    ``rest``, and so are sparse rows.
    """

    problem: Problem
    layers: tuple[Layer, ...]
    slope: Slope
    ridge: Vec | float = 0.0
    rest: Engine = field(default_factory=Seq)
    name: str = "fused"

    @property
    def maps(self) -> bool:
        """Whether there are convolutions."""
        return any(isinstance(layer, Conv | Pool) for layer in self.layers)

    def alone(self, x: Vec) -> bool:
        """Whether clients walk one by one. The model decides, and not who came along: that would change the bits."""
        return self.maps or (x.is_cpu and self.problem.d > ALONE)

    def descend(
        self,
        me: Client[Any],
        x: Vec,
        *,
        scale: Num = 1.0,
        pull: tuple[Num | Vec, Vec] | None = None,
        shift: Vec | None = None,
        loss: LocalLoss | None = None,
        correct: Correction | None = None,
        optimizer: Optimizer = "sgd",
    ) -> Window:
        """See `medley.core.client.Client.descend`."""
        members, paces = me.members, [c.pace for c in me.members]
        walkers = [Walker.of(c) for c in members]
        if (
            optimizer != "sgd"
            or not (loss is None and correct is None)
            or any(p.momentum or p.clip is not None for p in paces)
            or any(getattr(c.problem, "w", None) is not None for c in members)  # weights of rows
            or any(isinstance(getattr(c.problem, "X", None), Sparse) for c in members)
        ):
            return self.rest.descend(
                me, x, scale=scale, pull=pull, shift=shift, loss=loss, correct=correct, optimizer=optimizer
            )
        k = len(members)
        X = x.expand(k, -1).clone()
        column: Callable[[list[Any]], Tensor] = lambda values: x.new_tensor(values)[:, None]
        lr = column([p.lr for p in paces])
        mu, anchor = (0.0, x) if pull is None else pull
        decay: Tensor | None = None
        fading = self.ridge + column([p.weight_decay for p in paces])
        if pull is not None or bool(fading.any()):
            decay = (1 - lr * (mu + scale * fading)).expand(k, -1)
        drift: Tensor | None = None
        if pull is not None:
            drift = lr * mu * anchor if shift is None else lr * (mu * anchor - shift)
        elif shift is not None:
            drift = -lr * shift
        for some in groups(walkers, self.alone(x)):
            crew, terms = [walkers[i] for i in some], (lr * scale, decay, drift)
            if some == [*range(k)]:
                self.walk(crew, X, *terms)
                continue
            part = X[some]
            self.walk(crew, part, *(None if t is None else t[some] for t in terms))
            X[some] = part
        step, taken = X.sub_(x), [w.steps for w in walkers]
        # A pull of strength mu lets steps fade.
        T = [p.lr * faded(s, p.lr * m) for s, p, m in zip(taken, paces, strengths(mu, k), strict=True)]
        if k == 1:
            return Window(step[0], T[0], taken[0], self.name)
        return Window(step, column(T), column(taken), self.name)

    def walk(self, crew: Crew, X: Mat, rate: Any, decay: Tensor | None, drift: Tensor | None) -> None:
        """All steps of a crew, the one with most steps first, on its rows of X."""
        alone = self.alone(X)
        if not alone:
            rate = rate[:, :, None]
        for active, h, y, share in steps(crew, X):
            if alone:
                h, y = (_channels_last(h[0]) if self.maps else h[0].flatten(1)), y[0]
            else:
                h = h.flatten(2)
            if isinstance(share, Tensor):
                share = share.mT if alone else share[:, None]
            part = X if active == len(X) else X[:active]
            ways: list[Back] = []
            for layer in self.layers:
                h, back = layer(part, h)
                ways.append(back)
            if (allowed := getattr(self.problem, "allowed", None)) is not None:
                h[:, len(allowed) :] = -torch.inf
                never = ~allowed[y]
                h[:, : len(allowed)].masked_fill_(never if alone else never.mT, -torch.inf)
            slope = self.slope(h, y).mul_(share * rate[:active])
            updates = []
            for turn in range(len(ways) - 1, -1, -1):
                slope, update = ways[turn](slope, turn > 0)
                if update is not None:
                    updates.append(update)
            if decay is not None:
                part.mul_(decay[:active])
            if drift is not None:
                part.add_(drift[:active])
            for update in updates:
                update()


def _channels_last(h: Tensor) -> Tensor:
    h = h.contiguous(memory_format=torch.channels_last)
    # With one channel both layouts are the same memory, and torch takes it for the other one.
    c, height, width = h.shape[1:]
    return h.as_strided(h.shape, (c * height * width, 1, c * width, c)) if c == 1 else h


def fused(problem: Problem) -> Fused | None:
    """The engine for this problem, or None where it has none."""
    found = layers_of(problem)
    if found is None:
        return None
    ridge = problem.decay if isinstance(problem, LinearProblem) else 0.0
    return Fused(problem, tuple(found[0]), found[1], ridge if isinstance(ridge, Tensor) else float(ridge))
