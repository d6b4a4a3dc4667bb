"""Messages as bytes: a JSON head, raw tensors, a checksum."""

from __future__ import annotations

import json
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from ..contract import LIMIT, Packed, WireError

_DTYPES = {
    str(t).removeprefix("torch."): t
    for t in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
    )
}


def to_bytes(packed: Packed) -> bytes:
    """One line of JSON with names, dtypes, shapes and scalars, then the tensors' raw bytes (little endian, C order).

    Raises WireError for a dtype that cannot be sent, such as a complex one.
    """
    head: list[list[object]] = []
    body: list[bytes] = []
    for name, value in packed.items():
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous()
            if flat.dtype not in _DTYPES.values():
                raise WireError(f"field {name!r} is a tensor of {flat.dtype}, which cannot be sent; send its parts")
            body.append(flat.reshape(-1).view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
            head.append([name, str(flat.dtype).removeprefix("torch."), list(flat.shape)])
        else:
            head.append([name, value])
    return json.dumps(head).encode() + b"\n" + b"".join(body)


def from_bytes(raw: bytes | bytearray | memoryview) -> Packed:
    """Inverse of `to_bytes`; runs none of the sender's code. Raises WireError for bytes that are not such a message."""
    view = memoryview(raw)
    if len(view) > LIMIT:
        raise WireError(f"{len(view)} bytes arrived; a message has at most {LIMIT}")
    try:
        end = bytes(view[: 1 << 20]).index(b"\n")
        head = json.loads(bytes(view[:end]))
        at = end + 1
        packed = Packed()
        if not isinstance(head, list):
            raise WireError("it does not begin with a list of fields")
        for name, *rest in head:
            if not isinstance(name, str) or name in packed:
                raise WireError(f"field name {name!r} is not a string or comes twice")
            if len(rest) == 1:
                if not isinstance(rest[0], bool | int | float | None):
                    raise WireError(f"field {name!r} is neither a number, a bool nor null")
                packed[name] = rest[0]
                continue
            kind, shape = rest
            packed[name], size = _tensor(name, _DTYPES[kind], shape, view[at:])
            at += size
    except WireError:
        raise
    except (ValueError, KeyError, TypeError, OverflowError, RuntimeError, RecursionError) as e:
        raise WireError(f"not a Medley message: {type(e).__name__}: {e}") from None
    if at != len(view):
        raise WireError(f"{len(view) - at} bytes follow the last field")
    return packed


def _tensor(name: str, dtype: torch.dtype, shape: object, rest: memoryview) -> tuple[Tensor, int]:
    """The tensor at the beginning of ``rest``, and its size in bytes."""
    if not isinstance(shape, list) or not all(type(k) is int for k in shape):
        raise WireError(f"field {name!r} has no shape")
    count = int(np.prod(shape, dtype=object)) if shape else 1
    size = count * dtype.itemsize
    if min(shape, default=0) < 0 or size > len(rest):
        raise WireError(f"field {name!r} announces {size} bytes, but {len(rest)} arrived")
    if not size:
        return torch.empty(shape, dtype=dtype), 0
    # A copy: the tensor must own its memory, and be aligned and writable.
    data = torch.frombuffer(bytearray(rest[:size]), dtype=torch.uint8)
    if dtype is torch.bool and int(data.max()) > 1:
        raise WireError(f"field {name!r} holds bools that are neither 0 nor 1")
    return data.view(dtype).reshape(shape), size


def seal(raw: bytes) -> bytes:
    """``raw`` behind a checksum of 16 bytes, for connections that may damage bytes."""
    return _digest(raw) + raw


def unseal(raw: bytes | bytearray | memoryview) -> memoryview:
    """Inverse of `seal`. Raises WireError for bytes that were damaged."""
    view = memoryview(raw)
    if _digest(view[16:]) != view[:16]:
        raise WireError("the checksum does not match: the message was damaged on its way")
    return view[16:]


def _digest(raw: bytes | memoryview) -> bytes:
    return blake2b(raw, digest_size=16).digest()
