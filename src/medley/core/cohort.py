"""The clients as the server sees them, and what the server keeps about talking to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

import torch

from . import streams
from .client import Client
from .clock import Device
from .errors import MedleyError, TooFewReplies
from .message import Message, Packed, accumulate, nbytes
from .problem import State
from .task import Task
from .transport import BlockReply, Exchange, Link, Tag
from .wire import Codec, Entry, Ledger, Plain

D = TypeVar("D", bound=Message)
E = TypeVar("E", bound=Message)
U = TypeVar("U", bound=Message)


@dataclass
class Books:
    """What the server's side of the wire remembers beside the method's own state."""

    ledger: Ledger = field(default_factory=Ledger)
    seconds: float = 0.0
    """The virtual clock."""
    acked: dict[int, Tag] = field(default_factory=dict)
    """The last request of each client whose reply arrived: the version of its memory to build on."""
    buffers: State | None = None
    notes: dict[str, float] = field(default_factory=dict)


class Replies(Generic[U]):
    """The answers to one `ask`, waiting to be read by `mean`, `sum` or `each`: that is when the exchange happens.

    ``ids`` are those who answered and ``share`` is their Σ p_i; both are known once the answers are read.
    """

    def __init__(self, cohort: Cohort, send: Callable[[Mapping[int, float] | None], _Gathered], up: type[U]) -> None:
        self._cohort, self._send, self._up = cohort, send, up
        self.ids: tuple[int, ...] = ()
        self.share = 0.0

    def mean(self) -> U:
        """Every field's mean over those who answered, weighed by p_i. Raises TooFewReplies if nobody did."""
        total = self._fold(self._cohort.p)
        return self._make({k: None if v is None else v / self.share for k, v in total.items()})

    def sum(self, weights: Mapping[int, float] | None = None) -> U:
        """Every field's weighted sum over those who answered, by the global p_i unless ``weights`` says otherwise.

        Raises TooFewReplies if nobody answered.
        """
        return self._make(self._fold(self._cohort.p if weights is None else weights))

    def each(self) -> dict[int, U]:
        """The answers by client id, ascending; possibly none."""
        got = self._read(None)
        return {i: self._up.unpack(packed) for i, packed in sorted(got.replies.items())}

    def _fold(self, weights: Mapping[int, float]) -> Packed:
        got = self._read(weights)
        if got.folded is None:
            raise TooFewReplies(
                f"nobody of the {len(self._cohort)} clients asked in round {self._cohort.round} answered; check that "
                "they are reachable, or raise the participation"
            )
        return got.folded

    def _read(self, weights: Mapping[int, float] | None) -> _Gathered:
        got = self._send(weights)
        self.ids = got.ids
        self.share = sum(self._cohort.p[i] for i in got.ids)
        return got

    def _make(self, fields: Packed) -> U:
        # Not through __init__: a mean of ints is a float, whatever the declared type.
        message = object.__new__(self._up)
        message.__dict__.update(fields)
        return message


@dataclass
class _Gathered:
    ids: tuple[int, ...]
    replies: dict[int, Packed]
    folded: Packed | None


