"""A client's local training budget in one round. The scenario sets it; methods read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch

OptimizerFactory = Callable[..., torch.optim.Optimizer]
"""(parameters, lr=...) -> an optimizer: a class of torch.optim, or a ``functools.partial`` of one."""

Optimizer = Literal["sgd", "adam"] | Annotated[OptimizerFactory, "torch.optim.AdamW"]

OptimizerState = Mapping[str, Any]
"""An optimizer's state between two rounds: tensors and numbers, by the parameter's index and by name."""


@dataclass(frozen=True)
class Pace:
    """One client's local training budget in one round.

    Attributes:
        lr: learning rate; default 0.1
        epochs: passes over its rows; default 1
        steps: mini-batch steps, instead of ``epochs``; default None: use ``epochs``
        batch: rows of a mini-batch; default 32, None for all rows
        momentum: ρ of SGD; default 0
        weight_decay: λ of a term λx in the local gradient; default 0
        clip: bound on the norm of the local gradient; default None: no bound
        optimizer: "sgd" (default), "adam", or a factory (parameters, lr=...) -> torch.optim.Optimizer
        optimizer_state: "fresh" (default) in every round, or "kept": a factory's optimizer continues with the client's
            own state
        drop_last: whether to skip the last batch of a pass if it is smaller than the others; default False
        pairs: number of eigenpairs that its connection can carry; default 1. Only SHED uses it
    """

    lr: float = 0.1
    epochs: int = 1
    steps: int | None = None
    batch: int | None = 32
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    optimizer: Optimizer = "sgd"
    optimizer_state: Literal["fresh", "kept"] = field(default="fresh", kw_only=True)
    drop_last: bool = field(default=False, kw_only=True)
    pairs: int = 1
