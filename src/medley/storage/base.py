"""The base of a network with adapters: frozen parameters that clients, workers and results share.

A folder refers to the base by a name and a digest of its numbers, and stores only what was trained.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from ..contract.errors import WireError
from .formats import checksum

BASE = "_base_of_medley"
"""The attribute of a run's module with the name of its base."""

STILL = "_still_in_medley"
"""The attribute of a run's module with the buffers that training does not change."""

LAYERS = ("torch.nn.modules.", "medley.models.", "medley.problems.linear.layer.", "medley.problems.trees.layer.")
"""The modules whose public classes a folder may name."""


def base_name(module: nn.Module) -> str | None:
    """The name of a module's base: as `Network(base=...)` gave it, or peft's; None if a folder holds all numbers."""
    declared = vars(module).get(BASE)
    if declared is not None:
        return str(declared)
    configs = getattr(module, "peft_config", None)
    if not isinstance(configs, Mapping) or not configs:
        return None
    config: Any = next(iter(configs.values()))
    inner: Any = getattr(module, "get_base_model", None)
    base = inner() if callable(inner) else module
    return str(getattr(config, "base_model_name_or_path", None) or type(base).__name__)


def still_buffers(module: nn.Module) -> frozenset[str]:
    """Names of the buffers that training did not change; a result's ``buffers`` leaves them out."""
    return frozenset(vars(module).get(STILL, ()))


def frozen(module: nn.Module) -> dict[str, Tensor]:
    """The frozen parameters by name."""
    return {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}


def digest(module: nn.Module, still: Collection[str]) -> str:
    """The digest of a module's base: names, dtypes, shapes and numbers of its frozen parameters and still buffers.

    Buffers that a state_dict leaves out do not count: the module computes them.
    """
    tensors = frozen(module)
    for name, b in module.named_buffers():
        path, _, leaf = name.rpartition(".")
        if name in still and leaf not in module.get_submodule(path)._non_persistent_buffers_set:
            tensors[name] = b.detach()
    return checksum({}, {name: t.cpu().contiguous() for name, t in tensors.items()})


def refuse_other(module: nn.Module, recorded: Mapping[str, str], still: Collection[str]) -> None:
    """Raise WireError unless a module's base has this name and digest."""
    computed = digest(module, still)
    if computed != recorded["digest"]:
        raise WireError(
            f"the result's adapter belongs to the base {recorded['name']} with the digest {recorded['digest'][:12]}, "
            f"and this module's has {computed[:12]}: load the same weights, in the same dtype, into the module first"
        )


def is_low(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether a run keeps a 16-bit base: everything trained must have the run's dtype, or float32, already."""
    trained = {p.dtype for p in module.parameters() if p.requires_grad}
    low = any(t.is_floating_point() and t.itemsize < 4 for t in frozen(module).values())
    return low and trained <= {dtype, torch.float32}


def shared_copy(module: nn.Module) -> nn.Module:
    """A copy of a module that shares its frozen parameters."""
    return copy.deepcopy(module, {id(p): p for p in module.parameters() if not p.requires_grad})


def separate_copy(module: nn.Module | None) -> nn.Module | None:
    """A copy whose trained parameters each have their own memory, as weight files need; other tensors are shared.

    A module that cannot be copied, such as one that keeps its last outputs, stays as it is.
    """
    with suppress(Exception):
        return None if module is None else shared_copy(module)
    return module


def placed(
    module: nn.Module,
    dtype: torch.dtype,
    device: str | torch.device = "cpu",
    copies: Mapping[int, nn.Parameter] | None = None,
) -> nn.Module:
    """A copy of a module in this dtype and on this device; frozen parameters that are already there are shared.

    ``copies`` has parameters to use as copies, by the id of the module's.

    A 16-bit base stays 16-bit, see `is_low`, and whole numbers stay whole.
    """
    low = is_low(module, dtype)

    def at(t: Tensor) -> Tensor:
        stays = not t.is_floating_point() or (low and t.itemsize < 4)
        return t.to(device=device, dtype=t.dtype if stays else dtype)

    memo: dict[int, Any] = {}
    for p in module.parameters():
        if not p.requires_grad:
            moved = at(p.detach())
            same = moved.data_ptr() == p.data_ptr() and moved.dtype == p.dtype
            memo[id(p)] = p if same else nn.Parameter(moved, requires_grad=False)
    given: dict[int, Any] = dict(copies or {})
    if not memo:
        return copy.deepcopy(module, given).to(device=device, dtype=dtype)
    out = copy.deepcopy(module, memo | given)
    for m in out.modules():
        for parameter in m._parameters.values():
            if parameter is not None and parameter.requires_grad:
                parameter.data = at(parameter.data)
        for name, b in m._buffers.items():
            m._buffers[name] = None if b is None else at(b)
    return out
