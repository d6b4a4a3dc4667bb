"""One method on the battery's problems, and the runs with which several checks compare."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from ..contract import Algorithm, Need
from ..federation.federation import Federation
from ..federation.run import run
from ..problems import Network
from ..problems.network.names import BUT_NORMS
from ..storage.history import Row
from ..storage.result import Result
from ..transports import InProcess
from ..wire.connection import Transport
from .compare import expect
from .faults import Rewired, one_by_one
from .toys import PER_TASK, ROUNDS, Place, adapted, normalised, places


class Subject:
    """The subject of a battery: ``method``, on clients behind ``transport`` (default: in this process)."""

    def __init__(self, method: Algorithm[Any, Any], transport: Transport | None = None) -> None:
        self.method = method
        self.transport = transport or InProcess()
        self._plain: dict[str, Result] = {}
        self._single: dict[str, Result] = {}

    @cached_property
    def places(self) -> list[Place]:
        """Places where the method can run: a generalised linear problem in float64 and a network in float32.

        For continual methods also their streams of tasks. Raises AssertionError if there is none.
        """
        suitable: list[Place] = []
        uniform = Need.UNIFORM in self.method.requires()
        norms = self.method.shares() == BUT_NORMS
        for place in places():
            if norms and isinstance(place.problem, Network):
                place = normalised(place)
            if Need.ADAPTERS in self.method.requires() and isinstance(place.problem, Network):
                place = adapted(place)
            if uniform:
                place = replace(place, weights="uniform")
            requires = self.method.suited(place.gives).requires()
            alike = (Need.TREES in requires) == (Need.TREES in place.gives)
            if alike and requires <= place.gives and (place.stream is None or requires & {Need.STREAM, Need.REPLAY}):
                suitable.append(place)
        if [p.name for p in suitable][:2] == ["quadratics", "softmax"]:
            del suitable[1]
        expect(suitable, f"{self.method.name} needs more than the battery's problems offer")
        return suitable

    @property
    def exact(self) -> list[Place]:
        """The float64 ones among `places`."""
        return [p for p in self.places if not isinstance(p.problem, Network)]

    def plain(self, place: Place) -> Result:
        """The result with which others are compared; computed once."""
        return self._plain[place.name] if place.name in self._plain else self.fresh(place)

    def fresh(self, place: Place) -> Result:
        """The same result, computed now."""
        self._plain[place.name] = self.run(place.federation())
        return self._plain[place.name]

    def single(self, place: Place) -> Result:
        """Like `plain`, with every client a block of its own, so that sums have another order; computed once."""
        if place.name not in self._single:
            self._single[place.name] = self.run(place.federation(), transport=Rewired(InProcess(), one_by_one))
        return self._single[place.name]

    @property
    def everyone(self) -> bool:
        """True if the method needs every client in every round."""
        return Need.EVERYONE in self.method.requires()

    def run(self, fed: Federation, rounds: int | None = None, **options: Any) -> Result:
        """A run of ``rounds`` rounds, 3 by default. A stream ends after ``rounds`` rounds, by default at its end."""
        if fed.stream is None:
            return run(self.method, fed, ROUNDS if rounds is None else rounds, progress=False, **options)

        def stop(row: Row) -> None:
            if row["round"] == rounds:
                raise KeyboardInterrupt

        return run(self.method, fed, PER_TASK, progress=False, on_round=stop, **options)
