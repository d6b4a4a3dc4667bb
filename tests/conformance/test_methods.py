"""Every method through the whole battery; the table of methods is `support/methods.py`."""

from __future__ import annotations

from typing import Any

import pytest

import medley as md
from medley import recipe
from medley.codecs import Cast
from medley.contract.algorithm import Algorithm
from medley.testing import Check, checks
from medley.testing.method_runs import Subject
from medley.testing.toys import PER_TASK
from support.methods import METHODS, WHOLE

EVERY = {"card", "resume"}
"""What `make test` checks of every method: its messages, its state and memories, and its random draws.

The other checks it has for the methods in `WHOLE`.
"""

WITHIN = {"a round", "same again", "one worker"}
"""Checks that others hold, so that the methods in `WHOLE` alone have them by themselves.

All others go through a round; a resumed run has the bits of the first one only if the same run has; the scrambled run's
two workers take the same way as one.
"""

LONG = {*WITHIN, "stacks"}
"""Checks that `make test` leaves out; tests/engines/test_stacked.py has the stacks of all methods."""

SPLIT = {"scrambled", "lost reply", "resume", "members", "nobody", "server by assignment", "partial", "one client"}
"""Checks of what no problem changes: memories, requests and replies, and who is asked.

`make test` has them on the last of a method's places, a network where it takes one and a stream where it needs one.
"""

FIRST = {type(m): m for m in reversed(METHODS)}
"""The first of several variants of a method."""


def marks(m: Algorithm[Any, Any], check: Check) -> list[pytest.MarkDecorator]:
    few = FIRST[type(m)] is m and (check.name in EVERY or type(m) in WHOLE)
    long = check.name in LONG or not (few or check.name == "card")
    # What the battery itself declares, on one method; `test_all_that_a_method_declares_is_called` has the methods.
    shapes = m.name == "SCAFFOLD" and check.name in ("narrow codec", "one client")
    return [pytest.mark.slow] * long + [pytest.mark.shapes] * shapes


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(c, id=f"{m.name}-{c}", marks=marks(m, c))
        for m in METHODS
        for c in checks(m)
        if type(m) in WHOLE or c.name not in WITHIN
    ],
)
def test_conformance(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    if check.name in SPLIT:
        at(check, slice(-1, None), monkeypatch)
    check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", [pytest.param(c, id=f"{m.name}-{c}") for m in METHODS for c in checks(m) if c.name in SPLIT]
)
def test_conformance_elsewhere(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    at(check, slice(-1), monkeypatch)
    check()


def at(check: Check, which: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave ``check`` these of its method's places."""
    (subject,) = check.test.args
    monkeypatch.setattr(subject, "places", subject.places[which])


@pytest.mark.shapes
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_all_that_a_method_declares_is_called(method: Algorithm[Any, Any]) -> None:
    """Two clients and a codec: a short run, since under the checks of annotations each call takes long."""
    subject = Subject(method)
    place = (subject.exact or subject.places)[-1]
    rounds = 2 if place.stream is None else PER_TASK + 1
    result = subject.run(place.federation([1, 3]), rounds, codec=Cast("float32"))
    assert {e.client for e in result.ledger} == {0, 1}


def test_the_names_are_of_checks() -> None:
    assert {c.name for c in checks(METHODS[0])} > EVERY | LONG | SPLIT


def test_the_table_holds_every_public_method() -> None:
    public = {v for n in md.__all__ if isinstance(v := getattr(md, n), type) and issubclass(v, Algorithm)}
    assert {type(m) for m in METHODS} == {*public, *recipe.methods().values()}
