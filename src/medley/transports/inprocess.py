"""All clients in this process, one block after the other: the default, and the reference for other transports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..contract.settings import Settings
from ..wire.connection import Host
from ..wire.exchange import Exchange
from ..wire.fold import Fold
from .memories import MemoriesHere


@dataclass(frozen=True)
class InProcess(Settings):
    """One process, no copies."""

    def open(self, host: Host) -> InProcessConnection:
        """Begin a run with the clients of ``host``."""
        return InProcessConnection(host)


class InProcessConnection(MemoriesHere):
    """Serves requests by calls of the host."""

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """Deliver the request. Yields the blocks in order."""
        for block, ids in enumerate(exchange.blocks):
            reply, pending = self.host.serve_block(exchange, block, self.memories_of(exchange, ids))
            self.keep(exchange, pending)
            yield reply

    def close(self) -> None:
        """Nothing to release."""
