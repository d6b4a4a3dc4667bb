"""A user's own loss, tried on two rows before anything is trained."""

from __future__ import annotations

import inspect

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

    It is so if the loss of the same numbers in equal shapes is another. A loss that reshapes them itself passes.

    Args:
        loss: the user's function
        out: outputs of two rows, for their shape and type
        y: the targets of all rows
    """
    one, none = torch.Size([1]), torch.Size([])
    if {out.shape[1:], y.shape[1:]} != {one, none}:
        return
    flat = y.reshape(-1)
    other = (flat != flat[0]).nonzero()
    if not len(other):
        return
    y = torch.stack([y[0], y[int(other[0])]]).to(out.device)
    y = y.to(out.dtype) if y.is_floating_point() else y
    own, exchanged = torch.tensor(PROBE, dtype=out.dtype, device=out.device), y.reshape(2).flip(0).to(out.dtype)
    for probe in (own, exchanged):  # where a loss is linear on one, pairs have the rows' mean
        try:
            as_it_is = loss(probe.reshape(2, *out.shape[1:]), y)
            equal = loss(probe, y.reshape(2))
        except Exception:
            return
        if as_it_is.shape == equal.shape and torch.allclose(as_it_is, equal, rtol=1e-4, equal_nan=True):
            continue
        remedy = "outputs.squeeze(1)" if out.ndim == 2 else "y.squeeze(1)"
        raise BadData(
            f"{called(loss)}: the network's outputs are {list(out.shape[1:])} a row and the targets "
            f"{list(y.shape[1:])}, of which it makes all pairs of rows; take {remedy} in the loss"
        )
