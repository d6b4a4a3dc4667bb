"""Waiting for replies: for all of them, or as long as a reply policy says.

Times are in seconds, on the virtual clock unless the policy's clock is on the wall. There, a reply to a request sent at
time t arrives at

    t + latency + down / down-rate + rows / speed + up / up-rate + wait

with the rates of the client's `Device`, and the rows (work) and the wait of its receipt.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from ..contract import OnLate, TooFewReplies
from ..contract.place import name_of
from ..runtime.clock import Device
from ..wire.arrival import Arrival
from ..wire.connection import Connection, RealTime
from ..wire.exchange import Exchange, Tag, in_blocks, single_blocks
from ..wire.fold import Fold, Receipt, merged, regroup
from ..wire.ledger import Entry
from .bookkeeping import COUNTS, Bookkeeping
from .reply_policy import ReplyPolicy

log = logging.getLogger("medley")


class ExchangeEnd(NamedTuple):
    """The end of an exchange.

    Attributes:
        tags: the request that each reply answers, by client; may name clients that did not reply
        entries: its deliveries, for the ledger
        failed: errors of the clients that failed, by client
    """

    fold: Fold
    seconds: float
    tags: Mapping[int, Tag]
    entries: list[Entry]
    failed: Mapping[int, str] = MappingProxyType({})
    engines: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Delivery:
    """A request ready to be sent. ``down`` has its payload bytes for each client asked, by ascending id."""

    exchange: Exchange
    down: Mapping[int, int]
    connection: Connection
    bookkeeping: Bookkeeping
    device: Callable[[int], Device]

    def seconds(self, receipt: Receipt) -> float:
        """Time from the request to this client's reply."""
        device = self.device(receipt.client)
        return device.seconds(receipt.work, self.down[receipt.client], receipt.up) + receipt.wait

    def phases(self, fold: Fold) -> float:
        """Time that the steps of secure aggregation take; in each the slowest client counts."""
        slowest: dict[str, float] = {}
        for p in fold.phases:
            seconds = self.device(p.client).seconds(0.0, p.down, p.up)
            slowest[p.name] = max(slowest.get(p.name, 0.0), seconds)
        return sum(slowest.values())

    def entry(self, i: int, reply: Receipt | Arrival | None) -> Entry:
        """The ledger's entry of client i; ``reply`` is None if none arrived."""
        up, overhead = (reply.up, reply.overhead) if reply else (0, 0)
        return Entry(
            self.exchange.round, self.exchange.number, self.exchange.method, i, self.down.get(i, 0), up, overhead
        )


def in_order(folds: Iterator[Fold], count: int) -> Iterator[Fold]:
    """Blocks by number, each as soon as all earlier ones have come. Blocks that never come are skipped at the end."""
    waiting: dict[int, Fold] = {}
    turn = 0
    for fold in folds:
        waiting[fold.block] = fold.offloaded()
        while turn in waiting:
            yield waiting.pop(turn)
            turn += 1
    for k in range(turn, count):
        if k in waiting:
            yield waiting.pop(k)


def wait_for_all(delivery: Delivery) -> ExchangeEnd:
    """Wait for every reply; the slowest client sets the duration."""
    exchange = delivery.exchange
    fold = merged(in_order(delivery.connection.exchange(exchange), len(exchange.blocks)))
    receipts = {r.client: r for r in fold.receipts}
    return ExchangeEnd(
        fold,
        max((delivery.seconds(r) for r in receipts.values()), default=0.0) + delivery.phases(fold),
        dict.fromkeys(delivery.down, exchange.tag),
        [
            *(delivery.entry(i, receipts.get(i)) for i in delivery.down),
            *(Entry(*exchange.tag, p.name, p.client, p.down, p.up) for p in fold.phases),
        ],
        fold.failed,
        frozenset(fold.engines),
    )


def wait_for_sum(delivery: Delivery, policy: ReplyPolicy, requests: int) -> ExchangeEnd:
    """Wait for a secure sum, without the clients that fail or are lost. Raises TooFewReplies.

    ``policy`` gives the quorum of the ``requests`` clients; it has no deadline.
    """
    end = wait_for_all(delivery)
    lost = requests - len(end.fold.receipts)
    books = delivery.bookkeeping
    name = COUNTS[0]
    if not policy.endless:
        books.notes[name] = books.notes.get(name, 0) + lost
    if policy.lacks(requests - lost, requests):
        raise TooFewReplies(
            f"{requests - lost} of {requests} clients asked in round {delivery.exchange.round} are in the secure sum, "
            f"but ReplyPolicy(quorum={policy.quorum:g}) needs more"
        )
    return end


