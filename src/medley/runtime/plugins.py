"""Methods, data sets and sinks of other packages, which they declare as entry points::

    [project.entry-points."medley.methods"]
    MyMethod = "mypackage.mymethod:MyMethod"

The groups are ``medley.methods`` (subclasses of `medley.Algorithm`), ``medley.datasets`` (functions that return a
`medley.datasets.Dataset`) and ``medley.sinks`` (subclasses of `medley.sinks.Sink`). Medley imports a package only when
a recipe names one of its entries, or when it lists all entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger("medley")


def names(group: str) -> list[str]:
    """Names in a group, such as "methods"; nothing is imported."""
    return sorted({point.name for point in _points(group)})


def plugins(
    group: str, fits: Callable[[Any], bool], taken: Collection[str] = (), only: Collection[str] | None = None
) -> dict[str, Any]:
    """What other packages declare in a group, by name. An entry that cannot be used is left out, with a warning.

    Args:
        group: "methods", "datasets" or "sinks"
        fits: whether an object is of the group's kind
        taken: Medley's own names, which no package can replace
        only: the names to look for, in any case; nothing else is imported. Default all

    Raises ImportError, with the reason, if an entry that ``only`` names cannot be used.
    """
    loaded: dict[str, Any] = {}
    names = None if only is None else {name.lower() for name in only} - {name.lower() for name in taken}
    for point in _points(group):
        if names is not None and point.name.lower() not in names:
            continue
        thing, why = (None, "the name is taken") if point.name in taken or point.name in loaded else _loaded(point)
        if not why and not fits(thing):
            why = f"{thing!r} does not belong to {group}"
        if not why:
            loaded[point.name] = thing
        elif names is None or point.name in loaded:
            log.warning("medley.%s: %s is left out: %s", group, point.name, why)
        else:
            raise ImportError(
                f"{point.name} of another package cannot be used: {why}; repair the package, or leave {point.name} out"
            )
    return loaded


def _points(group: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points  # reads the installed packages' files: only for who asks

    return sorted(entry_points(group=f"medley.{group}"), key=lambda p: (p.name, p.value))


@cache
def _loaded(point: EntryPoint) -> tuple[Any, str]:
    """The object of an entry point, which is imported once, or the error."""
    try:
        return point.load(), ""
    except Exception as e:  # another package's module may raise anything; the others still load
        return None, f"{point.value} cannot be imported: {type(e).__name__}: {e}"
