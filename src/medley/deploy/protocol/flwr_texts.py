"""All that Medley reads in texts of flwr: the output of its commands, its log, and what its Fleet API refuses.

`tests/deploy/test_flwr_texts.py` compares each with the real one.
"""

from __future__ import annotations

import json
import re
from typing import Any

NOTES = re.compile(r"(?:✋ *)?(?:Using SuperLink|Displaying information|Stopping run)\b.*")
"""Lines before the error in the output of a command."""

UNAVAILABLE = "Connection to the SuperLink is unavailable"
"""How the error begins if nothing answers at the SuperLink's address."""

LONGEST = 300
"""The most characters of an error that a message quotes."""


def run_number(output: str) -> str:
    """Flower's number of the run that ``flwr run --format json`` started; empty if it started none."""
    match = re.search(r'"run-id":\s*"(\d+)"', output)
    return match[1] if match else ""


def run_state(output: str) -> str:
    """A run's status in the output of ``flwr list --format json``, such as "finished:stopped"; empty without one."""
    match = re.search(r'"status":\s*"([^"]+)"', output)
    return match[1] if match else ""


def was_stopped(state: str) -> bool:
    """Whether somebody stopped a run of this status."""
    return state.endswith(":stopped")


def has_ended(state: str) -> bool:
    """Whether a run of this status is over."""
    return state.startswith("finished")


def reason(output: str) -> str:
    """The error in a command's output in one line; without an error, the lines that it printed."""
    try:
        text = str(json.loads(output)["error-message"])
    except (ValueError, KeyError, TypeError):
        plain = re.sub(r"[│╭╮╰╯─]|\x1b\[[0-9;]*m", "", output)
        start = re.search(r"^\s*Error\b[: ]*", plain, re.MULTILINE)
        text = plain if start is None else plain[start.end() :]
    lines = [line.strip() for line in text.splitlines()]
    rest = " ".join(line for line in lines if line and not NOTES.fullmatch(line))
    return (rest or " ".join(filter(None, lines)) or "no output")[:LONGEST]


def is_unavailable(reason: str) -> bool:
    """Whether the error is that nothing answers at the SuperLink's address."""
    return reason.startswith(UNAVAILABLE)


def last_error(log: str) -> str:
    """The last exception in a SuperLink's log, in one line; empty if there is none."""
    lines = re.findall(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Exit): .+$", log, re.MULTILINE)
    return str(lines[-1])[:LONGEST] if lines else ""


def is_unknown_key(name: str, code: int) -> bool:
    """Whether the Fleet API's answer to a request of this name says that no such key is registered."""
    return code == 401 or (name == "ActivateNode" and code == 404)


def is_key_in_use(name: str, code: int) -> bool:
    """Whether the answer says that another process is online with this key."""
    return name == "ActivateNode" and code == 412


def is_run_over(code: int) -> bool:
    """Whether the answer says that the message's run is over."""
    return code == 403


def body(response: Any) -> str:
    """The text of an answer without tags, to quote."""
    return " ".join(re.sub("<[^>]*>", " ", response.text).split())[:200]