def wait_by_policy(
    delivery: Delivery, policy: ReplyPolicy, ids: tuple[int, ...], late: OnLate, stack_size: int
) -> ExchangeEnd:
    """Wait as ``policy`` says. Late replies of earlier exchanges with the same method are among the replies.

    Args:
        delivery: the request, to the clients in ``ids`` that are not at work on an earlier request
        ids: the clients that the method asks, ascending
        late: "drop" or "deliver", for replies that arrive after the end

    Changes the bookkeeping: late replies, and notes with the numbers of lost and of late ones. Raises TooFewReplies
    below the quorum.
    """
    books = delivery.bookkeeping
    exchange = delivery.exchange
    asking = ask_repeatedly(delivery, policy)
    coming = {i: w for i, w in books.late.items() if w.packed is not None and w.method == exchange.method}
    coming = dict(sorted((coming | asking.came).items()))

    end = exchange_end(
        policy,
        arrivals=sorted(w.at for w in coming.values()),
        requests=len(ids),
        sent=asking.sent,
        silent=bool(asking.missing),
        start=books.seconds,
        first_free=min((w.at for w in books.late.values()), default=books.seconds),
    )
    in_time = {i: w for i, w in coming.items() if w.at <= end}
    for i, w in coming.items():
        if i in in_time:
            books.late.pop(i, None)
        else:
            books.late[i] = w if late == "deliver" else replace(w, packed=None, buffers=None)
    return ended(delivery, policy, ids, stack_size, asking, in_time, end - books.seconds)


def wait_in_real_time(
    delivery: Delivery, policy: ReplyPolicy, ids: tuple[int, ...], late: OnLate, stack_size: int
) -> ExchangeEnd:
    """Wait as `wait_by_policy`, but by the clock on the wall, for a `RealTime` connection.

    A reply that is under way has no time of arrival. Late replies are then among those of the exchange in which they
    arrive. A checkpoint does not hold them, so a resumed run asks their clients again.
    """
    books = delivery.bookkeeping
    exchange = delivery.exchange
    connection = delivery.connection
    assert isinstance(connection, RealTime)
    begun = time.monotonic()
    asking = Asking(books.seconds, ())
    asking.came = dict.fromkeys(delivery.down, Arrival(exchange.method, exchange.tag, math.inf, 0, 0, None))
    books.late |= asking.came
    coming = {
        i for i, w in books.late.items() if i in asking.came or (late == "deliver" and w.method == exchange.method)
    }
    enough = policy.enough(len(ids)) or len(coming)
    in_time = dict[int, Arrival]()
    asked = single_blocks(exchange, delivery.down)
    for i, (tag, fold) in sorted(connection.within(asked, coming, enough, policy.deadline).items()):
        method = books.late.pop(i).method if i in books.late else ""
        asking.engines |= frozenset(fold.engines)
        asking.failed |= fold.failed
        if i in coming and fold.receipts:
            r = fold.receipts[0]
            in_time[i] = Arrival(method, tag, books.seconds, r.up, r.overhead, fold.replies[i], fold.buffers)
        elif i in asking.came:
            del asking.came[i]
            asking.missing += (i,)
        elif not fold.receipts:
            why = f": {fold.failed[i]:.500}" if i in fold.failed else ""
            log.warning("round %d: the late reply of %s to round %d is lost%s", exchange.round, name_of(i), tag[0], why)
    asking.unanswered = asking.missing
    asking.warn(exchange)
    return ended(delivery, policy, ids, stack_size, asking, in_time, time.monotonic() - begun)


def ended(
    delivery: Delivery,
    policy: ReplyPolicy,
    ids: tuple[int, ...],
    stack_size: int,
    asking: Asking,
    in_time: dict[int, Arrival],
    seconds: float,
) -> ExchangeEnd:
    """The end of an exchange with the replies ``in_time``, after so many seconds. Raises TooFewReplies."""
    books = delivery.bookkeeping
    exchange = delivery.exchange
    # A late reply counts as late only in the exchange that asked for it, not in later ones while it is under way.
    for name, count in zip(COUNTS, (len(asking.missing), len(asking.came.keys() - in_time.keys())), strict=True):
        books.notes[name] = books.notes.get(name, 0) + count
    if policy.lacks(len(in_time), len(ids)):
        raise TooFewReplies(
            f"{len(in_time)} of {len(ids)} clients asked in round {exchange.round} answered, but "
            f"ReplyPolicy(quorum={policy.quorum:g}) needs more; no answer from {sorted(set(ids) - in_time.keys())}"
        )

    entries = [delivery.entry(i, None) for i in asking.unanswered]
    entries += [delivery.entry(i, in_time.get(i)) for i in sorted(asking.came | in_time)]
    fold = fold_in_time(exchange, in_time, ids, stack_size)
    tags = {i: w.tag for i, w in in_time.items()}
    entries.sort(key=lambda e: e.client)
    return ExchangeEnd(fold, seconds, tags, entries, asking.failed, asking.engines)


