"""A progress bar for one run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ..runtime.terminals import draws_bars, in_notebook
from ..storage.result import Row
from ..wire.connection import Connection
from ..wire.exchange import Exchange, Tag
from ..wire.fold import Fold


class ProgressBar:
    """A progress bar with the latest loss and accuracy, and the number of answers within a round."""

    def __init__(self, name: str, rounds: int) -> None:
        from rich import console  # only for a terminal
        from rich import progress as bars

        live, now = bars.TextColumn("{task.fields[live]}"), bars.TextColumn("{task.fields[now]}")
        columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn(), live, now)
        clocks = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
        self.shown = bars.Progress(
            *columns,
            *clocks,
            console=console.Console(stderr=True, force_jupyter=False, force_terminal=in_notebook() or None),
            transient=True,
        )
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

    def __init__(self, connection: Connection, bar: ProgressBar) -> None:
        self.connection, self.bar = connection, bar

    def exchange(self, exchange: Exchange) -> Iterator[Fold]:
        """See `Connection.exchange`."""
        count = 0
        for reply in self.connection.exchange(exchange):
            count += len(reply.receipts)
            self.bar.answered(exchange, count)
            yield reply

    def save(self, acked: Mapping[int, Tag]) -> Mapping[int, Any]:
        """See `Connection.save`."""
        return self.connection.save(acked)

    def load(self, memories: Mapping[int, Any], acked: Mapping[int, Tag]) -> None:
        """See `Connection.load`."""
        self.connection.load(memories, acked)

    def close(self) -> None:
        """See `Connection.close`."""
        self.connection.close()


@contextlib.contextmanager
def progress_bar(progress: bool | None, name: str, rounds: int) -> Iterator[ProgressBar | None]:
    """Show a progress bar, or yield None where there is to be none.

    Args:
        progress: whether to show it; None shows it on a terminal and in a notebook
        name: the label
        rounds: the number of rounds
    """
    if not draws_bars(progress):
        yield None
        return
    bar = ProgressBar(name, rounds)
    with bar.shown:
        yield bar
