"""Every method through the whole battery; the table of methods is `support/methods.py`."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

import medley as md
from medley.contract.algorithm import Algorithm
from medley.testing import Check, checks
from support.methods import METHODS
from support.oracles import unchecked

TYPED = {"card", "partial", "one client", "narrow codec"}
"""The short checks, which run with run-time types; those take half of the time of the long ones."""


LONG = {"one worker": [pytest.mark.slow]}
"""Checks that `make test` leaves out: two workers take the same way."""


@pytest.mark.parametrize(
    "check", [pytest.param(c, id=f"{m.name}-{c}", marks=LONG.get(c.name, [])) for m in METHODS for c in checks(m)]
)
def test_conformance(check: Check) -> None:
    with nullcontext() if check.name in TYPED else unchecked():
        check()


def test_the_short_checks_are_checks() -> None:
    assert {c.name for c in checks(METHODS[0])} > TYPED | set(LONG)


def test_the_table_holds_every_public_method() -> None:
    public = {k for k, v in vars(md).items() if isinstance(v, type) and issubclass(v, Algorithm)}
    assert {type(m).__name__ for m in METHODS} == public
