"""Changes of a run's clients between rounds: some join, leave, or come back without their memory."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from ..contract import Algorithm, RecipeError, TaskView
from ..storage.events import Events
from .cohort import LiveCohort
from .protocols import ClientSource
from .run_state import RunState

log = logging.getLogger("medley")


def clients_ever(clients: ClientSource, state: RunState) -> int:
    """The number of clients that were ever members: the largest id, plus one because ids begin at 0."""
    rounds = {1, max(1, state.round)}
    return 1 + max(max(max(clients.view(t).p) for t in rounds), max(state.bookkeeping.earlier, default=0))


def regrouped(
    algorithm: Algorithm[Any, Any],
    state: RunState,
    current: tuple[LiveCohort, TaskView],
    before: Collection[int],
    readmitted: Sequence[int],
    events: Events | None,
) -> LiveCohort:
    """Adapt the server's state to the current members, and return the round's cohort.

    Args:
        state: the run at the start of the round; changed in place
        current: the round's cohort, and its task and members
        before: ids of the members of the round before
        readmitted: clients that lost their memory and start again

    Raises RecipeError if a readmitted client is not a member.
    """
    cohort, view = current
    unknown = sorted(set(readmitted) - view.p.keys())
    if unknown:
        raise RecipeError(
            f"readmit: there is no client {unknown[0]}; there are {min(view.p)} to {max(view.p)}", "readmit"
        )
    joined = sorted(view.p.keys() - set(before))
    left = sorted(set(before) - view.p.keys())
    who = sorted({*joined, *left, *readmitted})
    b = state.bookkeeping
    b.earlier |= b.acked.keys() & set(who)
    for i in who:
        b.acked.pop(i, None)
        b.late.pop(i, None)
    everyone = replace(cohort, ids=view.present)
    algorithm.readmit(state.s, everyone, who)
    everyone.settle()
    changes = {
        "joined": joined,
        "left": left,
        "start again without their memory": sorted(set(readmitted) - set(joined)),
    }
    for what, ids in changes.items():
        if ids:
            log.warning("round %d: clients %s %s; there are %d now", state.round, ids, what, len(view.p))
    if events is not None and (joined or left):
        events.add("members", round=state.round, joined=joined, left=left, members=len(view.p))
    return replace(everyone, ids=cohort.ids)
