"""The clients' side of every transport: serve a request, keep a memory in two phases."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from . import streams, tree
from .algorithm import Algorithm
from .client import Client
from .errors import ClientFailed, Diverged, MedleyError, WireError
from .message import Packed, accumulate, is_finite, nbytes
from .problem import Problem, State
from .transport import BlockReply, Exchange, Receipt, Tag
from .wire import BothWays, Codec, Kept, Plain, Uplink


@dataclass
class Memories:
    """Clients' memories, committed in two phases.

    What a call changes is pending until the server's next request to that client acknowledges it; a request that
    acknowledges an earlier version rolls the later one back. So a lost reply changes nothing, and a repeated request is
    answered by the same computation from the same memory and the same named streams: the same reply, with nothing
    cached.

    Kept are the version acknowledged now and the last one of an earlier round, so that a server that goes back to the
    start of its round, or resumes from it, finds what it means.
    """

    versions: dict[int, list[tuple[Tag, Any]]] = field(default_factory=dict)

    def get(self, client: int, acked: Tag | None, round: int) -> Any:
        """The acknowledged memory, or None before the first. Raises WireError when this site hasn't got it."""
        if acked is None:
            self.versions.pop(client, None)
            return None
        held = self.versions.get(client, [])
        kept = [v for v in held if v[0] <= acked]
        if not kept or kept[-1][0] != acked:
            raise WireError(
                f"client {client}: the server builds on what this client remembered at (round, exchange) = {acked}, "
                f"but it holds {[tag for tag, _ in held] or 'nothing'}; was it restarted without its memory, or is the "
                "checkpoint another run's?"
            )
        before = [v for v in kept[:-1] if v[0][0] < round][-1:] if acked[0] == round else []
        self.versions[client] = [*before, kept[-1]]
        return kept[-1][1]

    def put(self, client: int, tag: Tag, memory: Any) -> None:
        """A pending version beside the acknowledged one."""
        self.versions.setdefault(client, []).append((tag, memory))

    def save(self, acked: Mapping[int, Tag]) -> dict[int, Any]:
        """The acknowledged memory of every client that has one."""
        return {i: m for i, held in self.versions.items() for tag, m in held if tag == acked.get(i)}

    def load(self, memories: Mapping[int, Any], acked: Mapping[int, Tag]) -> None:
        """Put back what `save` gave."""
        self.versions = {i: [(acked[i], m)] for i, m in memories.items()}


Travelled = tuple[Packed, int, dict[str, Tensor]]


