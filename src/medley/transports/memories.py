"""Clients' memories on the server's side, for connections whose workers hold none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..wire.connection import Host
from ..wire.exchange import Exchange, Tag
from ..wire.fold import Fold, Receipt


def answer(host: Host, exchange: Exchange, memories: Mapping[int, Any]) -> dict[str, Any]:
    """A worker's answer to a request for one block, a pytree: the fold, and the clients' pending memories."""
    reply, pending = host.serve_block(exchange, 0, memories)
    receipts = [list(r) for r in reply.receipts]
    return {**vars(reply), "receipts": receipts, "pending": pending if host.remembers else {}}


class MemoriesHere:
    """The part of a connection that keeps clients' memories in ``host``, in this process."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def memories_of(self, exchange: Exchange, ids: Sequence[int]) -> dict[int, Any]:
        """The acknowledged memories of these clients, to send along with a request; empty if none are kept."""
        if not self.host.remembers:
            return {}
        memories = self.host.memories
        if exchange.aside:
            return {i: memories.peek(i, exchange.acked.get(i)) for i in ids}
        return {i: memories.get(i, exchange.acked.get(i), exchange.round) for i in ids}

    def keep(self, exchange: Exchange, pending: Mapping[int, Any]) -> None:
        """Keep the memories that came back with a reply; they are pending until the server acknowledges it."""
        if self.host.remembers:
            for i, memory in pending.items():
                self.host.memories.put(i, exchange.tag, memory)

    def fold(self, exchange: Exchange, block: int, answer: dict[str, Any]) -> Fold:
        """The fold in a worker's `answer`, whose pending memories are kept."""
        self.keep(exchange, answer.pop("pending"))
        return Fold(**{**answer, "block": block, "receipts": [Receipt(*r) for r in answer["receipts"]]})

    def save(self, acked: Mapping[int, Tag]) -> Mapping[int, Any]:
        """Clients' acknowledged memories by id."""
        return self.host.memories.save(acked)

    def load(self, memories: Mapping[int, Any], acked: Mapping[int, Tag]) -> None:
        """Restore memories from `save`, each after the earlier versions of its client."""
        self.host.memories.load(memories, acked)
