"""A progress bar for one run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..runtime.forwarded import forwarded
from ..runtime.terminals import bar, draws_bars
from ..storage.history import Row
from ..wire.connection import Connection
from ..wire.exchange import Exchange
from ..wire.fold import Fold


class ProgressBar:
    """A progress bar with the latest loss and accuracy, and the number of answers within a round."""

    def __init__(self, name: str, rounds: int) -> None:
        self.shown = bar("MofNCompleteColumn", "{task.fields[live]}", "{task.fields[now]}")
        self.task = self.shown.add_task(name, total=rounds, now="", live="")

    def tick(self, row: Row) -> None:
        """Show a new row of the history."""
        figures = [f"{name} {row[name]:{form}}" for name, form in (("loss", ".4g"), ("accuracy", ".3f")) if name in row]
        self.shown.update(self.task, completed=int(row["round"]), now="  ".join(figures), live="")

    def answered(self, exchange: Exchange, count: int) -> None:
        """Show that ``count`` clients of an exchange have answered."""
        live = f"{exchange.method} {count}/{sum(map(len, exchange.blocks))}"
        self.shown.update(self.task, completed=exchange.round - 1, live=live)


class Watched:
    """A connection that shows the progress of exchanges on a bar."""

    save, load, close, within = forwarded("connection", "save", "load", "close", "within")

    def __init__(self, connection: Connection, bar: ProgressBar) -> None:
        self.connection = connection
        self.bar = bar

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """See `Connection.exchange`."""
        count = 0
        for reply in self.connection.exchange(exchange):
            count += len(reply.receipts)
            self.bar.answered(exchange, count)
            yield reply


@contextlib.contextmanager
def progress_bar(progress: bool | None, name: str, rounds: int) -> Iterator[ProgressBar | None]:
    """Show a progress bar, or yield None without one. By default (None), show it on a terminal and in a notebook."""
    if not draws_bars(progress):
        yield None
        return
    shown = ProgressBar(name, rounds)
    with shown.shown:
        yield shown
