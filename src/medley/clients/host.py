"""Runs client methods: builds each client, calls it, encodes and aggregates its reply, and stores its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from ..contract import (
    Algorithm,
    Client,
    Each,
    Message,
    Need,
    Nothing,
    OptimizerState,
    OwnState,
    Packed,
    PartlyShared,
    Problem,
    nbytes,
)
from ..contract.annotation import in_words
from ..contract.errors import ClientFailed, Diverged, MedleyError, WireError
from ..contract.place import ClientNames, name_of, naming
from ..runtime import deferred, stopwatch, streams
from ..wire.codec import Codec, CodecState, Plain, downlink, request_of
from ..wire.exchange import Exchange
from ..wire.fold import Fold, Receipt
from .answer import Answer, answer_one, answer_stack
from .memories import Memories
from .personal import personal_models
from .request import Request
from .stack import ClientStack, alike


class RoundTrip(NamedTuple):
    """A reply after the codec: the reply as the server decodes it, its payload bytes, and the codec's new state."""

    decoded: Packed
    size: int
    state: CodecState


class MemoryParts(NamedTuple):
    """The parts of clients' memories, by client.

    Attributes:
        memories: the algorithm's memories
        codec_states: the codec's state by client method; no entry before a client's first reply
        optimizers: the optimizer's state; no entry before its first step
        owns: each client's personal parameters; None before a client's first reply, no entry if all parameters are
            shared
    """

    memories: Mapping[int, Any]
    codec_states: Mapping[int, Mapping[str, CodecState]]
    optimizers: Mapping[int, OptimizerState]
    owns: Mapping[int, OwnState | None]


