"""The server's connection to clients on their nodes, as parties of a secure sum.

The server relays sealed shares, and reads public keys, masked vectors and the shares that open the sum. Each step of
the protocol is an exchange of messages with all remaining clients.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...contract import MedleyError, WireError, nbytes, pytree
from ...contract.place import name_of
from ...secure import tables
from ...secure.ring import Field, Ring
from ...secure.tables import ID, Opening
from ...wire.connection import Host
from ...wire.exchange import Exchange
from ...wire.fold import Fold, Receipt
from ..protocol.checked_json import opened, printable, table, work_and_engines, wrong
from ..protocol.flwr_api import Letter
from ..protocol.secure_steps import KEYS, SEALED, SHARE, SIZE, STEPS, blank, session_name
from .messenger import Messenger

T = TypeVar("T")


@dataclass
class RemoteParties:
    """The clients of one exchange. Implements `medley.secure.connection.Clients` and its `Parties`.

    Attributes:
        host: checks replies
        run: the name under which clients keep their memories
        ring: the form of the vectors
        common: the request's bytes that are the same for all
        own: id -> the request's bytes for this client
        fold: receipts, errors and engines of the replies
    """

    host: Host
    messenger: Messenger
    run: str
    exchange: Exchange
    ring: Ring
    common: bytes
    own: Callable[[int], bytes]
    agreed: Any = None
    fold: Fold = field(default_factory=Fold)
    layout: tuple[Field, ...] = ()
    _overhead: Counter[int] = field(default_factory=Counter)
    _signatures: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.session = session_name(self.exchange, self.run, token_hex(8), self.common, self.agreed)
        about = {"run": self.run, "session": self.session.decode(), "cohort": len(self.ring.weights)}
        self._about = json.dumps(about).encode()

    @property
    def parties(self) -> RemoteParties:
        """These clients."""
        return self

    def keys(self, ids: Sequence[int]) -> dict[int, bytes]:
        """Public keys of the clients that answer."""
        from ...secure.crypto import check_public

        def read(i: int, raw: bytes, size: int) -> bytes:
            if len(raw) not in (KEYS, KEYS + SIZE):
                message = f"public keys have {len(raw)} bytes, not {KEYS}, or {KEYS + SIZE} signed"
                raise WireError(f"{name_of(i)}'s {message}")
            # A key that no other client can use would fail them instead of this one.
            check_public(f"{name_of(i)}'s public keys", raw[:KEYS])
            self._overhead[i] += size - KEYS
            self._signatures |= {i: raw[KEYS:]} if raw[KEYS:] else {}
            return raw[:KEYS]

        return self._answers(STEPS[0], {i: {} for i in ids}, read)

    def shares(
        self, rosters: Mapping[int, Mapping[int, bytes]], least: Mapping[int, int]
    ) -> dict[int, dict[int, bytes]]:
        """Sealed shares. Clients compute the threshold themselves, from the size of the cohort."""
        del least
        signed = self._signatures
        parts = {
            i: {"roster": tables.packed(r), "signatures": tables.packed({j: signed[j] for j in r if j in signed})}
            for i, r in rosters.items()
        }

        def read(i: int, raw: bytes, size: int) -> dict[int, bytes]:
            shares = tables.unpacked(raw, SEALED, f"{name_of(i)}'s sealed shares", rosters[i].keys())
            self._overhead[i] += size - len(raw) - len(parts[i]["roster"])
            return shares

        return self._answers(STEPS[1], parts, read)

    def masked(self, sealed: Mapping[int, Mapping[int, bytes]]) -> Iterator[tuple[int, np.ndarray]]:
        """Masked replies. A reply must have the form that most clients send."""
        e = self.exchange
        parts = {i: {"common": self.common, "own": self.own(i), "sealed": tables.packed(s)} for i, s in sealed.items()}
        came = self._answers(STEPS[2], parts, self._vector)
        if not came:
            return
        ((usual, _),) = Counter(v.form for v in came.values()).most_common(1)
        self.layout = next(v.layout for v in came.values() if v.form == usual)
        for i, v in came.items():
            if v.form != usual:
                text = f"{name_of(i)}'s reply has the fields {v.form:.200}, but the others' have {usual:.200}"
                self._failed(i, WireError(text))
                continue
            up = v.values.nbytes
            down = nbytes(e.common) + nbytes(e.each.get(i, {}))
            self._overhead[i] += v.size - up - down - len(parts[i]["sealed"])
            self.fold.ran(v.engines)
            self.fold.receipts.append(Receipt(i, up, 0, v.rows))
            yield i, v.values

    def opening(self, requests: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> dict[int, Opening]:
        """Shares that open the sum."""
        parts = {
            i: {name: tables.packed(dict.fromkeys(ids, b"")) for name, ids in zip(("alive", "left"), both, strict=True)}
            for i, both in requests.items()
        }

        def read(i: int, raw: bytes, size: int) -> Opening:
            alive, left = requests[i]
            shares = tables.unpacked(raw, SHARE, f"{name_of(i)}'s shares for the opening", [*alive, *left])
            self._overhead[i] += size - len(raw) - ID * len(shares)
            return Opening({j: shares[j] for j in alive}, {j: shares[j] for j in left})

        came = self._answers(STEPS[3], parts, read)
        self.fold.receipts = [r._replace(overhead=self._overhead[r.client]) for r in self.fold.receipts]
        return came

    def _vector(self, i: int, raw: bytes, size: int) -> Vector:
        """Client i's masked reply. Raises WireError for other bytes."""
        e = self.exchange
        who = f"{name_of(i)}'s masked answer to {self.exchange.method}, round {self.exchange.round}"
        try:
            tree = pytree.from_bytes(raw, {})
        except WireError as error:
            raise WireError(f"{who}: {printable(str(error))}") from None
        answer = table(who, tree, ["masked", "fields", "rows", "engines"])
        masked = answer["masked"]
        signed = getattr(torch, f"int{self.ring.bits}")
        if not isinstance(masked, Tensor) or masked.ndim != 1 or masked.dtype != signed:
            raise wrong(who, {"masked": type(masked).__name__}, "masked", f"a vector of {signed}")
        rows, engines = work_and_engines(who, answer)
        packed = blank(who, answer, len(masked))
        self.host.check(e, i, packed)
        layout = self.ring.layout(packed)
        fit = sum(f.size for f in layout)
        if fit != len(masked):
            raise WireError(f"{who}: it has {len(masked)} entries, but its fields need {fit}")
        values = masked.numpy().view(self.ring.dtype)
        fields = json.dumps(answer["fields"])
        return Vector(values, fields, layout, rows, engines, size)

    def _answers(self, step: str, parts: Mapping[int, Letter], read: Callable[[int, bytes, int], T]) -> dict[int, T]:
        """The clients' answers to a step, ascending, without clients that are late or failed."""
        # Flower cannot count an empty value.
        letters = {i: {"about": self._about, **{k: v for k, v in part.items() if v}} for i, part in parts.items()}
        out = dict[int, T]()
        for i, (raw, size) in sorted(self.messenger.send(f"query.{step}", letters).items()):
            try:
                out[i] = read(i, opened(raw, name_of(i), i), size)
            except MedleyError as e:
                self._failed(i, e)
        return out

    def _failed(self, i: int, error: MedleyError) -> None:
        """A client's failure ends the exchange, unless the exchange is tolerant."""
        if not self.exchange.tolerant:
            raise error
        self.fold.failed[i] = str(error)


class Vector(NamedTuple):
    """A masked reply: elements of the ring, its fields in words and in the ring, its work in row gradients, the engines
    that ran, and the size of the records both ways in bytes.
    """

    values: np.ndarray
    form: str
    layout: tuple[Field, ...]
    rows: float
    engines: set[str]
    size: int
