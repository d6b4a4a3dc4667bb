"""Checks of messages: their bytes against the card, lost and repeated messages."""

from __future__ import annotations

from typing import Any

from ..codecs import Cast
from ..contract import Algorithm, MedleyError
from ..storage.result import Result
from .card import Line, card, has_card
from .compare import expect, expect_same
from .faults import Deliver, Rewired, losing, twice
from .method_runs import Subject
from .toys import PER_TASK, Place


def costs(t: Subject) -> None:
    """Every delivery costs as many bytes as a line of the card says; a user's method may omit the card."""
    for place in t.places:
        _charged(t.method, place, t.plain(place), None)


def _charged(method: Algorithm[Any, Any], place: Place, r: Result, width: int | None) -> None:
    if not has_card(method):
        return
    lines = card(method)
    called = set()
    used: list[Line] = []
    width = r.x.element_size() if width is None else width
    for e in r.ledger:
        skip = "later" if (e.method, e.client) not in called else "first time"
        called.add((e.method, e.client))
        fit = [
            line
            for line in lines
            if line.name == e.method and line.condition != skip and line.fits(r.x.numel(), width, e.down, e.up)
        ]
        expect(
            fit,
            f"{place.name}: {e.method} sent {e.down} bytes down and {e.up} up (client {e.client}, round {e.round}; "
            f"d = {r.x.numel()} floats of {width} bytes), which no line of the card states",
        )
        used += fit
    unused = [line.name for line in lines if line not in used and not line.condition.startswith("if")]
    expect(not unused, f"{place.name}: the card has lines that never occur: {unused}")


def narrow_codec(t: Subject) -> None:
    """A codec of half the width halves the bytes of floats and changes x by less than 1e-3 ‖x‖."""
    for place in t.exact:
        exact = t.plain(place)
        narrow = t.run(place.federation(), codec=Cast("float32"))
        _charged(t.method, place, narrow, 4)
        error = float((exact.x - narrow.x).norm() / exact.x.norm().clamp(min=1e-300))
        expect(error < 1e-3, f"{place.name}: in float32 messages x is off by {error:.2g}")


def lost_reply(t: Subject) -> None:
    """A lost reply leaves the run as if its client had not been asked."""
    for place in t.places:
        for number in sorted({e.exchange for e in t.single(place).ledger}):
            lost = {(r, number, 2 - r % 2) for r in (1, 2, PER_TASK + 1, PER_TASK + 2)}
            a, b = (_or_error(t, place, losing(lost, requests_arrive=arrive)) for arrive in (True, False))
            if isinstance(a, Result) and isinstance(b, Result):
                expect_same(
                    a, b, f"{place.name}: replies lost at (round, exchange, client) {sorted(lost)}, or requests"
                )
            else:
                expect(type(a) is type(b) and str(a) == str(b), f"{place.name}: {a!r} is not {b!r}")


def _or_error(t: Subject, place: Place, deliver: Deliver) -> Result | MedleyError:
    try:
        return t.run(place.federation(), transport=Rewired(t.transport, deliver))
    except MedleyError as e:
        return e


def asked_twice(t: Subject) -> None:
    """A request that arrives twice gets the same reply twice, and changes the client's memory once."""
    for place in t.places:
        other = t.run(place.federation(), transport=Rewired(t.transport, twice))
        expect_same(t.single(place), other, f"{place.name}: every request delivered twice")
