"""Words of clients, checked: JSON without NaN, whole numbers and numbers within bounds, lists of a bounded length."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from ..contract.errors import WireError

LONGEST = 1 << 24
"""Bytes of the longest JSON answer that is read."""

TEXT = 2000
"""Characters of a client's error that are kept."""

ENGINES = frozenset({"seq", "stacked", "fused"})
"""Names of the engines that a client may say it ran."""


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


class Words:
    """A JSON object that a client sent. Each error names the client and the field.

    Args:
        who: the client and its answer, for errors

    Raises WireError where ``said`` is no object.
    """

    def __init__(self, who: str, said: Any) -> None:
        self.who = who
        if not isinstance(said, dict):
            raise WireError(f"{who}: it is {_shown(said)}, and no table of fields: does it run the same app?")
        self.said: dict[str, Any] = said

    @classmethod
    def read(cls, who: str, raw: bytes) -> Words:
        """The words in an answer's bytes. Raises WireError for bytes that are no JSON object."""
        if len(raw) > LONGEST:
            raise WireError(f"{who}: {len(raw)} bytes came; {LONGEST} is the limit")
        try:
            said = json.loads(raw, parse_constant=_no_number)
        except (ValueError, RecursionError) as e:
            raise WireError(f"{who}: it is no JSON ({e}): does it run the same app?") from None
        return cls(who, said)

    def refuse(self, key: str, wanted: str) -> NoReturn:
        """Raise WireError for a field that is not ``wanted``."""
        found = _shown(self.said[key]) if key in self.said else "missing"
        raise WireError(f"{self.who}: {key} is {found}, and has to be {wanted}")

    def only(self, *keys: str) -> None:
        """Raise WireError unless the fields are ``keys``."""
        if self.said.keys() != set(keys):
            came = printable(", ".join(sorted(map(str, self.said))))
            raise WireError(f"{self.who}: it has the fields {came:.200}; expected are {', '.join(sorted(keys))}")

    def whole(self, key: str, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self.said.get(key)
        if type(value) is not int or not low <= value <= high:
            self.refuse(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float) -> float:
        """A number from ``low`` to ``high``."""
        value = self.said.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:  # as NaN is not
            self.refuse(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def text(self, key: str, longest: int = 200) -> str:
        """Text of at most ``longest`` characters that can be printed."""
        value = self.said.get(key)
        if not isinstance(value, str) or len(value) > longest or not value.isprintable():
            self.refuse(key, f"text of at most {longest} characters")
        return value

    def texts(self, key: str, most: int, longest: int = 200) -> list[str]:
        """A list of at most ``most`` different texts, each of at most ``longest`` characters that can be printed."""
        values = self.entries(key, 0, most)
        fit = all(isinstance(v, str) and len(v) <= longest and v.isprintable() for v in values)
        if not fit or len(set(values)) < len(values):
            self.refuse(key, f"a list of different texts of at most {longest} characters")
        return values

    def entries(self, key: str, low: int, high: int) -> list[Any]:
        """A list of ``low`` to ``high`` entries."""
        value = self.said.get(key)
        if not isinstance(value, list) or not low <= len(value) <= high:
            self.refuse(key, f"a list of {low} entries" if low == high else f"a list of {low} to {high} entries")
        return value


def work_and_engines(words: Words) -> tuple[float, set[str]]:
    """The work of a reply in row gradients, and the engines that ran. Raises WireError for others."""
    rows = words.number("rows", 0.0, 1e18)
    said = words.entries("engines", 0, len(ENGINES))
    if not all(isinstance(name, str) for name in said) or not set(said) <= ENGINES:
        words.refuse("engines", f"some of {', '.join(sorted(ENGINES))}")
    return rows, set(said)


def printable(text: str) -> str:
    """Text of a client on one line, without the signs that move a terminal's cursor: it cannot pass for a line of ours.

    At most `TEXT` characters of it are kept.
    """
    line = " ".join(text[: 2 * TEXT].split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line[:TEXT])


def _shown(value: Any) -> str:
    text = str(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return f"{type(value).__name__} {text[:60]!r}" if isinstance(value, str) else text[:60]
