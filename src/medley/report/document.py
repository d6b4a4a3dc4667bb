"""The parts of a page, and their HTML.

A section is a list of blocks, each of them `Markup` made here. Plain text is escaped, `Markup` is not.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from .figures import DARK, LIGHT, Markup, swatch


@dataclass(frozen=True)
class Cell:
    """A table's cell with more than plain text.

    Attributes:
        text: The text, or a figure.
        slot: A method's number, whose key is drawn before the text; None, the default, for no key.
        mood: CSS class of the text, ``ok`` or ``bad``; default none.
        shade: Opacity in [0, 1] of the colour of ``slot`` behind the text, instead of the key; default none.
    """

    text: str
    slot: int | None = None
    strong: bool = False
    mood: str = ""
    after: str = ""
    shade: float | None = None


Cells = Sequence[str | Cell]


def text(words: str, style: str = "") -> Markup:
    """A paragraph; ``style`` is its CSS class: ``facts``, ``lede``, ``note`` or none."""
    return _macro("text", words, style)


def heading(words: str) -> Markup:
    """A heading inside a section."""
    return _macro("heading", words)


def code(words: str) -> Markup:
    """Preformatted text."""
    return _macro("code", words)


def table(head: Sequence[str], rows: Sequence[Cells], note: str = "", style: str = "figures") -> Markup:
    """A table whose first column heads its rows.

    Args:
        head: Headings of the columns; an empty one makes an empty cell.
        rows: Cells of each row, as many as ``head``.
        style: CSS class: ``figures`` (default), ``said`` if the last column holds sentences, or ``settings``.
    """
    return _macro("table", head, rows, note, style)


def figure(svg: Markup, caption: str = "", style: str = "") -> Markup:
    """A figure with a caption above it; ``style`` is its CSS class: ``scroll`` or none."""
    return _macro("figure", svg, caption, style)


def figures(of: Sequence[Markup], style: str = "") -> Markup:
    """Figures side by side; ``style`` is the row's further CSS class: ``two``, ``wide``, ``own`` or none."""
    return _macro("figures", of, style)


def legend(slots: dict[str, int]) -> Markup:
    """Keys of the methods, each a switch that hides the method in all figures; ``slots`` are their numbers by name."""
    return _macro("legend", slots)


def details(summary: str, block: Markup) -> Markup:
    """A block that unfolds below its ``summary``."""
    return _macro("details", summary, block)


def definitions(used: Collection[str], base: str, metric: str, partition: str) -> Markup:
    """Definitions from ``notes.html``: of the terms that every page has, and of the terms in ``used``."""
    return _macro("definitions", used, base, metric, partition, template="notes.html")


WIDE = 1152
"""Width in px of a table that fits into a window of 1200 px."""


def fitted(head: Sequence[str], rows: Sequence[Cells], keep: int, note: str = "") -> list[Markup]:
    """Tables of the same rows that fit into a window of 1200 px.

    Args:
        head: Headings of all columns; if the last is "ended", its cells are sentences, which wrap.
        keep: Number of leading columns in the first table; the other tables begin with the first column alone.
    """
    widths = [210.0 if name == "ended" else 0.0 for name in head]
    wide = [
        widths[k] or max(_width(c, k) for c in (_longest(head[k]), *(r[k] for r in rows))) for k in range(len(head))
    ]
    parts = [list(range(keep))]
    for k in range(keep, len(head)):
        if len(parts[-1]) > 1 and sum(wide[j] for j in parts[-1]) + wide[k] > WIDE:
            parts.append([0])
        parts[-1].append(k)
    out = []
    for part in parts:
        style = "said" if head[part[-1]] == "ended" else "figures"
        below = note if part is parts[-1] else ""
        out.append(table([head[k] for k in part], [[r[k] for k in part] for r in rows], below, style))
    return out


def _width(cell: str | Cell, column: int) -> float:
    """The width of a cell in px, estimated generously; the first column is bold, with a key."""
    if isinstance(cell, Markup):
        return 142.0
    words = cell.text if isinstance(cell, Cell) else cell
    strong = column == 0 or (isinstance(cell, Cell) and cell.strong)
    return (8.2 if strong else 7.2) * len(words) + (34.0 if column == 0 else 22.0)


def _longest(words: str) -> str:
    return max(words.split(), key=len, default="")


def page(
    title: str,
    lede: Sequence[Markup],
    sections: Sequence[tuple[str, Sequence[Markup]]],
    slots: Sequence[int] = (),
) -> str:
    """A page as one HTML text that loads nothing: it contains the style sheet, the script and the figures.

    Args:
        sections: Heading and blocks of each section; sections without blocks are left out.
        slots: Numbers of the methods that the legend can hide.
    """
    script = _asset("page.js")
    return str(
        _templates()
        .get_template("page.html")
        .render(
            title=title,
            lede=lede,
            slots=slots,
            sections=[(heading, blocks) for heading, blocks in sections if blocks],
            policy=_policy(script),
            palettes=[";".join(f"--c{k}:{c}" for k, c in enumerate(p)) for p in (LIGHT, DARK)],
            css=_asset("page.css"),
            script=script,
        )
    )


@cache
def _templates() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # here for its import time

    templates = Environment(
        loader=PackageLoader("medley.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["swatch"] = swatch
    return templates


def _macro(macro: str, *values: Any, template: str = "blocks.html") -> Markup:
    """The HTML of a template's macro."""
    return Markup(getattr(_templates().get_template(template).module, macro)(*values))


def _asset(name: str) -> Markup:
    return Markup(resources.files("medley.report").joinpath("templates", name).read_text(encoding="utf-8"))


def _policy(script: str) -> Markup:
    """The content security policy: should escaping ever fail, the browser loads nothing and runs ``script`` alone."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Markup(f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'")
