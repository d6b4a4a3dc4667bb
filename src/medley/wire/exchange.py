"""One exchange on the wire: the request that the server sends to a cohort."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..contract import Packed, State
from .clip import Clip

Tag = tuple[int, int]
"""(round, exchange): names a version of a client's memory by the request that made it."""

Blocks = tuple[tuple[int, ...], ...]
"""Client ids, cut into blocks; ascending within a block and over the blocks."""


@dataclass(frozen=True)
class Exchange:
    """A request: run one client method on the clients of a cohort.

    Attributes:
        number: number of the exchange in its round, from 0; −1 for a request out of band
        blocks: the clients asked, see `in_blocks`; a block comes back as one `Fold`
        common: the message for all clients, encoded
        each: each client's own message, encoded; empty if the method takes none
        acked: the acknowledged version of each client's memory; no entry before a client's first reply
        p: p_i of the clients asked
        weights: weights with which each block is summed; None keeps the replies apart
        tolerant: True reports a failed client alongside the others' replies; False raises its error
        clip: bounds each reply before it is summed; None for no bound
    """

    round: int
    number: int
    method: str
    blocks: Blocks
    common: Packed
    each: Mapping[int, Packed]
    acked: Mapping[int, Tag]
    p: Mapping[int, float]
    weights: Mapping[int, float] | None
    buffers: State | None = None
    tolerant: bool = False
    clip: Clip | None = None

    @property
    def aside(self) -> bool:
        """True for a request out of band: it asks for clients' personal models, changes nothing and is not counted."""
        return self.number < 0

    @property
    def tag(self) -> Tag:
        """The tag under which clients save the versions of their memories from this exchange."""
        return self.round, self.number

    def of_block(self, ids: tuple[int, ...]) -> Exchange:
        """The part of the request that is specific to these clients, a block: without message and buffers."""
        each = {i: self.each[i] for i in ids if i in self.each}
        p = {i: self.p[i] for i in ids if i in self.p}
        weights = None if self.weights is None else {i: self.weights[i] for i in ids if i in self.weights}
        return replace(self, blocks=(ids,), common={}, each=each, acked={}, p=p, weights=weights, buffers=None)


def in_blocks(ids: tuple[int, ...], stack_size: int) -> Blocks:
    """Cut ascending ids into blocks of consecutive ids.

    The cut depends only on the number of clients and on ``stack_size`` (clients in one call). So a sum over clients has
    the same bits with any number of workers.
    """
    # In a large cohort a block is larger than a stack, so that fewer sums travel. Two workers get equally many blocks
    # of one size if possible: the worker with the last block keeps the other waiting.
    n = len(ids)
    size = max(stack_size, min(32, len(ids) // 20))
    count = min(n, 1 if n <= size else 2 * -(-n // (2 * size)))
    return tuple(ids[k * n // count : (k + 1) * n // count] for k in range(count))


def single_blocks(exchange: Exchange, ids: Iterable[int]) -> Exchange:
    """The same request for ``ids`` only, each in a block of its own, with replies kept apart."""
    return replace(exchange, blocks=tuple((i,) for i in ids), weights=None)
