"""Events of a run: a line of JSON for each exchange, round, warning, start and end, with its time.

They serve the operator's view, `medley.storage.run_view`, and no result depends on them: if the file cannot be written,
the run continues without it. Events of an undone round stay.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .as_json import plain

FILE = "events.jsonl"
EARLIER = "events.earlier.jsonl"

SIZE = 1 << 24
"""Size limit of the file in bytes; a second file keeps the events before it."""

NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Never write through a link that replaces the file, in somebody else's folder; Windows has no such flag."""

SHOWN = 1000
"""The largest number of clients that one event names."""


@dataclass(frozen=True)
class ExchangeEvent:
    """The end of an exchange.

    Attributes:
        asked: clients that were asked
        lost: clients that did not answer
        late: clients whose answer arrives after the end
        refused: the errors of clients that failed, by client
    """

    round: int
    exchange: int
    method: str
    asked: int
    lost: Sequence[int] = ()
    late: Sequence[int] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    took: float = 0.0


class Events(logging.Handler):
    """Appends events to the file in a run's folder. As a log handler it appends the warnings of the run's thread.

    Args:
        folder: the run's folder; a run that resumes or restarts there appends to the events it finds
    """

    def __init__(self, folder: Path, listen: bool = True) -> None:
        super().__init__(logging.INFO)
        self.path = folder / FILE
        self._thread = threading.get_ident()
        if listen:
            logging.getLogger("medley").addHandler(self)

    def add(self, event: str, **values: Any) -> None:
        """Append an event."""
        line = json.dumps({"at": round(time.time(), 3), "event": event, **values}, default=plain) + "\n"
        with suppress(OSError):
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINK, 0o600)
            try:
                os.write(fd, line.encode())
                full = os.fstat(fd).st_size > SIZE
            finally:
                os.close(fd)
            if full:
                self.path.replace(self.path.with_name(EARLIER))

    def exchanged(self, e: ExchangeEvent) -> None:
        """Append the end of an exchange; if many clients failed, only the first are named."""
        lost, late = ([*ids][:SHOWN] for ids in (e.lost, e.late))
        refused = {str(i): why[:300] for i, why in [*e.refused.items()][:SHOWN]}
        counts = {"asked": e.asked, "missing": len(e.lost), "waiting": len(e.late)}
        where = {"round": e.round, "exchange": e.exchange, "method": e.method}
        self.add("exchange", **where, **counts, lost=lost, late=late, refused=refused, took=round(e.took, 3))

    def emit(self, record: logging.LogRecord) -> None:
        """Append a log line: warnings, and other lines that are not about rounds."""
        if threading.get_ident() == self._thread and not hasattr(record, "row"):
            self.add("log", level=record.levelname.lower(), message=record.getMessage()[:2000])

    def close(self) -> None:
        """Stop listening to the log."""
        logging.getLogger("medley").removeHandler(self)
        super().close()


def read(folder: Path, most: int = 1 << 22) -> list[dict[str, Any]]:
    """The last events of a run, oldest first, from at most ``most`` bytes of each file.

    Leaves out a line that is still being written, and one that no run wrote.
    """
    records = list[dict[str, Any]]()
    for name in (EARLIER, FILE):
        for line in tail(folder / name, most):
            with suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict) and isinstance(value.get("at"), int | float):
                    records.append(value)
    return records


def tail(path: Path, most: int) -> list[str]:
    """The last whole lines of a file, at most ``most`` bytes of them; none if there is no file."""
    try:
        with path.open("rb") as f:
            size = f.seek(0, os.SEEK_END)
            f.seek(max(0, size - most))
            raw = f.read()
    except OSError:
        return []
    first = raw.find(b"\n") + 1 if size > most else 0
    return raw[first : raw.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()
