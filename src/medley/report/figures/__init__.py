"""Figures as SVG text. They need no library, no file and no network.

A figure can stand alone; inside a page it takes the page's colours. The colours of methods are the CSS variables
``--c0`` to ``--c7``, with the light palette as fallback. Everything else has the colour of the surrounding text.
"""

from .axes import Axis
from .forest import forest
from .intervals import interval
from .lines import Line, lines
from .love import love
from .palette import DARK, LIGHT, mark, swatch
from .partitions import partition
from .strips import Dots, strip
from .svg import Markup

__all__ = [
    "DARK", "LIGHT", "Axis", "Dots", "Line", "Markup", "forest", "interval", "lines", "love", "mark",
    "partition", "strip", "swatch",
]  # fmt: skip
