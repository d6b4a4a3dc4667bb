"""Files that appear whole or not at all."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import MedleyError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``; on success it is synced to disk and renamed over it, else removed.

    Raises MedleyError when it cannot be written (a full disk, no permission); what was there before is untouched.
    """
    tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield tmp
        with tmp.open("rb+") as f:
            os.fsync(f.fileno())
        tmp.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except Exception as e:
        # safetensors reports a full disk with an error of its own, so not OSError alone.
        if isinstance(e, MedleyError):
            raise
        raise MedleyError(
            f"cannot write {path}: {e}; what was there before is untouched. Make room or choose another folder, then "
            "run again with resume="
        ) from e
    finally:
        tmp.unlink(missing_ok=True)


def number(text: str) -> float:
    """An int where the text is one, else a float."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def plain(value: Any) -> Any:
    """A JSON value for what JSON doesn't know: dataclasses, tensors, arrays, paths, functions."""
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
    return getattr(value, "__name__", None) or lasting(str(value))


def lasting(text: str) -> str:
    """A repr without memory addresses, so that it says the same in the next process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
