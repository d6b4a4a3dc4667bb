"""The history of a run as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .as_json import plain

Row = dict[str, float]
"""One evaluated round: round, exchanges, seconds (virtual), wall, bytes_down, bytes_up, loss, ..., by name."""


def history_text(rows: list[Row]) -> str:
    """The history as JSON lines, one per row."""
    return "".join(json.dumps(row, default=plain) + "\n" for row in rows)


def history_of(text: str) -> list[Row]:
    """Inverse of `history_text`. Raises ValueError for text that is not a history."""
    rows = [json.loads(line) for line in text.splitlines()]
    if any(not isinstance(row, dict) or "round" not in row for row in rows):
        raise ValueError("the history has lines that are not rows")
    for row in rows:
        for name, value in row.items():
            if not isinstance(value, int | float):
                raise ValueError(f"the history has {str(value)[:40]!r} as {name} of round {str(row['round'])[:40]}")
    return rows


def check_kinds(table: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Raise TypeError, naming the entry, unless the entries of ``table`` are of these kinds."""
    for name, kind in kinds.items():
        if name in table and type(table[name]) is not kind:
            raise TypeError(f"{name} is {str(table[name])[:40]!r}, not {kind.__name__}")
