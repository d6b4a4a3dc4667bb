"""Clients' memories, committed in two phases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..contract.errors import MemoryLost
from ..contract.place import name_of
from ..storage.spill import LazyMapping, Spill
from ..wire.exchange import Tag


@dataclass
class Memories:
    """Clients' memories, committed in two phases.

    A call makes a new version of its client's memory. The version is pending until the server's next request to that
    client acknowledges it; a request that acknowledges an earlier version rolls the later one back. So a lost reply
    changes nothing. For a repeated request, the client computes again from the same memory and the same named streams:
    the reply has the same bits without a cache.

    It keeps two acknowledged versions, the newest and the last of an earlier round; the pending version is a third. A
    server that goes back to the start of its round, or resumes from there, uses the version of the earlier round.

    Attributes:
        versions: (tag, memory) by client, the oldest first; a `Spill` if there may be many clients
    """

    versions: MutableMapping[int, list[tuple[Tag, Any]]] = field(default_factory=dict)

    def get(self, client: int, acked: Tag | None, round: int) -> Any:
        """The acknowledged memory, or None before the first. Raises MemoryLost if it is missing."""
        if acked is None:
            self.versions.pop(client, None)
            return None
        versions = self.versions.get(client, [])
        acknowledged = [v for v in versions if v[0] <= acked]
        if not acknowledged or acknowledged[-1][0] != acked:
            raise MemoryLost(
                f"{name_of(client)}: the server expects this client's memory of (round, exchange) = {acked}, but "
                f"the client holds {[tag for tag, _ in versions] or 'nothing'}: it was restarted without its memory or "
                "with an older one, or the checkpoint is another run's",
                client,
            )
        before = [v for v in acknowledged[:-1] if v[0][0] < round][-1:] if acked[0] == round else []
        self.versions[client] = [*before, acknowledged[-1]]
        return acknowledged[-1][1]

    def peek(self, client: int, acked: Tag | None) -> Any:
        """The acknowledged memory, or None if there is none; pending versions do not change."""
        peek = self.versions.peek if isinstance(self.versions, Spill) else self.versions.__getitem__
        versions = peek(client) if client in self.versions else []
        return next((memory for tag, memory in versions if tag == acked), None)

    def put(self, client: int, tag: Tag, memory: Any) -> None:
        """Keep a pending version next to the acknowledged one."""
        self.versions[client] = [*self.versions.get(client, []), (tag, memory)]

    def save(self, acked: Mapping[int, Tag]) -> Mapping[int, Any]:
        """The acknowledged memory of every client that has one. Each is read on access."""
        return LazyMapping(partial(self._acknowledged, dict(acked)))

    def _acknowledged(self, acked: Mapping[int, Tag]) -> Iterator[tuple[int, Any]]:
        peek = self.versions.peek if isinstance(self.versions, Spill) else self.versions.__getitem__
        for i in sorted(self.versions):
            yield from ((i, m) for tag, m in peek(i) if tag == acked.get(i))

    def load(self, memories: Mapping[int, Any], acked: Mapping[int, Tag]) -> None:
        """Restore memories from `save`, each after the earlier versions of its client."""
        for i, m in memories.items():
            others = [(tag, memory) for tag, memory in self.versions.get(i, []) if tag != acked[i]]
            self.versions[i] = [*others, (acked[i], m)]
