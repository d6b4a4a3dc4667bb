"""The fields of a `Network`, which its model and problem read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from ...contract import Checked, in_range
from ...contract.personal import Patterns

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, y) -> the mean loss of the batch, a 0-d tensor; or the loss of each row, a tensor [b, ...]."""

Transform = Callable[[Any, torch.Generator], Any]
"""(rows, a random stream) -> rows of a batch for training, such as `medley.datasets.augment.flip`.

Rows are a tensor [b, ...], or with several inputs a dict or a tuple of such tensors.
"""

Train = Callable[..., object]
"""(module, rows, pace, seed) trains the module in place on one client's rows, by whatever means, and returns None.

``rows`` are a `medley.engines.own_loop.LoopRows`, ``pace`` a `medley.contract.pace.Pace`, and ``seed`` an int that
differs by client and round. A function with a further parameter ``state`` gets a dict that stays with its client, for
an optimizer's state.
"""


def keeps_state(train: Train | None) -> bool:
    """Whether a training loop keeps a state for each client: whether it has the parameter ``state``."""
    return train is not None and "state" in inspect.signature(train).parameters


@dataclass(frozen=True, eq=False)
class NetworkSpec(Checked):
    """A module, its loss and its starting point; `Network` has the meaning of each field."""

    module: nn.Module
    loss: Literal["cross_entropy", "mse"] | Loss = "cross_entropy"
    start: Literal["draw", "module"] | None = None
    class_weights: Sequence[float] | None = None
    ignore_index: Annotated[int, in_range(-(2**63), 2**63 - 1)] = -100  # labels are int64
    transform: Annotated[Transform, "transform(rows, generator)"] | None = None
    shared: Patterns | None = None
    base: Annotated[str, "'bert-base'"] | None = None
    train: Annotated[Train, "train(module, rows, pace, seed)"] | None = None
