"""Checks of bits: a run gives the same result however it is executed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from ..transports import InProcess
from ..wire.connection import Transport
from .compare import expect, expect_same
from .faults import Rewired, backwards, one_by_one
from .faults import scrambled as scramble
from .method_runs import Subject


def same_again(t: Subject) -> None:
    """The same run twice gives the same bits."""
    for place in t.places:
        expect_same(
            t.plain(place),
            t.run(place.federation()),
            f"{place.name}: the same run twice; draw from me.rng and clients.rng, never from a generator of your own",
        )


def arrival(t: Subject) -> None:
    """Replies that arrive in another order give the same bits."""
    for place in t.places:
        other = t.run(place.federation(), transport=Rewired(InProcess(), backwards))
        expect_same(t.single(place), other, f"{place.name}: clients served from the last to the first")


def elsewhere(t: Subject, transport: Transport, where: str) -> None:
    """Clients in other processes give the same bits and the same ledger. ``where`` names them in messages."""
    for place in t.places:
        other = t.run(place.federation(), transport=Rewired(transport, one_by_one))
        expect_same(t.single(place), other, f"{place.name}: one process, and {where}")


def scrambled(t: Subject, transport: Transport, single_changes: Mapping[str, Callable[[Subject], None]]) -> None:
    """Clients behind ``transport``, from the last to the first, with requests that arrive twice: the same bits.

    If that fails, the checks in ``single_changes`` try one thing at a time. The first of their errors is raised, with a
    note that names all that fail.
    """
    for place in t.places:
        try:
            other = t.run(place.federation(), transport=Rewired(transport, scramble))
            expect_same(t.single(place), other, f"{place.name}: served elsewhere, backwards and twice")
        except Exception as e:
            errors = {name: _error(t, test) for name, test in single_changes.items()}
            failed = {name: error for name, error in errors.items() if error is not None}
            first = next(iter(failed.values()), e)
            first.add_note(f"fail by themselves: {', '.join(failed) or 'none of ' + ', '.join(single_changes)}")
            raise first from None


def _error(t: Subject, test: Callable[[Subject], None]) -> Exception | None:
    try:
        test(t)
    except Exception as e:
        return e
    return None


def stacks(t: Subject) -> None:
    """Clients in stacks on the fastest engine, or one by one on the reference: x is the same to 1e-10 (1 + ‖x‖)."""
    for place in t.places:
        exact: dict[str, Any] = {"dtype": "float64"}
        reference = t.run(place.federation(), engine="seq", transport=Rewired(InProcess(), one_by_one), **exact).x
        distance = float((t.run(place.federation(), **exact).x - reference).norm() / (1 + reference.norm()))
        expect(distance <= 1e-10, f"{place.name}: served in stacks, or by another engine, x is off by {distance:.2g}")


def resume(t: Subject) -> None:
    """A run that is stopped and resumed after each round has the same bits as one that never stopped."""
    options: dict[str, Any] = {}
    uninterrupted = t.plain
    if not isinstance(t.transport, InProcess):
        options = {"transport": Rewired(t.transport, one_by_one)}
        uninterrupted = t.single
    for place in t.places:
        with tempfile.TemporaryDirectory() as folder:
            t.run(place.federation(), 1, checkpoint=folder, **options)
            for rounds in range(2, place.rounds + 1):
                last = t.run(place.federation(), rounds, resume=folder, **options)
        expect_same(uninterrupted(place), last, f"{place.name}: resumed after every round")
