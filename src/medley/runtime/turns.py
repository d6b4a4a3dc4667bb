"""Turns of threads: one run at a time, since all threads share torch's defaults and the global streams."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger("medley")

PATIENCE = 5.0
"""Seconds that a thread waits for another run's callback before it takes the turn: they may wait for each other."""


@dataclass(eq=False)
class Callback:
    """A callback in progress: how often its thread has taken the turn, and when it began, by `time.monotonic`."""

    depth: int
    began: float


class Turn:
    """A lock that a thread may take several times. During a callback of its holder other threads may take it over.

    A callback can wait for a run of another thread, which would wait for its turn for ever. Most callbacks are over
    soon, so another thread takes the turn after `PATIENCE` seconds only. The holder goes on when that thread is done.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: int | None = None
        self._depth = 0
        self._callback: Callback | None = None
        self._suspended: list[Callback] = []  # whose turns were taken over; the last goes on first

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            while self._holder not in (None, me):
                patience = self._patience()
                if patience is not None and patience <= 0:
                    self._take_over()
                    break
                self._changed.wait(patience)
            self._holder, self._depth = me, self._depth + 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            if self.is_mine:
                self._depth -= 1
                self._holder = self._holder if self._depth else None
                self._changed.notify_all()

    @property
    def is_mine(self) -> bool:
        """Whether it is this thread's turn."""
        return self._holder == threading.get_ident()

    def _patience(self) -> float | None:
        """Seconds until the turn may be taken over; None if its holder is not in a callback."""
        if self._callback is None or self._callback.depth != self._depth:  # a run inside the callback
            return None
        return self._callback.began + PATIENCE - time.monotonic()

    def _take_over(self) -> None:
        log.warning(
            "a run takes the turn of another one, whose on_round has not returned for %.3g s: they may wait for each "
            "other. A run that on_round starts in its own thread does not wait",
            PATIENCE,
        )
        assert self._callback is not None
        self._suspended.append(self._callback)
        self._depth = 0
        self._callback = None

    @contextmanager
    def calling_back(self) -> Iterator[None]:
        """A context for a callback that the thread with the turn calls. Afterwards this thread has the turn as
        before.
        """
        if not self.is_mine:
            yield
            return
        with self._changed:
            mine = Callback(self._depth, time.monotonic())
            outer = self._callback
            self._callback = mine
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                try:
                    while mine in self._suspended and (self._holder is not None or self._suspended[-1] is not mine):
                        self._changed.wait()
                    self._holder = threading.get_ident()
                    self._depth = mine.depth
                    self._callback = outer
                finally:  # Ctrl-C too
                    self._suspended = [other for other in self._suspended if other is not mine]


_turn = Turn()


def process_turn() -> Turn:
    """The turn of this process: its holder alone changes the global streams and torch's defaults."""
    return _turn


def _after_fork() -> None:
    global _turn
    _turn = Turn()


if hasattr(os, "register_at_fork"):  # the thread that holds it is not in the child
    os.register_at_fork(after_in_child=_after_fork)
