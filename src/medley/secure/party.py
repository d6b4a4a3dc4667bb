"""One client's part in the protocol. Its private keys and its seed never leave it undivided.

**Reference**: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, figure
4, without the signatures of its variant for an actively malicious server.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from ..contract.errors import MedleyError, TooFewReplies, WireError
from ..contract.place import name_of
from .crypto import KEY, SECRET, agreed, combined, key_pair, sealed, secret, split, stream, unsealed
from .tables import Opening


class Party:
    """One client in one exchange; call its methods in their order.

    Args:
        session: names the exchange; a mask from one session is of no use in another
        least: the smallest number of clients in its neighbourhood that the client accepts as a threshold; default 2
    """

    def __init__(self, i: int, session: bytes, least: int = 2) -> None:
        self.i = i
        self.session = session
        self.least = least
        self._seed = secret()
        self._key_seed = secret()
        self._channel_seed = secret()
        self._channel = key_pair(self._channel_seed)
        self._masks = key_pair(self._key_seed)
        self._roster: dict[int, bytes] = {}
        self._threshold = 0
        self._stored: dict[int, bytes] = {}
        self._released: dict[int, str] = {}
        self._channels: dict[int, bytes] = {}

    def plain(self) -> dict[str, Any]:
        """Plain values for `read`, including secrets: store them only in a file of the client's own."""
        return {
            "client": self.i,
            "session": self.session.decode(),
            "least": self.least,
            "seeds": [s.hex() for s in (self._seed, self._key_seed, self._channel_seed)],
            "threshold": self._threshold,
            "roster": {str(j): keys.hex() for j, keys in self._roster.items()},
            "held": {str(j): shares.hex() for j, shares in self._stored.items()},
            "given": {str(j): kind for j, kind in self._released.items()},
        }

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> Party:
        """Inverse of `plain`."""
        self = cls(saved["client"], saved["session"].encode(), saved["least"])
        self._seed, self._key_seed, self._channel_seed = map(bytes.fromhex, saved["seeds"])
        self._channel = key_pair(self._channel_seed)
        self._masks = key_pair(self._key_seed)
        self._threshold = saved["threshold"]
        self._roster = {int(j): bytes.fromhex(keys) for j, keys in saved["roster"].items()}
        self._stored = {int(j): bytes.fromhex(shares) for j, shares in saved["held"].items()}
        self._released = {int(j): kind for j, kind in saved["given"].items()}
        return self

    @property
    def keys(self) -> bytes:
        """Two public keys: one for the channel to other clients, one for masks."""
        return self._channel.public + self._masks.public

    def shares(self, roster: Mapping[int, bytes], threshold: int) -> dict[int, bytes]:
        """Shares of the seed and of the mask key, sealed for each neighbour.

        Args:
            threshold: the number of shares that open a secret; the neighbourhood includes the client itself

        Raises WireError for a roster with wrong or repeated keys, and for a threshold that the client does not accept.
        """
        roster = {j: keys for j, keys in sorted(roster.items()) if j != self.i}
        if any(len(keys) != 2 * KEY for keys in roster.values()) or len({*roster.values(), self.keys}) <= len(roster):
            raise WireError(f"{name_of(self.i)} received wrong or repeated public keys")
        members = [*sorted([*roster, self.i])]
        if threshold < self.least or 2 * threshold <= len(members) or threshold > len(members):
            raise WireError(
                f"{name_of(self.i)} was asked to share its secrets among {len(members)} with a threshold of {threshold}"
                f": it accepts only a majority, and at least {self.least}"
            )
        self._roster = roster
        self._threshold = threshold
        halves = (split(s, threshold, len(members)) for s in (self._seed, self._key_seed))
        shares = dict(zip(members, map(b"".join, zip(*halves, strict=True)), strict=True))
        self._stored = {self.i: shares[self.i]}
        return {j: sealed(self._channel_to(j), self.i, shares[j], self._purpose(self.i, j)) for j in roster}

    def masked(self, values: np.ndarray, sealed_shares: Mapping[int, bytes]) -> np.ndarray:
        """The values under the client's own mask, and under those agreed with each neighbour.

        Args:
            values: elements of the ring; changed in place
            sealed_shares: what neighbours sealed for this client; neighbours that sent none are left out of the masks

        Raises TooFewReplies if fewer neighbours than the threshold took part, and WireError for shares that do not
        open.
        """
        if len(sealed_shares) + 1 < self._threshold:
            raise TooFewReplies(
                f"{name_of(self.i)}: {len(sealed_shares)} of its {len(self._roster)} neighbours take part in the "
                f"secure sum, but {self._threshold} must, including itself"
            )
        for j, raw in sealed_shares.items():
            if j not in self._roster:
                raise WireError(f"{name_of(self.i)} received shares of {name_of(j)}, which is not a neighbour")
            text = unsealed(self._channel_to(j), j, raw, self._purpose(j, self.i))
            if len(text) != 2 * SECRET:
                message = f"the shares of {name_of(j)} have {len(text)} bytes, not {2 * SECRET}"
                raise WireError(f"{name_of(self.i)}: {message}")
            self._stored[j] = text
        np.add(values, stream(self._seed, len(values), values.dtype), out=values)
        for j in sealed_shares:
            add_mask(values, self.i, j, agreed(self._masks.private, self._roster[j][KEY:], self._pair(j)))
        return values

    def opening(self, alive: Collection[int], dropped: Collection[int]) -> Opening:
        """The client's shares: of the seeds of clients ``alive``, and of the mask keys of clients ``dropped``.

        Raises WireError if the server asks for both kinds of one client, at once or one after the other: with both it
        could remove every mask of that client.
        """
        for kind, ids in (("seed", alive), ("key", dropped)):
            for j in ids:
                if j not in self._stored:
                    raise WireError(f"{name_of(self.i)} holds no shares of {name_of(j)}")
                if self._released.setdefault(j, kind) != kind or (kind == "key" and j == self.i):
                    raise WireError(
                        f"{name_of(self.i)} refuses: the server asks for both kinds of shares of {name_of(j)}, with "
                        "which it could read that client's reply"
                    )
        if len(set(alive)) < self._threshold:
            raise TooFewReplies(
                f"{name_of(self.i)} refuses to open a sum with {len(set(alive))} clients of its "
                f"neighbourhood, because it must have {self._threshold}"
            )
        return Opening(
            {j: self._stored[j][:SECRET] for j in sorted(alive)}, {j: self._stored[j][SECRET:] for j in sorted(dropped)}
        )

    def _channel_to(self, j: int) -> bytes:
        if j not in self._channels:
            self._channels[j] = agreed(self._channel.private, self._roster[j][:KEY], b"channel " + self._pair(j))
        return self._channels[j]

    def _pair(self, j: int) -> bytes:
        return pair(self.session, self.i, j)

    def _purpose(self, sender: int, receiver: int) -> bytes:
        return self.session + f" shares {sender} to {receiver}".encode()


