"""The ledger: every delivery of a run with its bytes."""

from __future__ import annotations

import csv
import itertools
import operator
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Entry(NamedTuple):
    """One delivery.

    Attributes:
        exchange: number of the exchange in its round, from 0
        down: payload bytes of the request
        up: payload bytes of the reply; 0 if none came back
        overhead: the transport's framing bytes, both ways; default 0
    """

    round: int
    exchange: int
    method: str
    client: int
    down: int
    up: int
    overhead: int = 0


WIDTH = len(Entry._fields)


class Ledger:
    """Every delivery of a run, in order of round, exchange and client. Iterate over it to read them.

    ``exchanges``, ``down`` and ``up`` are totals. A delivery takes only 56 bytes, since a long run has millions.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.exchanges = self.down = self.up = self._size = 0
        # A fork shares both, and may add rows and methods that this ledger lacks.
        self._rows = array("q")
        self._methods = dict[str, int]()
        for _, exchange in itertools.groupby(entries, lambda e: (e.round, e.exchange)):
            self.add(list(exchange))

    def fork(self) -> Ledger:
        """A copy that shares this ledger's memory. Only one of the two may be extended."""
        twin = object.__new__(Ledger)
        twin.__dict__.update(self.__dict__)
        return twin

    def add(self, entries: list[Entry]) -> None:
        """Add the deliveries of one exchange."""
        del self._rows[self._size * WIDTH :]
        for round, exchange, method, *rest in entries:
            number = self._methods.setdefault(method, len(self._methods))
            self._rows.extend((round, exchange, number, *rest))
        self.down += sum(e.down for e in entries)
        self.up += sum(e.up for e in entries)
        self._size += len(entries)
        self.exchanges += bool(entries)

    def since(self, start: int) -> Iterator[Entry]:
        """The deliveries from the ``start``-th on."""
        names = list(self._methods)
        for k in range(start * WIDTH, self._size * WIDTH, WIDTH):
            round, exchange, number, *rest = self._rows[k : k + WIDTH]
            yield Entry(round, exchange, names[number], *rest)

    def __iter__(self) -> Iterator[Entry]:
        return self.since(0)

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ledger({len(self)} deliveries, {self.exchanges} exchanges, {self.down} bytes down, {self.up} up)"

    def text(self, start: int | None = None) -> str:
        """As CSV, one row per delivery: all of them with a header, or without it those from ``start`` on."""
        head = ",".join(Entry._fields) + "\n" if start is None else ""
        return head + "".join(",".join(map(str, e)) + "\n" for e in self.since(start or 0))

    @classmethod
    def of(cls, text: str) -> Ledger:
        """Inverse of `text`. Raises ValueError for other text."""
        rows = csv.reader(text.splitlines())
        if tuple(next(rows, ())) != Entry._fields:
            raise ValueError("other columns")
        try:
            return cls(
                Entry(int(a), int(b), method=c, client=int(i), down=int(d), up=int(u), overhead=int(o))
                for a, b, c, i, d, u, o in rows
            )
        except OverflowError:
            raise ValueError("the ledger has a number of more than 64 bits") from None
