"""A connection whose replies are summed securely, and the clients of a simulation in this process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from ..contract import Need, Unsupported
from ..runtime import stopwatch, streams
from ..runtime.forwarded import forwarded
from ..wire.connection import Connection, Host
from ..wire.exchange import Exchange, single_blocks
from ..wire.fold import Fold
from .ring import WITHIN, Field, Ring, Rounding
from .settings import SecureSum, check_installed
from .tables import Opening

if TYPE_CHECKING:
    import numpy as np

    from .party import Party
    from .session import Parties


@runtime_checkable
class Clients(Protocol):
    """The clients of one exchange: `medley.secure.session.Parties`, and a record of their replies.

    Attributes:
        fold: receipts, errors and engines of the replies; the sum is added later
        layout: the fields of a reply
    """

    session: bytes
    fold: Fold
    layout: tuple[Field, ...]

    @property
    def parties(self) -> Parties:
        """The clients' side of the protocol."""


@runtime_checkable
class ReachesParties(Connection, Protocol):
    """A connection to clients that run the protocol on their own machines."""

    def clients(self, exchange: Exchange, ring: Ring) -> Clients:
        """The clients of one exchange; nothing is sent yet."""


class SecureConnection:
    """Carries exchanges over another connection, and sums their replies by the protocol.

    If the inner connection is not one of `ReachesParties`, the clients' part of the protocol runs in this process, on
    the replies that it delivers. The server's part reads only keys, sealed shares, masked vectors and openings. The
    operating system draws the keys, not the run's streams; since masks cancel, a run still has the same bits each time.
    """

    sums_only = True
    save, load, close = forwarded("inner", "save", "load", "close")

    def __init__(self, settings: SecureSum, inner: Connection, host: Host) -> None:
        check_installed()
        self.settings = settings
        self.inner = inner
        self.host = host
        self.rounding = Rounding() if host.algorithm.fixed_scale else None

    @property
    def least(self) -> int:
        """The fewest clients in a sum: two, or a threshold that is a number."""
        t = self.settings.threshold
        return 2 if t <= 1 else int(t)

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """Deliver the request. Yields one fold, with the sum.

        Raises Unsupported if the method reads replies one by one or the model has buffers; nothing is sent then.
        """
        if exchange.aside:
            yield from self.inner.exchange(exchange)
            return
        method = self.host.algorithm
        if exchange.weights is None:
            raise Unsupported(
                f"{method.name}.{exchange.method}: the server reads its replies one by one, but a secure run gives it "
                "only their sum: leave secure= out, or read .mean() or .sum()",
                method=method.name,
                need=Need.REPLIES,
            )
        if exchange.buffers is not None:
            raise Unsupported(
                f"{method.name}: this model has buffers, such as BatchNorm's, which clients send without a "
                "mask, so they would reveal single clients: use a network with GroupNorm, or leave "
                "secure= out",
                method=method.name,
                need="sums",
            )
        with stopwatch.doing("secure sums"):
            yield self._sum(exchange)

    def _sum(self, exchange: Exchange) -> Fold:
        from .session import Session

        assert exchange.weights is not None
        ids = [*itertools.chain(*exchange.blocks)]
        if not ids:
            return Fold()
        circle = streams.rng(self.host.seed, "server", *exchange.tag, "secure graph").permutation(sorted(ids)).tolist()
        weights = {i: exchange.weights[i] for i in ids}
        settings = self.settings
        ring = Ring(
            bits=settings.bits,
            bound=settings.bound,
            weights=weights,
            clip=exchange.clip,
            stay=settings.least(len(ids)),
            rounding=self.rounding,
            first=exchange.round == 1,
        )
        clients: Clients = (
            self.inner.clients(exchange, ring)
            if isinstance(self.inner, ReachesParties)
            else Simulated(
                self.inner,
                exchange,
                ring,
                f"run {self.host.seed} round {exchange.round} exchange {exchange.number}".encode(),
                self.host.seed,
            )
        )
        session = Session(self.settings, clients.session, circle)
        total = session.run(clients.parties)
        fold = clients.fold
        fold.phases = session.phases
        fold.total = ring.decoded(total, clients.layout, torch.device(self.host.device))
        if exchange.clip is not None and not ring.noise:
            fold.within = round(float(fold.total.pop(WITHIN)))  # type: ignore[arg-type]
        return fold


@dataclass
class Simulated:
    """The clients of one exchange, in this process. Implements `medley.secure.session.Parties`.

    A client whose reply is lost on the way, or that fails in a tolerant exchange, has already shared its keys, and
    leaves.

    Attributes:
        ring: the form of the vectors
        seed: the run's seed, for drawing the clients' noise; default 0
        fold: receipts, errors and engines of the replies; the sum is added later
        layout: the fields of a reply
    """

    inner: Connection
    exchange: Exchange
    ring: Ring
    session: bytes
    seed: int = 0
    fold: Fold = field(default_factory=Fold)
    layout: tuple[Field, ...] = ()
    _parties: dict[int, Party] = field(default_factory=dict)

    @property
    def parties(self) -> Parties:
        """These clients."""
        return self

    def keys(self, ids: Sequence[int]) -> dict[int, bytes]:
        """Fresh keys of every client."""
        from .party import Party

        self._parties = {i: Party(i, self.session) for i in ids}
        return {i: party.keys for i, party in self._parties.items()}

    def shares(
        self, rosters: Mapping[int, Mapping[int, bytes]], least: Mapping[int, int]
    ) -> dict[int, dict[int, bytes]]:
        """Every client's sealed shares."""
        return {i: self._parties[i].shares(roster, least[i]) for i, roster in rosters.items()}

    def masked(self, sealed: Mapping[int, Mapping[int, bytes]]) -> Iterator[tuple[int, np.ndarray]]:
        """The replies that the inner connection delivers, weighted and masked by their clients."""
        e = self.exchange
        if e.tolerant:  # a block fails as a whole
            request = single_blocks(e, [*itertools.chain(*e.blocks)])
        else:
            request = replace(e, weights=None, clip=None)
        size = self.ring.bits // 8
        for block in self.inner.exchange(replace(request, clip=None)):
            self.fold.ran(block.engines)
            self.fold.failed |= block.failed
            receipts = {r.client: r for r in block.receipts}
            for i, packed in sorted(block.replies.items()):
                self.layout = self.layout or self.ring.layout(packed)
                values = self.ring.encoded(i, packed, self.layout)
                if self.ring.noise:
                    values += self.ring.share_of_noise(self.layout, streams.rng(self.seed, i, *e.tag, "noise share"))
                values = self._parties[i].masked(values, sealed[i])
                self.fold.receipts.append(receipts[i]._replace(up=len(values) * size))
                yield i, values
        self.fold.receipts.sort(key=lambda r: r.client)

    def opening(self, requests: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> dict[int, Opening]:
        """Every client's shares for the opening."""
        return {i: self._parties[i].opening(*those) for i, those in requests.items()}
