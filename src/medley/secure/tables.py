"""Tables of the protocol as bytes: for each client its id in 4 bytes, and an entry of a fixed size."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import NamedTuple

from ..contract.errors import WireError

ID = 4
"""Bytes of a client's id."""


class Opening(NamedTuple):
    """The shares that a client releases at the end.

    Attributes:
        seeds: for clients whose vector is in the sum: a share of the seed of their own mask
        keys: for clients whose vector is not: a share of the key of their masks with others
    """

    seeds: dict[int, bytes]
    keys: dict[int, bytes]


def packed(entries: Mapping[int, bytes]) -> bytes:
    """The entries in ascending order of ids."""
    return b"".join(i.to_bytes(ID, "big") + entry for i, entry in sorted(entries.items()))


def unpacked(raw: bytes, size: int, who: str, ids: Collection[int] | None = None) -> dict[int, bytes]:
    """Inverse of `packed`; if ``ids`` are given, the table must have exactly these.

    Raises WireError for bytes that are not such a table.
    """
    step = ID + size
    if len(raw) % step:
        raise WireError(f"{who}: {len(raw)} bytes are not a table of entries of {step}")
    rows = [raw[k : k + step] for k in range(0, len(raw), step)]
    clients = [int.from_bytes(row[:ID], "big") for row in rows]
    if any(i >= j for i, j in pairwise(clients)):
        raise WireError(f"{who}: its ids are not ascending")
    if ids is not None and set(clients) != set(ids):
        raise WireError(f"{who}: it covers clients {clients[:20]}, but must cover {sorted(ids)[:20]}")
    return {i: row[ID:] for i, row in zip(clients, rows, strict=True)}
