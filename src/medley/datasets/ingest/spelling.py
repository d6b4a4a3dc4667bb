"""Texts that differ only in what nobody sees, such as two encodings of "ü", or a space of another kind."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

DASHES_AND_QUOTES = str.maketrans("‐‑‒–—−‘’“”", "------''\"\"")


def look_alike(texts: Iterable[str], case: bool = True) -> list[list[str]]:
    """The groups of two or more of these texts that look the same to a reader; ``case``: whether capitals differ."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(_appearance(text if case else text.casefold()), []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def _appearance(text: str) -> str:
    """A text as a reader sees it: one composition, no signs without width, spaces and dashes of one kind."""
    text = unicodedata.normalize("NFKC", text).translate(DASHES_AND_QUOTES)
    return " ".join("".join(c for c in text if unicodedata.category(c) != "Cf").split())
