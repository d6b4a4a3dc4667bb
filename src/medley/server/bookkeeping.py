"""Server bookkeeping: ledger, virtual clock, acknowledged versions, late replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..contract import RecipeError, State
from ..wire.arrival import Arrival
from ..wire.exchange import Tag
from ..wire.ledger import Ledger

COUNTS = ("lost", "late")
"""Notes that add up over rounds without a history row."""


@dataclass
class Bookkeeping:
    """The server's state of a run, besides the method's own.

    Attributes:
        seconds: the virtual clock
        acked: the last request of each client whose reply arrived: the version of its memory to build on
        notes: figures of the next history row: the ones that the method notes in its round, and `counts`
        late: clients at work since an exchange that ended without them
        engines: names of the engines that ran local descents so far
        earlier: clients that replied before they left, or before they lost their memory
    """

    ledger: Ledger = field(default_factory=Ledger)
    seconds: float = 0.0
    acked: dict[int, Tag] = field(default_factory=dict)
    buffers: State | None = None
    notes: dict[str, float] = field(default_factory=dict)
    late: dict[int, Arrival] = field(default_factory=dict)
    engines: frozenset[str] = frozenset()
    earlier: frozenset[int] = frozenset()

    @property
    def counts(self) -> dict[str, float]:
        """The numbers of lost and of late replies since the last history row."""
        return {name: self.notes[name] for name in COUNTS if name in self.notes}

    @property
    def at_work(self) -> frozenset[int]:
        """Late clients. If the server discards the late reply, its client is free when the reply would have arrived."""
        return frozenset(i for i, w in self.late.items() if w.packed is not None or w.at > self.seconds)

    @property
    def begun_with(self) -> dict[int, Tag]:
        """The acknowledged versions of clients whose late reply will bring another one."""
        at_work = (i for i, late in self.late.items() if late.packed is not None)
        return {i: self.acked[i] for i in at_work if i in self.acked}

    @property
    def remembered(self) -> dict[int, Tag]:
        """The last versions of clients' memories that the server may build on; see `begun_with` for earlier ones."""
        return self.acked | {i: late.tag for i, late in self.late.items() if late.packed is not None}


def joined(measured: Mapping[str, float], noted: Mapping[str, float], method: str) -> dict[str, float]:
    """Merge the evaluator's figures with the method's and the reply counts. Raises RecipeError if both use a name."""
    taken = measured.keys() & noted.keys()
    if taken:
        raise RecipeError(
            f"run(metrics=...): {min(taken)!r} is a column of {method}'s already; choose another name", "metrics"
        )
    return {**measured, **noted}
