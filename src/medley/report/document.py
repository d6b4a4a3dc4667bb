"""The parts of a page, and their HTML.

A section is a list of blocks. Blocks hold plain text, which the templates escape, and figures, which are `Markup`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import ClassVar

from .figures import DARK, LIGHT, Markup, swatch


@dataclass(frozen=True)
class Cell:
    """A table's cell with more than plain text.

    Attributes:
        text: The text, or a figure.
        slot: A method's number, whose key stands before the text; None, the default, for no key.
        mood: CSS class of the text, ``ok`` or ``bad``; default none.
    """

    text: str
    slot: int | None = None
    strong: bool = False
    mood: str = ""
    after: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph; ``style`` is its CSS class: ``facts``, ``lede``, ``note`` or none."""

    block: ClassVar[str] = "text"
    text: str
    style: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    block: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Table:
    """A table whose first column heads its rows.

    Attributes:
        head: Headings of the columns; an empty one makes an empty cell.
        rows: Cells of each row, as many as ``head``.
        style: CSS class: ``figures`` (default), ``said`` (its last column is a sentence) or ``settings``.
    """

    block: ClassVar[str] = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    note: str = ""
    style: str = "figures"


WIDE = 1152
"""Width in px of a table that a window of 1200 px shows whole."""


def fitted(head: Sequence[str], rows: Sequence[Sequence[str | Cell]], keep: int, note: str = "") -> list[Table]:
    """Tables of the same rows that a window of 1200 px shows whole.

    Args:
        head: Headings of all columns; a last one called "ended" has sentences, which wrap.
        keep: Number of first columns that the first table has; the others begin with the first column alone.
    """
    said = [210.0 if name == "ended" else 0.0 for name in head]
    wide = [said[k] or max(_width(c, k) for c in (_longest(head[k]), *(r[k] for r in rows))) for k in range(len(head))]
    parts = [list(range(keep))]
    for k in range(keep, len(head)):
        if len(parts[-1]) > 1 and sum(wide[j] for j in parts[-1]) + wide[k] > WIDE:
            parts.append([0])
        parts[-1].append(k)
    out = []
    for part in parts:
        style = "said" if head[part[-1]] == "ended" else "figures"
        below = note if part is parts[-1] else ""
        out.append(Table([head[k] for k in part], [[r[k] for k in part] for r in rows], below, style))
    return out


def _width(cell: str | Cell, column: int) -> float:
    """The width of a cell in px, estimated on the wide side; the first column is bold, with a key."""
    if isinstance(cell, Markup):
        return 142.0
    text = cell.text if isinstance(cell, Cell) else cell
    strong = column == 0 or (isinstance(cell, Cell) and cell.strong)
    return (8.2 if strong else 7.2) * len(text) + (34.0 if column == 0 else 22.0)


def _longest(text: str) -> str:
    return max(text.split(), key=len, default="")


@dataclass(frozen=True)
class Figure:
    """A figure with a caption above it; ``style`` is its CSS class: ``scroll`` or none."""

    svg: Markup
    caption: str = ""
    style: str = ""


@dataclass(frozen=True)
class Figures:
    """Figures side by side; ``style`` is the row's CSS class beside ``row``: ``two``, ``wide``, ``own`` or none."""

    block: ClassVar[str] = "figures"
    figures: Sequence[Figure]
    style: str = ""


@dataclass(frozen=True)
class Legend:
    """Keys of the methods, each a switch that hides the method in all figures; ``slots`` are their numbers by name."""

    block: ClassVar[str] = "legend"
    slots: dict[str, int]


@dataclass(frozen=True)
class Details:
    """A table that unfolds below its ``summary``."""

    block: ClassVar[str] = "details"
    summary: str
    table: Table


@dataclass(frozen=True)
class Definitions:
    """Terms as ``notes.html`` defines them: those of every page, and those in ``used``."""

    block: ClassVar[str] = "definitions"
    used: Collection[str]
    base: str
    metric: str
    dealt: str


@dataclass(frozen=True)
class Code:
    """Preformatted text."""

    block: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True)
class Raw:
    """Markup that goes in as it is."""

    block: ClassVar[str] = "raw"
    markup: Markup


Block = Text | Heading | Table | Figures | Legend | Details | Definitions | Code | Raw


@dataclass(frozen=True)
class Document:
    """A page.

    Attributes:
        sections: Heading and blocks of each section; sections without blocks are left out.
        slots: Numbers of the methods that the legend can hide.
    """

    title: str
    lede: Sequence[Block]
    sections: Sequence[tuple[str, Sequence[Block]]]
    slots: Sequence[int] = field(default=())

    def html(self) -> str:
        """The page as one HTML text that loads nothing: style sheet, script and figures are in it."""
        from jinja2 import Environment, PackageLoader, StrictUndefined  # here for its import time

        templates = Environment(
            loader=PackageLoader("medley.report"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        templates.globals["swatch"] = swatch
        script = _asset("page.js")
        return templates.get_template("page.html").render(
            page=self,
            sections=[(heading, blocks) for heading, blocks in self.sections if blocks],
            policy=_policy(script),
            palettes=[";".join(f"--c{k}:{c}" for k, c in enumerate(p)) for p in (LIGHT, DARK)],
            css=_asset("page.css"),
            script=script,
        )


def _asset(name: str) -> Markup:
    return Markup(resources.files("medley.report").joinpath("templates", name).read_text(encoding="utf-8"))


def _policy(script: str) -> Markup:
    """The content security policy: should escaping ever fail, the browser loads nothing and runs ``script`` alone."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Markup(f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'")
