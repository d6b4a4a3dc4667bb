"""Protocols of the wire: a transport opens a connection to a host of clients.

Your own transport implements `Transport.open(host)` and returns a `Connection`. The shortest example is
`medley.transports.inprocess`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol, TypeGuard, runtime_checkable

from ..contract import Algorithm, Packed, Problem
from .codec import Codec
from .exchange import Exchange, Tag
from .fold import Fold


@runtime_checkable
class MemoryVersions(Protocol):
    """Clients' memories, committed in two phases: a change is pending until the server acknowledges its reply."""

    def get(self, client: int, acked: Tag | None, round: int) -> Any:
        """The acknowledged memory, or None before the first. Raises WireError if it is not here."""

    def peek(self, client: int, acked: Tag | None) -> Any:
        """The acknowledged memory, or None if there is none; nothing changes."""

    def put(self, client: int, tag: Tag, memory: Any) -> None:
        """Keep a pending version in addition to the acknowledged one."""

    def save(self, acked: Mapping[int, Tag]) -> Mapping[int, Any]:
        """The acknowledged memory of every client that has one."""

    def load(self, memories: Mapping[int, Any], acked: Mapping[int, Tag]) -> None:
        """Restore memories from `save`, each after the earlier versions of its client."""


@runtime_checkable
class Host(Protocol):
    """A host of clients, as a transport sees it: answers requests, one block at a time."""

    @property
    def algorithm(self) -> Algorithm[Any, Any]:
        """The method that clients run."""

    @property
    def problem(self) -> Problem:
        """The problem that clients work on."""

    @property
    def codec(self) -> Codec:
        """The codec of the run."""

    @property
    def memories(self) -> MemoryVersions:
        """The clients' memories."""

    @property
    def seed(self) -> int:
        """The run's seed."""

    @property
    def device(self) -> str:
        """Torch's name of the device that clients compute on."""

    @property
    def remembers(self) -> bool:
        """True if the host keeps anything about a client between calls: a memory, or the codec's state."""

    def without_memories(self) -> Host:
        """A copy that holds no memories, for workers that get them with every request."""

    def serve_block(self, exchange: Exchange, block: int, memories: Mapping[int, Any]) -> tuple[Fold, dict[int, Any]]:
        """Run one block of an exchange. Returns its replies and the pending memories by client.

        Args:
            block: number of the block, an index of ``exchange.blocks``
            memories: acknowledged memories by client; no entry before the first
        """

    def check(self, exchange: Exchange, i: int, packed: Packed, finite: bool = True) -> None:
        """Raise WireError unless client i's reply is of the type that its method declares.

        Args:
            packed: its reply, decoded
            finite: False skips the search for NaN and infinities; default True
        """


@runtime_checkable
class Connection(Protocol):
    """An open transport."""

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """Deliver the request. Yields blocks as they come back, in any order; lost replies are absent.

        A reply from another machine goes through `Host.check` before it is summed or yielded.
        """

    def save(self, acked: Mapping[int, Tag]) -> Mapping[int, Any]:
        """Clients' acknowledged memories by id; empty if clients keep their own."""

    def load(self, memories: Mapping[int, Any], acked: Mapping[int, Tag]) -> None:
        """Restore memories from `save`, each after the earlier versions of its client."""

    def close(self) -> None:
        """Release workers and connections. A second call does nothing."""


@runtime_checkable
class Placed(Connection, Protocol):
    """A connection that chooses where the clients' work is done: in this process or in others."""

    @property
    def place(self) -> str:
        """The place and the reason, for the record."""


@runtime_checkable
class RealTime(Connection, Protocol):
    """A connection whose requests may stay open: a reply that misses its exchange comes back in a later one."""

    def within(
        self, exchange: Exchange, awaited: Collection[int], enough: int, deadline: float | None
    ) -> dict[int, tuple[Tag, Fold]]:
        """Deliver the request, and wait until ``enough`` of the awaited clients replied, or the deadline.

        If nobody is awaited, wait for the first client that is at work.

        Args:
            exchange: the request; it asks only clients that are not at work
            awaited: clients whose replies count, to this request or to an earlier one
            deadline: seconds from now; None for no deadline

        Returns, for each client whose request is closed, the tag of the request that it answers, and its reply: a fold
        without receipts if the reply is lost or unusable. The other requests stay open.
        """


@runtime_checkable
class SecureSums(Connection, Protocol):
    """A connection that gives only sums of replies, and the steps of its protocol in `Fold.phases`."""

    @property
    def sums_only(self) -> bool:
        """True."""

    @property
    def least(self) -> int:
        """The fewest clients in a sum."""


def gives_sums(connection: Connection) -> TypeGuard[SecureSums]:
    """Whether a connection gives only sums of replies. Asked in each exchange, and `isinstance` takes 100 µs here."""
    return getattr(connection, "sums_only", False)


@runtime_checkable
class Transport(Protocol):
    """A way to reach clients: in this process, in others, on other machines."""

    def open(self, host: Host) -> Connection:
        """Begin a run with the clients of ``host``."""


@runtime_checkable
class Remote(Transport, Protocol):
    """A transport to other machines: vectors are made so rarely here that their memory counts more than their time."""

    @property
    def is_remote(self) -> bool:
        """True."""


@runtime_checkable
class FaultyTransport(Transport, Protocol):
    """A transport that adds faults. Optional: a transport without ``faults`` has none."""

    @property
    def faults(self) -> str:
        """The faults in words, as part of the run's identity; "" for none."""
