"""The cohort of one round: `ask`, and the exchange behind it."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from ..contract import (
    Each,
    Lies,
    LocalSampling,
    MedleyError,
    Message,
    MessageTypes,
    OnLate,
    Packed,
    Sampling,
    Task,
    nbytes,
)
from ..contract.place import name_of
from ..contract.problem import Readout
from ..runtime import streams
from ..runtime.clock import Device
from ..runtime.forwarded import forwarded
from ..storage.events import ExchangeEvent
from ..wire.clip import Clip
from ..wire.codec import Codec, Plain, downlink, request_by
from ..wire.connection import Connection, gives_sums
from ..wire.exchange import Exchange, in_blocks
from .bookkeeping import Bookkeeping
from .replies import LiveReplies
from .reply_policy import ReplyPolicy
from .waiting import Delivery, ExchangeEnd, wait_by_policy, wait_for_all, wait_for_sum, wait_in_real_time


@dataclass
class LiveCohort:
    """The clients taking part in one round. Implements `medley.contract.cohort.Cohort`.

    Attributes:
        ids: clients taking part, ascending
        p: p_i of every client of the population; Σ p_i = 1
        bookkeeping: the server's; an exchange adds to it
        codec: of the run; requests go through it if it works both ways. Default `Plain`
        stack_size: clients in one call, see `in_blocks`; default 8
        device: id -> the client's device on the virtual clock
        reply_policy: the replies that an exchange waits for; by default all
        observe: a function that is called at the end of each exchange; by default nothing happens
        sampling: the distribution that drew ``ids``; None if privacy accounting knows none
        local: id -> the distribution of the client's batches in this round
        readout: where x has the last linear layer; None unless that layer is in x
        lies: replaces the replies of Byzantine clients; the server then sums the replies here. None if all are honest
    """

    ids: tuple[int, ...]
    p: Mapping[int, float]
    round: int
    connection: Connection
    bookkeeping: Bookkeeping
    codec: Codec = field(default_factory=Plain)
    stack_size: int = 8
    device: Callable[[int], Device] = lambda i: Device()
    task: Task = field(default_factory=Task)
    seed: int = 0
    reply_policy: ReplyPolicy = field(default_factory=ReplyPolicy)
    observe: Callable[[ExchangeEvent], object] | None = None
    sampling: Sampling | None = None
    local: Callable[[int], LocalSampling] = lambda i: LocalSampling(1, 1.0, 0)
    lies: Lies | None = None
    readout: Readout | None = None
    _exchanges: int = 0
    _unread: str | None = None

    at_work, buffers = forwarded("bookkeeping", "at_work", "buffers")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def population(self) -> int:
        """The number of clients, taking part or not."""
        return len(self.p)

    @property
    def fraction(self) -> float:
        """The share of the population that takes part, a/n."""
        return len(self.ids) / len(self.p)

    @property
    def least(self) -> int:
        """The fewest clients that an exchange may ask: 1, or as many as hide each other in a secure sum."""
        return self.connection.least if gives_sums(self.connection) else 1

    def rng(self, purpose: str) -> torch.Generator:
        """A fresh random stream of the server, named (seed, round, purpose)."""
        return streams.generator(self.seed, "server", self.round, purpose)

    def secret(self, purpose: str) -> streams.Secret:
        """A fresh random stream, named in the same way, for noise that protects clients."""
        return streams.Secret(self.seed, "server", self.round, purpose)

    def note(self, **figures: float) -> None:
        """Add figures to this round's row of the history."""
        self.bookkeeping.notes.update(figures)

    def ask(
        self, method: Any, common: Any, each: Any = None, *, ids: Any = None, late: OnLate = "drop"
    ) -> LiveReplies[Any]:
        """See `medley.contract.cohort.Cohort.ask`."""
        self.settle()
        ids = self.ids if ids is None else chosen(method, ids)
        name, types = checked(method, common, each, ids)
        strangers = [] if ids is self.ids else [i for i in ids if i not in self.p]
        if strangers:
            raise MedleyError(f"ask({name}): clients {strangers} are not members of round {self.round}")
        self._unread = name
        return LiveReplies(self, name, partial(self._exchange, name, ids, common, each, late), types.up)

    def settle(self) -> None:
        """Raise MedleyError if an `ask` was never read."""
        if self._unread is not None:
            raise MedleyError(
                f"ask({self._unread}) was never read: call .mean(), .sum() or .each() on what it returned"
            )

    def _exchange(
        self,
        name: str,
        ids: tuple[int, ...],
        common: Message,
        each: Mapping[int, Message] | None,
        late: OnLate,
        weights: Mapping[int, float] | None,
        clip: Clip | None,
    ) -> ExchangeEnd:
        """One exchange: encode the request, deliver it, wait for replies, and book them."""
        self._unread, books = None, self.bookkeeping
        busy = books.at_work
        books.late = {i: w for i, w in books.late.items() if i in busy}
        clients_asked = tuple(i for i in ids if i not in busy)
        body, bodies = self._encoded(common, each, clients_asked)
        exchange = Exchange(
            self.round,
            self._exchanges,
            name,
            in_blocks(clients_asked, self.stack_size),
            body,
            bodies,
            {i: books.acked[i] for i in clients_asked if i in books.acked},
            {i: self.p[i] for i in clients_asked},
            None if self.lies else weights,
            books.buffers,
            self.reply_policy.faulty == "drop",
            None if self.lies else clip,
        )
        self._exchanges += 1
        every = nbytes(body) + (sum(t.numel() * t.element_size() for t in books.buffers) if books.buffers else 0)
        down = self._down(every, bodies, clients_asked)
        delivery = Delivery(exchange, down, self.connection, books, self.device)
        began = time.perf_counter()

        if gives_sums(self.connection):
            outcome = wait_for_sum(delivery, self.reply_policy, len(clients_asked))
        elif self.reply_policy.endless:
            outcome = wait_for_all(delivery)
        elif self.reply_policy.clock == "wall":
            outcome = wait_in_real_time(delivery, self.reply_policy, ids, late, self.stack_size)
        else:
            outcome = wait_by_policy(delivery, self.reply_policy, ids, late, self.stack_size)

        if self.lies is not None:
            replies = self.lies(exchange.tag, dict(sorted(outcome.fold.replies.items())))
            outcome.fold.refold(replace(exchange, weights=weights, clip=clip), replies)
        # The same noise whether or not clients of this process drew from the global streams.
        streams.name_globals("cpu", self.seed, "server", *exchange.tag, "noise")
        came = outcome.fold.ids
        books.ledger.add(outcome.entries)
        books.acked.update({i: outcome.tags[i] for i in came})
        books.seconds += outcome.seconds
        books.engines |= outcome.engines
        if outcome.fold.buffers is not None and books.buffers is not None:
            change, integers = outcome.fold.buffers
            books.buffers = books.buffers[0] + change / sum(self.p[i] for i in came), integers
        self._tell(exchange, clients_asked, outcome, time.perf_counter() - began)
        return outcome

    def _tell(self, exchange: Exchange, clients_asked: tuple[int, ...], outcome: ExchangeEnd, seconds: float) -> None:
        """Hand the exchange to ``observe``: who was asked, who is lost, who is late, and the seconds that it took."""
        if self.observe is not None:
            silent = sorted({*clients_asked} - {*outcome.fold.ids})
            late = self.bookkeeping.late
            waiting = [i for i in silent if i in late]
            lost = [i for i in silent if i not in late]
            event = (*exchange.tag, exchange.method, len(clients_asked), lost, waiting, outcome.failed, seconds)
            self.observe(ExchangeEvent(*event))

    def _encoded(
        self, common: Message, each: Mapping[int, Message] | None, clients_asked: tuple[int, ...]
    ) -> tuple[Packed, Mapping[int, Packed]]:
        """The request to all, and each client's own, as the codec of requests encodes them."""
        codec = downlink(self.codec)
        names = ("server", self.round, self._exchanges)
        rng = lambda *client: streams.generator(self.seed, *names, *client, "codec")
        personal = each or {}
        like = each.like.pack() if isinstance(each, Each) and each.like is not None else None
        bodies: Mapping[int, Packed] = Each(
            clients_asked if each else (), lambda i: request_by(codec, personal[i], partial(rng, i)), like
        )
        return request_by(codec, common, rng), bodies if isinstance(each, Each) else dict(bodies)

    def _down(self, every: int, bodies: Mapping[int, Packed], clients_asked: tuple[int, ...]) -> dict[int, int]:
        """The request's payload bytes by client, from those to ``every`` client and each client's own."""
        if isinstance(bodies, Each) and bodies and isinstance(downlink(self.codec), Plain):
            one = next(iter(bodies.values())) if bodies.like is None else bodies.like  # all are of one form
            return dict.fromkeys(clients_asked, every + nbytes(one))
        return {i: every + (nbytes(bodies[i]) if bodies else 0) for i in clients_asked}


