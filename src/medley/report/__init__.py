"""Results as figures, tables and one HTML page.

Side: the server's, or that of whoever reads a result. It reads results and run folders, never rows.
"""

from ..contract.public import public
from .bands import Band, band
from .figures import Dots, Line, Markup, forest, lines, love, partition, strip
from .numbers import MethodSummary, Paired, Stat, aggregate, by_method, paired, primary, usable
from .page import curve, page, save
from .table import html, latex, markdown, rows, table
from .targets import Goal, with_target

__all__ = [
    "Band",
    "Dots",
    "Goal",
    "Line",
    "Markup",
    "MethodSummary",
    "Paired",
    "Stat",
    "aggregate",
    "band",
    "by_method",
    "curve",
    "forest",
    "html",
    "latex",
    "lines",
    "love",
    "markdown",
    "page",
    "paired",
    "partition",
    "primary",
    "rows",
    "save",
    "strip",
    "table",
    "usable",
    "with_target",
]  # fmt: skip

public(__name__)
