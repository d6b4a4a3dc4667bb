"""The progress bar of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ..runtime.terminals import bar, draws_bars
from ..storage.history import Row


class Bar:
    """One bar over all runs, with the figures of the run that finished last. It is drawn within ``with``.

    Args:
        shown: whether to draw it; None draws it on a terminal and in a notebook
        tell: a function to call with a run's number and each of its rows; default none
    """

    def __init__(
        self, shown: bool | None, call: str, runs: int, rounds: int, tell: Callable[[int, Row], object] | None = None
    ) -> None:
        self.shown = draws_bars(shown)
        self.call = call
        self.runs = runs
        self.rounds = max(rounds, 1)
        self._rounds: dict[int, float] = {}  # rounds done, by run
        self._finished = 0
        self.tell = tell
        self._bar: Any = None
        self._shown_bar = ExitStack()

    def __enter__(self) -> Bar:
        if self.shown:
            self._bar = bar("TaskProgressColumn", "{task.fields[now]}")
            self._shown_bar.enter_context(self._bar)
            self._task = self._bar.add_task(f"{self.call} 0/{self.runs}", total=self.runs * self.rounds, now="")
        return self

    def __exit__(self, *error: object) -> None:
        self._shown_bar.close()

    def row(self, run: int, row: Row) -> None:
        """Note a new row in the history of a run."""
        self._rounds[run] = row["round"]
        if self.tell is not None:
            self.tell(run, row)
        if self._bar is not None:
            self._bar.update(self._task, completed=sum(self._rounds.values()))

    def done(self, run: int, name: str, last: Row) -> None:
        """Note that a run has finished, with the last row of its history."""
        self._rounds[run] = self.rounds
        self._finished += 1
        if self._bar is not None:
            figures = "".join(f"  {m} {last[m]:.4g}" for m in ("loss", "accuracy") if m in last)
            progress = f"{self.call} {self._finished}/{self.runs}"
            self._bar.update(
                self._task, completed=sum(self._rounds.values()), description=progress, now=f"{name}:{figures}"
            )
