"""Every method through the whole battery; the table of methods is `support/methods.py`."""

from __future__ import annotations

from typing import Any

import pytest

import medley as md
from medley import recipe
from medley.contract.algorithm import Algorithm
from medley.contract.needs import Need
from medley.testing import Check, checks
from support.methods import METHODS

SHORT = {"card", "partial", "one client", "narrow codec"}
"""The short checks, which `make test` has for all variants of a method."""

LONG = {"a round", "same again", "one worker", "stacks"}
"""Checks that `make test` leaves out.

All others go through a round; a resumed run has the bits of the first one only if the same run has; the scrambled run's
two workers take the same way as one; tests/engines/test_stacked.py has the stacks of all methods.
"""

FIRST = {type(m): m for m in reversed(METHODS)}
"""The first of several variants of a method."""


def marks(m: Algorithm[Any, Any], check: Check) -> list[pytest.MarkDecorator]:
    long = check.name in LONG or (FIRST[type(m)] is not m and check.name not in SHORT)
    # A narrow codec is tried in float64, where networks are not; either way all that a method declares is called.
    network = m.shares() is not None or Need.NETWORK in m.requires()
    shapes = check.name == ("one client" if network else "narrow codec")
    return [pytest.mark.slow] * long + [pytest.mark.shapes] * shapes


@pytest.mark.parametrize(
    "check", [pytest.param(c, id=f"{m.name}-{c}", marks=marks(m, c)) for m in METHODS for c in checks(m)]
)
def test_conformance(check: Check) -> None:
    check()


def test_the_short_checks_are_checks() -> None:
    assert {c.name for c in checks(METHODS[0])} > SHORT | LONG


def test_the_table_holds_every_public_method() -> None:
    public = {v for n in md.__all__ if isinstance(v := getattr(md, n), type) and issubclass(v, Algorithm)}
    assert {type(m) for m in METHODS} == {*public, *recipe.methods().values()}
