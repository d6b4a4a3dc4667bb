"""The server's part in the protocol: one secure sum, from keys to the opening.

**Reference**: Bonawitz et al., CCS 2017, figure 4; Bell et al., "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", CCS 2020, for the sparse graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from ..contract.errors import TooFewReplies
from ..wire.fold import Phase
from .party import unmask_own, unmask_pairs
from .settings import SecureSum
from .tables import ID, Opening


@runtime_checkable
class Parties(Protocol):
    """The clients, as the server reaches them. A client that has left is absent from an answer."""

    def keys(self, ids: Sequence[int]) -> Mapping[int, bytes]:
        """Public keys; see `Party.keys`."""

    def shares(
        self, rosters: Mapping[int, Mapping[int, bytes]], least: Mapping[int, int]
    ) -> Mapping[int, Mapping[int, bytes]]:
        """Sealed shares of each client for its neighbours; ``least`` are the thresholds. See `Party.shares`."""

    def masked(self, sealed: Mapping[int, Mapping[int, bytes]]) -> Iterator[tuple[int, np.ndarray]]:
        """Masked vectors, client by client. ``sealed`` are the shares for each client. See `Party.masked`."""

    def opening(self, asked: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> Mapping[int, Opening]:
        """Shares for the opening; each client learns who of its neighbourhood stayed and who left."""


@dataclass
class Session:
    """One secure sum.

    Attributes:
        circle: the cohort in the order of the graph's circle
        phases: the bytes of each step other than the vectors
        came: clients in the sum, ascending; empty before `run`
    """

    settings: SecureSum
    name: bytes
    circle: Sequence[int]
    phases: list[Phase] = field(default_factory=list)
    came: tuple[int, ...] = ()

    def run(self, parties: Parties) -> np.ndarray:
        """The sum of the values of all clients whose vector arrived.

        Raises TooFewReplies if too few stay: of the cohort, or of one client's neighbours. Then nothing is opened.
        """
        cohort = sorted(self.circle)
        needed = self.settings.needed(len(cohort))
        graph = self.settings.neighbourhoods(self.circle)
        members = {i: sorted([i, *graph[i]]) for i in cohort}
        least = {i: self.settings.within(len(members[i]), len(cohort)) for i in cohort}

        keys = parties.keys(cohort)
        self._enough(keys, needed, cohort, "sent keys")
        rosters = {i: {j: keys[j] for j in graph[i] if j in keys} for i in sorted(keys)}
        self._neighbours({i: len(rosters[i]) + 1 for i in rosters}, least)
        shares = parties.shares(rosters, {i: least[i] for i in rosters})
        self._book("secure keys", cohort, {}, {i: len(k) for i, k in keys.items()})
        self._enough(shares, needed, cohort, "shared their secrets")
        sealed = {i: {j: shares[j][i] for j in graph[i] if j in shares} for i in sorted(shares)}
        self._neighbours({i: len(sealed[i]) + 1 for i in sealed}, least)
        self._book("secure shares", rosters, _sizes(rosters), _sizes(shares))

        total = None
        came = list[int]()
        for i, vector in parties.masked(sealed):
            came.append(i)
            if total is None:
                total = vector.copy()
            else:
                np.add(total, vector, out=total)
        self.came = alive = tuple(sorted(came))
        self._enough(alive, needed, cohort, "sent a reply")
        assert total is not None
        left = sorted(sealed.keys() - set(alive))
        asked = {i: ([j for j in members[i] if j in came], [j for j in sealed[i] if j not in came]) for i in alive}
        self._neighbours({i: len(asked[i][0]) for i in alive}, least)
        orphans = {j: [i for i in alive if j in sealed[i]] for j in left}
        orphans = {j: among for j, among in orphans.items() if among}
        self._neighbours({j: len(among) for j, among in orphans.items()}, least)

        opened = parties.opening(asked)
        self._book(
            "secure opening",
            sealed,
            {i: _size(sealed[i]) + ID * sum(map(len, asked.get(i, ((), ())))) for i in sealed},
            {i: sum(ID + len(s) for kind in o for s in kind.values()) for i, o in opened.items()},
        )
        number = {i: {j: k for k, j in enumerate([j for j in members[i] if j in keys], 1)} for i in keys}
        for i in alive:
            found = {number[i][j]: o.seeds[i] for j, o in opened.items() if i in o.seeds}
            unmask_own(total, self._first(i, found, least[i]))
        for j, among in orphans.items():
            found = {number[j][i]: o.keys[j] for i, o in opened.items() if j in o.keys}
            unmask_pairs(total, j, self._first(j, found, least[j]), keys, self.name, among)
        return total

    def _first(self, i: int, found: Mapping[int, bytes], least: int) -> dict[int, bytes]:
        """As many shares of one client's secret as its threshold."""
        self._neighbours({i: len(found)}, {i: least})
        return dict(sorted(found.items())[:least])

    def _enough(
        self, there: Sequence[int] | Mapping[int, object], needed: int, cohort: Sequence[int], did: str
    ) -> None:
        if len(there) < needed:
            gone = sorted(set(cohort) - set(there))
            raise TooFewReplies(
                f"{len(there)} of {len(cohort)} clients {did}, but "
                f"SecureSum(threshold={self.settings.threshold!r}) needs {needed}: the sum stays closed, and "
                f"the server learns nothing about any reply; no answer from {gone}"
            )

    def _neighbours(self, there: Mapping[int, int], least: Mapping[int, int]) -> None:
        for i, count in there.items():
            if count < least[i]:
                raise TooFewReplies(
                    f"{count} of the neighbourhood of client {i} are left, but it needs {least[i]}: the sum "
                    "stays closed; use a larger SecureSum(neighbours=...), or a lower threshold"
                )

    def _book(
        self, name: str, ids: Sequence[int] | Mapping[int, object], down: Mapping[int, int], up: Mapping[int, int]
    ) -> None:
        self.phases += [Phase(name, i, down.get(i, 0), up.get(i, 0)) for i in ids]


def _size(texts: Mapping[int, bytes]) -> int:
    return sum(ID + len(text) for text in texts.values())


def _sizes(tables: Mapping[int, Mapping[int, bytes]]) -> dict[int, int]:
    return {i: _size(texts) for i, texts in tables.items()}
