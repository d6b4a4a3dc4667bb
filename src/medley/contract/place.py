"""Where a value stands in a user's data, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from numbers import Integral

ClientNames = Sequence[str] | Mapping[int, str]
"""Clients' names by id; some or all clients may have none."""

_names: ContextVar[ClientNames] = ContextVar("names of clients", default=())


@contextmanager
def naming(names: ClientNames | None) -> Iterator[None]:
    """A context in which messages have these names of clients, None for those from around it.

    A generator must not enter it, since its caller's messages would have these names, too.
    """
    before = _names.set(_names.get() if names is None else names)
    try:
        yield
    finally:
        _names.reset(before)


def name_of(client: object) -> str:
    """A client in a message: "client 'Bern'" if it has a name, else "client 3". No other code writes this."""
    names = _names.get()
    has_name = client in names if isinstance(names, Mapping) else isinstance(client, Integral) and client < len(names)
    return f"client {names[client]!r:.100}" if has_name else f"client {client}"  # type: ignore[call-overload, index]


@dataclass(frozen=True)
class Place:
    """Where a value stands: "client 'Bern', test row 3, column 'age'". No other code writes this.

    Attributes:
        whose: the client, the data set, or the call that reads it
        part: "test" or "validation"; empty for training rows
        row: its number in that part, from 0
        column: its name, or its number from 0
        client: the client's id
    """

    whose: str = ""
    part: str = ""
    row: int | None = None
    column: int | str | None = None
    client: int | None = None

    @classmethod
    def of(cls, client: int, part: str = "") -> Place:
        """The rows of a client."""
        return cls(name_of(client), part, client=client)

    def at(self, row: int | None = None, column: int | str | None = None) -> Place:
        """A row, or a cell, of these rows."""
        return replace(self, row=row, column=self.column if column is None else column)

    def __str__(self) -> str:
        words = [self.whose, *([f"the {self.part} rows"] if self.part and self.row is None else [])]
        if self.row is not None:
            task = self.part.startswith("task")
            words.append(f"row {self.row} of {self.part}" if task else f"{self.part} row {self.row}".strip())
        if self.column is not None:
            words.append(f"column {self.column!r:.100}")
        return ", ".join(filter(None, words))