def chosen(method: Any, ids: Iterable[Any]) -> tuple[int, ...]:
    """Ids of the clients to ask, ascending, as Python's integers.

    Raises MedleyError if an id is not a whole number, or is there twice.
    """
    call = f"ask({getattr(method, '__name__', method)})"
    try:
        chosen_ids = tuple(sorted(map(operator.index, ids)))
    except TypeError:
        raise MedleyError(f"{call}: ids={ids!r}: give clients' ids, whole numbers") from None
    twice = [i for i, j in pairwise(chosen_ids) if i == j]
    if twice:
        raise MedleyError(f"{call}: client {twice[0]} is in ids= twice; give each client once")
    return chosen_ids


def checked(
    method: Any, common: object, each: Mapping[int, Message] | None, ids: tuple[int, ...]
) -> tuple[str, MessageTypes]:
    """The name and the message types of the client method in an `ask`.

    Raises MedleyError if the method is not a client method, if it does not take these messages, or if a client's own
    message is missing.
    """
    algorithm = getattr(method, "__self__", None)
    name = getattr(method, "__name__", str(method))
    types: MessageTypes | None = getattr(algorithm, "message_types", {}).get(name)
    if types is None:
        raise MedleyError(f"ask({name}): mark it with @on_client and call it as clients.ask(self.{name}, ...)")
    messages = [("the message to all", common, types.common)]
    if types.each is not None and each and not isinstance(each, Each):  # the others are checked as they are read
        messages += [(f"the message of {name_of(i)}", m, types.each) for i, m in each.items()]
    for what, message, message_class in messages:
        if type(message) is not message_class:
            raise MedleyError(f"ask({name}): {what} is {type(message).__name__}, not {message_class.__name__}")
    if types.each is None and each is not None:
        raise MedleyError(f"ask({name}): it takes no messages for single clients; leave each= out")
    lacking = [] if types.each is None else sorted(set(ids) - (each or {}).keys())
    if types.each is not None and lacking:
        raise MedleyError(
            f"ask({name}): give every client its {types.each.__name__} in each=; clients {lacking} have none"
        )
    return name, types
