"""Answers and errors of clients, as bytes."""

from __future__ import annotations

import json

from ..contract.errors import BudgetSpent, MedleyError, WireError
from ..transports.failures import describe, revive
from .checked_json import printable

LONGEST = 1 << 20
"""Bytes of the longest error of a client that is read."""

KEPT: dict[str, type] = {
    **dict.fromkeys(("client", "round", "row", "column"), int),
    **dict.fromkeys(("method", "traceback", "key", "need"), str),
    **dict.fromkeys(("placed", "unexplained"), bool),
    "result": type(None),
}
"""Attributes that the errors of `medley.contract.errors` have, and their types; each may be None."""


def sealed(answer: bytes) -> bytes:
    """An answer for the way to the server."""
    return b"=" + answer


def sealed_last(answer: bytes) -> bytes:
    """The last answer of a client that leaves."""
    return b"+" + answer


def is_last(answer: bytes) -> bool:
    """Whether this is the last answer of a client that leaves."""
    return answer[:1] == b"+"


def sealed_error(e: Exception) -> bytes:
    """A client's error in the place of an answer."""
    return b"!" + json.dumps(describe(e)).encode()


def opened(answer: bytes, who: str = "a client") -> bytes:
    """Inverse of `sealed`. An error that came in the place of an answer is raised, with its text on one
    line, and WireError for other bytes.
    """
    if answer[:1] in (b"=", b"+"):
        return answer[1:]
    if answer[:1] != b"!":
        raise WireError(f"{who} sent neither an answer nor an error of ours: {answer[:40]!r}")
    if len(answer) > LONGEST:
        raise WireError(f"{who} sent an error of {len(answer)} bytes; {LONGEST} is the limit")
    try:
        head = json.loads(answer[1:])
        text, attributes = printable(head["text"]), head["attributes"]
        # Whatever the client calls its error, an error of this run has its number.
        head["text"] = text if who in text else f"{who}: {text}"
        if not all(k in KEPT and (v is None or type(v) is KEPT[k]) for k, v in attributes.items()):
            raise ValueError("attributes of no error")
        head["attributes"] = {k: printable(v) if isinstance(v, str) else v for k, v in attributes.items()}
        e = revive(head)
        if not isinstance(e, MedleyError):
            raise TypeError("no error")
        if isinstance(e, BudgetSpent):  # the server's own word, with which a run ends well
            e = MedleyError(head["text"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise WireError(f"{who} sent an error that is none of ours: {answer[1:200]!r}") from None
    raise e
