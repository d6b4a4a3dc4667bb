"""Modules whose weights are drawn again from a seed."""

from __future__ import annotations

import copy
import math
from collections import Counter

import torch
from torch import Tensor, nn

UNIFORM = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Layers that draw weights and biases from ±1/√fan-in."""

RECURRENT = (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell)
"""Layers that draw all parameters from ±1/√hidden units."""

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Layers that start with weights of 1 and biases of 0."""


def redrawn(module: nn.Module, seed: int = 0, *, in_place: bool = False) -> nn.Module:
    """A copy of ``module`` on the CPU, with parameters drawn from ``seed`` by the layers' own ``reset_parameters``.

    With ``in_place`` it is the module itself. Parameters that no layer resets, and all buffers, stay as they are.
    Torch's global CPU stream is left unchanged.
    """
    buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
    fresh = module if in_place else copy.deepcopy(module).cpu()
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would seed the accelerators too.
        torch.default_generator.manual_seed(seed)
        for m in fresh.modules():
            reset = getattr(m, "reset_parameters", None)
            if callable(reset):
                reset()
    with torch.no_grad():
        for name, b in fresh.named_buffers():
            b.copy_(buffers[name])
    return fresh


def undrawn(module: nn.Module) -> str | None:
    """The name of a trainable parameter whose values its layer's ``reset_parameters`` never gives; None if none.

    Subclasses, other layers, and parameters used in several places are not judged.
    """
    places = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    for path, m in module.named_modules():
        for name, p in m.named_parameters(recurse=False):
            if p.requires_grad and p.numel() and places[id(p)] == 1 and not _has_drawn(m, name, p.detach()):
                return f"{path}.{name}".lstrip(".")
    return None


def _has_drawn(layer: nn.Module, name: str, p: Tensor) -> bool:
    if type(layer) in NORMS:
        return bool((p == (name == "weight")).all())
    if type(layer) in UNIFORM and isinstance(layer.weight, nn.Parameter):
        inputs = layer.weight[0].numel()
    elif type(layer) in RECURRENT:
        inputs = int(layer.hidden_size)  # type: ignore[arg-type]
    else:
        return True
    largest = float(torch.linalg.vector_norm(p, math.inf))
    return largest <= 1.01 / math.sqrt(inputs)  # one per cent for float16's rounding
