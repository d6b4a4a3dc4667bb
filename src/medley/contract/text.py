"""Text that others wrote, made fit for one line of a terminal, a log or a page."""

from __future__ import annotations


def shown(value: object) -> str:
    """The value as text on one line: a character that does not print is written as its escape, such as \\n or \\u202e.

    Such are line breaks, control characters, marks that turn the direction of writing, and characters without width.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in str(value))
