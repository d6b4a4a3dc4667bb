"""Time of a run by part. It is measured only within a `Stopwatch`; elsewhere it costs nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

_running: list[Stopwatch] = []
"""Stopwatches running in this process, innermost last."""

_NOTHING = nullcontext()


class Stopwatch:
    """Seconds by part. It runs within ``with Stopwatch() as watch``.

    If a part runs within another part, its time counts only for the inner one. ``seconds`` holds seconds by part,
    ``rows`` the row gradients of local steps.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.rows = 0.0
        self._doing: list[str] = []
        self._since = 0.0

    def __enter__(self) -> Stopwatch:
        _running.append(self)
        self._since = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        _running.remove(self)

    @contextmanager
    def doing(self, part: str) -> Iterator[None]:
        """Charge the time within ``with`` to ``part``."""
        self._charge()
        self._doing.append(part)
        try:
            yield
        finally:
            self._charge()
            self._doing.pop()

    def _charge(self) -> None:
        end = time.perf_counter()
        if self._doing:
            self.seconds[self._doing[-1]] = self.seconds.get(self._doing[-1], 0.0) + end - self._since
        self._since = end


def running() -> bool:
    """True within a `Stopwatch`."""
    return bool(_running)


def doing(part: str) -> AbstractContextManager[None]:
    """Charge the time within ``with`` to ``part``, if a stopwatch runs in this process."""
    return _running[-1].doing(part) if _running else _NOTHING


def count(rows: float) -> None:
    """Add row gradients of local steps."""
    if _running:
        _running[-1].rows += rows
