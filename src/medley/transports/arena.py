"""Memory that two processes share, for tensors that pass between them."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..contract import pytree
from ..runtime.tricks import ALIGNED


class Arena:
    """Shared memory that grows as needed: one process writes a pytree, the other reads it in place."""

    def __init__(self) -> None:
        # Neither kind of file has a name, so none can be left behind, whichever process is killed.
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("medley")
        else:
            with tempfile.TemporaryFile() as f:
                self.fd = os.dup(f.fileno())
        self.map: mmap.mmap | None = None

    def write(self, value: Any) -> dict[str, Any]:
        """Copy the tensors of the pytree ``value`` into the memory, over the last value.

        Returns JSON values for `read`: the pytree without its tensors, and the places of the tensors.
        """
        tensors = [t.detach() for _, t in pytree.tensors(value)]
        places: list[tuple[str, list[int], int]] = []
        size = 0
        for t in tensors:
            places.append((str(t.dtype).removeprefix("torch."), list(t.shape), size))
            size += -(-t.numel() * t.element_size() // ALIGNED) * ALIGNED
        if size > (0 if self.map is None else len(self.map)):
            os.ftruncate(self.fd, 1 << (size - 1).bit_length())
        for place, t in zip(places, tensors, strict=True):
            self._view(size, *place).copy_(t)
        # pack copies tensors, and numbers them in the order of pytree.tensors.
        hollow = pytree.map_tensors(value, lambda t: t.new_empty([0] * t.ndim))
        return {"tree": pytree.pack(hollow, {}), "places": places, "size": size}

    def read(self, layout: Mapping[str, Any], classes: Mapping[str, type]) -> Any:
        """The pytree for which `write` returned this layout. Its tensors are views, valid until the next `write`."""
        size = layout["size"]
        views = {f"t{k}": self._view(size, *place) for k, place in enumerate(layout["places"])}
        return pytree.unpack(layout["tree"], views, classes)

    def _view(self, size: int, dtype: str, shape: list[int], at: int) -> Tensor:
        kind: torch.dtype = getattr(torch, dtype)
        if 0 in shape:
            return torch.empty(shape, dtype=kind)
        if self.map is None or len(self.map) < size:
            # The old map goes when the last view of it goes.
            self.map = mmap.mmap(self.fd, 0)
        return torch.frombuffer(self.map, dtype=kind, count=math.prod(shape), offset=at).view(shape)

    def close(self) -> None:
        """Release the memory."""
        self.map = None
        os.close(self.fd)
