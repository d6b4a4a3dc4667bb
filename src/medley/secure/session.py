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
from ..contract.place import name_of
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

    def opening(self, requests: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> Mapping[int, Opening]:
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
        requests = dict[int, tuple[list[int], list[int]]]()
        for i in alive:
            requests[i] = [j for j in members[i] if j in came], [j for j in sealed[i] if j not in came]
        self._neighbours({i: len(requests[i][0]) for i in alive}, least)
        orphans = {j: [i for i in alive if j in sealed[i]] for j in left}
        orphans = {j: among for j, among in orphans.items() if among}
        self._neighbours({j: len(among) for j, among in orphans.items()}, least)

        opened = parties.opening(requests)
        self._book(
            "secure opening",
            sealed,
            {i: _size(sealed[i]) + ID * sum(map(len, requests.get(i, ((), ())))) for i in sealed},
            {i: _size(o.seeds) + _size(o.keys) for i, o in opened.items()},
        )
        number = dict[int, dict[int, int]]()
        for i in keys:
            number[i] = {j: k for k, j in enumerate((j for j in members[i] if j in keys), 1)}
        for i in alive:
            seeds = {number[i][j]: o.seeds[i] for j, o in opened.items() if i in o.seeds}
            unmask_own(total, self._first(i, seeds, least[i]))
        for j, among in orphans.items():
            mask_keys = {number[j][i]: o.keys[j] for i, o in opened.items() if j in o.keys}
            few = self._first(j, mask_keys, least[j])
            unmask_pairs(total, j, few, keys=keys, session=self.name, among=among)
        return total

    def _first(self, i: int, shares: Mapping[int, bytes], least: int) -> dict[int, bytes]:
        """As many shares of one client's secret as its threshold."""
        self._neighbours({i: len(shares)}, {i: least})
        return dict(sorted(shares.items())[:least])

    def _enough(
        self, present: Sequence[int] | Mapping[int, object], needed: int, cohort: Sequence[int], did: str
    ) -> None:
        if len(present) < needed:
            gone = sorted(set(cohort) - set(present))
            raise TooFewReplies(
                f"{len(present)} of {len(cohort)} clients {did}, but "
                f"SecureSum(threshold={self.settings.threshold!r}) needs {needed}: the sum stays closed, and "
                f"the server learns nothing about any reply; no answer from {gone}"
            )

    def _neighbours(self, counts: Mapping[int, int], least: Mapping[int, int]) -> None:
        for i, count in counts.items():
            if count < least[i]:
                raise TooFewReplies(
                    f"{count} of the neighbourhood of {name_of(i)} are left, but it needs {least[i]}: the sum "
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
