"""Names for array types. Their shapes are checked at run time only in tests."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

Vec = Float[Tensor, "*_ d"]
"""A model, a gradient, a direction or a displacement [d]; [k, d] for a stack of k clients, one row each."""

Num = float | Float[Tensor, "k 1"]
"""A number of one client, or a column [k, 1] for a stack of k clients."""

Index = Int[Tensor, " n"]
"""Indices of training rows."""

Rows = Index | slice | None
"""Rows of a client: indices, a slice, or None for all."""

Weights = Float[Tensor, " n"] | None
"""Weights of rows in a mean; None is 1 for each."""

Data = Shaped[Tensor, "n ..."]
"""Inputs or labels, one sample in each row."""

Decision = float | Literal["argmax"] | None
"""How outputs give a class: the largest output, the second of two classes above this threshold, or no class."""


def number(column: Tensor) -> Num:
    """One client's tensor [1] as a float; a stack's column [k, 1] unchanged."""
    return float(column) if column.ndim < 2 else column


def column(values: Sequence[float], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers of k clients as a column [k, 1].

    On an accelerator, `entries` returns them without waiting for the device.

    Args:
        values: the numbers
        like: a tensor on the column's device
        dtype: default None: the dtype of ``like``
    """
    values_here = torch.tensor(values, dtype=dtype or like.dtype)
    tensor: Any = values_here.to(like.device).unsqueeze(1)
    if not tensor.is_cpu:
        tensor.known = tensor._version, values_here.tolist()
    return tensor  # type: ignore[no-any-return]


def entries(*columns: Tensor) -> list[list[float]]:
    """The numbers of columns [k, 1]. Numbers not yet known here are read from their device in one transfer."""
    unread = [c for c in columns if getattr(c, "known", (-1,))[0] != c._version]
    alike = len({c.dtype for c in unread}) == 1
    read = iter(torch.cat(unread, 1).T.tolist() if alike else [c[:, 0].tolist() for c in unread])
    return [next(read) if any(c is t for t in unread) else vars(c)["known"][1] for c in columns]
