"""Text that others wrote, made fit for one line of a terminal, a log or a page."""

from __future__ import annotations

import math


def shown(value: object) -> str:
    """The value as text on one line: a character that does not print is written as its escape, such as \\n or \\u202e.

    Such are line breaks, control characters, marks that turn the direction of writing, and characters without width.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in str(value))


def unquoted(value: object) -> str:
    """The end of a sentence about a text that is a number: "; it is a text, write 0.1 without quotes"; else empty."""
    try:
        is_number = isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return ""
    return f"; it is a text, write {value} without quotes" if is_number else ""


NAME = "text on one line, without spaces around it or two in a row"
"""What `is_name` asks for, in words."""


def is_name(value: object) -> bool:
    """Whether the value is text that every table shows as it is, so that no two names look alike."""
    return isinstance(value, str) and value.isprintable() and bool(value) and value == " ".join(value.split())


_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\|*_`[]"} | {"<": "&lt;", "&": "&amp;"})


def markdown(text: str) -> str:
    """The text for a cell of a Markdown table, on one line."""
    return shown(" ".join(text.split())).translate(_MARKDOWN)


_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "×": r"$\times$",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "–": "--",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
}
"""Characters that LaTeX writes in another way."""


def tex(text: str) -> str:
    """The text for LaTeX, on one line."""
    return "".join(_TEX.get(c, c) for c in shown(" ".join(text.split())))


def cell(value: object) -> object:
    """The value for a CSV file: a text that a spreadsheet would run as a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.lstrip()[:1] in ("=", "+", "-", "@") else value
