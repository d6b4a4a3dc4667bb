"""The steps of a secure sum over messages: their names, the sizes of what travels, and the form of a masked reply."""

from __future__ import annotations

import json
import math
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from ...contract import Packed
from ...wire.exchange import Exchange
from .checked_json import Words

STEPS = ("secure_keys", "secure_shares", "secure_reply", "secure_opening")
"""Message types of the four steps, in their order."""

KEYS = 64
"""Bytes of a client's two public keys."""

SIZE = 96
"""Bytes of the signature of the keys, which is two numbers of 384 bits."""

SHARE = 16
"""Bytes of a share."""

SEALED = 48
"""Bytes of two shares as one client seals them for another."""

KINDS = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64")
"""Types of the tensors in a reply."""

ZEROS: dict[str, Any] = {"none": None, "int": 0, "float": 0.0}
"""The other fields of a reply, by kind."""


def session_name(exchange: Exchange, run: str, nonce: str, common: bytes, agreed: Any) -> bytes:
    """The name of a secure sum. It contains a digest of everything that must be the same for every client.

    Clients agree on masks under this name. If the server sends a client another model, other weights or other settings,
    its masks differ, and the sum does not open.

    Args:
        nonce: makes the name different each time
        common: the bytes that go to all clients
        agreed: plain values that all clients have: the terms of the run, and the server's values for every client
    """
    digest = blake2b(common + json.dumps(agreed, sort_keys=True).encode(), digest_size=16).hexdigest()
    return f"{run} {exchange.round} {exchange.number} {exchange.method} {nonce} {digest}".encode()


def form(packed: Packed) -> list[list[Any]]:
    """The fields of a reply: name, type, shape. They are sent with a masked reply."""
    return [
        [name, str(v.dtype).removeprefix("torch."), list(v.shape)]
        if isinstance(v, Tensor)
        else [name, "none" if v is None else type(v).__name__, []]
        for name, v in packed.items()
    ]


def blank(words: Words, most: int) -> Packed:
    """A reply with these fields in which every number is 0.

    Args:
        words: the client's words, with ``fields`` as `form` has them
        most: the largest number of entries

    Raises WireError for invalid fields, and for too many entries.
    """
    out: Packed = {}
    for entry in words.entries("fields", 0, 1000):
        match entry:
            case [str(name), str(kind), []] if name not in out and kind in ZEROS:
                out[name] = ZEROS[kind]
            case [str(name), str(kind), list(shape)] if name not in out and kind in KINDS:
                if not all(type(k) is int and 0 <= k <= most for k in shape) or math.prod(shape) > most:
                    words.refuse("fields", f"of {most} entries at most")
                out[name] = torch.zeros(shape, dtype=getattr(torch, kind))
            case _:
                words.refuse("fields", "a list of [name, type, shape]")
    return out
