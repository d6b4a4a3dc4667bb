"""A console whose texts cannot move a terminal's cursor."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, starmap
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment

_RANGES = ((0, 9), (11, 32), (127, 160), (0x61C, 0x61D), (0x200E, 0x2010), (0x202A, 0x202F), (0x2066, 0x206A))
SIGNS = dict.fromkeys(chain.from_iterable(starmap(range, _RANGES)), "\N{REPLACEMENT CHARACTER}")
"""Signs that move a terminal's cursor, or change the direction of its text: names in a folder may contain them."""


class Shown(Console):
    """A console that prints `SIGNS` in texts as replacement characters."""

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of a thing to print, without `SIGNS`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(segment.text.translate(SIGNS), segment.style)
