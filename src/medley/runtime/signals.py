"""Signal handlers that are in place for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def handled(handlers: Mapping[str, Callable[..., Any] | signal.Handlers]) -> Iterator[None]:
    """Handlers of signals by name, until the ``with`` block ends; outside the main thread nothing is handled.

    At the end it clears any timer that a handler has set. Signals that this system lacks are left out.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    present = {getattr(signal, name): f for name, f in handlers.items() if hasattr(signal, name)}
    before = {number: signal.signal(number, f) for number, f in present.items()}
    try:
        yield
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, f in before.items():
            signal.signal(number, f)