def pair(session: bytes, i: int, j: int) -> bytes:
    """The purpose of a key that two clients agree on; the same for both."""
    return session + f" {min(i, j)} and {max(i, j)}".encode()


def add_mask(values: np.ndarray, i: int, j: int, seed: bytes, sign: int = 1) -> None:
    """Add the mask of clients i and j as client i does, in place: the lower id adds it, the other subtracts it.

    ``sign`` −1 undoes what client i added.
    """
    mask = stream(seed, len(values), values.dtype)
    (np.add if (i < j) == (sign > 0) else np.subtract)(values, mask, out=values)


def unmask_own(total: np.ndarray, shares: Mapping[int, bytes]) -> None:
    """Remove a client's own mask from a sum, in place. ``shares`` of its seed by number, as many as the threshold."""
    np.subtract(total, stream(combined(shares), len(total), total.dtype), out=total)


def unmask_pairs(
    total: np.ndarray,
    i: int,
    shares: Mapping[int, bytes],
    keys: Mapping[int, bytes],
    session: bytes,
    among: Iterable[int],
) -> None:
    """Remove from a sum, in place, the masks that others agreed with a client i that is not in it.

    Args:
        total: the sum
        i: the client that left
        shares: shares of its key by number, as many as the threshold
        keys: public keys by client
        among: its neighbours in the sum

    Raises MedleyError if the shares do not give the client's key.
    """
    own_keys = key_pair(combined(shares))
    if own_keys.public != keys[i][KEY:]:
        raise MedleyError(f"the shares of {name_of(i)}'s key give another key: a client sent a wrong share")
    for j in among:
        add_mask(total, j, i, agreed(own_keys.private, keys[j][KEY:], pair(session, i, j)), sign=-1)
