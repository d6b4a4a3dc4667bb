"""What happens to a message between two machines: re-encoding, bytes, and the meter."""

from __future__ import annotations

import copy
import csv
import itertools
import json
import math
import operator
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from .errors import RecipeError, WireError
from .message import LIMIT, Packed

Kept = Mapping[str, Tensor]
"""What an `Uplink` builds on, by field."""


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


@runtime_checkable
class Uplink(Protocol):
    """A re-encoding of replies alone, which may build on the earlier replies of the same client to the same method.

    ``kept`` is what it builds on, tensors by field, nothing at first. It changes as a client's memory does: when the
    reply it belongs to has arrived. So both ends hold the same, whatever is lost or asked twice.
    """

    @property
    def remembers(self) -> bool:
        """Whether anything is kept at all."""
        ...

    def encode(self, packed: Packed, kept: Kept, rng: Callable[[], torch.Generator]) -> Packed:
        """What travels."""
        ...

    def decode(self, encoded: Packed, kept: Kept, dtype: torch.dtype) -> Packed:
        """What the server works with, floats in ``dtype``."""
        ...

    def keep(self, packed: Packed, decoded: Packed, kept: Kept) -> Kept:
        """What the next reply builds on."""
        ...


@dataclass(frozen=True)
class BothWays:
    """A `Codec` on the way up."""

    codec: Codec
    remembers: ClassVar[bool] = False

    def encode(self, packed: Packed, kept: Kept, rng: Callable[[], torch.Generator]) -> Packed:
        """As the codec does."""
        return self.codec.encode(packed)

    def decode(self, encoded: Packed, kept: Kept, dtype: torch.dtype) -> Packed:
        """As the codec does."""
        return self.codec.decode(encoded, dtype)

    def keep(self, packed: Packed, decoded: Packed, kept: Kept) -> Kept:
        """Nothing."""
        return {}


@dataclass(frozen=True)
class Quantise:
    """Replies' float tensors travel as integers of ``bits`` bits (2 to 8; a byte each), with one scale a row.

    The levels are max|v|/(2^(bits−1) − 1) apart, by row; ``rounding`` is "nearest", or "stochastic", which is right in
    the mean and draws from a stream of the client, round and exchange. With ``feedback`` a client adds to its next
    reply what rounding took from this one: where the server adds up changes, as SCAFFOLD does with c, their sum is
    then off by the last remainder alone, and without it drifts from what the clients hold.
    """

    bits: int = 8
    rounding: Literal["nearest", "stochastic"] = "nearest"
    feedback: bool = False

    @property
    def remembers(self) -> bool:
        """What rounding took."""
        return self.feedback

    def __post_init__(self) -> None:
        if self.bits not in range(2, 9):
            raise RecipeError(f"Quantise(bits={self.bits!r}): must be a whole number from 2 to 8", "bits")
        if self.rounding not in ("nearest", "stochastic"):
            raise RecipeError.unknown(str(self.rounding), ("nearest", "stochastic"), "Quantise(rounding=...)")

    def encode(self, packed: Packed, kept: Kept, rng: Callable[[], torch.Generator]) -> Packed:
        """int8 codes, and under ``name#`` the scales in float32."""
        out, top = dict(packed), 2 ** (self.bits - 1) - 1
        draws = rng() if self.rounding == "stochastic" else None
        for name, v in packed.items():
            if _narrows(v):
                v = _plus(v, kept, name)
                scale = (v.abs().amax(-1, keepdim=True) / top).float()
                levels = v / scale.where(scale > 0, 1)
                if draws is not None:
                    levels = (levels + torch.rand(v.shape, generator=draws).to(v)).floor()
                out[name] = levels.round().clamp(-top, top).to(torch.int8)
                out[name + "#"] = scale
        return out

    def decode(self, encoded: Packed, kept: Kept, dtype: torch.dtype) -> Packed:
        """Codes times scales."""
        out = {k: v for k, v in encoded.items() if k + "#" in encoded or not k.endswith("#")}
        for name, v in out.items():
            if name + "#" in encoded:
                out[name] = v.to(dtype) * encoded[name + "#"].to(dtype)  # type: ignore[union-attr]
        return out

    def keep(self, packed: Packed, decoded: Packed, kept: Kept) -> Kept:
        """What should have been sent and wasn't."""
        return _owed(packed, decoded, kept) if self.feedback else {}


@dataclass(frozen=True)
class TopK:
    """Of replies' float tensors only the largest entries travel, a ``fraction`` of them, with their places.

    With ``feedback`` a client adds to its next reply what it has left out, so that nothing is lost in a sum over rounds
    but the last remainder.
    """

    fraction: float = 0.1
    feedback: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise RecipeError(f"TopK(fraction={self.fraction}): must be above 0 and at most 1", "fraction")

    @property
    def remembers(self) -> bool:
        """What was left out."""
        return self.feedback

    def encode(self, packed: Packed, kept: Kept, rng: Callable[[], torch.Generator]) -> Packed:
        """The entries, under ``name@`` where they were, and under ``name#`` the shape."""
        out = dict(packed)
        for name, v in packed.items():
            if _narrows(v):
                flat = _plus(v, kept, name).reshape(-1)
                at = flat.abs().argsort(descending=True, stable=True)[: math.ceil(self.fraction * len(flat))]
                at = at.sort().values
                out[name] = flat[at]
                out[name + "@"], out[name + "#"] = at.int(), torch.tensor(v.shape, dtype=torch.int32)
        return out

    def decode(self, encoded: Packed, kept: Kept, dtype: torch.dtype) -> Packed:
        """Zeros elsewhere."""
        out = {k: v for k, v in encoded.items() if k[-1:] not in ("@", "#")}
        for name, v in out.items():
            if name + "@" in encoded:
                at, shape = encoded[name + "@"], encoded[name + "#"]
                assert isinstance(v, Tensor)
                assert isinstance(at, Tensor)
                assert isinstance(shape, Tensor)
                flat = v.new_zeros(math.prod(shape.tolist()), dtype=dtype)
                flat[at.long()] = v.to(dtype)
                out[name] = flat.reshape(shape.tolist())
        return out

    def keep(self, packed: Packed, decoded: Packed, kept: Kept) -> Kept:
        """What should have been sent and wasn't."""
        return _owed(packed, decoded, kept) if self.feedback else {}


