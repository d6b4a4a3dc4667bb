"""Methods, data sets and sinks of other packages, which they declare as entry points::

    [project.entry-points."medley.methods"]
    MyMethod = "mypackage.mymethod:MyMethod"

The groups are ``medley.methods`` (subclasses of `medley.Algorithm`), ``medley.datasets`` (functions that return a
`medley.datasets.Dataset`) and ``medley.sinks`` (subclasses of `medley.sinks.Sink`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import cache
from importlib.metadata import entry_points
from typing import Any

log = logging.getLogger("medley")


def names(group: str) -> list[str]:
    """Names in a group, such as "methods"; nothing is imported."""
    return sorted({point.name for point in entry_points(group=f"medley.{group}")})


def plugins(group: str, fits: Callable[[Any], bool], taken: Collection[str] = ()) -> dict[str, Any]:
    """What other packages declare in a group, by name. One that cannot be used is left out, with a warning.

    Args:
        group: "methods", "datasets" or "sinks"
        fits: whether a thing is of the group's kind
        taken: names that Medley has itself, which no package replaces
    """
    found: dict[str, Any] = {}
    for name, thing, why in _loaded(group):
        if not why and not fits(thing):
            why = f"{thing!r} is none of {group}"
        elif name in taken or name in found:
            why = "the name is taken"
        if why:
            log.warning("medley.%s: %s is left out: %s", group, name, why)
        else:
            found[name] = thing
    return found


@cache
def _loaded(group: str) -> list[tuple[str, Any, str]]:
    """Name, thing and error of each entry point; a thing is imported once."""
    out = []
    for point in sorted(entry_points(group=f"medley.{group}"), key=lambda p: (p.name, p.value)):
        try:
            out.append((point.name, point.load(), ""))
        except Exception as e:  # a stranger's module may fail as it likes; others go on
            out.append((point.name, None, f"{point.value} cannot be imported: {type(e).__name__}: {e}"))
    return out
