"""Adds faults between the server and any transport: failing clients, and connections that lose or damage messages.

The fate of a request is drawn from the stream (seed, client, round, exchange, attempt, "faults"). So the same run has
the same faults on every transport, and a repeated request gets a new draw.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ..contract import Checked, ClientFailed, Packed, RecipeError, WireError, at_least, in_range, integer, real, take
from ..runtime import streams
from ..runtime.forwarded import forwarded
from ..wire.connection import Host, Transport
from ..wire.exchange import Exchange, Tag, single_blocks
from ..wire.fold import Fold, regroup
from ..wire.framing import from_bytes, seal, to_bytes, unseal
from .inprocess import InProcess

Share = Annotated[float, in_range(0, 1)]

FATES = ("loss", "hang", "crash", "late", "truncate", "corrupt", "nan", "shape", "duplicate")


@dataclass(frozen=True)
class Lossy(Checked):
    """``inner`` with faults. A fault's value is the share of requests it hits; a request has at most one fault.

    Attributes:
        loss: the reply is lost
        hang: the request is lost
        crash: the client raises an error
        late: the reply is late by ``delay`` seconds of the virtual clock on average, exponentially distributed
        delay: mean delay of late replies, in seconds. Default 10
        truncate: the end of the reply is cut off; its checksum does not match, so it is lost
        corrupt: one byte of the reply is changed; its checksum does not match, so it is lost
        nan: the client sends a NaN
        shape: the client sends a vector that lacks one element
        duplicate: request and reply are delivered twice
        reorder: replies arrive in random order. Default False
        clients: ids of the clients that faults can hit. Default None: all
        inner: the transport to which the faults are added. Default `InProcess`

    The shares are in [0, 1], 0 by default. Raises RecipeError for a number outside [0, 1], and for shares that add up
    to more than 1.
    """

    loss: Share = 0.0
    hang: Share = 0.0
    crash: Share = 0.0
    late: Share = 0.0
    delay: Annotated[float, at_least(0)] = 10.0
    truncate: Share = 0.0
    corrupt: Share = 0.0
    nan: Share = 0.0
    shape: Share = 0.0
    duplicate: Share = 0.0
    reorder: bool = False
    clients: Sequence[int] | Set[int] | None = None
    inner: Annotated[Transport, "InProcess()"] = field(default_factory=InProcess)

    def __post_init__(self) -> None:
        take(self, real, *FATES, "delay")
        super().__post_init__()
        total = sum(getattr(self, name) for name in FATES)
        if total > 1:
            raise RecipeError(f"Lossy: the shares add up to {total:g}, which is more than 1", "loss")
        if any(integer(i) is None for i in self.clients or ()):
            raise RecipeError(f"Lossy(clients={self.clients!r}): give ids of clients, such as [0, 3]", "clients")

    @property
    def faults(self) -> str:
        """The faults, for the run's record; without ``inner``, which changes no result."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "inner"}
        return ", ".join(f"{k}={v}" for k, v in changed.items() if v)

    def open(self, host: Host) -> LossyConnection:
        """Begin a run with the clients of ``host``."""
        return LossyConnection(self, host)


class LossyConnection:
    """Adds faults to the exchanges of the inner connection, and passes on all other calls."""

    save, load, close = forwarded("inner", "save", "load", "close")

    def __init__(self, lossy: Lossy, host: Host) -> None:
        self.lossy, self.host, self.inner = lossy, host, lossy.inner.open(host)
        self.attempts: Counter[tuple[Tag, int]] = Counter()

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """Deliver the request, with faults. Yields the blocks with the replies that arrive."""
        if exchange.aside:
            yield from self.inner.exchange(exchange)
            return
        ids = [*itertools.chain.from_iterable(exchange.blocks)]
        if any(tag != exchange.tag for tag, _ in self.attempts):
            self.attempts.clear()
        rngs = {}
        for i in ids:
            self.attempts[exchange.tag, i] += 1
            rngs[i] = streams.rng(self.host.seed, i, *exchange.tag, self.attempts[exchange.tag, i], "faults")
        fates = {i: self._fate(i, rng) for i, rng in rngs.items()}
        singles = {}
        for turn in ("once", "again"):
            clients = [
                i for i in ids if fates[i] not in ("hang", "crash") and (turn == "once" or fates[i] == "duplicate")
            ]
            for reply in self.inner.exchange(single_blocks(exchange, clients)):
                i = clients[reply.block]
                answer = self._arriving(exchange, i, fates[i], rngs[i], reply)
                if answer is not None:
                    singles[i] = answer
        for i, fate in fates.items():
            if fate == "crash":
                error = ClientFailed(
                    client=i, round=exchange.round, method=exchange.method, traceback="Lossy: it crashed"
                )
                if not exchange.tolerant:
                    raise error
                singles[i] = Fold(0, failed={i: str(error)})
        order = np.arange(len(exchange.blocks))
        if self.lossy.reorder:
            streams.rng(self.host.seed, *exchange.tag, "order of arrival").shuffle(order)
        for block in order.tolist():
            yield regroup(exchange, block, singles)

    def _fate(self, i: int, rng: np.random.Generator) -> str:
        u = rng.random()
        if self.lossy.clients is None or i in self.lossy.clients:
            for name in FATES:
                u -= getattr(self.lossy, name)
                if u < 0:
                    return name
        return ""

    def _arriving(self, exchange: Exchange, i: int, fate: str, rng: np.random.Generator, reply: Fold) -> Fold | None:
        """The reply as it arrives with this fate; None if nothing readable arrives."""
        if fate == "loss":
            return None
        if i not in reply.replies:  # the client itself has failed
            return reply
        if fate == "late":
            wait = float(rng.exponential(self.lossy.delay))
            return replace(reply, receipts=[r._replace(wait=r.wait + wait) for r in reply.receipts])
        if fate in ("truncate", "corrupt"):
            raw = bytearray(seal(to_bytes(reply.replies[i])))
            at = int(rng.integers(len(raw)))
            if fate == "truncate":
                del raw[at:]
            else:
                raw[at] ^= int(rng.integers(1, 256))
            try:
                return replace(reply, replies={i: from_bytes(unseal(raw))})
            except WireError:
                return None
        if fate in ("nan", "shape"):
            packed = _wrong(reply.replies[i], fate)
            try:
                self.host.check(exchange, i, packed)
            except WireError as e:
                if not exchange.tolerant:
                    raise
                return Fold(reply.block, failed={i: str(e)})
            return replace(reply, replies={i: packed})
        return reply


def _wrong(packed: Packed, fate: str) -> Packed:
    """The message with its first vector of floats damaged; a message without such a vector is unchanged."""
    for name, v in packed.items():
        if isinstance(v, Tensor) and v.is_floating_point() and v.numel():
            flat = v.reshape(-1)
            bad = flat[:-1] if fate == "shape" else torch.cat([flat.new_tensor([torch.nan]), flat[1:]]).view(v.shape)
            return packed | {name: bad}
    return packed
