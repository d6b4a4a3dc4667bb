"""The Flower transport: every client method is a Flower action, ``query.<method>``.

Flower carries bytes of our own format. Clients are called by their own stable ids (``partition-id`` in a SuperNode's
``--node-config``), independently of Flower's node ids, and replies are summed in the order of the client ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...contract import MedleyError, WireError, pytree
from ...contract.message import Packed, form_of, nbytes
from ...contract.pieces import Content, Pieces
from ...contract.place import name_of
from ...secure.ring import Ring
from ...wire.codec import resending
from ...wire.connection import Host
from ...wire.exchange import Exchange, Tag
from ...wire.fold import Fold, Receipt
from ..protocol.calls import check_buffers
from ..protocol.checked_json import Count, body, checked, outliers, printable, table, work_and_engines
from ..protocol.flwr_api import PIECE, packed, trimmed
from .messenger import Messenger
from .sums import RemoteParties


@dataclass(frozen=True)
class Flower:
    """Clients on SuperNodes, as a transport.

    Attributes:
        run: the name of the run, under which clients keep their memories; the same when it is resumed
        known: further plain values that every request carries, or a function that returns them for a problem
        terms: the digest of the run's `Terms`, for the names of secure sums
    """

    messenger: Messenger
    run: str
    known: Any = None
    terms: str = ""

    @property
    def is_remote(self) -> bool:
        """True: clients are on other machines."""
        return True

    def open(self, host: Host) -> FlowerConnection:
        """Begin a run; sends nothing yet."""
        values = self.known(host.problem) if callable(self.known) else self.known
        return FlowerConnection(host, replace(self, known=values))


Answer = tuple[Packed, Any, Receipt, set[str]]
"""One client's answer to a request: the packed reply, its buffers, its costs, and the engines that ran."""


