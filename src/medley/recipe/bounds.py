"""Bounds on what a recipe builds, checked before the memory is allocated."""

from __future__ import annotations

import math
from typing import Any

from ..contract import LIMIT, RecipeError
from ..runtime.operations import OperationMode

NUMBERS = LIMIT // 4
"""The most numbers in a network: as many as one message carries in float32."""

TENSORS = 10_000
"""The most tensors in a network."""


class Bounded(OperationMode):  # type: ignore[no-untyped-call]
    """Within it, RecipeError is raised before torch makes a tensor that would push the total beyond the bounds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = self.tensors = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        shape = args[0] if args else ()
        if isinstance(shape, list | tuple) and all(isinstance(k, int) for k in shape):
            self.numbers += math.prod(shape)
            self.tensors += 1
            if self.numbers > NUMBERS or self.tensors > TENSORS:
                raise RecipeError(
                    f"this network is too large to send: with a tensor of shape {'×'.join(map(str, shape))} it passes "
                    f"the limit of {NUMBERS} numbers in {TENSORS} tensors. Choose smaller sizes"
                )
        return func(*args, **(kwargs or {}))
