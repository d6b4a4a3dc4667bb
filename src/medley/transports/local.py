"""Every client in this process, one block after the other: the reference, and the default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.site import Site
from ..core.transport import BlockReply, Exchange, Tag


@dataclass(frozen=True)
class Local:
    """One process, no copies."""

    def open(self, site: Site) -> LocalLink:
        """Begin."""
        return LocalLink(site)


class LocalLink:
    """Serves requests by calling the site."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def exchange(self, exchange: Exchange) -> Iterator[BlockReply]:
        """Blocks in order."""
        site, memories = self.site, self.site.memories
        for block, ids in enumerate(exchange.blocks):
            held = {}
            if site.remembers:
                held = {i: memories.get(i, exchange.acked.get(i), exchange.round) for i in ids}
            reply, pending = site.serve_block(exchange, block, held)
            if site.remembers:
                for i, memory in pending.items():
                    memories.put(i, exchange.tag, memory)
            yield reply

    def save(self, acked: Mapping[int, Tag]) -> Mapping[int, Any]:
        """Clients' acknowledged memories."""
        return self.site.memories.save(acked)

    def load(self, memories: Mapping[int, Any], acked: Mapping[int, Tag]) -> None:
        """Put them back."""
        self.site.memories.load(memories, acked)

    def close(self) -> None:
        """Nothing to let go of."""
