"""The one seam between methods and machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from .message import Packed
from .problem import State

if TYPE_CHECKING:
    from .site import Site

Tag = tuple[int, int]
"""(round, exchange): names a version of a client's memory by the request that made it."""


@dataclass(frozen=True)
class Exchange:
    """What the server wants of a cohort: one call of one client method.

    ``blocks`` are consecutive ids of the cohort; their size depends on the problem only, so that a sum over clients has
    the same bits however many workers share the blocks. With ``weights`` a block comes back as one weighted sum,
    without as its replies.
    """

    round: int
    number: int
    method: str
    blocks: tuple[tuple[int, ...], ...]
    common: Packed
    each: Mapping[int, Packed]
    acked: Mapping[int, Tag]
    p: Mapping[int, float]
    weights: Mapping[int, float] | None
    buffers: State | None = None

    @property
    def tag(self) -> Tag:
        """The name of the memory versions that this exchange makes."""
        return self.round, self.number


class Receipt(NamedTuple):
    """What one reply cost: payload bytes up, framing bytes both ways, and work in row gradients."""

    client: int
    up: int
    overhead: int
    rows: float


@dataclass
class BlockReply:
    """The answer of one block: who answered, and either their weighted sum or their replies."""

    block: int
    receipts: list[Receipt] = field(default_factory=list)
    replies: dict[int, Packed] = field(default_factory=dict)
    folded: Packed | None = None
    buffers: State | None = None
    """Σ p_i times the change of the floating-point buffers, and the first client's integers; None if none changed."""


@runtime_checkable
class Link(Protocol):
    """A transport at work."""

    def exchange(self, exchange: Exchange) -> Iterator[BlockReply]:
        """Deliver, and yield blocks as they come back, in any order; lost replies are just absent."""
        ...

    def save(self, acked: Mapping[int, Tag]) -> dict[int, Any]:
        """Clients' memories that the server has acknowledged, by id; empty where clients keep their own."""
        ...

    def load(self, memories: Mapping[int, Any], acked: Mapping[int, Tag]) -> None:
        """Put back what `save` gave."""
        ...

    def close(self) -> None:
        """Let go of workers and connections; calling it twice is fine."""
        ...


@runtime_checkable
class Transport(Protocol):
    """A way to reach clients."""

    def open(self, site: Site) -> Link:
        """Begin a run with these clients."""
        ...
