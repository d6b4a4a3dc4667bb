"""A request as the clients of one block receive it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..contract import Algorithm, Message, MessageTypes, OptimizerState, OwnState
from ..wire.codec import CodecState
from ..wire.exchange import Exchange


@dataclass(frozen=True)
class Request:
    """An exchange, decoded for the clients of one block.

    Attributes:
        each: each client's own message; empty if the client method takes none
        memories: each client's memory of the algorithm; None if the algorithm keeps none
        optimizers: the state of each client's optimizer; no entry before its first step, or if states are not kept
        owns: each client's personal parameters; None before its first call; empty if all parameters are shared
        codec_states: the codec's state by client, then by client method; no entry before a client's first reply
    """

    exchange: Exchange
    algorithm: Algorithm[Any, Any]
    ids: tuple[int, ...]
    common: Message
    each: Mapping[int, Message]
    memories: Mapping[int, Any]
    codec_states: Mapping[int, Mapping[str, CodecState]]
    optimizers: Mapping[int, OptimizerState]
    owns: Mapping[int, OwnState | None]

    @property
    def types(self) -> MessageTypes:
        """The wire types of the client method."""
        return self.algorithm.message_types[self.exchange.method]

    @property
    def method(self) -> str:
        """The client method's name for error messages, for example "FedAvg.train"."""
        return f"{self.algorithm.name}.{self.exchange.method}"