@dataclass
class Site:
    """Everybody on the clients' side of one run: who they are, what they run, what they remember."""

    algorithm: Algorithm[Any, Any]
    problem: Problem
    client: Callable[[int, int], Client[Any]]
    """(id, round) -> the client, without its memory."""
    seed: int = 0
    codec: Codec = field(default_factory=Plain)
    memories: Memories = field(default_factory=Memories)
    device: str = "cpu"
    uplink: Uplink | None = None
    """What replies go through; ``codec``, unless there is one."""

    @property
    def remembers(self) -> bool:
        """Whether anything is kept of a client between calls: the method's memory, or what the uplink builds on."""
        return self.algorithm.remembers or self._up.remembers

    @property
    def _up(self) -> Uplink:
        return self.uplink or BothWays(self.codec)

    def serve_block(
        self, exchange: Exchange, block: int, memories: Mapping[int, Any]
    ) -> tuple[BlockReply, dict[int, Any]]:
        """Run one block; the same here and in any worker. Returns the reply and the pending memories."""
        if exchange.tolerant:
            try:
                return self.serve_block(replace(exchange, tolerant=False), block, memories)
            except (ClientFailed, Diverged, WireError) as e:
                return BlockReply(block, failed=dict.fromkeys(exchange.blocks[block], str(e))), {}
        reply, pending = BlockReply(block), {}
        work = self.algorithm.works[exchange.method]
        dtype = self.problem.dtype
        asked = f"{self.algorithm.name}.{exchange.method} was asked, round {exchange.round}"
        common = work.common.unpack(self.codec.decode(exchange.common, dtype), self.problem.d, asked)
        for i in exchange.blocks[block]:
            own = None
            if work.each is not None:
                own = work.each.unpack(
                    self.codec.decode(exchange.each[i], dtype), self.problem.d, f"client {i}, {asked}"
                )
            memory, kept = memories.get(i), {}
            if self._up.remembers and memory is not None:
                memory, kept = memory["memory"], memory["codec"]
            travel = self._travel(exchange, i, kept.get(exchange.method, {}))
            packed, buffers, rows, memory = self.serve(exchange, i, common, own, memory, travel)
            decoded, up, now = travel(packed, work.up.exact)
            # `serve` has seen what wasn't re-encoded.
            plain = self.uplink is None and isinstance(self.codec, Plain)
            self.check(exchange, i, decoded, finite=not plain)
            pending[i] = {"memory": memory, "codec": kept | {exchange.method: now}} if self._up.remembers else memory
            up += sum(t.numel() * t.element_size() for t in buffers) if buffers else 0
            reply.receipts.append(Receipt(i, up, 0, rows))
            fold_reply(reply, exchange, i, decoded, buffers)
        return reply, pending

    def check(self, exchange: Exchange, i: int, packed: Packed, finite: bool = True) -> None:
        """Raise WireError unless client i's answer is what its method declares: before anything is made of it."""
        where = f"client {i}'s answer to {self.algorithm.name}.{exchange.method}, round {exchange.round}"
        self.algorithm.works[exchange.method].up.check(packed, self.problem.d, where, finite)

    def _travel(self, exchange: Exchange, i: int, kept: Kept) -> Callable[[Packed, frozenset[str]], Travelled]:
        """How a reply gets to the server: what it decodes, the bytes, and what the uplink keeps. Changes nothing."""
        up, dtype = self._up, self.problem.dtype
        rng = lambda: streams.generator(self.seed, i, exchange.round, exchange.number, "codec")

        def travel(packed: Packed, exact: frozenset[str]) -> Travelled:
            whole = {k: v for k, v in packed.items() if k in exact}
            rest = {k: v for k, v in packed.items() if k not in exact}
            encoded = up.encode(rest, kept, rng)
            decoded = up.decode(encoded, kept, dtype)
            return decoded | whole, nbytes(encoded) + nbytes(whole), dict(up.keep(rest, decoded, kept))

        return travel

    def serve(
        self,
        exchange: Exchange,
        i: int,
        common: Any,
        own: Any,
        memory: Any,
        travel: Callable[[Packed, frozenset[str]], Travelled] | None = None,
    ) -> tuple[Packed, State | None, float, Any]:
        """One client's answer, its buffers if they changed, its work in row gradients, and its memory after it."""
        method = exchange.method
        me = self.client(i, exchange.round)
        if travel is not None:
            me.heard = lambda message: type(message).unpack(travel(message.pack(), message.exact)[0])
        if self.algorithm.remembers:
            if memory is None:
                memory = self.algorithm.remember(
                    torch.zeros(self.problem.d, dtype=self.problem.dtype, device=self.device)
                )
            me.memory = tree.copy(memory)
        given = [*_tensors(memory, common, own)]
        if exchange.buffers is not None:
            self.problem.load_buffers(exchange.buffers)
        try:
            with self._noise(i, exchange):
                packed: Packed = getattr(self.algorithm, method)(me, common, *([] if own is None else [own])).pack()
        except MedleyError:
            raise
        except Exception as e:
            trace = traceback.format_exc()
            raise ClientFailed(client=i, round=exchange.round, method=method, traceback=trace) from e
        for name, t, version in given:
            if t._version != version:
                raise MedleyError(
                    f"{self.algorithm.name}.{method} changed {name} in place (client {i}, round {exchange.round}); "
                    "what a client is given or remembers changes by assignment only: write m.c = m.c + step"
                )
        for name, v in packed.items():
            if not is_finite(v):
                raise Diverged(
                    f"client {i} sent numbers that are not finite ({name!r} of {self.algorithm.name}.{method}, round "
                    f"{exchange.round}): the run diverges; try a smaller lr"
                )
        buffers = self.problem.buffers() if exchange.buffers is not None else None
        if buffers is not None and exchange.buffers is not None and _same(buffers, exchange.buffers):
            buffers = None
        return packed, buffers, me.work, tree.map_tensors(me.memory, Tensor.contiguous)

    @contextlib.contextmanager
    def _noise(self, i: int, exchange: Exchange) -> Iterator[None]:
        """Dropout and its like draw from torch's global streams: give them a name for the length of the call."""
        if "noise" not in self.problem.gives:
            yield
            return
        key = streams.key(self.seed, i, exchange.round, exchange.number, "noise")
        with torch.random.fork_rng(range(torch.cuda.device_count()) if "cuda" in self.device else []):
            # torch.manual_seed looks for every kind of accelerator, and takes a hundred times as long.
            (torch.default_generator.manual_seed if self.device == "cpu" else torch.manual_seed)(key)
            yield


def fold_reply(reply: BlockReply, exchange: Exchange, i: int, packed: Packed, buffers: State | None) -> None:
    """Add client i's answer to its block; clients must come in ascending id."""
    if exchange.weights is None:
        reply.replies[i] = packed
    else:
        reply.folded = accumulate(reply.folded, packed, exchange.weights[i])
    if buffers is not None and exchange.buffers is not None:
        floats, ints = (buffers[0] - exchange.buffers[0]) * exchange.p[i], buffers[1]
        reply.buffers = (floats, ints) if reply.buffers is None else (reply.buffers[0].add_(floats), reply.buffers[1])


def _same(a: State, b: State) -> bool:
    return all(torch.equal(s, t) for s, t in zip(a, b, strict=True))


def _tensors(memory: Any, *messages: Any) -> Iterable[tuple[str, Tensor, int]]:
    for name, t in tree.tensors(memory, "memory"):
        yield name, t, t._version
    for m in messages:
        if m is not None:
            for name, v in vars(m).items():
                if isinstance(v, Tensor):
                    yield f"the message's {name}", v, v._version
