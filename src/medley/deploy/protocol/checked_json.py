"""Checks what clients send: answers and errors as bytes, and their JSON. Each error names the client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from statistics import median_low
from typing import Any, NoReturn

from ...contract.errors import BudgetSpent, MedleyError, WireError
from ...contract.place import name_of
from ...transports.failures import describe, revive

LONGEST = 1 << 24
"""The most bytes of a client's JSON answer."""

LONGEST_ERROR = 1 << 20
"""The most bytes of a client's error."""

TEXT = 2000
"""Characters of a client's error that are kept."""

ENGINES = frozenset({"seq", "stacked", "fused"})
"""Names of the engines that a client may say it ran."""

KEPT: dict[str, type] = {
    **dict.fromkeys(("client", "round", "row", "column"), int),
    **dict.fromkeys(("method", "traceback", "key", "need"), str),
    **dict.fromkeys(("unexplained",), bool),
    "result": type(None),
}
"""Attributes of the errors in `medley.contract.errors`, and their types; each may be None."""

TIMES = 1e6
"""A client's number is an outlier if it is more than this many times the median of all clients' numbers."""

FEWEST = 3
"""The least number of clients for a search for outliers: of two, neither is known to be right."""


def sealed(answer: bytes, last: bool = False) -> bytes:
    """An answer as bytes for the server; ``last`` marks the last answer of a client that leaves."""
    return (b"+" if last else b"=") + answer


def is_last(answer: bytes) -> bool:
    """Whether this is the last answer of a client that leaves."""
    return answer[:1] == b"+"


def sealed_error(e: Exception) -> bytes:
    """A client's error, sent instead of an answer."""
    return b"!" + json.dumps(describe(e)).encode()


def opened(answer: bytes, who: str = "a client") -> bytes:
    """Inverse of `sealed`. Raises the error that came instead of an answer, and WireError for other bytes."""
    if answer[:1] in (b"=", b"+"):
        return answer[1:]
    if answer[:1] != b"!":
        raise WireError(f"{who} sent neither an answer nor one of Medley's errors: {answer[:40]!r}")
    if len(answer) > LONGEST_ERROR:
        raise WireError(f"{who} sent an error of {len(answer)} bytes; {LONGEST_ERROR} is the limit")
    try:
        head = json.loads(answer[1:])
        text = printable(head["text"])
        attributes = head["attributes"]
        # The text names the client, whatever the client wrote.
        head["text"] = text if who in text else f"{who}: {text}"
        if not all(k in KEPT and (v is None or type(v) is KEPT[k]) for k, v in attributes.items()):
            raise ValueError("these are not an error's attributes")
        head["attributes"] = {k: printable(v) if isinstance(v, str) else v for k, v in attributes.items()}
        e = revive(head)
        if not isinstance(e, MedleyError):
            raise TypeError("no error")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise WireError(f"{who} sent an error that is not one of Medley's: {answer[1:200]!r}") from None
    # Only the server may raise BudgetSpent: it ends a run successfully.
    raise MedleyError(head["text"]) if isinstance(e, BudgetSpent) else e


def outliers(numbers: Mapping[int, float], what: str) -> Iterator[tuple[int, WireError]]:
    """Clients whose number is an outlier and larger than `TIMES`, each with the error that says so."""
    usual = median_low(numbers.values()) if len(numbers) >= FEWEST else float("inf")
    for i, number in numbers.items():
        if number > TIMES * max(usual, 1.0):
            yield (
                i,
                WireError(
                    f"{name_of(i)}'s {what} is {number:.3g}, but the median of {len(numbers)} clients is {usual:.3g}: "
                    'check its rows and its pace, or drop such replies with reply_policy.faulty = "drop"'
                ),
            )


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


class Words:
    """A JSON object that a client sent. Each error is a WireError that names the client and the field.

    Args:
        who: the client and its answer, for errors
    """

    def __init__(self, who: str, values: Any) -> None:
        self.who = who
        if not isinstance(values, dict):
            raise WireError(f"{who}: it is {_shown(values)}, not a table of fields: does it run the same app?")
        self.said: dict[str, Any] = values

    @classmethod
    def read(cls, who: str, raw: bytes) -> Words:
        """The JSON object in an answer's bytes. Raises WireError for other bytes."""
        if len(raw) > LONGEST:
            raise WireError(f"{who}: the answer has {len(raw)} bytes; the limit is {LONGEST}")
        try:
            values = json.loads(raw, parse_constant=_no_number)
        except (ValueError, RecursionError) as e:
            raise WireError(f"{who}: it is not JSON ({e}): does it run the same app?") from None
        return cls(who, values)

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Raise WireError for a field that is not ``expected``."""
        actual = _shown(self.said[key]) if key in self.said else "missing"
        raise WireError(f"{self.who}: {key} is {actual}, but must be {expected}")

    def only(self, *keys: str) -> None:
        """Raise WireError unless the fields are ``keys``."""
        if self.said.keys() != set(keys):
            came = printable(", ".join(sorted(map(str, self.said))))
            raise WireError(f"{self.who}: it has the fields {came:.200}; Medley expects {', '.join(sorted(keys))}")

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
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:  # so does NaN
            self.refuse(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def text(self, key: str, longest: int = 200) -> str:
        """Text of at most ``longest`` printable characters."""
        value = self.said.get(key)
        if not isinstance(value, str) or len(value) > longest or not value.isprintable():
            self.refuse(key, f"text of at most {longest} characters")
        return value

    def texts(self, key: str, most: int, longest: int = 200) -> list[str]:
        """A list of at most ``most`` different texts, each of at most ``longest`` printable characters."""
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
    """The work of a reply in row gradients, and the engines that ran. Raises WireError for invalid values."""
    rows = words.number("rows", 0.0, 1e18)
    engines = words.entries("engines", 0, len(ENGINES))
    if not all(isinstance(name, str) for name in engines) or not set(engines) <= ENGINES:
        words.refuse("engines", f"some of {', '.join(sorted(ENGINES))}")
    return rows, set(engines)


def printable(text: str) -> str:
    """A client's text on one line, without control characters, so that it cannot imitate one of Medley's log lines.

    Keeps at most `TEXT` characters.
    """
    line = " ".join(text[: 2 * TEXT].split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line[:TEXT])


def _shown(value: Any) -> str:
    text = str(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return f"{type(value).__name__} {text[:60]!r}" if isinstance(value, str) else text[:60]
