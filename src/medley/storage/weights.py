"""Weights from a result, a module, a state dict or a file, for a run's ``init``."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..contract.errors import MedleyError, RecipeError
from .result import Result

Start = Result | nn.Module | Mapping[str, Tensor] | Tensor | np.ndarray | Sequence[float] | str | Path
"""Weights to begin with: a result, a module, a state dict, a vector [d], a file, or the folder of a run."""

Weights = Tensor | dict[str, Tensor]
"""A vector [d], a state dict, or a result's ``x``, ``floats`` and ``ints``."""


def weights_of(init: Any) -> Weights | None:
    """The tensors of ``init``; None for None.

    Raises RecipeError if it holds no tensors of real numbers, or if its file cannot be read.
    """
    tensors = None if init is None else _tensors(init)
    for t in tensors.values() if isinstance(tensors, dict) else [] if tensors is None else [tensors]:
        if t.is_meta or t.is_complex():
            why = "has no values, on the device 'meta'" if t.is_meta else "is complex"
            raise RecipeError(f"run(init=...): a tensor {list(t.shape)} {why}; give real numbers", "init")
    return tensors


def _tensors(init: Any) -> Weights:
    if isinstance(init, Tensor):
        return init
    if isinstance(init, str | Path):
        return _tensors(_read(Path(init)))
    if isinstance(init, Result):
        buffers = {} if init.buffers is None else dict(zip(("floats", "ints"), init.buffers, strict=True))
        return {"x": init.x, **buffers}
    if isinstance(init, nn.Module):
        return dict(init.state_dict())
    if _is_state(init):
        return dict(init)
    if isinstance(init, Mapping) and (key := next((k for k, v in init.items() if _is_state(v)), None)) is not None:
        raise RecipeError(
            f"run(init=...): a {type(init).__name__} with the keys {', '.join(map(repr, init))} is not a "
            f"state_dict; pass the one in it, torch.load(path)[{key!r}], and remove the prefix that a wrapper "
            "added to its names",
            "init",
        )
    try:
        return torch.as_tensor(init)
    except (TypeError, ValueError, RuntimeError) as e:
        raise RecipeError(
            f"run(init=...): a {type(init).__name__} cannot be made a tensor: {e}; pass a Result, a state_dict, a "
            "module, a file, or a vector [d]",
            "init",
        ) from None


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(t, Tensor) for t in value.values())


def _read(path: Path) -> Any:
    """A result's folder, a safetensors file, or a state dict that ``torch.save`` wrote."""
    try:
        if path.is_dir():
            return Result.load(path)
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError, MedleyError) as e:
        raise RecipeError(
            f"run(init={str(path)!r}): no weights can be read there: {e}; pass a safetensors file, a state_dict from "
            "torch.save, or a run's folder",
            "init",
        ) from None