@dataclass
class ClientHost:
    """Hosts the clients of one run and runs their methods; the same on the server's machine and in any worker.

    Attributes:
        client: (id, round) -> the client, without its memory
        codec: the codec of the run; default `Plain`
        stack_size: upper bound on the clients in one call; by default practically none
        keeps_optimizers: whether the state of each client's optimizer is kept between rounds; default False
        names: the clients' names in messages; default those that hold where the host is called
    """

    algorithm: Algorithm[Any, Any]
    problem: Problem
    client: Callable[[int, int], Client[Any]]
    seed: int = 0
    codec: Codec = field(default_factory=Plain)
    memories: Memories = field(default_factory=Memories)
    device: str = "cpu"
    stack_size: int = 1 << 30
    keeps_optimizers: bool = False
    names: ClientNames | None = None

    @property
    def remembers(self) -> bool:
        """True if anything of a client is kept between calls: memory, own parameters, or states of codec or
        optimizer.
        """
        return self.algorithm.remembers or self._keeps

    @property
    def _keeps(self) -> bool:
        """True if own parameters or a state of the codec or optimizer are kept in addition to the algorithm's
        memory.
        """
        return self.codec.remembers or self.keeps_optimizers or self._owns

    @cached_property
    def _owns(self) -> bool:
        """True if clients have their own parameters."""
        return isinstance(self.problem, PartlyShared)

    def without_memories(self) -> ClientHost:
        """A copy without memories, for workers that get them with every request."""
        return replace(self, memories=Memories())

    def serve_block(self, exchange: Exchange, block: int, memories: Mapping[int, Any]) -> tuple[Fold, dict[int, Any]]:
        """Run one block of an exchange: its replies, and the pending memories by client. ``memories`` are the
        acknowledged ones.

        Raises ClientFailed, Diverged or WireError for a client that fails, unless the exchange is tolerant.
        """
        with naming(self.names):
            return self._serve(exchange, block, memories)

    def _serve(self, exchange: Exchange, block: int, memories: Mapping[int, Any]) -> tuple[Fold, dict[int, Any]]:
        if exchange.aside:
            return personal_models(self, exchange, block, memories), {}
        if exchange.tolerant:
            try:
                with deferred.at_once():
                    return self._serve(replace(exchange, tolerant=False), block, memories)
            except (ClientFailed, Diverged, WireError) as e:
                return Fold(block, failed=dict.fromkeys(exchange.blocks[block], str(e))), {}
        request = self._decoded(exchange, block, memories)
        fold = Fold(block)
        pending = dict[int, Any]()
        for ids in self._calls(request):
            with stopwatch.doing("clients outside their steps"):
                answers = self._answers(request, ids, fold)
            pending.update(self._deliver(request, answers, fold))
        return fold, pending

    def check(self, exchange: Exchange, i: int, packed: Packed, finite: bool = True) -> None:
        """Raise WireError unless client i's reply has the type that its method declares; see `Host.check`."""
        where = f"{name_of(i)}'s answer to {self.algorithm.name}.{exchange.method}, round {exchange.round}"
        self.algorithm.message_types[exchange.method].up.check(
            packed, self.problem.d, where, finite, self.problem.dtype
        )

    def _decoded(self, exchange: Exchange, block: int, memories: Mapping[int, Any]) -> Request:
        """Decode a block's request and check its messages; a client's first memory is the algorithm's `remember`."""
        ids = exchange.blocks[block]
        codec = downlink(self.codec)
        where = f"{self.algorithm.name}.{exchange.method} was asked, round {exchange.round}"
        if exchange.method not in self.algorithm.message_types:
            raise WireError(f"{where}, but it has {in_words(self.algorithm.message_types)}")
        types = self.algorithm.message_types[exchange.method]
        dtype = self.problem.dtype
        d = self.problem.d
        # Do not wait for an accelerator: the reply to numbers that are not finite will raise an error.
        finite = self.device == "cpu"
        shared = request_of(codec, exchange.common, types.common, dtype)
        common = types.common.unpack(shared, d, where, finite and block == 0, dtype)  # one pass over it is enough
        each: Mapping[int, Message] = {}
        if types.each is not None:
            missing = sorted({*ids} - exchange.each.keys())
            if missing:
                raise WireError(f"{name_of(missing[0])}, {where}: its own message, a {types.each.__name__}, is missing")
            kind = types.each

            def own(i: int) -> Message:
                packed = request_of(codec, exchange.each[i], kind, dtype)
                return kind.unpack(packed, d, f"{name_of(i)}, {where}", finite, dtype)

            each = Each(ids, own) if isinstance(exchange.each, Each) else {i: own(i) for i in ids}
        return Request(exchange, self.algorithm, ids, common, each, *self.parts({i: memories.get(i) for i in ids}))

    def parts(self, saved: Mapping[int, Any]) -> MemoryParts:
        """The parts of clients' memories; the algorithm's memory starts as its `remember`."""
        codec_states = dict[int, dict[str, CodecState]]()
        optimizers = dict[int, OptimizerState]()
        owns = dict[int, OwnState | None]()
        if self._keeps:
            present = {i: m for i, m in saved.items() if m is not None}
            codec_states = {i: m.get("codec", {}) for i, m in present.items()}
            optimizers = {i: m["optimizer"] for i, m in present.items() if m.get("optimizer") is not None}
            owns = {i: None if m is None else m.get("own") for i, m in saved.items()}
            saved = {i: None if m is None else m["memory"] for i, m in saved.items()}
        if self.algorithm.remembers and any(m is None for m in saved.values()):
            zero = torch.zeros(self.problem.d, dtype=self.problem.dtype, device=self.device)
            saved = {i: self.algorithm.remember(zero) if m is None else m for i, m in saved.items()}
        return MemoryParts(saved, codec_states, optimizers, owns)

    def _calls(self, request: Request) -> Iterable[tuple[int, ...]]:
        """The clients of each call: one, or as many as can be stacked if method and problem allow it."""
        one_by_one = request.exchange.buffers is not None or self._owns or Need.NOISE in self.problem.gives
        if one_by_one or not request.types.vectorized:
            return ((i,) for i in request.ids)
        groups: Iterable[tuple[int, ...]] = [request.ids]
        if self.algorithm.remembers or request.types.each is not None:
            nothing = Nothing()
            personal = {} if isinstance(request.each, Each) else request.each  # those are of one form
            groups = alike({i: (m or nothing, personal.get(i, nothing)) for i, m in request.memories.items()})
        return split(groups, self.stack_size)

    def _answers(self, request: Request, ids: tuple[int, ...], fold: Fold) -> list[Answer]:
        """The answers of the clients of one call. If a stack fails, the error names the first client that fails
        alone.
        """
        if len(ids) == 1:
            return [self._answer(request, ids[0], fold)]
        try:
            like = torch.empty(0, dtype=self.problem.dtype, device=self.device)
            me = ClientStack([self._client(request, i) for i in ids], like)
            answers = answer_stack(request, me, copy=not (self._plain and request.exchange.weights is not None))
        except Diverged:
            raise
        except Exception as e:
            for i in ids:
                self._answer(request, i, fold)
            raise MedleyError(
                f"{request.method} serves clients {ids[0]}..{ids[-1]} one by one, but not as a stack "
                f"({type(e).__name__}: {e}); see on_client(vectorized=True), or remove vectorized=True"
            ) from e
        fold.ran(me.ran)
        self.problem.buffers()  # rejects changes that would not travel
        return answers

    def _client(self, request: Request, i: int) -> Client[Any]:
        me = self.client(i, request.exchange.round)
        me.optimizer_state = request.optimizers.get(i)
        return me

    def _answer(self, request: Request, i: int, fold: Fold) -> Answer:
        me = self._client(request, i)
        me.as_received = lambda message: type(message).unpack(
            self._round_trip(request, i, message.pack(), message.exact).decoded
        )
        answer = answer_one(request, me, self.problem, self.device)
        fold.ran(me.ran)
        return answer

    def _deliver(self, request: Request, answers: Iterable[Answer], fold: Fold) -> Iterator[tuple[int, Any]]:
        """Send the answers of one call through the codec and aggregate them. Yields (client, pending memory)."""
        exchange = request.exchange
        size = -1
        plain = self._plain
        keeps = self._keeps
        owns = self._owns
        state: CodecState = {}
        for i, packed, buffers, rows, memory, optimizer, own_part in answers:
            if not plain:
                packed, size, state = self._round_trip(request, i, packed, request.types.up.exact)
                self.check(exchange, i, packed)
            elif size < 0:
                # A stack's replies have the same form, and `call` has checked that they are finite.
                self.check(exchange, i, packed, finite=False)
                size = nbytes(packed)
            buffered = sum(t.numel() * t.element_size() for t in buffers) if buffers else 0
            fold.receipts.append(Receipt(i, size + buffered, 0, rows))
            fold.add(exchange, i, packed, buffers)
            if keeps:
                memory = {"memory": memory}
            if self.codec.remembers:
                memory["codec"] = {**request.codec_states.get(i, {}), exchange.method: state}
            if self.keeps_optimizers:
                memory["optimizer"] = optimizer
            if owns:
                memory["own"] = own_part
            yield i, memory

    @property
    def _plain(self) -> bool:
        """True if replies arrive as they were sent."""
        return isinstance(self.codec, Plain)

    def _round_trip(self, request: Request, i: int, packed: Packed, exact: frozenset[str]) -> RoundTrip:
        """A reply of client i after the codec's round trip. Fields in ``exact`` skip it. Changes nothing."""
        exchange = request.exchange
        state = request.codec_states.get(i, {}).get(exchange.method, {})
        rng = lambda: streams.generator(self.seed, i, exchange.round, exchange.number, "codec")
        unchanged = {k: v for k, v in packed.items() if k in exact}
        rest = {k: v for k, v in packed.items() if k not in exact}
        encoded = self.codec.encode(rest, state, rng)
        decoded = self.codec.decode(encoded, state, self.problem.dtype)
        return RoundTrip(
            decoded | unchanged, nbytes(encoded) + nbytes(unchanged), dict(self.codec.keep(rest, decoded, state))
        )


def split(groups: Iterable[tuple[int, ...]], size: int) -> Iterator[tuple[int, ...]]:
    """The groups, in parts of at most ``size``."""
    for ids in groups:
        for k in range(0, len(ids), size):
            yield ids[k : k + size]
