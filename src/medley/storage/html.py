"""Small HTML of objects, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence


def facts(title: str, items: Mapping[str, object]) -> str:
    """A title and a table of facts by name; all text is escaped."""
    rows = [f"<tr><th style='text-align:left'>{_text(k)}</th><td>{_text(v)}</td></tr>" for k, v in items.items()]
    return f"<b>{_text(title)}</b><table style='text-align:left'>{''.join(rows)}</table>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    """A table with a heading, and a note below it; all text is escaped."""
    top = "".join(f"<th>{_text(c)}</th>" for c in head)
    lines = ["".join(f"<td>{_text(c)}</td>" for c in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table><p>{_text(note)}</p>"


def _text(value: object) -> str:
    return html.escape(str(value))
