"""The one seam between methods and machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from .message import Packed, accumulate
from .problem import State

if TYPE_CHECKING:
    from .site import Site

Tag = tuple[int, int]
"""(round, exchange): names a version of a client's memory by the request that made it."""


@dataclass(frozen=True)
class Exchange:
    """What the server wants of a cohort: one call of one client method.

    ``blocks`` are consecutive ids of the cohort; their size depends on the problem and on the cohort's size only, so
    that a sum over clients has the same bits however many workers share the blocks. With ``weights`` a block comes back
    as one weighted sum, without as its replies.
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
    tolerant: bool = False
    """Whether a client that fails is reported beside the others' replies, and not raised."""

    @property
    def tag(self) -> Tag:
        """The name of the memory versions that this exchange makes."""
        return self.round, self.number


class Receipt(NamedTuple):
    """What one reply cost: payload bytes up, framing bytes both ways, work in row gradients, and what else it took on
    the virtual clock, in seconds.
    """

    client: int
    up: int
    overhead: int
    rows: float
    wait: float = 0.0


@dataclass
class BlockReply:
    """The answer of one block: who answered, and either their weighted sum or their replies."""

    block: int
    receipts: list[Receipt] = field(default_factory=list)
    replies: dict[int, Packed] = field(default_factory=dict)
    folded: Packed | None = None
    buffers: State | None = None
    """Σ p_i times the change of the floating-point buffers, and the first client's integers; None if none changed."""
    failed: dict[int, str] = field(default_factory=dict)
    """Who failed in a tolerant exchange, and how."""
    engines: list[str] = field(default_factory=list)
    """What ran local descents."""


def apart(exchange: Exchange, ids: Iterable[int]) -> Exchange:
    """The same for ``ids`` only, each a block of its own, nothing folded."""
    return replace(exchange, blocks=tuple((i,) for i in ids), weights=None)


def gather(exchange: Exchange, block: int, singles: Mapping[int, BlockReply]) -> BlockReply:
    """A block of those who answered `apart`, summed as where clients are served in blocks. Its bits are the same up to
    those of the answers, since a client's steps by itself may round otherwise than in a crew.
    """
    whole = BlockReply(block)
    for i in exchange.blocks[block]:
        one = singles.get(i, whole)
        if one is whole:
            continue
        whole.receipts += one.receipts
        whole.failed |= one.failed
        whole.engines = sorted({*whole.engines, *one.engines})
        if exchange.weights is None:
            whole.replies |= one.replies
        elif i in one.replies:
            whole.folded = accumulate(whole.folded, one.replies[i], exchange.weights[i])
        if one.buffers is not None:
            floats, ints = one.buffers
            whole.buffers = (floats, ints) if whole.buffers is None else (whole.buffers[0] + floats, whole.buffers[1])
    return whole


@runtime_checkable
class Link(Protocol):
    """A transport at work."""

    def exchange(self, exchange: Exchange) -> Iterator[BlockReply]:
        """Deliver, and yield blocks as they come back, in any order; lost replies are just absent.

        What comes from another machine is to go through `Site.check` before it is folded or yielded.
        """
        ...

    def save(self, acked: Mapping[int, Tag]) -> Mapping[int, Any]:
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
