"""The clients as the server sees them, and what the server keeps about talking to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar, overload

import torch

from . import stopwatch, streams
from .client import Client
from .clock import Device
from .errors import MedleyError, TooFewReplies
from .message import Message, Packed, accumulate, nbytes
from .patience import Late, Patience
from .problem import State
from .task import Task
from .transport import BlockReply, Exchange, Link, Receipt, Tag, apart, gather
from .wire import Codec, Entry, Ledger, Plain

log = logging.getLogger("medley")

OnLate = Literal["drop", "deliver"]

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
    late: dict[int, Late] = field(default_factory=dict)
    """Clients at work since an exchange that ended without them."""
    engines: frozenset[str] = frozenset()
    """What ran local descents so far."""

    @property
    def remembered(self) -> dict[int, Tag]:
        """The versions of clients' memories that the server may yet build on."""
        return self.acked | {i: late.tag for i, late in self.late.items() if late.packed is not None}


class Replies(Generic[U]):
    """The answers to one `ask`, waiting to be read by `mean`, `sum` or `each`: that is when the exchange happens.

    ``ids`` are those who answered, ``share`` is their Σ p_i and ``asked`` the round in which each was asked; all are
    known once the answers are read.
    """

    def __init__(self, cohort: Cohort, send: Callable[[Mapping[int, float] | None], _Gathered], up: type[U]) -> None:
        self._cohort, self._send, self._up = cohort, send, up
        self.ids: tuple[int, ...] = ()
        self.share = 0.0
        self.asked: dict[int, int] = {}

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
        return {i: self._make(packed) for i, packed in sorted(got.replies.items())}

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
        self.ids, self.asked = got.ids, got.asked
        self.share = sum(self._cohort.p[i] for i in got.ids)
        return got

    def _make(self, fields: Packed) -> U:
        # Not through __init__: a mean of ints is a float, whatever the declared type.
        message = object.__new__(self._up)
        message.__dict__.update(fields)
        return message


