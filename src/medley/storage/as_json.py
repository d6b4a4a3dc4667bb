"""Plain values: settings and figures as JSON can hold them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def plain(value: Any) -> Any:
    """Turn an object that JSON cannot hold into a JSON value; pass it as ``default=`` to `json.dumps`.

    A dataclass becomes ``{"its class": {its fields}}``, a set a sorted list. A tensor or an array of up to 64 numbers
    becomes a list, a larger one its shape. A function or a class becomes its name, any other object its repr.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.repr}
        return {type(value).__name__: fields}
    if isinstance(value, torch.Tensor):
        return value.tolist() if value.numel() <= 64 else f"tensor{list(value.shape)}"
    if isinstance(value, np.ndarray):
        return value.tolist() if value.size <= 64 else f"array{list(value.shape)}"
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return getattr(value, "__name__", None) or without_addresses(str(value))


def is_secret(seed: int, settings: Mapping[str, Any]) -> bool:
    """Whether a run's noise protects clients, or its seed is too long for a person to have chosen it.

    With the seed of a private run anyone can subtract the noise.
    """
    return seed >> 64 > 0 or any(".private." in key for key in settings)


def shown_seed(seed: int, settings: Mapping[str, Any]) -> str:
    """A run's seed for readers; "hidden" if `is_secret` is True."""
    return "hidden" if is_secret(seed, settings) else str(seed)


def without_addresses(text: str) -> str:
    """A repr without memory addresses: it reads the same in the next process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
