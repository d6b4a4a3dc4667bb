"""Progress bars on terminals and in notebooks, and Ctrl-C while the command line is being imported."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def on_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal. None, as Windows has without a console, and a stream without isatty are none."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # ValueError: it is closed
        return False


def draws_bars(progress: bool | None) -> bool:
    """Whether to draw a bar: as asked, by default on a terminal and in a notebook."""
    return any(map(on_terminal, (sys.stderr, sys.stdout))) or in_notebook() if progress is None else progress


def bar(count: str, *texts: str) -> Any:
    """A bar of rich on stderr, with its times; it is drawn within ``with``.

    Args:
        count: rich's column that counts, such as "MofNCompleteColumn"
        texts: templates of the texts behind it
    """
    from rich import console  # only for a terminal
    from rich import progress as bars
    from rich.table import Column
    from rich.text import Text

    class Cut(bars.TextColumn):
        """A text that ends in … if the terminal is narrow."""

        def render(self, task: bars.Task) -> Text:
            text = super().render(task)
            text.no_wrap = True
            text.overflow = "ellipsis"
            return text

    # Rich takes the width that is lacking from columns that may wrap: the bar and the texts, not the times.
    unwrapped: Callable[[], Column] = lambda: Column(no_wrap=True)
    columns = bars.TextColumn("{task.description}"), bars.BarColumn(), getattr(bars, count)(table_column=unwrapped())
    cut = [Cut(text, table_column=Column()) for text in texts]
    times = bars.TimeElapsedColumn(table_column=unwrapped()), bars.TimeRemainingColumn(table_column=unwrapped())
    stderr = console.Console(
        stderr=True,
        force_jupyter=False,
    )

    class InNotebook(bars.Progress):
        """A bar in an output of a notebook's cell that is drawn anew in its place, and is empty in the end."""

        def start(self) -> None:
            self.drawn = time.monotonic()
            self.output = importlib.import_module("IPython.display").display(self, display_id=True)

        def update(self, *args: Any, **fields: Any) -> None:
            super().update(*args, **fields)
            if time.monotonic() - self.drawn > 0.2:
                self.drawn = time.monotonic()
                self.output.update(self)

        def stop(self) -> None:
            self.output.update({"text/plain": ""}, raw=True)

    kind = InNotebook if in_notebook() else bars.Progress
    return kind(*columns, *cut, *times, console=stderr, transient=True)


@contextlib.contextmanager
def quiet_stop() -> Iterator[None]:
    """If Ctrl-C comes while the command line starts, end it with a sentence and exit code 130; elsewhere re-raise."""
    try:
        yield
    except KeyboardInterrupt:
        if not sys.argv or Path(sys.argv[0]).stem != "medley":
            raise
        print("stopped by Ctrl-C", file=sys.stderr)
        raise SystemExit(130) from None