@dataclass(frozen=True)
class Delta:
    """``inner`` on the differences to what the server decoded last of the same client and field.

    As replies settle the differences shrink, and with them the error of ``inner``.
    """

    inner: Quantise | TopK | Cast = field(default_factory=lambda: Quantise())
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Cast) and self.inner.feedback:
            raise RecipeError(
                f"Delta({self.inner}): differences carry on what was left out already; say feedback=False",
                "inner",
            )

    @property
    def _inner(self) -> Uplink:
        return BothWays(self.inner) if isinstance(self.inner, Cast) else self.inner

    def encode(self, packed: Packed, kept: Kept, rng: Callable[[], torch.Generator]) -> Packed:
        """Differences, as ``inner`` encodes them."""
        return self._inner.encode({k: _plus(v, kept, k, -1) if _narrows(v) else v for k, v in packed.items()}, {}, rng)

    def decode(self, encoded: Packed, kept: Kept, dtype: torch.dtype) -> Packed:
        """Added to what was there."""
        out = self._inner.decode(encoded, {}, dtype)
        return {k: _plus(v, kept, k) if _narrows(v) else v for k, v in out.items()}

    def keep(self, packed: Packed, decoded: Packed, kept: Kept) -> Kept:
        """What the server decoded."""
        return {k: v for k, v in decoded.items() if _narrows(v)}


def _narrows(v: object) -> TypeGuard[Tensor]:
    """Whether uplinks may touch it: float tensors; integers and scalars mean what they are."""
    return isinstance(v, Tensor) and v.is_floating_point() and v.ndim > 0 and v.numel() > 0


def _owed(packed: Packed, decoded: Packed, kept: Kept) -> dict[str, Tensor]:
    sent = {name: v for name, v in decoded.items() if _narrows(v)}
    return {name: _plus(v, kept, name) - sent[name] for name, v in packed.items() if _narrows(v)}


def _plus(v: Tensor, kept: Kept, name: str, sign: int = 1) -> Tensor:
    """v plus (or minus) what is kept of this field; a tensor that has changed its shape begins anew."""
    return v + sign * kept[name] if name in kept and kept[name].shape == v.shape else v


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


WIDTH = len(Entry._fields)


class Ledger:
    """Every delivery of a run, in order of round, exchange and client; iterate over it to read them.

    56 bytes a delivery, since a long run has millions.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.exchanges = self.down = self.up = self._size = 0
        # A fork has the same two, and may leave more in them than is its own.
        self._rows, self._methods = array("q"), dict[str, int]()
        for _, exchange in itertools.groupby(entries, lambda e: (e.round, e.exchange)):
            self.add(list(exchange))

    def fork(self) -> Ledger:
        """A ledger that goes on from here in the same memory: of the two, only one may be added to."""
        return copy.copy(self)

    def add(self, entries: list[Entry]) -> None:
        """Book one exchange."""
        del self._rows[self._size * WIDTH :]
        for e in entries:
            number = self._methods.setdefault(e.method, len(self._methods))
            self._rows.extend((e.round, e.exchange, number, e.client, e.down, e.up, e.overhead))
            self.down += e.down
            self.up += e.up
        self._size += len(entries)
        self.exchanges += bool(entries)

    def since(self, start: int) -> Iterator[Entry]:
        """The deliveries from the ``start``-th on."""
        names = list(self._methods)
        for k in range(start * WIDTH, self._size * WIDTH, WIDTH):
            round, exchange, number, *rest = self._rows[k : k + WIDTH]
            yield Entry(round, exchange, names[number], *rest)

    def __iter__(self) -> Iterator[Entry]:
        return self.since(0)

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ledger({len(self)} deliveries, {self.exchanges} exchanges, {self.down} bytes down, {self.up} up)"

    def text(self, start: int | None = None) -> str:
        """As CSV, one row a delivery; from the ``start``-th on, or all under the names of the columns."""
        head = ",".join(Entry._fields) + "\n" if start is None else ""
        return head + "".join(",".join(map(str, e)) + "\n" for e in self.since(start or 0))

    @classmethod
    def of(cls, text: str) -> Ledger:
        """Inverse of `text`. Raises ValueError for what is none."""
        rows = csv.reader(text.splitlines())
        if tuple(next(rows, ())) != Entry._fields:
            raise ValueError("other columns")
        return cls(Entry(int(a), int(b), c, int(i), int(d), int(u), int(o)) for a, b, c, i, d, u, o in rows)
