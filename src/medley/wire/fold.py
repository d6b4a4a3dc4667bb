"""Folds: the replies of a block or of an exchange, summed or kept apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ..contract import MedleyError, Packed, State, WireError
from ..numerics.offload import offload
from ..runtime import stopwatch
from .exchange import Exchange


class Receipt(NamedTuple):
    """The cost of one reply.

    Attributes:
        up: payload bytes of the reply
        overhead: framing bytes, both ways
        work: its work in row gradients
        wait: other time on the virtual clock, in seconds; default 0
    """

    client: int
    up: int
    overhead: int
    work: float
    wait: float = 0.0


class Phase(NamedTuple):
    """A step of a protocol at one client, in addition to the replies.

    Attributes:
        name: the step's name in the ledger
        down: payload bytes to the client
        up: payload bytes from the client
    """

    name: str
    client: int
    down: int
    up: int


@dataclass
class Fold:
    """The replies of some clients: Σ w_i·message_i if the exchange has weights, otherwise each reply by itself.

    The order of additions is fixed: clients by id within a block, then blocks by number.

    Attributes:
        block: number of the block in its exchange; default 0
        receipts: one per client that replied
        replies: packed messages by client; empty in an exchange with weights
        total: the weighted sum, or None before the first reply and in an exchange without weights
        buffers: Σ p_i times the change of the floating-point buffers, and the largest of their integer buffers; None if
            no client changed any
        failed: error text by client, for clients that failed in a tolerant exchange
        engines: names of the engines that ran local descents, sorted
        within: number of replies whose norm was within the exchange's `Clip`; default 0
        phases: the steps of secure aggregation
    """

    block: int = 0
    receipts: list[Receipt] = field(default_factory=list)
    replies: dict[int, Packed] = field(default_factory=dict)
    total: Packed | None = None
    buffers: State | None = None
    failed: dict[int, str] = field(default_factory=dict)
    engines: list[str] = field(default_factory=list)
    within: int = 0
    phases: list[Phase] = field(default_factory=list)

    @property
    def ids(self) -> tuple[int, ...]:
        """Clients that replied, ascending."""
        return tuple(sorted(r.client for r in self.receipts))

    def offloaded(self) -> Fold:
        """This fold, whose replies that are kept apart are put into files if they do not fit into memory."""
        for i, packed in self.replies.items():
            self.replies[i] = {k: offload(v) if isinstance(v, Tensor) else v for k, v in packed.items()}
        return self

    def ran(self, engines: Iterable[str]) -> None:
        """Record engines that ran."""
        self.engines = sorted({*self.engines, *engines})

    def add(self, exchange: Exchange, i: int, packed: Packed, buffers: State | None, in_place: bool = False) -> None:
        """Add client i's reply, and its buffers if they changed. Call it in ascending order of ids.

        With ``in_place``, nothing else uses the reply, and a sum may begin in its memory.
        """
        with stopwatch.doing("aggregation"):
            if exchange.weights is None:
                self.replies[i] = packed
            else:
                self._sum(exchange, i, packed, in_place)
            if buffers is not None and exchange.buffers is not None:
                change = (buffers[0] - exchange.buffers[0]) * exchange.p[i]
                if self.buffers is not None:
                    change = self.buffers[0].add_(change)
                self.buffers = change, torch.maximum(self.buffers[1], buffers[1]) if self.buffers else buffers[1]

    def _sum(self, exchange: Exchange, i: int, packed: Packed, in_place: bool = False) -> None:
        assert exchange.weights is not None
        weight = exchange.weights[i]
        if exchange.clip is not None:
            norm = exchange.clip.norm(packed)
            self.within += norm <= 1
            weight /= max(1.0, norm)
        self.total = accumulate(self.total, packed, weight, in_place)

    def merge(self, other: Fold, exchange: Exchange | None = None) -> None:
        """Add another fold, whose clients come after those so far.

        If ``exchange`` is given and has weights, the other's replies are added to the total, as in `add`. The first
        total is reused and then added to in place: do not use ``other`` afterwards.
        """
        self.receipts += other.receipts
        self.failed |= other.failed
        self.phases += other.phases
        self.ran(other.engines)
        with stopwatch.doing("aggregation"):
            if exchange is None or exchange.weights is None:
                self.replies |= other.replies
            else:
                for i, packed in other.replies.items():
                    self._sum(exchange, i, packed)
            self.within += other.within
            if other.total is not None:
                self.total = accumulate(self.total, other.total, 1.0) if self.total else other.total
            if other.buffers is not None:
                # Not in place: a late reply's buffers may be the first to arrive, and a checkpoint holds them.
                mine = self.buffers
                both = other.buffers
                self.buffers = both if mine is None else (mine[0] + both[0], torch.maximum(mine[1], both[1]))

    def refold(self, exchange: Exchange, replies: Mapping[int, Packed]) -> None:
        """Replace the replies that were kept apart by ``replies``, and sum them if the exchange has weights."""
        self.replies = dict(replies) if exchange.weights is None else {}
        if exchange.weights is not None:
            for i, packed in sorted(replies.items()):
                self._sum(exchange, i, packed)


def accumulate(total: Packed | None, packed: Packed, weight: float, in_place: bool = False) -> Packed:
    """``total`` + ``weight``·``packed``, in place if there is a total already; in ``packed``'s memory if ``in_place``.

    Raises MedleyError for bools, which have no sum, and WireError for fields that differ in shape or that only some
    clients send.
    """
    if total is None:
        total = {}
        for name, v in packed.items():
            if isinstance(v, bool):
                raise MedleyError(f"{name!r} is a bool and has no mean; read these replies with .each()")
            # An integer tensor times a float would be float32, whatever the run's dtype.
            if isinstance(v, Tensor) and not v.is_floating_point():
                v = v.double()
            if in_place and isinstance(v, Tensor):
                total[name] = v.mul_(weight)
            else:
                total[name] = None if v is None else v * weight
        return total
    _check_alike(total, packed)
    for name, v in packed.items():
        into = total[name]
        if isinstance(into, Tensor):
            into.add_(v, alpha=weight)  # type: ignore[arg-type]
        elif into is not None:
            total[name] = into + v * weight  # type: ignore[operator]
    return total


def _check_alike(total: Packed, packed: Packed) -> None:
    """Raise WireError for fields whose shape differs from the total's, or that only one of the two has."""
    for name, v in packed.items():
        into = total[name]
        if isinstance(into, Tensor) and isinstance(v, Tensor):  # nearly all are
            if into.shape != v.shape:
                raise WireError(f"{name!r} has shape {tuple(v.shape)} at one client and {tuple(into.shape)} at another")
            continue
        if (into is None) != (v is None):
            raise WireError(f"{name!r} came from some clients and not from others: read these replies with .each()")
        if isinstance(into, Tensor) != isinstance(v, Tensor):
            raise WireError(f"{name!r} is a tensor at some clients and a number at others: read these with .each()")


def merged(folds: Iterable[Fold]) -> Fold:
    """The fold of an exchange, from its blocks' folds in order. Only one block's sum is in memory at a time."""
    total = Fold()
    for fold in folds:
        total.merge(fold)
        del fold  # while the next block is made
    return total


def regroup(exchange: Exchange, block: int, singles: Mapping[int, Fold]) -> Fold:
    """The fold of a block, from the folds of its clients, each in a block of its own.

    It sums in the order of batched execution. Replies may differ in the last bits from a client stack's, since a
    client's steps may round differently on their own.
    """
    total = Fold(block)
    for i in exchange.blocks[block]:
        if i in singles:
            total.merge(singles[i], exchange)
    return total
