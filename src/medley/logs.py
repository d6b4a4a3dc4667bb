"""Log lines of runs: the logger "medley" gets a line for each round, at level INFO, and warnings.

Python shows no INFO by default. `lines` turns it on, as text for people or as JSON for machines.

Side: the server's. A line has figures of a run and never a row of data.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from .contract.errors import RecipeError
from .contract.public import public
from .contract.text import shown
from .storage import atomic
from .storage.as_json import plain

__all__ = ["JSONLines", "TextLines", "lines"]


class TextLines(logging.Formatter):
    """Text in which no message passes for a line of its own: signs are escaped, and further lines are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line of a record, without its traceback."""
        return "\n    ".join(map(shown, super().formatMessage(record).split("\n")))


class JSONLines(logging.Formatter):
    """One JSON object for each line.

    Its keys are ``at``, ``level`` and ``message``; a round has ``method``, ``seed`` and its row of the history in place
    of the message, or the numbers of its answers where it was not evaluated.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        row = getattr(record, "row", None)
        fields = {"message": record.getMessage()} if row is None else row
        return json.dumps({"at": at, "level": record.levelname, **fields}, default=plain)


def lines(form: str = "text", to: str | Path | TextIO | None = None) -> logging.Handler:
    """Let the logger "medley" write a line for each round.

    Args:
        form: "text" (default) or "json"
        to: the name of a file, or a stream. Default stderr

    A second call with the same destination replaces the first, so that no line comes twice. Returns the handler;
    ``logging.getLogger("medley").removeHandler(handler)`` ends it. Raises RecipeError for another form, and without
    ``to`` in a process that has no stderr.
    """
    if form not in ("text", "json"):
        raise RecipeError.unknown(form, ("text", "json"), "logs.lines(form=...)")
    handler: logging.StreamHandler[Any]
    if isinstance(to, str | Path):
        with atomic.writing(Path(to)):
            handler = logging.FileHandler(to, encoding="utf-8")
    elif (stream := to or sys.stderr) is None:
        raise RecipeError("logs.lines(): this process has no stderr; give the name of a file, logs.lines(to=...)", "to")
    else:
        handler = logging.StreamHandler(stream)
    handler.name = f"medley.lines {getattr(handler, 'baseFilename', id(handler.stream))}"
    handler.setFormatter(JSONLines() if form == "json" else TextLines("%(asctime)s %(message)s", "%H:%M:%S"))
    log = logging.getLogger("medley")
    for earlier in [h for h in log.handlers if h.name == handler.name]:
        log.removeHandler(earlier)
        earlier.close()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    return handler


public(__name__)
