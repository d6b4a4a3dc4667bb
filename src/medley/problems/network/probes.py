"""How a user's own loss reads outputs, found by trying numbers: classes, a threshold, and losses of single rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ...contract.types import Decision
from .spec import Loss

INSIDE = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Outputs that can be probabilities."""

OUTSIDE = (-2.0, -1.0, 2.0, 3.0)
"""Outputs that cannot be probabilities."""

CLOSE = 1e-4
"""Two numbers count as equal up to this relative difference."""


def decision(loss: Loss, out: Tensor, y: Tensor, classes: int) -> Decision:
    """How to read a class from an output: "argmax", the threshold above which it is the second of two classes, or None
    if unclear.

    Args:
        out: the network's outputs of two rows [2, ...]
        y: their labels, whole numbers
    """
    if out.numel() == len(y) and classes == 2:
        return _threshold(loss, out, y)
    if out.ndim < 2 or out.shape[1] < classes:
        return None
    for a, b in ((0, 1), (classes - 1, 0)):
        right = _sum(loss, [(_of(out, a), a), (_of(out, b), b)], y)
        wrong = _sum(loss, [(_of(out, a), b), (_of(out, b), a)], y)
        if not right < wrong:
            return None
    return "argmax"


def _of(out: Tensor, c: int) -> Tensor:
    """Outputs that are largest for class c; they are valid probabilities too."""
    z = torch.zeros_like(out)
    z[:, c] = 2.0
    return torch.softmax(z, 1)


def _sum(loss: Loss, cases: Sequence[tuple[Tensor, int]], y: Tensor) -> float:
    """The sum of the losses of these outputs, each with all targets of one class; nan if the loss fails."""
    return sum(_value(loss, z, torch.full_like(y, c)) for z, c in cases)


def _value(loss: Loss, z: Tensor, y: Tensor) -> float:
    """The mean loss; nan if the loss fails."""
    for copies in (1, 16):  # some losses want more than two rows
        try:
            with torch.no_grad():
                return float(loss(*(t.repeat(copies, *[1] * (t.ndim - 1)) for t in (z, y))).mean())
        except Exception:
            continue
    return math.nan


def _threshold(loss: Loss, out: Tensor, y: Tensor) -> float | None:
    """The output above which the second class is meant: 0 for a logit, ½ for a probability; None if unclear.

    A loss of probabilities fails outside 0..1, or is constant there. A loss of logits or margins falls everywhere for
    the second class and rises for the first. For any other loss, the two classes' losses are equal at the threshold.
    """
    # On the CPU: on CUDA, binary cross-entropy of numbers that are no probabilities ends the process.
    like = out.cpu()
    labels = y.cpu()
    losses = dict[float, list[float]]()
    for z in INSIDE + OUTSIDE:
        losses[z] = [_value(loss, torch.full_like(like, z), torch.full_like(labels, c)) for c in (0, 1)]
    if not (losses[0.75][1] < losses[0.25][1] and losses[0.25][0] < losses[0.75][0]):
        return None
    if not all(all(map(math.isfinite, losses[z])) for z in OUTSIDE):
        return 0.5
    at_0, at_half = (math.isclose(*losses[z], rel_tol=CLOSE) for z in (0.0, 0.5))
    if at_0 != at_half:
        return 0.0 if at_0 else 0.5
    rows = [losses[z] for z in sorted(losses)]
    if all(a[1] > b[1] and a[0] < b[0] for a, b in pairwise(rows)):
        return 0.0

    def is_flat(p: float, q: float) -> bool:
        return all(math.isclose(a, b, rel_tol=CLOSE) for a, b in zip(losses[p], losses[q], strict=True))

    return 0.5 if is_flat(-2.0, -1.0) and is_flat(2.0, 3.0) else None


def separable(loss: Loss, out: Tensor, y: Tensor) -> bool:
    """Whether the loss of a batch is a mean of losses of its rows, which may have factors by their targets.

    The gradient with respect to a row's outputs is then a positive multiple of the gradient of that row alone, and the
    multiple is the same at any outputs; two random outputs are tried. A loss that fails on one row alone has no row
    losses.

    Args:
        out: the network's outputs of some rows [b, ...], for their shape and type
        y: the targets of these rows
    """
    g = torch.Generator().manual_seed(0)
    draws = [torch.rand(out.shape, generator=g, dtype=torch.float64) for _ in range(2)]
    if out.ndim > 1 and out.shape[1] > 1:
        draws = [z / z.sum(1, keepdim=True) for z in draws]  # probabilities, and logits as well
    try:
        of_batch = []
        of_rows = []
        for draw in draws:
            z = (0.1 + 0.8 * draw).to(out).requires_grad_()
            (gradient,) = torch.autograd.grad(loss(z, y).mean(), z)
            single = [torch.autograd.grad(loss(z[j : j + 1], y[j : j + 1]).mean(), z)[0][j] for j in range(len(y))]
            of_batch.append(gradient.reshape(len(y), -1))
            of_rows.append(torch.stack(single).reshape(len(y), -1))
    except Exception:
        return False
    a = torch.cat(of_rows, 1).double()
    b = torch.cat(of_batch, 1).double()
    if not bool(b.isfinite().all()):
        return False
    factor = (a * b).sum(1, keepdim=True) / a.square().sum(1, keepdim=True).clamp(min=1e-30)
    left = (b - factor * a).norm(dim=1)
    return bool(((left <= 1e-3 * b.norm(dim=1).clamp(min=1e-12)) & ((factor[:, 0] > 0) | (b.norm(dim=1) == 0))).all())
