"""Every method through the whole battery; the table of methods is `support/methods.py`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

import medley as md
from medley import recipe
from medley.contract.algorithm import Algorithm
from medley.testing import Check, checks
from support.methods import METHODS
from support.oracles import unchecked

TYPED = {"card", "partial", "one client", "narrow codec"}
"""The short checks, which run with run-time types; those take half of the time of the long ones."""


LONG = {"a round", "one worker", "stacks"}
"""Checks that `make test` leaves out.

All others go through a round; the scrambled run's two workers take the same way as one; tests/engines/test_stacked.py
has the stacks of all methods.
"""

FIRST = {type(m): m for m in reversed(METHODS)}
"""The first of several variants of a method; `make test` has the short checks of the others."""


def marks(m: Algorithm[Any, Any], check: Check) -> list[pytest.MarkDecorator]:
    long = check.name in LONG or (FIRST[type(m)] is not m and check.name not in TYPED)
    return [pytest.mark.slow] if long else []


@pytest.mark.parametrize(
    "check", [pytest.param(c, id=f"{m.name}-{c}", marks=marks(m, c)) for m in METHODS for c in checks(m)]
)
def test_conformance(check: Check) -> None:
    with nullcontext() if check.name in TYPED else unchecked():
        check()


def test_the_short_checks_are_checks() -> None:
    assert {c.name for c in checks(METHODS[0])} > TYPED | LONG


def test_the_table_holds_every_public_method() -> None:
    public = {v for v in vars(md).values() if isinstance(v, type) and issubclass(v, Algorithm)}
    assert {type(m) for m in METHODS} == {*public, *recipe.methods().values()}
