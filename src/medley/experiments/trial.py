"""A short run that represents a long one: full cohorts, few rows, and no evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

from ..contract import Client, Engine, MedleyError, Pace, TaskView, pytree
from ..contract.surroundings import set_aside
from ..federation.run import PreparedRun
from ..federation.simulation import Simulation
from ..runtime.forwarded import forwarded
from ..server.options import RunOptions
from ..storage.result import Result
from ..transports import InProcess
from ..transports.inprocess import InProcessConnection
from ..wire.connection import Host
from .plan import Method

ROUNDS = 3
"""Rounds of a trial, in each task that it visits. In the last one every client has few rows."""

TASKS = 2
"""Tasks of a stream that a trial visits; later ones are assumed to cost as much as the second."""

BATCHES = 2
"""Mini-batches of the clients with the most rows in a trial."""

LARGE = 2
"""The number of these clients."""

SHARE = 8
"""The other clients get a batch's rows divided by this number."""


def local(pace: Pace, n: int) -> int:
    """Rows in a client's local steps of one round, given its n rows."""
    batch = n if pace.batch is None else min(pace.batch, n)
    if pace.steps is not None:
        return pace.steps * batch
    return pace.epochs * (n - n % batch if pace.drop_last else n)


UNMEASURED = SimpleNamespace(
    own_tests=False,
    evaluate=lambda *_: {},
    by_client=lambda *_: [],
    accuracies=lambda *_: [],
    remedy=lambda advice: advice,
)
"""An evaluator that measures nothing, at no cost."""


@dataclass(frozen=True, eq=False)
class Small:
    """A draw whose clients have few rows, in the form that `medley.federation.run.PreparedRun` takes.

    Attributes:
        draw: the whole draw
        cut: whether clients have few rows; if False they keep all, and the rounds are the draw's own
    """

    draw: Simulation
    cut: bool = True
    tested: bool = False
    problem, first_steps = forwarded("draw", "problem", "first_steps")

    @property
    def rounds_per_task(self) -> int | None:
        """Rounds of one task of the trial; None without a stream."""
        return None if self.draw.rounds_per_task is None else ROUNDS

    @property
    def task_count(self) -> int:
        """Tasks of the trial."""
        return min(TASKS, self.draw.task_count)

    def real(self, round: int) -> int:
        """The round of the real run that this round of the trial represents."""
        if self.draw.rounds_per_task is None:
            return round
        task, step = divmod(round - 1, ROUNDS)
        return task * self.draw.rounds_per_task + min(step + 1, self.draw.rounds_per_task)

    def view(self, round: int) -> TaskView:
        """The task of this round."""
        return self.draw.view(self.real(round))

    def cohort(self, round: int) -> tuple[int, ...]:
        """The clients of the first round of the task, so that rounds can be compared."""
        first = round if not self.cut else (round - 1) // ROUNDS * ROUNDS + 1
        return self.draw.cohort(self.real(first))

    def sizes(self, round: int) -> dict[int, int]:
        """Rows of each client of the cohort in this round, by id."""
        ids = self.cohort(round)
        t = self.real(round)
        full = {i: int(self.draw.task(t).sizes[i]) for i in ids}
        if not self.cut:
            return full
        small = {i: max(1, self._batch(i, t, n) // SHARE) for i, n in full.items()}
        if (round - 1) % ROUNDS == ROUNDS - 1:
            return small
        large = sorted(ids, key=lambda i: (-full[i], i))[:LARGE]
        return small | {i: min(full[i], BATCHES * self._batch(i, t, full[i])) for i in large}

    def _batch(self, i: int, round: int, n: int) -> int:
        """Rows of a mini-batch of client i. A client whose batch is all of its rows counts as having two."""
        batch = self.draw.scenario.pace.of(self.draw.seed, i, round).batch
        return min(batch, n) if batch is not None else max(1, n // BATCHES)

    def pace(self, i: int, round: int) -> Pace:
        """The pace of client i in this round of the trial."""
        pace = self.draw.scenario.pace.of(self.draw.seed, i, self.real(round))
        return pace if pace.steps is None or not self.cut else replace(pace, epochs=1, steps=None)

    def client(self, i: int, round: int, engine: Engine, lr: float = 1.0) -> Client[Any]:
        """Client i with the rows of `sizes`; a pace of many steps makes one pass over them."""
        t = self.real(round)
        me = self.draw.client(i, t, engine, lr)
        if not self.cut:
            return me
        X, y, w = self.draw.clients.rows.of(self.draw.plan.step(t), i)
        n = self.sizes(round)[i]
        objective = self.draw.problem_at(t).bind(X[:n], y[:n], None if w is None else w[:n])
        if hasattr(me.problem, "rng"):
            objective.rng = me.problem.rng  # type: ignore[attr-defined]
        return replace(me, problem=objective, pace=self.pace(i, round))

    def evaluator(self, *_: object) -> Any:
        """An evaluator that measures nothing."""
        return UNMEASURED


class TrialRound(NamedTuple):
    """One round of a trial: seconds, the cohort's size, the rows in its local steps, bytes down and up."""

    wall: float
    clients: int
    rows: int
    down: int
    up: int


class Trial(NamedTuple):
    """A trial's rounds in order, its result, and the bytes of a client's newest memory, as a mean over clients."""

    rounds: list[TrialRound]
    result: Result
    memory: float


class Kept:
    """The transport in this process. It remembers the host that it opened."""

    host: Any = None

    def open(self, host: Host) -> InProcessConnection:
        """Begin a run with the clients of ``host``."""
        self.host = host
        return InProcess().open(host)


def tried(method: Method, fed: Any, options: RunOptions, small: Small) -> Trial:
    """Run the trial. Raises what `medley.run` raises before its first round, and MedleyError without a whole round."""
    transport = Kept()
    trial_options = replace(
        options,
        rounds=ROUNDS if small.cut or small.rounds_per_task is not None else ROUNDS + 1,
        transport=transport,
        eval_every=1,
        clients_every=None,
        client_models=False,
        target=None,
        target_over=1,
        metrics=None,
        throw=False,
        progress=False,
        on_round=None,
    )
    with set_aside("a trial", trial_options.device_name):
        result = PreparedRun.of(method, fed, trial_options, small).run()
    if len(result.history) < 1 + ROUNDS:
        raise MedleyError(f"a trial of {method.name} ended before its round {ROUNDS}: {result.status}")
    out = []
    for t, (before, after) in enumerate(pairwise(result.history), 1):
        wall, down, up = (after[k] - before[k] for k in ("wall", "bytes_down", "bytes_up"))
        sizes = small.sizes(t)
        rows = sum(local(small.pace(i, t), n) for i, n in sizes.items())
        out.append(TrialRound(wall, len(sizes), rows, int(down), int(up)))
    memories = [versions[-1][1] for versions in transport.host.memories.versions.values() if versions]
    size = sum(t.numel() * t.element_size() for _, t in pytree.tensors(memories))
    return Trial(out, result, size / max(1, len(memories)))
