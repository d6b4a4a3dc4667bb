"""Checksums of tensors and texts in files: they detect damage that leaves a file readable."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import torch
from torch import Tensor

from ..contract.errors import WireError
from ..numerics.paged import put_back


def checksum(texts: Mapping[str, str], store: Mapping[str, Tensor]) -> str:
    """The checksum of texts and tensors with their names."""
    h = blake2b(digest_size=16)
    for key in sorted(texts):
        h.update(f"{key}={texts[key]}\n".encode())
    for name in sorted(store):
        h.update(f"{name} {store[name].dtype} {list(store[name].shape)}\n".encode())
        h.update(store[name].reshape(-1).view(torch.uint8).numpy().data if store[name].numel() else b"")
        put_back(store[name])
    return h.hexdigest()


def refuse_damage(where: object, recorded: str | None, computed: str) -> None:
    """Raise WireError if a file's checksum does not match. Earlier versions' files have none: ``recorded`` is None."""
    if recorded not in (None, computed):
        raise WireError(f"{where} is damaged: its checksum does not match; take an earlier copy, or run it again")
