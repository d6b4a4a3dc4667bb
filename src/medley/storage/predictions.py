"""Outputs and predictions of a trained module on a user's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..contract.errors import BadData
from ..numerics.fields import applied, fields, inputs_of


def outputs_of(module: nn.Module, X: Any, batch: int) -> Tensor:
    """The module's outputs of rows X in evaluation mode, on the CPU; its mode is as before afterwards.

    Args:
        module: the module
        X: rows [n, ...], a tensor, an array, or a dict or tuple of such; floats in any dtype
        batch: rows in one forward pass
    """
    given = fields(X, lambda v, _: _tensor(v))
    rows = _tensor(X) if given is None else given
    like = next(p for p in module.parameters() if p.is_floating_point())
    was = module.training
    module.eval()
    try:
        with torch.no_grad():
            parts = [
                applied(
                    module, inputs_of(part.to(like.device, like.dtype if rows.is_floating_point() else rows.dtype))
                ).cpu()
                for part in torch.split(rows, batch)
            ]
    finally:
        module.train(was)
    return torch.cat(parts)


def _tensor(X: Any) -> Tensor:
    """Rows as a tensor: an array, a tensor, or a frame, whose columns may be of several types.

    Raises BadData for cells that are no numbers.
    """
    if isinstance(X, Tensor):
        return X
    array = np.asarray(X)
    if array.dtype == object and hasattr(X, "columns"):
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as e:
            raise BadData(f"predict(X): a frame's columns must be numbers: {e}; give those of training") from None
    return torch.as_tensor(array if array.flags.writeable else array.copy())  # torch warns of read-only ones


def predicted(outputs: Tensor, classes: int | None, labels: Sequence[Any] | None) -> np.ndarray:
    """Predictions from outputs.

    Args:
        outputs: [n], margins of two classes; [n, c, ...], an output a class; or any others
        classes: the number of classes; None for none
        labels: the classes' names as the data had them; None for 0..classes−1

    Returns labels [n, ...] where there are classes, else the outputs.
    """
    if classes is None:
        return outputs.numpy()
    if outputs.ndim > 1 and outputs.shape[1] >= classes:
        found = outputs.argmax(1)
    elif outputs.ndim == 1 and classes == 2:
        found = (outputs > 0).long()
    else:
        return outputs.numpy()
    return found.numpy() if labels is None else np.asarray(labels)[found.numpy()]