class FlowerConnection:
    """Sends requests, and aggregates the answers in the order of client ids."""

    def __init__(self, host: Host, flower: Flower) -> None:
        self.host = host
        self.flower = flower
        self._open = dict[int, Exchange]()
        """The requests that clients are at work on, for replies that may miss their exchange."""

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """Send a request to its clients, and yield their replies block by block, without clients that are late."""
        answers = self.flower.messenger.send(f"query.{exchange.method}", self._letters(exchange, packed))
        read, failed = self._read_all(exchange, answers)
        for block, ids in enumerate(exchange.blocks):
            reply = Fold(block, failed={i: failed[i] for i in ids if i in failed})
            for i in ids:
                if i in read:
                    self._take(reply, exchange, i, read.pop(i))
            yield reply

    def within(
        self, exchange: Exchange, awaited: Collection[int], enough: int, deadline: float | None
    ) -> dict[int, tuple[Tag, Fold]]:
        """See `medley.wire.connection.RealTime.within`."""
        self._open |= {i: exchange for ids in exchange.blocks for i in ids}
        letters, awaited = self._letters(exchange, pytree.to_bytes), {*awaited}
        answers = self.flower.messenger.collect(f"query.{exchange.method}", letters, awaited, enough, deadline)
        closed = {i: self._open.pop(i) for i in sorted(answers)}
        counted = {i: answer for i, answer in answers.items() if answer is not None and i in awaited}
        read, failed = self._read_all(exchange, counted, closed)
        out = dict[int, tuple[Tag, Fold]]()
        for i, request in closed.items():
            fold = Fold(failed={i: failed[i]} if i in failed else {})
            if i in read:
                self._take(fold, request, i, read[i])
            out[i] = request.tag, fold
        return out

    def _letters(self, exchange: Exchange, packed: Callable[[Any], Content]) -> dict[int, dict[str, Content]]:
        """The request to each client; ``packed`` makes bytes, which are copies if the letters outlive the exchange."""
        common = packed({"common": exchange.common, "buffers": exchange.buffers})
        return {i: {"common": common, "own": self._own(exchange, i)} for ids in exchange.blocks for i in ids}

    def clients(self, exchange: Exchange, ring: Ring) -> RemoteParties:
        """The clients of one exchange, as parties of a secure sum; sends nothing yet."""
        weights = dict(ring.weights)
        p = {i: exchange.p[i] for i in ring.weights}
        shared = {"common": exchange.common, "buffers": None, "weights": weights, "clip": exchange.clip, "p": p}
        own_bytes = partial(self._own, replace(exchange, p={}))
        messenger = self.flower.messenger
        run = self.flower.run
        agreed = [self.flower.terms, self.flower.known]
        return RemoteParties(self.host, messenger, run, exchange, ring, pytree.to_bytes(shared), own_bytes, agreed)

    def _read_all(
        self,
        exchange: Exchange,
        answers: dict[int, tuple[Content, int]],
        requests: Mapping[int, Exchange] | None = None,
    ) -> tuple[dict[int, Answer], dict[int, str]]:
        """Valid answers by client, and the other clients' errors. Raises an error unless the exchange tolerates
        failures.

        Consumes ``answers``, which has bytes and the size of their records. ``requests`` has the request that each
        client answers; default ``exchange``.
        """
        requests = requests or {}
        read = dict[int, Answer]()
        failed = dict[int, str]()

        def fail(i: int, e: MedleyError) -> None:
            if not exchange.tolerant:
                raise e
            failed[i] = str(e)
            read.pop(i, None)

        for i in sorted(answers):
            is_large = len(answers[i][0]) > PIECE
            try:
                read[i] = self._read(requests.get(i, exchange), i, *answers.pop(i))
            except MedleyError as e:
                fail(i, e)
            if is_large:
                trimmed()
        up = self.host.algorithm.message_types[exchange.method].up
        if exchange.weights is not None and exchange.tolerant and read and not up.has_one_form():
            # The sum may lack some fields and the type does not fix the form, so the form of most replies counts.
            forms = {i: form_of(packed) for i, (packed, *_) in read.items()}
            usual = Counter(forms.values()).most_common(1)[0][0]
            for i, form in forms.items():
                odd = sorted(form - usual)
                if odd:
                    difference = f"{odd[0][0]!r} is {odd[0][1]}, but {dict(usual)[odd[0][0]]} in most others'"
                    fail(i, WireError(f"{_who(exchange, i)}: {difference}"))
        largest = {i: largest_of(packed) for i, (packed, *_) in read.items()}
        what = f"largest number in its answer to {exchange.method}, round {exchange.round},"
        for i, error in [*outliers(largest, what)]:
            fail(i, error)
        return read, failed

    def _read(self, exchange: Exchange, i: int, answer: Content, size: int) -> Answer:
        """Client i's answer; ``size`` is the size of its records both ways.

        Raises MedleyError for an answer that cannot be read or believed.
        """
        who = _who(exchange, i)
        raw = body(answer, name_of(i), i)
        if isinstance(answer, Pieces):
            answer.clear()  # whose bytes are taken out of the body
        try:
            tree = pytree.from_bytes(raw, {}, take=True)
        except WireError as e:
            raise WireError(f"{who}: {printable(str(e))}") from None
        content = table(who, tree, ["reply", "buffers", "up", "rows", "engines"])
        encoded = checked(who, content, "reply", dict)
        try:
            packed = resending(self.host.codec).decode(dict(encoded), {}, self.host.problem.dtype)
        except WireError as e:
            raise WireError(f"{who}: {printable(str(e))}") from None
        except Exception as e:  # any kind, for example from a codec's arithmetic on fields of other shapes
            raise WireError(f"{who} cannot be decoded: {type(e).__name__}: {printable(str(e))}") from None
        buffers = content["buffers"]
        if buffers is not None:
            check_buffers(who, buffers, exchange.buffers)
        self.host.check(exchange, i, packed)
        up = checked(who, content, "up", Count, len(raw))  # as the client states
        rows, engines = work_and_engines(who, content)
        down = nbytes(exchange.common) + nbytes(exchange.each.get(i, {})) + pytree.nbytes(exchange.buffers or ())
        return packed, buffers, Receipt(i, up, size - down - up, rows), engines

    def _take(self, reply: Fold, exchange: Exchange, i: int, answer: Answer) -> None:
        """Add client i's answer to its block."""
        packed, buffers, receipt, engines = answer
        reply.add(exchange, i, packed, None, in_place=True)
        reply.receipts.append(receipt)
        reply.ran(engines)
        if buffers is not None and reply.buffers is not None:
            buffers = reply.buffers[0] + buffers[0], reply.buffers[1]
        reply.buffers = buffers or reply.buffers

    def _own(self, exchange: Exchange, i: int) -> bytes:
        acked = {i: exchange.acked[i]} if i in exchange.acked else {}
        # The sum bounds the replies.
        part = replace(exchange.of_block((i,)), acked=acked, weights=None, tolerant=False, clip=None)
        return pytree.to_bytes({"exchange": part, "run": self.flower.run, "known": self.flower.known})

    def save(self, acked: Mapping[int, Tag]) -> Mapping[int, Any]:
        """No memories: clients keep their own."""
        return {}

    def load(self, memories: Mapping[int, Any], acked: Mapping[int, Tag]) -> None:
        """Put nothing back: clients keep their own memories."""

    def close(self) -> None:
        """End what still pulls replies."""
        self.flower.messenger.close()


def _who(exchange: Exchange, i: int) -> str:
    return f"{name_of(i)}'s answer to {exchange.method}, round {exchange.round}"


def largest_of(packed: Packed) -> float:
    """The largest absolute value in the floating-point tensors of a reply; 0 if there are none."""
    floats = (v for v in packed.values() if isinstance(v, Tensor) and v.is_floating_point() and v.numel())
    return max((float(torch.linalg.vector_norm(v, float("inf"))) for v in floats), default=0.0)