@dataclass
class Cohort:
    """The clients taking part in one round, ascending by id."""

    ids: tuple[int, ...]
    p: Mapping[int, float]
    """p_i of everybody (of the whole population, not only of this cohort); Σ p_i = 1."""
    round: int
    link: Link
    books: Books
    codec: Codec = field(default_factory=Plain)
    block: int = 8
    device: Callable[[int], Device] = lambda i: Device()
    task: Task = field(default_factory=Task)
    seed: int = 0
    _exchanges: int = 0
    _unread: str | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def population(self) -> int:
        """How many clients there are, taking part or not."""
        return len(self.p)

    @property
    def fraction(self) -> float:
        """Share of the population that takes part, a/n."""
        return len(self.ids) / len(self.p)

    def rng(self, purpose: str) -> torch.Generator:
        """A fresh stream of the server's, named (seed, round, purpose)."""
        return streams.generator(self.seed, "server", self.round, purpose)

    def note(self, **figures: float) -> None:
        """Add figures to this round's row of the history."""
        self.books.notes.update(figures)

    @overload
    def ask(
        self, method: Callable[[Client[Any], D], U], common: D, *, ids: tuple[int, ...] | None = None
    ) -> Replies[U]: ...

    @overload
    def ask(
        self,
        method: Callable[[Client[Any], D, E], U],
        common: D,
        each: Mapping[int, E],
        *,
        ids: tuple[int, ...] | None = None,
    ) -> Replies[U]: ...

    def ask(self, method: Any, common: Any, each: Any = None, *, ids: Any = None) -> Replies[Any]:
        """Have clients run ``method``: one exchange, the unit in which the papers count.

        ``common`` goes to everybody and is encoded once; ``each`` holds what differs, by client id. The exchange
        happens when the replies are read, so that their sum can be taken where they are made. Raises MedleyError for
        replies that were never read, for a method that is not a client method, and for a client without its ``each``.
        """
        self.settle()
        algorithm, name = getattr(method, "__self__", None), getattr(method, "__name__", str(method))
        work = getattr(algorithm, "works", {}).get(name)
        if work is None:
            raise MedleyError(f"ask({name}): mark it with @on_client and call it as clients.ask(self.{name}, ...)")
        ids = self.ids if ids is None else tuple(sorted(ids))
        if work.each is None and each is not None:
            raise MedleyError(f"ask({name}): it takes no message of a client's own; leave each= out")
        lacking = sorted(set(ids) - (each or {}).keys())
        if work.each is not None and lacking:
            raise MedleyError(
                f"ask({name}): give every client its {work.each.__name__} in each=; clients {lacking} have none"
            )
        self._unread, read = name, False

        def send(weights: Mapping[int, float] | None) -> _Gathered:
            nonlocal read
            if read:
                raise MedleyError(f"ask({name}): its replies have been read already")
            self._unread, read = None, True
            return self._exchange(name, ids, common, each, weights)

        return Replies(self, send, work.up)

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
        weights: Mapping[int, float] | None,
    ) -> _Gathered:
        books = self.books
        body = self.codec.encode(common.pack())
        own = {} if each is None else {i: self.codec.encode(each[i].pack()) for i in ids}
        exchange = Exchange(
            self.round,
            self._exchanges,
            name,
            tuple(ids[k : k + self.block] for k in range(0, len(ids), self.block)),
            body,
            own,
            {i: books.acked[i] for i in ids if i in books.acked},
            {i: self.p[i] for i in ids},
            weights,
            books.buffers,
        )
        self._exchanges += 1
        got, blocks = _Gathered((), {}, None), []
        for reply in in_order(self.link.exchange(exchange), len(exchange.blocks)):
            blocks.append(reply)
            got.replies.update(reply.replies)
            if reply.folded is not None:
                got.folded = accumulate(got.folded, reply.folded, 1.0) if got.folded else reply.folded
                reply.folded = None
        receipts = {r.client: r for b in blocks for r in b.receipts}
        got.ids = tuple(sorted(receipts))
        books.acked.update(dict.fromkeys(got.ids, exchange.tag))
        everywhere = nbytes(body) + (sum(t.numel() * t.element_size() for t in books.buffers) if books.buffers else 0)
        entries, longest = [], 0.0
        for i in ids:
            r, down = receipts.get(i), everywhere + (nbytes(own[i]) if own else 0)
            entries.append(Entry(self.round, exchange.number, name, i, down, r.up if r else 0, r.overhead if r else 0))
            if r:
                longest = max(longest, self.device(i).seconds(r.rows, down, r.up))
        books.ledger.add(entries)
        books.seconds += longest
        changed = [b.buffers for b in blocks if b.buffers is not None]
        if changed:
            share = sum(self.p[i] for i in got.ids)
            floats = changed[0][0]
            for later, _ in changed[1:]:
                floats = floats + later
            assert books.buffers is not None
            books.buffers = books.buffers[0] + floats / share, changed[0][1]
        return got


def in_order(blocks: Iterator[BlockReply], count: int) -> Iterator[BlockReply]:
    """Blocks by their number as soon as each one's turn has come; blocks that never come are left out at the end."""
    waiting: dict[int, BlockReply] = {}
    turn = 0
    for reply in blocks:
        waiting[reply.block] = reply
        while turn in waiting:
            yield waiting.pop(turn)
            turn += 1
    for k in range(turn, count):
        if k in waiting:
            yield waiting.pop(k)
