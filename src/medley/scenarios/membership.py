"""Membership: clients that join a run after it began, or leave it before its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ..contract import RecipeError, Settings


@runtime_checkable
class Members(Protocol):
    """The members of every round."""

    def at(self, round: int, clients: int) -> tuple[int, ...]:
        """Ids of the members in a round, ascending.

        Args:
            round: from 1; 0, before the first, has the members of round 1
            clients: the number of clients that are ever members
        """


@dataclass(frozen=True)
class Membership(Settings):
    """Clients that join and leave at given rounds. The others are members from the first round to the last.

    p_i is a share among the members of a round, Σ p_i = 1. A client that joins starts with a new client's memory. A
    client that has left gets no requests and no weight. A participation rule draws from the members, in the order of
    their ids. In a stream, rounds count over all tasks.

    Attributes:
        joins: the first round of a client, by its id; from 2
        leaves: the first round without a client, by its id; from 2. A client with both is a member between the two, or,
            if ``leaves`` comes first, away between the two
    """

    joins: Mapping[int, int] = field(default_factory=dict)
    leaves: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("joins", "leaves"):
            rounds = getattr(self, key)
            if not isinstance(rounds, Mapping):
                raise RecipeError(f"Membership({key}={rounds!r}): give each client's round, as in {{3: 10}}", key)
            for i, round in rounds.items():
                if type(i) is not int or i < 0 or type(round) is not int or round < 2:
                    raise RecipeError(
                        f"Membership({key}={{{i!r}: {round!r}}}): give a client's id, from 0, and a round, from 2; "
                        "clients that are there from round 1 to the end need no entry",
                        key,
                    )
            object.__setattr__(self, key, dict(sorted(rounds.items())))
        for i in sorted(self.joins.keys() & self.leaves.keys()):
            if self.joins[i] == self.leaves[i]:
                raise RecipeError(f"Membership: client {i} joins and leaves in round {self.joins[i]}", "leaves")

    def at(self, round: int, clients: int) -> tuple[int, ...]:
        """See `Members.at`."""
        return tuple(i for i in range(clients) if self._is_member(i, max(round, 1)))

    def _is_member(self, i: int, round: int) -> bool:
        joined = self.joins.get(i)
        left = self.leaves.get(i)
        if joined is None or left is None:
            return (joined is None or round >= joined) and (left is None or round < left)
        return joined <= round < left if joined < left else round < left or round >= joined

    def check(self, clients: int) -> None:
        """Raise RecipeError for a client that does not exist, and for a round without members."""
        for key in ("joins", "leaves"):
            over = [i for i in getattr(self, key) if i >= clients]
            if over:
                raise RecipeError(f"Membership({key}=...): there is no client {over[0]}; ids end at {clients - 1}", key)
        for round in sorted({1, *self.joins.values(), *self.leaves.values()}):
            if not self.at(round, clients):
                raise RecipeError(f"Membership: round {round} has no member; let some client stay", "leaves")
