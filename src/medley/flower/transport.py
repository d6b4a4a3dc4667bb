"""The Flower transport: every client method is a Flower action, ``query.<method>``.

Flower carries bytes of our own format. Clients are called by their own stable ids (``partition-id`` in a SuperNode's
``--node-config``), whatever nodes Flower makes of them, and replies are summed in the order of ids.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from ..contract.errors import MedleyError, Unsupported, WireError
from ..contract.message import LIMIT, Form, Packed, form_of, is_finite, nbytes
from ..contract.own import PartlyShared
from ..contract.problem import State
from ..secure.ring import Ring
from ..storage import pytree
from ..wire.codec import resending
from ..wire.connection import Host
from ..wire.exchange import Exchange, Tag
from ..wire.fold import Fold, Receipt
from .costs import work_and_engines
from .envelope import opened
from .parties import RemoteParties
from .post import Post
from .words import Words, printable


@dataclass(frozen=True)
class Flower:
    """Clients on SuperNodes, as a transport.

    Attributes:
        post: the way to them
        run: the name of the run, under which clients keep their memories; the same when it is resumed
        known: further plain values that travel with every request
    """

    post: Post
    run: str
    known: Any = None

    def open(self, host: Host) -> FlowerConnection:
        """Begin a run; nothing is sent yet. Raises Unsupported where clients use models of their own."""
        if host.algorithm.is_personal or isinstance(host.problem, PartlyShared):
            raise Unsupported(
                f"{host.algorithm.name}: on Flower every client uses the server's model, and all parameters travel. "
                "Run methods with models of their own in one process, by transports.Processes or Ray",
                method=host.algorithm.name,
                need="shared",
            )
        return FlowerConnection(host, self)


class FlowerConnection:
    """Sends requests, and folds the answers in the order of client ids."""

    def __init__(self, host: Host, flower: Flower) -> None:
        self.host, self.flower = host, flower

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """Send a request to its clients, and yield their replies block by block; a client that is late is absent."""
        common = pytree.to_bytes({"common": exchange.common, "buffers": exchange.buffers})
        letters = {i: {"common": common, "own": self._own(exchange, i)} for ids in exchange.blocks for i in ids}
        answers = self.flower.post.send(f"query.{exchange.method}", letters)
        usual = self._usual(exchange, {i: raw for i, (raw, _) in answers.items()})
        for block, ids in enumerate(exchange.blocks):
            reply = Fold(block)
            for i in ids:
                if i in answers:
                    try:
                        self._take(reply, exchange, i, *answers[i], usual)
                    except MedleyError as e:
                        if not exchange.tolerant:
                            raise
                        reply.failed[i] = str(e)
            yield reply

    def clients(self, exchange: Exchange, ring: Ring) -> RemoteParties:
        """The clients of one exchange, as parties of a secure sum; nothing is sent yet."""
        shared = {"common": exchange.common, "buffers": None, "weights": dict(ring.weights), "clip": exchange.clip}
        own, post, run = partial(self._own, exchange), self.flower.post, self.flower.run
        return RemoteParties(self.host, post, run, exchange, ring, pytree.to_bytes(shared), own)

    def _usual(self, exchange: Exchange, answers: Mapping[int, bytes]) -> Form | None:
        """The form of most replies, where a sum may do without some and their type leaves the form open; else None."""
        up = self.host.algorithm.message_types[exchange.method].up
        if exchange.weights is None or not exchange.tolerant or up.has_one_form():
            return None
        forms: Counter[Form] = Counter()
        for i, raw in sorted(answers.items()):
            with contextlib.suppress(MedleyError):
                forms[form_of(self._read(exchange, i, raw)[1])] += 1
        return forms.most_common(1)[0][0] if forms else None

    def _read(self, exchange: Exchange, i: int, answer: bytes) -> tuple[Words, Packed, Any]:
        """Client i's words, reply and buffers. Raises MedleyError for an answer that cannot be read or believed."""
        who = f"client {i}'s answer to {exchange.method}, round {exchange.round}"
        raw = opened(answer, f"client {i}")
        try:
            got = pytree.from_bytes(raw, {})
            packed = resending(self.host.codec).decode(dict(got["reply"]), {}, self.host.problem.dtype)
            buffers = got["buffers"]
            words = Words(who, {k: got[k] for k in ("up", "rows", "engines")})
        except WireError as e:
            raise WireError(f"{who}: {printable(str(e))}") from None
        except Exception as e:  # of many kinds: a codec's arithmetic on fields of other shapes
            raise WireError(f"{who} is none of ours: {type(e).__name__}: {printable(str(e))}") from None
        _check_buffers(who, buffers, exchange.buffers)
        self.host.check(exchange, i, packed)
        return words, packed, buffers

    def _take(
        self, reply: Fold, exchange: Exchange, i: int, answer: bytes, size: int, usual: Form | None = None
    ) -> None:
        """Add client i's answer to its block; one that is refused leaves nothing there.

        Args:
            size: bytes of records both ways
            usual: the form that the reply must have; default None: any
        """
        words, packed, buffers = self._read(exchange, i, answer)
        if usual is not None and (odd := sorted(form_of(packed) - usual)):
            name, form = odd[0]
            raise WireError(f"{words.who}: {name!r} is {form}, and {dict(usual)[name]} in most others' replies")
        up, (rows, engines) = words.whole("up", 0, LIMIT), work_and_engines(words)
        down = nbytes(exchange.common) + nbytes(exchange.each.get(i, {}))
        down += sum(t.numel() * t.element_size() for t in exchange.buffers) if exchange.buffers else 0
        reply.add(exchange, i, packed, None)
        reply.receipts.append(Receipt(i, up, size - down - up, rows))
        reply.ran(engines)
        if buffers is not None and reply.buffers is not None:
            buffers = reply.buffers[0] + buffers[0], reply.buffers[1]
        reply.buffers = buffers or reply.buffers

    def _own(self, exchange: Exchange, i: int) -> bytes:
        own = replace(
            exchange,
            blocks=((i,),),
            common={},
            each={i: exchange.each[i]} if exchange.each else {},
            acked={i: exchange.acked[i]} if i in exchange.acked else {},
            p={i: exchange.p[i]},
            weights=None,
            buffers=None,
            tolerant=False,
            clip=None,  # replies are bounded where they are summed
        )
        return pytree.to_bytes({"exchange": own, "run": self.flower.run, "known": self.flower.known})

    def save(self, acked: Mapping[int, Tag]) -> Mapping[int, Any]:
        """No memories: clients keep their own."""
        return {}

    def load(self, memories: Mapping[int, Any], acked: Mapping[int, Tag]) -> None:
        """Put nothing back: clients keep their own memories."""

    def close(self) -> None:
        """There is nothing to let go of."""


def _check_buffers(who: str, buffers: Any, like: State | None) -> None:
    """Raise WireError unless a client's buffers are of the shapes and types of the model's, and finite."""
    if buffers is None:
        return
    pair = buffers if isinstance(buffers, tuple) and len(buffers) == 2 else (None, None)
    for mine, theirs in zip(like or (None, None), pair, strict=True):
        if mine is None or not isinstance(theirs, Tensor) or (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            raise WireError(f"{who}: buffers are not of the model's shapes and types")
        if not is_finite(theirs):
            raise WireError(f"{who}: buffers hold numbers that are not finite")
