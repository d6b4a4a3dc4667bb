"""The steps of a secure sum over messages: their names, the sizes of what travels, and the form of a masked reply."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal

import torch
from torch import Tensor

from ...contract import Packed
from ...wire.exchange import Exchange
from .checked_json import Count, Line, checked, wrong

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

Kind = Literal[
    "none", "int", "float", "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64"
]
"""The type of a field of a reply: of a tensor, or one of `ZEROS`."""

DIMENSIONS = 64
"""The most axes of a tensor in a reply; NumPy has no more."""

ZEROS: dict[str, Any] = {"none": None, "int": 0, "float": 0.0}
"""The fields of a reply that are no tensors, by kind."""


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


def blank(who: str, answer: Mapping[str, Any], most: int) -> Packed:
    """A reply with these fields in which every number is 0.

    Args:
        who: the client and its answer, for errors
        answer: the answer, with ``fields`` as `form` has them
        most: the largest number of entries of all fields together

    Raises WireError for invalid fields, and for too many entries.
    """
    expected = f"a list of different [name, type, shape], of {most} entries at most"
    fields = checked(who, answer, "fields", list[tuple[Line, Kind, list[Count]]], most, expected)
    fit = len({name for name, *_ in fields}) == len(fields) <= 1000
    fit = fit and all(len(shape) <= (0 if kind in ZEROS else DIMENSIONS) for _, kind, shape in fields)
    if not fit or sum(math.prod(shape) for _, kind, shape in fields if kind not in ZEROS) > most:
        raise wrong(who, answer, "fields", expected)
    return {
        name: ZEROS[kind] if kind in ZEROS else torch.zeros(shape, dtype=getattr(torch, kind))
        for name, kind, shape in fields
    }
