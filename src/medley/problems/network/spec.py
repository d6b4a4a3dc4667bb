"""The parts of a `Network` that its model and problem read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ...contract.personal import Patterns

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, y) -> the mean loss of the batch, a 0-d tensor; or the loss of each row, a tensor [b, ...]."""

Transform = Callable[[Any, torch.Generator], Any]
"""(rows, a random stream) -> rows of a batch for training, such as `medley.datasets.augment.flip`.

Rows are a tensor [b, ...]; of several inputs a dict or a tuple of such.
"""


@runtime_checkable
class NetworkSpec(Protocol):
    """A module, its loss and its starting point; see `Network`."""

    @property
    def module(self) -> nn.Module:
        """The module as the user gave it."""

    @property
    def loss(self) -> Literal["cross_entropy", "mse"] | Loss:
        """A name, or the user's own function."""

    @property
    def class_weights(self) -> Sequence[float] | None:
        """A factor of the loss for each class; None for 1 each."""

    @property
    def ignore_index(self) -> int:
        """The target of cross-entropy that has no loss, as in padding."""

    @property
    def shared(self) -> Patterns | None:
        """Names of the parameters that clients share; None for all."""

    @property
    def transform(self) -> Transform | None:
        """A change of the rows of every training batch; None for none."""

    @property
    def start(self) -> Literal["draw", "module"] | None:
        """The choice of x₀; None where the user made none, which draws it."""
