"""The conformance battery: the checks that every method must pass, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..contract.algorithm import Algorithm
from ..secure.settings import installed
from ..transports import Processes
from ..wire.connection import Transport
from . import bits, contract_checks, messages
from .method_runs import Subject

FIRST = "a round"

ALONE: dict[str, Callable[[Subject], None]] = {
    "arrival": bits.arrival,
    "two workers": partial(bits.elsewhere, transport=Processes(2), where="two workers"),
    "asked twice": messages.asked_twice,
}
"""The parts of a scrambled run, which run separately only if it fails."""


@dataclass(frozen=True)
class Check:
    """One check of one method. Call it to run it; if it fails, it raises AssertionError or the method's own error."""

    name: str
    test: Callable[[], None]

    def __call__(self) -> None:
        """Run the check."""
        self.test()

    def __str__(self) -> str:
        return self.name


def checks(method: Algorithm[Any, Any], transport: Transport | None = None) -> list[Check]:
    """The checks that ``method`` must pass; none of them has run yet.

    Secure sums are checked only if the extra ``secure`` is installed. With a ``transport``, only the checks that
    compare clients behind it with clients in this process.
    """
    subject = Subject(method, transport)
    if transport is not None:
        tests: dict[str, Callable[[Subject], None]] = {
            "same bits": partial(bits.elsewhere, transport=transport, where="there"),
            "resume": bits.resume,
            "lost reply": messages.lost_reply,
            "asked twice": messages.asked_twice,
        }
    else:
        tests = {
            FIRST: contract_checks.one_round,
            "frozen": contract_checks.frozen,
            "card": messages.costs,
            "same again": bits.same_again,
            "scrambled": partial(bits.scrambled, transport=Processes(2), single_changes=ALONE),
            "one worker": partial(bits.elsewhere, transport=Processes(1), where="one worker"),
            "stacks": bits.stacks,
            "resume": bits.resume,
            "server by assignment": contract_checks.server_by_assignment,
            "small steps": contract_checks.small_steps,
            "relabelled": contract_checks.relabelled,
            "partial": contract_checks.partial,
            "members": contract_checks.members,
            "secure sums": contract_checks.secure_sums,
            "lost reply": messages.lost_reply,
            "nobody": contract_checks.nobody,
            "one client": contract_checks.one_client,
            "narrow codec": messages.narrow_codec,
        }
        if not installed():
            del tests["secure sums"]
    return [Check(name, partial(test, subject)) for name, test in tests.items()]


def conformance(method: Algorithm[Any, Any], transport: Transport | None = None) -> None:
    """Run all `checks`. Raises an ExceptionGroup of the failed ones, each with a note that names its check.

    The first check is a single round. If it fails, the others do not run: they would all fail for the same reason.
    """
    failed: list[Exception] = []
    for check in checks(method, transport):
        try:
            check()
        except Exception as e:
            e.add_note(f"in the check {check.name!r}")
            failed.append(e)
            if check.name == FIRST:
                e.add_note("the other checks need a round that succeeds, and did not run")
                break
    if failed:
        raise ExceptionGroup(f"{method.name} breaks the contract", failed)
