"""Checks what clients send: answers and errors as bytes, and their JSON. Each error names the client."""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from statistics import median_low
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from torch import Tensor

from ...contract.annotation import ValueType, at_least, at_most, in_range, in_words, kinds
from ...contract.errors import BudgetSpent, MedleyError, WireError
from ...contract.pieces import Content, Pieces
from ...contract.place import name_of
from ...transports.failures import describe, revive

LONGEST = 1 << 24
"""The most bytes of a client's JSON answer."""

LONGEST_ERROR = 1 << 20
"""The most bytes of a client's error."""

TEXT = 2000
"""Characters of a client's error that are kept."""

T = TypeVar("T")

MOST = (1 << 31) - 1
"""The largest number of a round, an exchange, a client or a row in a request."""

HUGE = 1e300
"""The largest size of any other number in a request, and of a figure in an answer."""

# The types of what both sides send, with the bounds that hold in every run; a recipe's [clients] has closer ones.
Count = Annotated[int, at_least(0)]
Number = Annotated[int, in_range(0, MOST)]
Integer = Annotated[int, in_range(-(1 << 63), (1 << 63) - 1)]  # fits int64
ClientNumber = Annotated[int, in_range(0, 1 << 30)]
Amount = Annotated[float, in_range(0.0, HUGE)]
Figure = Annotated[float, in_range(-HUGE, HUGE)]
Work = Annotated[float, in_range(0.0, 1e18)]  # in row gradients
Engine = Literal["fused", "own loop", "seq", "stacked"]


def line(longest: int) -> ValueType:
    """Text on one line, of printable characters."""
    fits = lambda value, _: isinstance(value, str) and len(value) <= longest and value.isprintable()
    return ValueType(fits, f"text of at most {longest} characters", str)


Line = Annotated[str, line(200)]
Sentences = Annotated[str, line(TEXT)]

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


def sealed(answer: Content, last: bool = False) -> Content:
    """An answer as bytes for the server; ``last`` marks the last answer of a client that leaves."""
    mark = b"+" if last else b"="
    return Pieces([mark, *answer.views]) if isinstance(answer, Pieces) else mark + answer


def is_last(answer: Content) -> bool:
    """Whether this is the last answer of a client that leaves."""
    return answer[:1] == b"+"


def sealed_error(e: Exception) -> bytes:
    """A client's error, sent instead of an answer."""
    return b"!" + json.dumps(describe(e)).encode()


def opened(answer: Content, who: str = "a client", client: int | None = None) -> bytes:
    """Inverse of `sealed`. Raises the error that came instead of an answer, and WireError for other bytes.

    The error's text begins with ``who``, and its attribute ``client`` is ``client``, whatever the sender wrote.
    """
    return bytes(body(answer, who, client))


def body(answer: Content, who: str = "a client", client: int | None = None) -> Pieces:
    """The same as `opened` without a copy, for large answers."""
    if answer[:1] in (b"=", b"+"):
        return Pieces((answer if isinstance(answer, Pieces) else Pieces([answer])).between(1, len(answer)))
    if answer[:1] != b"!":
        raise WireError(f"{who} sent neither an answer nor one of Medley's errors: {answer[:40]!r}")
    if len(answer) > LONGEST_ERROR:
        raise WireError(f"{who} sent an error of {len(answer)} bytes; {LONGEST_ERROR} is the limit")
    try:
        head = json.loads(answer[1:])
        text = printable(head["text"])
        attributes = head["attributes"]
        head["text"] = text if re.match(rf"{re.escape(who)}(?!\w)", text) else f"{who}: {text}"
        if not all(k in KEPT and (v is None or type(v) is KEPT[k]) for k, v in attributes.items()):
            raise ValueError("these are not an error's attributes")
        attributes = {k: printable(v) if isinstance(v, str) else v for k, v in attributes.items()}
        head["attributes"] = attributes | ({"client": client} if "client" in attributes else {})
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


def parsed(who: str, raw: Content) -> dict[str, Any]:
    """The JSON object in an answer's bytes. Raises WireError, which begins with ``who``, for other bytes."""
    if len(raw) > LONGEST:
        raise WireError(f"{who}: the answer has {len(raw)} bytes; the limit is {LONGEST}")
    try:
        values = json.loads(bytes(raw), parse_constant=_no_number)
    except (ValueError, RecursionError) as e:
        raise WireError(f"{who}: it is not JSON ({e}): does it run the same app?") from None
    return table(who, values)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def table(who: str, values: Any, names: Collection[str] | None = None) -> dict[str, Any]:
    """An answer that is a table of fields. Raises WireError for any other, and for other fields than ``names``."""
    if not isinstance(values, dict):
        raise WireError(f"{who}: it is {_shown(values)}, not a table of fields: does it run the same app?")
    if names is not None and values.keys() != {*names}:
        present = printable(", ".join(sorted(map(str, values))))
        raise WireError(f"{who}: it has the fields {present:.200}; Medley expects {', '.join(sorted(names))}")
    return values


def checked(
    who: str, values: Mapping[str, Any], name: str, hint: Any, most: float = math.inf, expected: str = ""
) -> Any:
    """A field of an answer, as its annotation declares it: a tuple for JSON's list, a float for a whole number.

    Args:
        who: the client and its answer, for the error
        hint: the annotation, see `medley.contract.annotation`
        most: the largest number in this run; default: any
        expected: the accepted values in words; by default those of the annotation

    Raises WireError, naming client, field and the accepted values, for another value.
    """
    alternatives = kinds(hint, at_most(most))
    for kind in alternatives:
        if name in values and kind.fits(values[name], {}):
            return kind.typed(values[name])
    raise wrong(who, values, name, expected or in_words(kind.text for kind in alternatives))


def wrong(who: str, values: Mapping[str, Any], name: str, expected: str) -> WireError:
    """The error for a field that is not ``expected``."""
    actual = _shown(values[name]) if name in values else "missing"
    return WireError(f"{who}: {name} is {actual}, but must be {expected}")


def declared(cls: type[T], who: str, values: Any, **most: float) -> T:
    """An answer as a dataclass that declares its fields, each `checked` by its annotation; no field may lack.

    ``most`` has the largest numbers of fields in this run.
    """
    hints = _hints(cls)  # type: ignore[arg-type]
    fields = table(who, values, hints)
    return cls(**{name: checked(who, fields, name, hint, most.get(name, math.inf)) for name, hint in hints.items()})


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def work_and_engines(who: str, answer: Mapping[str, Any]) -> tuple[float, set[str]]:
    """The work of a reply in row gradients, and the engines that ran. Raises WireError for invalid values."""
    engines = checked(who, answer, "engines", list[Engine])
    if len({*engines}) < len(engines):
        raise wrong(who, answer, "engines", "different names")
    return checked(who, answer, "rows", Work), {*engines}


def printable(text: str) -> str:
    """A client's text on one line, without control characters, so that it cannot imitate one of Medley's log lines.

    Keeps at most `TEXT` characters.
    """
    line = " ".join(text[: 2 * TEXT].split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line[:TEXT])


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}{[*value.shape]}"
    text = str(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return f"{type(value).__name__} {text[:60]!r}" if isinstance(value, str) else text[:60]
