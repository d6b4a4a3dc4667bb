"""The cost of a reply in a client's words: its work, and the engines that ran."""

from __future__ import annotations

from .checked_json import Words

ENGINES = frozenset({"seq", "stacked", "fused"})
"""Names of the engines that a client may say it ran."""


def work_and_engines(words: Words) -> tuple[float, set[str]]:
    """The work of a reply in row gradients, and the engines that ran. Raises WireError for others."""
    rows = words.number("rows", 0.0, 1e18)
    said = words.entries("engines", 0, len(ENGINES))
    if not all(isinstance(name, str) for name in said) or not set(said) <= ENGINES:
        words.refuse("engines", f"some of {', '.join(sorted(ENGINES))}")
    return rows, set(said)
