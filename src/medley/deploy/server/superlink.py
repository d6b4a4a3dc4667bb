"""Flower's SuperLink, with settings of SQLite under which large messages are removed in time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from ...runtime.tricks import one_arena
from ..protocol import flwr_api

SETTINGS = {"busy_timeout": 25_000, "secure_delete": "FAST"}
"""Settings of each connection. The SuperLink removes a message with all its pieces in one transaction, and meanwhile
every other writer waits. Debian's SQLite overwrites what it removes (``secure_delete``): through the log, 800 MB took
4 to 15 s, and Flower gives up after 5. FAST overwrites only where no page is written for it alone: 1 to 2 s. Flower's
own processes wait 30 s for an answer, so a writer waits for less, in milliseconds."""


def serve(arguments: Sequence[str]) -> None:
    """Run ``flower-superlink`` with these arguments, in this process. Raises MedleyError without Flower."""
    flwr_api.checked_version()
    from sqlalchemy import event
    from sqlalchemy.pool import Pool

    one_arena()  # also in the server's app, a child process
    (program,) = entry_points(group="console_scripts", name="flower-superlink")
    event.listen(Pool, "checkout", configure)  # at each use: Flower sets its own when it connects
    sys.argv = [program.name, *arguments]
    program.load()()


def configure(connection: Any, *_: object) -> None:
    """Apply `SETTINGS` to a connection of SQLite."""
    for name, value in SETTINGS.items():
        connection.execute(f"PRAGMA {name} = {value}").close()