@dataclass
class Asking:
    """The replies to a request that is sent once, and again to clients that stay silent.

    Attributes:
        sent: time of the last attempt
        missing: clients without a reply to any attempt
        came: replies by client, with their times of arrival
        unanswered: the client of each request that got no reply; it may be there several times
        failed: errors of the clients that failed, by client
    """

    sent: float
    missing: tuple[int, ...]
    came: dict[int, Arrival] = field(default_factory=dict)
    unanswered: tuple[int, ...] = ()
    failed: dict[int, str] = field(default_factory=dict)
    engines: frozenset[str] = frozenset()

    def warn(self, exchange: Exchange) -> None:
        """Log a warning for each client without a reply."""
        for i in self.missing:
            because = f": {self.failed[i]:.500}" if i in self.failed else ""
            log.warning("round %d, %s: no answer of %s%s", exchange.round, exchange.method, name_of(i), because)


def ask_repeatedly(delivery: Delivery, policy: ReplyPolicy) -> Asking:
    """Send a request, and up to ``policy.retries`` times again to silent clients. Logs the ones that never reply."""
    exchange = delivery.exchange
    start = delivery.bookkeeping.seconds
    asking = Asking(start, tuple(delivery.down))
    for attempt in range(1 + policy.retries):
        if attempt and policy.deadline is not None:
            asking.sent = start + attempt * policy.deadline
        elif attempt:  # the silence of the others is noticed when the last reply is in
            asking.sent = max([start, *(w.at for w in asking.came.values())])
        for fold in map(Fold.offloaded, delivery.connection.exchange(single_blocks(exchange, asking.missing))):
            asking.engines |= frozenset(fold.engines)
            asking.failed |= fold.failed
            for r in fold.receipts:
                at = asking.sent + delivery.seconds(r)
                packed = fold.replies[r.client]
                asking.came[r.client] = Arrival(
                    exchange.method, exchange.tag, at, r.up, r.overhead, packed, fold.buffers
                )
        asking.missing = tuple(i for i in asking.missing if i not in asking.came)
        asking.unanswered += asking.missing
        if not asking.missing:
            break
    asking.warn(exchange)
    return asking


def exchange_end(
    policy: ReplyPolicy,
    arrivals: list[float],
    requests: int,
    sent: float,
    silent: bool,
    start: float,
    first_free: float,
) -> float:
    """The time at which an exchange is over: enough replies are in, or all, or the deadline has passed.

    Args:
        arrivals: times of arrival of the replies to come, ascending
        requests: number of clients that the method asks
        sent: time of the last attempt; its deadline is sent + policy.deadline
        silent: whether a client stays silent after all attempts
        start: time of the first attempt
        first_free: when the first working client becomes free again; ``start`` if no client is working
    """
    enough = policy.enough(requests)
    complete = enough is not None and len(arrivals) >= enough
    if enough is not None and complete:
        end = arrivals[enough - 1]
    elif arrivals:
        end = arrivals[-1]
    else:
        # No client was free to be asked: time passes until one is.
        end = sent if silent else first_free
    if policy.deadline is not None:
        limit = sent + policy.deadline
        end = limit if silent and not complete else min(end, limit)
    return max(end, start)


def fold_in_time(exchange: Exchange, in_time: Mapping[int, Arrival], ids: Collection[int], stack_size: int) -> Fold:
    """The replies that came in time, summed in the blocks of the cohort ``ids``, then of the clients outside it."""
    outside = tuple(i for i in in_time if i not in ids)
    blocks = (*in_blocks(tuple(ids), stack_size), *in_blocks(outside, stack_size))
    singles = {
        i: Fold(receipts=[Receipt(i, w.up, w.overhead, 0.0)], replies={i: w.packed}, buffers=w.buffers)
        for i, w in in_time.items()
        if w.packed is not None
    }
    regrouped = replace(exchange, blocks=blocks)
    return merged(regroup(regrouped, k, singles) for k in range(len(blocks)))
