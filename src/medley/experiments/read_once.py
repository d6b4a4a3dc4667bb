"""Clients' rows for trials, if a data set's rows are read on use: in a run they lie in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from torch import Tensor

from ..contract import Index, Weights
from ..datasets.on_use import Unread, deferred
from ..federation.protocols import Population
from ..federation.rows import INDEXED, ClientRows
from ..rows.lazy import in_memory


@dataclass(frozen=True, eq=False)
class ReadOnce(ClientRows):
    """Training rows of which a client's are read when a trial first asks for them, and then lie in memory."""

    _read: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)

    def at(self, rows: Index | slice) -> tuple[Tensor, Tensor, Weights]:
        """X, y and weights of these rows, by their positions."""
        X, y, w = super().at(rows)
        if isinstance(rows, slice):
            key: Any = (rows.start, rows.stop)
            if key not in self._read:
                self._read[key] = in_memory(X)
            return self._read[key], y, w
        return in_memory(X), y, w


def read_once(rows: ClientRows) -> ClientRows:
    """These rows, each read once; as they are, unless they are read on use."""
    if not deferred(rows.X):
        return rows
    return ReadOnce(**{f.name: getattr(rows, f.name) for f in fields(ClientRows) if f.init})


class Unheld(NamedTuple):
    """Bytes of rows that a run holds at most before it trains, and while it trains, and a plan does not."""

    before: int = 0
    training: int = 0


def unheld(fed: Population, rows: ClientRows) -> Unheld:
    """What a run would hold of rows that are read on use: the data set, a stream's tasks, and a copy in the clients'
    order where a run makes one; less what the rows are read from.
    """
    data = getattr(fed, "data", None)
    if data is None or not deferred(rows.X):
        return Unheld()
    every = Unread.of(data.X, data.X_test, data.X_validation)
    train = Unread.of(data.X).read
    laid = Unread.of(rows.X).read
    held = every.read - every.raw
    if rows.layout.stream:
        return Unheld(max(every.whole, held + every.read + laid), held + every.read - train + laid)
    copied = laid if train < INDEXED else 0
    return Unheld(max(every.whole, held + copied), held + copied)
