"""The codec protocol: the encoding of messages on the wire.

A codec of your own is a frozen dataclass with the members of `Codec`; `Cast` (both ways, no state) and `Delta` (replies
only, with state) in `medley.codecs` are short examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from ..contract import Message, Packed, Settings

CodecState = Mapping[str, Tensor]
"""The state of a codec for one client and one method: tensors by field."""

Draws = Callable[[], torch.Generator]
"""Opens the random stream of one encoding. A codec that draws nothing never calls it."""


@runtime_checkable
class Codec(Protocol):
    """A re-encoding of packed messages, with the same settings at sender and receiver.

    A codec may keep state between the replies of one client to one method (``remembers``). The state changes as a
    client's memory does: when its reply has arrived. So a lost or repeated reply leaves both ends with the same state.
    Requests have no state: they are encoded with an empty ``state``.
    """

    @property
    def both_ways(self) -> bool:
        """True if requests are encoded too; False for a codec of replies."""

    @property
    def remembers(self) -> bool:
        """True if `keep` returns anything."""

    def encode(self, packed: Packed, state: CodecState, rng: Draws) -> Packed:
        """Encode a message for the wire.

        Args:
            packed: the message's fields
            state: the codec's state [field -> tensor], as the last `keep` returned it; empty at first
            rng: opens the random stream of this message
        """

    def decode(self, encoded: Packed, state: CodecState, dtype: torch.dtype) -> Packed:
        """Decode a message, with floating-point tensors in ``dtype``. Fields and shapes are as before `encode`."""

    def keep(self, packed: Packed, decoded: Packed, state: CodecState) -> CodecState:
        """The state for the next reply, from this one before (``packed``) and after (``decoded``) the round trip."""


@dataclass(frozen=True)
class Plain(Settings):
    """The identity: messages travel as they are."""

    both_ways: ClassVar[bool] = True
    remembers: ClassVar[bool] = False

    def encode(self, packed: Packed, state: CodecState, rng: Draws) -> Packed:
        """``packed`` itself."""
        return packed

    def decode(self, encoded: Packed, state: CodecState, dtype: torch.dtype) -> Packed:
        """``encoded`` itself."""
        return encoded

    def keep(self, packed: Packed, decoded: Packed, state: CodecState) -> CodecState:
        """No state."""
        return {}


def downlink(codec: Codec) -> Codec:
    """The codec of requests: ``codec.down`` if it has one, ``codec`` if it works both ways, else `Plain`."""
    down: Codec | None = getattr(codec, "down", None)
    if down is not None:
        return down
    return codec if codec.both_ways else Plain()


def request_by(codec: Codec, message: Message, rng: Callable[..., torch.Generator]) -> Packed:
    """A request as this codec encodes it; fields in the message's ``exact`` skip the codec."""
    packed = message.pack()
    unchanged = {k: v for k, v in packed.items() if k in message.exact}
    return {**codec.encode({k: v for k, v in packed.items() if k not in unchanged}, {}, rng), **unchanged}


def request_of(codec: Codec, packed: Packed, kind: type[Message], dtype: torch.dtype) -> Packed:
    """The inverse of `request_by` for messages of this type."""
    unchanged = {k: v for k, v in packed.items() if k in kind.exact}
    return {**codec.decode({k: v for k, v in packed.items() if k not in unchanged}, {}, dtype), **unchanged}


def resending(codec: Codec) -> Codec:
    """The codec for a reply that was already encoded and decoded: ``codec`` if it works both ways and has no state.

    If a codec has another one for requests, the codec of replies counts.

    Encoding the decoded reply again must lose nothing, as with `Cast`. For any other codec the reply stays as it is:
    `Plain`.
    """
    codec = getattr(codec, "up", codec)
    return Plain() if codec.remembers else downlink(codec)


def compressible(value: object) -> TypeGuard[Tensor]:
    """True for non-empty float tensors, the only fields that are compressed."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 0 and value.numel() > 0


def plus_state(value: Tensor, state: CodecState, name: str, sign: int = 1) -> Tensor:
    """``value`` + ``sign`` · ``state[name]``. State of another shape is ignored."""
    # A field that changes its shape starts without state.
    return value + sign * state[name] if name in state and state[name].shape == value.shape else value


def error_feedback(packed: Packed, decoded: Packed, state: CodecState) -> dict[str, Tensor]:
    """The part of each compressed field that has not been sent yet: value + state − decoded."""
    sent = {name: v for name, v in decoded.items() if compressible(v)}
    return {name: plus_state(v, state, name) - sent[name] for name, v in packed.items() if compressible(v)}
