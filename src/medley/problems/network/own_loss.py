"""A user's own loss, tried on two rows before anything is trained."""

from __future__ import annotations

import inspect
import math

import torch
from torch import Tensor

from ...contract.errors import BadData, RecipeError
from .spec import Loss

PROBE = (0.3, 0.6)
"""Outputs of two rows that are logits, probabilities and positive numbers at once."""


def called(loss: Loss) -> str:
    """The start of an error's sentence."""
    return f"Network(loss={getattr(loss, '__name__', type(loss).__name__)})"


def check_loss(loss: Loss, out: Tensor, y: Tensor) -> Tensor | None:
    """The loss of the outputs of two rows; None where it fails on them, as one that wants more rows may.

    Args:
        loss: the user's function
        out: the network's outputs of two rows [2, ...]
        y: their targets [2, ...]

    Raises RecipeError for a function that does not take two arguments, returns no tensor, or one that does not depend
    on the outputs as far as autograd knows.
    """
    try:
        inspect.signature(loss).bind(out, y)
    except TypeError as e:
        raise RecipeError(f"{called(loss)}: {e}; it is called with (outputs, y)", "loss") from None
    except ValueError:  # a builtin has no signature
        pass
    try:
        found: object = loss(out.detach().clone().requires_grad_(), y)
    except Exception:
        return None
    if not isinstance(found, Tensor):
        raise RecipeError(
            f"{called(loss)} returned {type(found).__name__}; return a tensor, without .item() or .numpy()", "loss"
        )
    if not found.requires_grad:
        raise RecipeError(f"{called(loss)} has no gradient by the outputs; leave out .detach() and no_grad", "loss")
    return found.detach()


def check_pairs(loss: Loss, out: Tensor, y: Tensor) -> None:
    """Raise BadData for outputs [n, 1] and targets [n], or the reverse, that the loss takes for all pairs [n, n].

    Args:
        loss: the user's function
        out: outputs of two rows, for their shape and type
        y: the targets of all rows
    """
    if {out.shape[1:], y.shape[1:]} != {torch.Size([1]), torch.Size([])}:
        return
    flat = y.reshape(-1)
    other = (flat != flat[0]).nonzero()
    if not len(other):
        return
    y = torch.stack([y[0], y[int(other[0])]]).to(out.device)
    y = y.to(out.dtype) if y.is_floating_point() else y
    try:
        # Two probes: where a loss is linear between two outputs, the rows' mean is that of pairs as well.
        tried = [_tried(loss, out.shape, y, z) for z in (out.new_tensor(PROBE), y.reshape(2).flip(0).to(out.dtype))]
    except Exception:
        return
    if all(exchangeable for exchangeable, _ in tried) and any(other for _, other in tried):
        remedy = "outputs.squeeze(1)" if out.ndim == 2 else "y.squeeze(1)"
        raise BadData(
            f"{called(loss)}: the network's outputs are {list(out.shape[1:])} a row and the targets "
            f"{list(y.shape[1:])}, of which it makes all pairs of rows; take {remedy} in the loss"
        )


def _tried(loss: Loss, shape: torch.Size, y: Tensor, z: Tensor) -> tuple[bool, bool]:
    """Whether the loss of z [2] in this shape stays where targets are exchanged, and changes where shapes are equal."""
    found, exchanged = (float(loss(z.reshape(shape), t).mean()) for t in (y, y.flip(0)))
    equal = float(loss(z, y.reshape(2)).mean())
    return math.isclose(found, exchanged, rel_tol=1e-4), not math.isclose(found, equal, rel_tol=1e-4)
