"""The server's record of the members in a deployed run whose clients join and leave."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...contract.errors import BadData, MedleyError, WireError
from ...contract.place import name_of
from ...recipe.limits import ClientLimits
from ...storage.atomic import write
from ..protocol.reports import Census, ClientReport, namesake
from .messenger import Messenger

log = logging.getLogger("medley")

FILE = "members.json"
"""The file in a run's folder with the accounts of all clients so far, and the changes of membership."""

JOINING = 30.0
"""Seconds that a new node has to send its account; if it takes longer, the server asks again in the next round."""

Account = dict[str, Any]

Admitted = Callable[[int, dict[str, Any]], Account]
"""(id, account of a new node) -> the account of its data. Raises MedleyError for a client that cannot take part."""


def absent(client: int) -> dict[str, Any]:
    """The account of a client that has not joined yet."""
    return {"client": client, "absent": True}


@dataclass
class Recorded:
    """The members of each round so far, as a run's folder stores them.

    Attributes:
        founders: accounts of the members of round 1, by id
        changes: by round, the accounts of clients that joined and the ids of clients that left
        leaving: clients that will leave in the next round
        seen: the last round with decided members
    """

    founders: dict[int, Account]
    changes: dict[int, tuple[dict[int, Account], list[int]]] = field(default_factory=dict)
    leaving: set[int] = field(default_factory=set)
    seen: int = 1

    def of(self, round: int) -> tuple[int, ...]:
        """Ids of the members of a round, ascending."""
        members = set(self.founders)
        for t, (joined, left) in sorted(self.changes.items()):
            if t <= round:
                members = (members | joined.keys()) - set(left)
        return tuple(sorted(members))

    @property
    def members(self) -> tuple[int, ...]:
        """Ids of the members with which a run resumes."""
        return tuple(i for i in self.of(self.seen) if i not in self.leaving)


def recorded(folder: Path) -> Recorded | None:
    """Read the file in a run's folder; None if there is none. Raises WireError for a damaged file."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        changes = {int(t): (_accounts(joined), [*map(int, left)]) for t, (joined, left) in saved["changes"].items()}
        return Recorded(_accounts(saved["founders"]), changes, {*map(int, saved["leaving"])}, int(saved["seen"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise WireError(f"{path} does not say who the members are: {type(e).__name__}: {e}") from None


def _accounts(values: Any) -> dict[int, Account]:
    return {int(i): dict(a) for i, a in values.items()}


@dataclass
class Roster:
    """The members of each round. A change is recorded before the round in which it takes effect, so that a run can
    resume.

    Attributes:
        census: the reports of all current and former members
        admitted: checks a new client's account
    """

    folder: Path
    messenger: Messenger
    census: Census
    admitted: Admitted
    limits: ClientLimits
    kept: Recorded

    def at(self, round: int, clients: int) -> tuple[int, ...]:
        """See `medley.scenarios.Members.at`. The first query for a round decides its members."""
        if round > self.kept.seen:
            self._settle(round, clients)
        return self.kept.of(round)

    def _settle(self, round: int, clients: int) -> None:
        """Decide who joins and who leaves in a round, and record it."""
        members = set(self.kept.of(self.kept.seen))
        self.kept.seen = round
        left = sorted(self.messenger.leaving & members)
        if left and not members - set(left):
            raise MedleyError(f"round {round}: the last members, {left}, leave; no client is left to train")
        joined = dict[int, Account]()
        for i, account in self.messenger.newcomers(clients, JOINING).items():
            try:
                account = self.admitted(i, dict(account))
                self._add(account)
                joined[i] = account
            except MedleyError as e:
                self.messenger.forget([i])
                log.warning("%s cannot join: %s", name_of(i), e)
        self.messenger.forget(left)
        if joined or left:
            self.kept.changes[round] = joined, left
        self.save()

    def _add(self, account: Account) -> None:
        """Add a client to the census. Raises WireError if its rows or their names differ, or if labels are new."""
        report = ClientReport.read(account, self.limits)
        census = self.census
        other = next(r for i, r in enumerate(census.reports) if i not in census.refused)
        names = {r.client: r.name for r in census.reports} | {report.client: report.name}
        reason = report.differs(other) or namesake(report.client, names, len(census))
        if reason:
            raise WireError(reason)
        tasks = zip(report.tasks, census.known.labels, strict=True)
        strange = {k for task, labels in tasks for k in task.labels if k not in labels}
        if (report.classes or 0) > (census.known.classes or 0) or strange:
            raise WireError(
                f"{name_of(report.client)} has {report.classes} classes, of which {sorted(strange)} are new in their "
                f"task, but the run started with {census.known.classes} classes; start a new run with all of them"
            )
        reports = [report if i == report.client else r for i, r in enumerate(census.reports)]
        self.census = replace(census, reports=reports)

    def save(self) -> None:
        """Write the file, readable by its owner only."""
        self.kept.leaving = set(self.messenger.leaving)
        write(self.folder / FILE, json.dumps(vars(self.kept) | {"leaving": sorted(self.kept.leaving)}), owner_only=True)

    @classmethod
    def of(
        cls,
        folder: Path,
        messenger: Messenger,
        accounts: Mapping[int, Account],
        clients: int,
        limits: ClientLimits,
        admitted: Admitted,
    ) -> Roster:
        """The roster of a new run, or of a resumed run if the folder has a roster.

        Args:
            accounts: accounts of the connected clients
            clients: the largest number of clients

        Raises BadData for a member whose data has changed, and WireError for a damaged file.
        """
        record = recorded(folder) or Recorded({i: a for i, a in accounts.items() if "refused" not in a})
        messenger.leaving |= record.leaving
        census = Census.of({i: record.founders.get(i, absent(i)) for i in range(clients)}, limits)
        self = cls(folder, messenger, census, admitted, limits, record)
        founders = dict(record.founders)
        for joined, _ in record.changes.values():
            founders |= joined
            for account in joined.values():
                self._add(account)
        members = set(record.of(record.seen))
        for i in accounts.keys() & members:
            if dict(accounts[i]) != dict(founders[i]):
                raise BadData(f"{name_of(i)}'s data has changed since it joined this run", client=i)
        for i in messenger.nodes.keys() - members:
            del messenger.nodes[i]  # it joins with the next round
        messenger.note = self.save
        self.save()
        return self
