"""Words of clients: answers and errors as bytes, and their JSON, checked; whatever is wrong names the client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from statistics import median_low
from typing import Any, NoReturn

from ..contract.errors import BudgetSpent, MedleyError, WireError
from ..transports.failures import describe, revive

LONGEST, LONGEST_ERROR = 1 << 24, 1 << 20
"""Bytes of the longest JSON answer, and of the longest error of a client, that are read."""

TEXT = 2000
"""Characters of a client's error that are kept."""

ENGINES = frozenset({"seq", "stacked", "fused"})
"""Names of the engines that a client may say it ran."""

KEPT: dict[str, type] = {
    **dict.fromkeys(("client", "round", "row", "column"), int),
    **dict.fromkeys(("method", "traceback", "key", "need"), str),
    **dict.fromkeys(("placed", "unexplained"), bool),
    "result": type(None),
}
"""Attributes that the errors of `medley.contract.errors` have, and their types; each may be None."""

TIMES, FEWEST = 1e6, 3
"""A client's number is absurd that is more than so many times the median of all clients', of so many at least: of two
nobody knows which one is right."""


def sealed(answer: bytes, last: bool = False) -> bytes:
    """An answer for the way to the server; ``last`` is that of a client that leaves."""
    return (b"+" if last else b"=") + answer


def is_last(answer: bytes) -> bool:
    """Whether this is the last answer of a client that leaves."""
    return answer[:1] == b"+"


def sealed_error(e: Exception) -> bytes:
    """A client's error in the place of an answer."""
    return b"!" + json.dumps(describe(e)).encode()


def opened(answer: bytes, who: str = "a client") -> bytes:
    """Inverse of `sealed`. Raises an error that came in the place of an answer, and WireError for other bytes."""
    if answer[:1] in (b"=", b"+"):
        return answer[1:]
    if answer[:1] != b"!":
        raise WireError(f"{who} sent neither an answer nor one of Medley's errors: {answer[:40]!r}")
    if len(answer) > LONGEST_ERROR:
        raise WireError(f"{who} sent an error of {len(answer)} bytes; {LONGEST_ERROR} is the limit")
    try:
        head = json.loads(answer[1:])
        text, attributes = printable(head["text"]), head["attributes"]
        # Whatever the client calls its error, an error of this run has its number.
        head["text"] = text if who in text else f"{who}: {text}"
        if not all(k in KEPT and (v is None or type(v) is KEPT[k]) for k, v in attributes.items()):
            raise ValueError("attributes of no error")
        head["attributes"] = {k: printable(v) if isinstance(v, str) else v for k, v in attributes.items()}
        if not isinstance(e := revive(head), MedleyError):
            raise TypeError("no error")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise WireError(f"{who} sent an error that is not one of Medley's: {answer[1:200]!r}") from None
    raise MedleyError(head["text"]) if isinstance(e, BudgetSpent) else e  # the server's own word: a run ends well by it


def outliers(numbers: Mapping[int, float], what: str) -> Iterator[tuple[int, WireError]]:
    """Clients whose number is absurd beside the others', and more than `TIMES`; and the errors that say so."""
    usual = median_low(numbers.values()) if len(numbers) >= FEWEST else float("inf")
    for i, number in numbers.items():
        if number > TIMES * max(usual, 1.0):
            yield (
                i,
                WireError(
                    f"client {i}'s {what} is {number:.3g}, and the median of {len(numbers)} clients' {usual:.3g}: look "
                    'at its rows and its pace, or leave such replies out by reply_policy.faulty = "drop"'
                ),
            )


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


class Words:
    """A JSON object that a client sent. Each error is a WireError that names the client and the field.

    Args:
        who: the client and its answer, for errors
    """

    def __init__(self, who: str, said: Any) -> None:
        self.who = who
        if not isinstance(said, dict):
            raise WireError(f"{who}: it is {_shown(said)}, not a table of fields: does it run the same app?")
        self.said: dict[str, Any] = said

    @classmethod
    def read(cls, who: str, raw: bytes) -> Words:
        """The words in an answer's bytes. Raises WireError for bytes that are no JSON object."""
        if len(raw) > LONGEST:
            raise WireError(f"{who}: {len(raw)} bytes came; {LONGEST} is the limit")
        try:
            said = json.loads(raw, parse_constant=_no_number)
        except (ValueError, RecursionError) as e:
            raise WireError(f"{who}: it is not JSON ({e}): does it run the same app?") from None
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

    def wholes(self, key: str, most: int, below: int) -> list[int]:
        """A list of at most ``most`` different whole numbers from 0 on, each less than ``below``."""
        values = self.numbers(key, most, below, "different ")
        if len(set(values)) < len(values):
            self.refuse(key, f"different whole numbers below {below}")
        return values

    def numbers(self, key: str, most: int, below: int, which: str = "") -> list[int]:
        """A list of at most ``most`` whole numbers from 0 on, each less than ``below``; some may be the same."""
        values = self.entries(key, 0, most)
        if not all(type(k) is int and 0 <= k < below for k in values):
            self.refuse(key, f"{which}whole numbers below {below}")
        return values

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
    rows, said = words.number("rows", 0.0, 1e18), words.entries("engines", 0, len(ENGINES))
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
