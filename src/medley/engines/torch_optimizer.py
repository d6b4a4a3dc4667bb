"""PyTorch's optimizers on a client's parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..contract import Client, OptimizerFactory, RecipeError, Vec


class TorchOptimizer:
    """One descent's optimizer, on the parameters as the network has them, or on x as a whole.

    Args:
        me: the client, whose kept state is restored
        w: the point [d], which steps change in place
    """

    def __init__(self, make: OptimizerFactory, me: Client[Any], w: Vec) -> None:
        shapes = getattr(me.problem, "shapes", None)
        self.shapes = [w.shape] if shapes is None else shapes
        self.params = [nn.Parameter(v) for v in self.views(w)]
        self.optimizers = built(make, self.params, me.pace.lr)
        self.phase = f"{me.phase}/" if me.phase else ""
        saved = me.optimizer_state or {}
        """Each phase of a client's work has its own state."""
        self.others = {place: v for place, v in saved.items() if place.rpartition("/")[0] != me.phase}
        for place, value in saved.items():
            if place in self.others:
                continue
            number, _, name = place.rpartition("/")[2].partition(".")
            entry = copied(value)
            self.optimizer(self.params[int(number)]).state[self.params[int(number)]][name] = entry

    def optimizer(self, p: nn.Parameter) -> torch.optim.Optimizer:
        """The optimizer of this parameter."""
        return next(o for o in self.optimizers for group in o.param_groups if any(p is q for q in group["params"]))

    def views(self, v: Vec) -> list[Tensor]:
        """Parts of a vector [d] in the parameters' shapes."""
        sizes = [shape.numel() for shape in self.shapes]
        return [part.view(shape) for part, shape in zip(torch.split(v, sizes), self.shapes, strict=True)]

    def step(self, gradient: Vec, idle: Tensor | None = None) -> None:
        """One step with this gradient [d]; parameters ``idle`` [d] have none, so that torch skips them."""
        skipped = [False] * len(self.params) if idle is None else [bool(v.any()) for v in self.views(idle)]
        for p, g, skip in zip(self.params, self.views(gradient), skipped, strict=True):
            p.grad = None if skip else g
        for optimizer in self.optimizers:
            optimizer.step()

    def state(self) -> dict[str, Any]:
        """Tensors and numbers, by the parameter's number and their name. Raises RecipeError for any other state."""
        out: dict[str, Any] = dict(self.others)
        for number, p in enumerate(self.params):
            optimizer = self.optimizer(p)
            for name, value in optimizer.state.get(p, {}).items():
                if not can_be_saved(value):
                    raise RecipeError(
                        f"Pace(optimizer_state='kept'): {type(optimizer).__name__} has {name!r}, a "
                        f"{type(value).__name__}; Medley can keep only tensors and numbers, so use 'fresh'",
                        "optimizer_state",
                    )
                out[f"{self.phase}{number}.{name}"] = copied(value)
        return out


def can_be_saved(value: object) -> bool:
    """Whether a run folder can hold this value of a client's state."""
    return isinstance(value, Tensor | float | int | str | None)


def copied(value: Any) -> Any:
    """A value of a client's state; a tensor with a memory of its own."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def built(make: OptimizerFactory, params: list[nn.Parameter], lr: float) -> list[torch.optim.Optimizer]:
    """The optimizers of these parameters: the factory's, and AdamW in addition to Muon, which takes only matrices.

    Raises RecipeError for Muon without a matrix, and if one learning rate does not suit both.
    """
    rest = [p for p in params if p.ndim != 2]
    keywords = getattr(make, "keywords", {})
    if not rest or getattr(make, "func", make) is not getattr(torch.optim, "Muon", None):
        return [make(params, lr=lr)]
    if len(rest) == len(params):
        raise RecipeError("Pace(optimizer=Muon): it takes only matrices, but this model has none", "optimizer")
    if keywords.get("adjust_lr_fn") != "match_rms_adamw":
        raise RecipeError(
            f"Pace(optimizer=Muon): it takes only matrices, but this model has a parameter {list(rest[0].shape)}; use "
            "functools.partial(torch.optim.Muon, adjust_lr_fn='match_rms_adamw'): AdamW then trains the others, at the "
            "same learning rate",
            "optimizer",
        )
    others = torch.optim.AdamW(rest, lr=lr, weight_decay=keywords.get("weight_decay", 0.1))
    return [make([p for p in params if p.ndim == 2], lr=lr), others]
