"""What happens to a message between two machines: re-encoding, bytes, and the meter."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from .errors import RecipeError, WireError
from .message import LIMIT, Packed


@runtime_checkable
class Codec(Protocol):
    """A re-encoding of packed messages that both ends hold alike."""

    def encode(self, packed: Packed) -> Packed:
        """What travels."""
        ...

    def decode(self, packed: Packed, dtype: torch.dtype) -> Packed:
        """What the receiver works with, floats in ``dtype``."""
        ...


@dataclass(frozen=True)
class Plain:
    """Messages travel as they are."""

    def encode(self, packed: Packed) -> Packed:
        """The same."""
        return packed

    def decode(self, packed: Packed, dtype: torch.dtype) -> Packed:
        """The same."""
        return packed


@dataclass(frozen=True)
class Cast:
    """Floating-point tensors travel in a narrower type: "float16", "bfloat16" or "float32"."""

    dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.dtype not in ("float16", "bfloat16", "float32"):
            raise RecipeError(f"Cast(dtype={self.dtype!r}): choose float16, bfloat16 or float32", "dtype")

    def encode(self, packed: Packed) -> Packed:
        """Floats narrowed."""
        narrow: torch.dtype = getattr(torch, self.dtype)
        return {k: v.to(narrow) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in packed.items()}

    def decode(self, packed: Packed, dtype: torch.dtype) -> Packed:
        """Floats back in ``dtype``."""
        return {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in packed.items()}


_DTYPES = {
    str(t).removeprefix("torch."): t
    for t in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
    )
}


def to_bytes(packed: Packed) -> bytes:
    """A JSON line that says what follows, then the tensors' raw bytes (little endian, C order)."""
    head: list[list[object]] = []
    body: list[bytes] = []
    for name, value in packed.items():
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous()
            if flat.dtype not in _DTYPES.values():
                raise WireError(f"field {name!r} is a tensor of {flat.dtype}, which cannot travel; send its parts")
            body.append(flat.reshape(-1).view(torch.uint8).numpy().tobytes())
            head.append([name, str(flat.dtype).removeprefix("torch."), list(flat.shape)])
        else:
            head.append([name, value])
    return json.dumps(head).encode() + b"\n" + b"".join(body)


def from_bytes(raw: bytes | bytearray | memoryview) -> Packed:
    """Inverse of `to_bytes`; runs nobody's code. Raises WireError for bytes that are not such a message."""
    view = memoryview(raw)
    if len(view) > LIMIT:
        raise WireError(f"{len(view)} bytes came; a message has at most {LIMIT}")
    try:
        end = bytes(view[: 1 << 20]).index(b"\n")
        head = json.loads(bytes(view[:end]))
        at, packed = end + 1, Packed()
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
            dtype = _DTYPES[kind]
            if not isinstance(shape, list) or not all(type(k) is int for k in shape):
                raise WireError(f"field {name!r} has no shape")
            count = int(np.prod(shape, dtype=object)) if shape else 1
            size = count * dtype.itemsize
            if min(shape, default=0) < 0 or at + size > len(view):
                raise WireError(f"field {name!r} announces {size} bytes, {len(view) - at} came")
            # A copy: the tensor must own its memory, and be aligned and writable.
            data = torch.frombuffer(bytearray(view[at : at + size]), dtype=torch.uint8) if size else torch.empty(0)
            if size and dtype is torch.bool and int(data.max()) > 1:
                raise WireError(f"field {name!r} holds bools that are neither 0 nor 1")
            packed[name] = data.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
            at += size
    except WireError:
        raise
    except (ValueError, KeyError, TypeError, OverflowError, RuntimeError, RecursionError) as e:
        raise WireError(f"not a message of ours: {type(e).__name__}: {e}") from None
    if at != len(view):
        raise WireError(f"{len(view) - at} bytes follow the last field")
    return packed


def seal(raw: bytes) -> bytes:
    """The same behind a checksum of 16 bytes, for links that may damage what they carry."""
    return _digest(raw) + raw


def unseal(raw: bytes | bytearray | memoryview) -> memoryview:
    """Inverse of `seal`. Raises WireError for bytes that are not those that were sealed."""
    view = memoryview(raw)
    if _digest(view[16:]) != view[:16]:
        raise WireError("the checksum does not fit: the message was damaged on its way")
    return view[16:]


def _digest(raw: bytes | memoryview) -> bytes:
    return blake2b(raw, digest_size=16).digest()


class Entry(NamedTuple):
    """One delivery: which client, in which exchange of which round, and the payload bytes each way.

    ``up`` is 0 where no reply came back. ``overhead`` is the transport's framing, both ways.
    """

    round: int
    exchange: int
    method: str
    client: int
    down: int
    up: int
    overhead: int = 0


@dataclass
class Ledger:
    """Every delivery of a run, in order of round, exchange and client; iterate over it to read them."""

    entries: list[Entry] = field(default_factory=list)
    exchanges: int = 0
    down: int = 0
    up: int = 0
    size: int = 0
    """How many of ``entries`` are this ledger's; a fork that was given up may have left more."""

    @classmethod
    def of(cls, entries: list[Entry]) -> Ledger:
        """A ledger of these entries."""
        exchanges = len({(e.round, e.exchange) for e in entries})
        return cls(entries, exchanges, sum(e.down for e in entries), sum(e.up for e in entries), len(entries))

    def fork(self) -> Ledger:
        """A ledger that goes on from here on the same list: of the two, only one may be added to."""
        return Ledger(self.entries, self.exchanges, self.down, self.up, self.size)

    def add(self, entries: list[Entry]) -> None:
        """Book one exchange."""
        del self.entries[self.size :]
        self.entries += entries
        self.size += len(entries)
        self.exchanges += bool(entries)
        self.down += sum(e.down for e in entries)
        self.up += sum(e.up for e in entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries[: self.size])

    def __len__(self) -> int:
        return self.size

    def save(self, path: Path) -> None:
        """A CSV file with one row a delivery."""
        with path.open("w", newline="") as f:
            w = csv.writer(f)
            w.writerow(Entry._fields)
            w.writerows(self)

    @classmethod
    def load(cls, path: Path) -> Ledger:
        """Inverse of `save`. Raises WireError for a damaged file."""
        try:
            with path.open(newline="") as f:
                rows = csv.reader(f)
                if tuple(next(rows)) != Entry._fields:
                    raise ValueError("other columns")
                entries = [Entry(int(a), int(b), c, *map(int, rest)) for a, b, c, *rest in rows]
        except (OSError, ValueError, TypeError, StopIteration, csv.Error) as e:
            raise WireError(f"{path} is not a ledger: {e}") from None
        return cls.of(entries)