@dataclass
class _Gathered:
    """What became of an exchange's blocks; their sums are added up as they come, so that one is held at a time."""

    receipts: list[Receipt] = field(default_factory=list)
    replies: dict[int, Packed] = field(default_factory=dict)
    folded: Packed | None = None
    buffers: State | None = None
    asked: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, blocks: Iterable[BlockReply]) -> _Gathered:
        """Blocks in their order."""
        got = cls()
        for reply in blocks:
            got.receipts += reply.receipts
            got.replies.update(reply.replies)
            if reply.folded is not None:
                with stopwatch.doing("aggregation"):
                    got.folded = accumulate(got.folded, reply.folded, 1.0) if got.folded else reply.folded
            if reply.buffers is not None:
                floats, ints = got.buffers or reply.buffers
                got.buffers = (floats + reply.buffers[0] if got.buffers else floats), ints
        return got

    @property
    def ids(self) -> tuple[int, ...]:
        """Who answered."""
        return tuple(sorted(r.client for r in self.receipts))


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
    patience: Patience = field(default_factory=Patience)
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
        self,
        method: Callable[[Client[Any], D], U],
        common: D,
        *,
        ids: tuple[int, ...] | None = None,
        late: OnLate = "drop",
    ) -> Replies[U]: ...

    @overload
    def ask(
        self,
        method: Callable[[Client[Any], D, E], U],
        common: D,
        each: Mapping[int, E],
        *,
        ids: tuple[int, ...] | None = None,
        late: OnLate = "drop",
    ) -> Replies[U]: ...

    def ask(
        self, method: Any, common: Any, each: Any = None, *, ids: Any = None, late: OnLate = "drop"
    ) -> Replies[Any]:
        """Have clients run ``method``: one exchange, the unit in which the papers count.

        ``common`` goes to everybody and is encoded once; ``each`` holds what differs, by client id. The exchange
        happens when the replies are read, so that their sum can be taken where they are made. Where the run's
        `Patience` ends it before all have answered, ``late="deliver"`` has the other answers among those of the round
        in which they arrive. Raises MedleyError for
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
            with stopwatch.doing("exchanges"):
                return self._exchange(name, ids, common, each, weights, late)

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
        late: OnLate,
    ) -> _Gathered:
        books = self.books
        books.late = {i: w for i, w in books.late.items() if w.packed is not None or w.at > books.seconds}
        asked = tuple(i for i in ids if i not in books.late)
        body = self.codec.encode(common.pack())
        own = {} if each is None else {i: self.codec.encode(each[i].pack()) for i in asked}
        exchange = Exchange(
            self.round,
            self._exchanges,
            name,
            self._blocks(asked),
            body,
            own,
            {i: books.acked[i] for i in asked if i in books.acked},
            {i: self.p[i] for i in asked},
            weights,
            books.buffers,
            self.patience.faulty == "drop",
        )
        self._exchanges += 1
        everywhere = nbytes(body) + (sum(t.numel() * t.element_size() for t in books.buffers) if books.buffers else 0)
        down = {i: everywhere + (nbytes(own[i]) if own else 0) for i in asked}
        if self.patience.endless:
            tags = dict.fromkeys(asked, exchange.tag)
            got, took = self._wait(exchange, down)
        else:
            got, took, tags = self._wait_patiently(exchange, ids, down, late)
        got.asked = {i: tags[i][0] for i in got.ids}
        books.acked.update({i: tags[i] for i in got.ids})
        books.seconds += took
        if got.buffers is not None:
            share = sum(self.p[i] for i in got.ids)
            assert books.buffers is not None
            books.buffers = books.buffers[0] + got.buffers[0] / share, got.buffers[1]
        return got

    def _blocks(self, ids: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        # More than a crew in a large cohort, so that fewer sums travel. Several are of one size, and if it can be as
        # many for each of two workers: whoever has the last one keeps the others waiting.
        n, size = len(ids), max(self.block, min(32, len(ids) // 20))
        count = min(n, 1 if n <= size else 2 * -(-n // (2 * size)))
        return tuple(ids[k * n // count : (k + 1) * n // count] for k in range(count))

    def _entry(self, exchange: Exchange, i: int, down: int, answer: Receipt | Late | None) -> Entry:
        up, overhead = (answer.up, answer.overhead) if answer else (0, 0)
        return Entry(self.round, exchange.number, exchange.method, i, down, up, overhead)

    def _seconds(self, r: Receipt, down: int) -> float:
        return self.device(r.client).seconds(r.rows, down, r.up) + r.wait

    def _link(self, exchange: Exchange) -> Iterator[BlockReply]:
        for reply in self.link.exchange(exchange):
            self.books.engines |= frozenset(reply.engines)
            yield reply

    def _wait(self, exchange: Exchange, down: Mapping[int, int]) -> tuple[_Gathered, float]:
        """All answers, and how long the slowest took."""
        got = _Gathered.of(in_order(self._link(exchange), len(exchange.blocks)))
        receipts = {r.client: r for r in got.receipts}
        self.books.ledger.add([self._entry(exchange, i, size, receipts.get(i)) for i, size in down.items()])
        return got, max((self._seconds(r, down[i]) for i, r in receipts.items()), default=0.0)

    def _wait_patiently(
        self, exchange: Exchange, ids: tuple[int, ...], down: Mapping[int, int], late: OnLate
    ) -> tuple[_Gathered, float, dict[int, Tag]]:
        """The answers that come in time, those of earlier exchanges among them; how long that took; which requests
        they answer.
        """
        books, patience, now = self.books, self.patience, self.books.seconds
        coming = {i: w for i, w in books.late.items() if w.packed is not None and w.method == exchange.method}
        came: dict[int, Late] = {}
        missing, begin, failed = tuple(down), now, dict[int, str]()
        unanswered: tuple[int, ...] = ()
        for attempt in range(1 + patience.retries):
            if attempt:  # whoever is still missing is asked again when the others have answered, or the time is up
                begin = max([now, *(w.at for w in came.values())])
                if patience.deadline is not None:
                    begin = now + attempt * patience.deadline
            for reply in self._link(apart(exchange, missing)):
                failed |= reply.failed
                for r in reply.receipts:
                    at, packed = begin + self._seconds(r, down[r.client]), reply.replies[r.client]
                    came[r.client] = Late(exchange.method, exchange.tag, at, r.up, r.overhead, packed, reply.buffers)
            missing = tuple(i for i in missing if i not in came)
            unanswered += missing
            if not missing:
                break
        for i in missing:
            log.warning("round %d, %s: no answer of client %d%s", self.round, exchange.method, i, _because(failed, i))
        coming = dict(sorted((coming | came).items()))
        end = self._end(sorted(w.at for w in coming.values()), len(ids), now, begin, bool(missing))
        there = {i: w for i, w in coming.items() if w.at <= end}
        for i, w in coming.items():
            if i in there:
                books.late.pop(i, None)
            else:
                books.late[i] = w if late == "deliver" else replace(w, packed=None, buffers=None)
        for name, count in (("lost", len(missing)), ("late", len(coming) - len(there))):
            books.notes[name] = books.notes.get(name, 0) + count
        if len(there) < patience.quorum * len(ids):
            raise TooFewReplies(
                f"{len(there)} of {len(ids)} clients asked in round {self.round} answered, and Patience(quorum="
                f"{patience.quorum:g}) wants more; silent were {sorted(set(ids) - there.keys())}"
            )
        entries = [self._entry(exchange, i, down[i], None) for i in unanswered]
        entries += [self._entry(exchange, i, down.get(i, 0), there.get(i)) for i in sorted(came | there)]
        books.ledger.add(sorted(entries, key=lambda e: e.client))
        others = tuple(i for i in there if i not in ids)
        whole = replace(exchange, blocks=(*self._blocks(ids), *self._blocks(others)))
        singles = {
            i: BlockReply(0, [Receipt(i, w.up, w.overhead, 0.0)], {i: w.packed}, None, w.buffers)
            for i, w in there.items()
            if w.packed is not None
        }
        got = _Gathered.of(gather(whole, k, singles) for k in range(len(whole.blocks)))
        return got, end - now, {i: w.tag for i, w in there.items()}

    def _end(self, arrivals: list[float], asked: int, now: float, begin: float, missing: bool) -> float:
        """When the exchange is over: enough have answered, or all, or the deadline has passed."""
        enough = self.patience.enough(asked)
        if enough is not None and len(arrivals) >= enough:
            end = arrivals[enough - 1]
        elif arrivals:
            end = arrivals[-1]
        else:  # nobody was free: time passes until somebody is
            end = begin if missing else min((w.at for w in self.books.late.values()), default=now)
        if self.patience.deadline is not None:
            limit = begin + self.patience.deadline
            end = limit if missing and (enough is None or len(arrivals) < enough) else min(end, limit)
        return max(end, now)


def _because(failed: Mapping[int, str], i: int) -> str:
    return f": {failed[i]}" if i in failed else ""


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
