"""Connections with faults: reordered, repeated and lost messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from ..wire.connection import Connection, Host, Transport
from ..wire.exchange import Exchange
from ..wire.fold import Fold
from .compare import equal, expect

Deliver = Callable[[Connection, Exchange], Iterable[Fold]]


@dataclass(frozen=True)
class Rewired:
    """The transport ``inner``, with ``deliver`` between it and the server."""

    inner: Transport
    deliver: Deliver

    def open(self, host: Host) -> RewiredConnection:
        """Open the inner transport for ``host``."""
        return RewiredConnection(self.inner.open(host), self.deliver)


class RewiredConnection:
    """Passes exchanges through ``deliver``, everything else straight to the inner connection."""

    def __init__(self, connection: Connection, deliver: Deliver) -> None:
        self.connection = connection
        self.deliver = deliver
        self.save = connection.save
        self.load = connection.load
        self.close = connection.close

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """The replies that ``deliver`` lets through."""
        yield from self.deliver(self.connection, exchange)


def one_by_one(connection: Connection, exchange: Exchange) -> Iterable[Fold]:
    """Makes every client a block of its own, so that few clients keep several workers busy."""
    return connection.exchange(replace(exchange, blocks=_single(_clients(exchange))))


def _clients(exchange: Exchange) -> list[int]:
    return [*chain.from_iterable(exchange.blocks)]


def _single(ids: Iterable[int]) -> tuple[tuple[int], ...]:
    """Blocks of one client each."""
    return tuple((i,) for i in ids)


def backwards(connection: Connection, exchange: Exchange) -> Iterator[Fold]:
    """Serves clients from the last to the first; their replies arrive in that order."""
    ids = _clients(exchange)
    for turn, i in reversed(list(enumerate(ids))):
        for reply in connection.exchange(replace(exchange, blocks=((i,),))):
            reply.block = turn
            yield reply


def twice(connection: Connection, exchange: Exchange) -> Iterator[Fold]:
    """Delivers every request twice, as if the first replies had not come in time. Both replies must be the same."""
    first = {a.block: a for a in one_by_one(connection, exchange)}  # blocks come in any order
    for b in one_by_one(connection, exchange):
        _expect_same(first.pop(b.block), b, exchange)
        yield b


def scrambled(connection: Connection, exchange: Exchange) -> Iterator[Fold]:
    """Serves clients from the last to the first, and delivers requests twice: for one half of them in odd rounds, for
    the other half in even ones. Replies arrive from the last to the first.
    """
    ids = _clients(exchange)
    turns = range(len(ids))[::-1]
    repeated = [turn for turn in turns if (turn + exchange.tag[0]) % 2]
    blocks = _single(ids[turn] for turn in (*turns, *repeated))
    replies = {reply.block: reply for reply in connection.exchange(replace(exchange, blocks=blocks))}
    for k, turn in enumerate(repeated):
        _expect_same(replies[turns.index(turn)], replies.pop(len(ids) + k), exchange)
    for k, turn in enumerate(turns):
        replies[k].block = turn
        yield replies[k]


def _expect_same(a: Fold, b: Fold, exchange: Exchange) -> None:
    same = equal(a.replies, b.replies) and equal(a.total, b.total) and a.receipts == b.receipts
    expect(same, f"{exchange.method}: the same request was answered differently the second time")


def losing(lost: Collection[tuple[int, int, int]], *, requests_arrive: bool) -> Deliver:
    """Loses the replies of (round, exchange, client) in ``lost``; with ``served=False`` the requests."""

    def deliver(connection: Connection, exchange: Exchange) -> Iterator[Fold]:
        ids = _clients(exchange)
        answering = [i for i in ids if (*exchange.tag, i) not in lost]
        clients_asked = ids if requests_arrive else answering
        for reply in connection.exchange(replace(exchange, blocks=_single(clients_asked))):
            i = clients_asked[reply.block]
            if i in answering:
                reply.block = answering.index(i)
                yield reply

    return deliver
