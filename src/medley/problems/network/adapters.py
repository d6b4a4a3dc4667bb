"""Low-rank adapters of a network: where their factors lie in x; and f_i as a function of scattered coordinates of x."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from ...contract import LocalLoss, Objective, Rows, Vec
from ...contract.adapters import Adapter
from ...runtime.forwarded import forwarded


def adapters(module: nn.Module) -> tuple[Adapter, ...]:
    """The adapters of a module whose trainable parameters are views of one vector; none unless all have this form.

    A layer with an adapter has ``lora_A`` and ``lora_B``, like peft's, each of them a layer with a matrix or a dict
    with one such layer; its original layer ``base_layer``; and a number ``scaling``, by default 1.
    """
    out = []
    for m in module.modules():
        layer = getattr(m, "lora_A", None)
        if layer is None or (isinstance(layer, nn.ModuleDict) and not layer):  # peft's embeddings have an empty one
            continue
        A, B, W = (_weight(getattr(m, name, None)) for name in ("lora_A", "lora_B", "base_layer"))
        if A is None or B is None or W is None or any(getattr(m, "use_dora", {}).values()):
            return ()
        uses = 0
        for other in module.modules():
            uses += sum(p is W for p in other._parameters.values())
        if uses > 1:
            return ()  # a residual of this layer would change the others that share its weights
        across = bool(getattr(m, "fan_in_fan_out", False))
        rows, r = B.shape
        columns = A.shape[1]
        if W.shape != ((columns, rows) if across else (rows, columns)):
            return ()
        places = (int(p.storage_offset()) for p in (A, B, W))
        scale = _one(getattr(m, "scaling", 1.0))
        out.append(Adapter._make((*places, rows, r, columns, int(across), float(scale))))
    return tuple(out)


def _one(value: Any) -> Any:
    """``value`` itself, or the only value in a dict; None if a dict has several."""
    if isinstance(value, Mapping | nn.ModuleDict):
        return next(iter(value.values())) if len(value) == 1 else None
    return value


def _weight(layer: Any) -> Tensor | None:
    """The trainable matrix of a layer, or of the only layer in a dict; None if there is no such matrix."""
    weight = getattr(_one(layer), "weight", None)
    return weight if isinstance(weight, nn.Parameter) and weight.requires_grad and weight.ndim == 2 else None


@dataclass
class SomeObjective:
    """f_i as a function of the coordinates ``free`` of x; the others stay at ``x``. For `Seq`'s descents.

    Attributes:
        shapes: the shape of each parameter's free part
        fixed: parameters without a free coordinate, which take no part in a backward pass
    """

    of: Objective
    x: Vec
    free: Bool[Tensor, " d"]
    shapes: list[torch.Size]
    fixed: list[nn.Parameter]
    n, y, work, rng, transform = forwarded("of", "n", "y", "work", "rng", "transform")

    @property
    def d(self) -> int:
        """The number of free coordinates."""
        return sum(shape.numel() for shape in self.shapes)

    def grad(self, v: Vec, rows: Rows = None, loss: LocalLoss | None = None, *, copy: bool = True) -> Vec:
        """∇f_i on these rows, by the free coordinates."""
        del copy  # a selection is a copy
        for p in self.fixed:
            p.requires_grad_(False)
        try:
            return self.of.grad(self.x.masked_scatter(self.free, v), rows, loss, copy=False)[self.free]
        finally:
            for p in self.fixed:
                p.requires_grad_(True)

    def workspace(self, v: Vec) -> Vec:
        """A copy of v."""
        return v.clone()

    def take(self, order: Tensor) -> SomeObjective:
        """The same objective with its rows in this order."""
        return replace(self, of=self.of.take(order))


Objective.register(SomeObjective)  # in a descent alone, which takes gradients and rows
