"""A federation with all the random draws of one seed: who has which rows, pace and device, and who takes part in each
round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, Client, Engine, Problem, RecipeError, State, Task, TaskView, Vec
from ..datasets import Dataset
from ..participation import sampling_of
from ..partitions.dealing import Parts
from ..runtime.recent import Recent
from ..server.options import HeldOut, Metric
from ..storage.history import Row
from .clients import ClientFactory
from .evaluation import EvaluationData, Held, RowEvaluator
from .fairness import Mixes
from .people import people_of
from .row_sample import RowSample
from .rows import Layout, counting, held_out, laid_out, with_targets
from .scenario import Scenario
from .tasks import DealtTask, Planned, TaskPlan


@dataclass(frozen=True, eq=False)
class TaskData(EvaluationData):
    """The draw for one task, or for the whole run without tasks.

    Attributes:
        allowed: bool [classes, classes], the outputs with which a row of each label is compared; None for all
    """

    task: Task
    allowed: Tensor | None


class Simulation(Planned):
    """A federation as one seed drew it, ready to run: a `ClientSource`, and evaluators on its rows.

    It is pure: tasks, clients, cohorts and figures depend only on the arguments of a call, not on the order of calls.

    Args:
        dealt: data, classes and the clients' rows of each task; one entry without a stream
        kept: rows of each client for validation; None or empty if clients do not hold out their own rows
        on: the rows of the test figures, "test" or "validation"
        dtype: the floating-point type of the model; None for the family's own
        rounds: the rounds of one task of a stream

    Raises BadData, naming client and row, for data that the problem does not accept, RecipeError for lists whose length
    is not the number of clients, and Unsupported for weights of rows that the problem does not accept.
    """

    def __init__(
        self,
        scenario: Scenario,
        tasks: Sequence[DealtTask],
        validation: Parts | None,
        seed: int,
        on: HeldOut,
        dtype: torch.dtype | None,
        device: str,
        rounds: int = 1,
    ) -> None:
        self.scenario = scenario
        self.seed = seed
        self.device = device
        n = len(tasks[0].parts)
        classes = tasks[0].data.classes
        scenario.check(n)
        labels = [task.classes for task in tasks]
        self.plan = TaskPlan.draw(scenario.stream, labels, classes, n, seed, rounds, device)
        labelled = [with_targets(scenario.problem, task.data.y, task.parts) for task in tasks]
        turns = [self.plan.at(s, n) for s in range(len(tasks))]
        task_sizes = np.stack([parts.sizes for parts in labelled])
        sizes = np.stack([task_sizes[turn, np.arange(n)] for turn in turns])
        layout = Layout(range(n), sizes, scenario.stream is not None)
        if len(self.plan.orders) == 1:
            # A single client may have its own order.
            picked = [(tasks[k].data, labelled[k].rows) for k in self.plan.orders[0]]
        else:
            picked = [(tasks[k].data, labelled[k][i]) for turn in turns for i, k in enumerate(turn)]
        self.problem: Problem
        self.problem, self.rows = laid_out(picked, layout, scenario.problem, classes, dtype, device)
        self.rows = replace(self.rows, people=people_of(scenario.people, picked, layout))
        self.clients = ClientFactory(scenario, seed, self.problem, self.rows, self.plan)
        stream = scenario.stream is not None
        test_rows = [_test_rows(task.data, s, on, validation, stream) for s, task in enumerate(tasks)]
        family = scenario.problem
        owners = [_owner(task, rows, on, validation) for task, rows in zip(tasks, test_rows, strict=True)]
        for s, rows in enumerate(test_rows):
            if rows is not None and (counted := counting(family, rows[1])) is not None:
                test_rows[s], owner = (rows[0][counted], rows[1][counted]), owners[s]
                owners[s] = None if owner is None else owner[counted.numpy()]
        tests = [
            None if rows is None else held_out(family, self.problem, rows, classes, device, on) for rows in test_rows
        ]
        self.tasks = tuple(self._task(s, tests, owners, classes) for s in range(len(tasks)))
        attack = scenario.attack
        self.lies = None if attack is None else attack.lies(seed, n)
        triggered = None
        if attack is not None and attack.kind == "backdoor" and test_rows[0] is not None:
            rows = attack.triggered_test(tasks[0].data.X, *test_rows[0])
            triggered = held_out(family, self.problem, rows, classes, device, on) if len(rows[1]) else None
        self._rounds, self._members = Recent[int, TaskData](), Recent[tuple[int, tuple[int, ...]], TaskData]()
        self._held = tests, triggered

    def _task(
        self, s: int, tests: Sequence[Held | None], owners: Sequence[np.ndarray | None], classes: int | None
    ) -> TaskData:
        rows = self.rows
        layout = self.rows.layout
        sizes = layout.sizes[s]
        mixes = None
        if rows.labels is not None:
            mixes = Mixes(rows.labels[layout.step(s)], sizes, classes or 0)
        current = [t for t in (tests[k] for k in self.plan.current(s)) if t is not None]
        test_rows = None
        if len(current) > 1:
            test_rows = torch.cat([X for X, _ in current]), torch.cat([y for _, y in current])
        elif current:
            test_rows = current[0]  # not a copy
        p = self.scenario.shares(sizes, rows.totals[s])
        return TaskData(
            p, sizes, mixes, test_rows, self._meets(s, tests, owners), self.plan.tasks[s], self.plan.allowed[s]
        )

    def _meets(self, s: int, tests: Sequence[Held | None], owners: Sequence[np.ndarray | None]) -> Tensor | None:
        """The client of each test row of step s [m], −1 for shared rows; None if no client has its own test rows."""
        out = []
        for k in self.plan.current(s):
            if tests[k] is None:
                continue
            owner = owners[k]
            if owner is None:
                return None
            # A client is measured on the tasks that it meets now.
            meets = self.plan.at(s, len(self.rows.layout.ids)) == k
            out.append(np.where((owner >= 0) & meets[owner], owner, -1))
        return torch.from_numpy(np.concatenate(out)) if out else None

    @property
    def p(self) -> Mapping[int, float]:
        """p_i by client id; with tasks, of the first task."""
        return self.tasks[0].p

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each client [clients]; with tasks, of the first task."""
        return self.tasks[0].sizes

    @property
    def tested(self) -> bool:
        """Whether there are test rows; with tasks, of the first task."""
        return self.tasks[0].held is not None

    def task(self, round: int) -> TaskData:
        """The rows that the seed drew for the task of round ``round`` (from 1), for the clients that are members
        then.
        """
        s = self.plan.step(round)
        if self.scenario.membership is None:
            return self.tasks[s]
        # Called once for each client of a round, and a round may have as many members.
        return self._rounds.of(round, lambda: self._among(s, round))

    def _among(self, s: int, round: int) -> TaskData:
        """The draw for step s among the members of this round: the same object for rounds with the same members."""
        data = self.tasks[s]
        members = self.scenario.members(round, len(data.sizes))
        totals = self.rows.totals[s]
        return self._members.of((s, members), lambda: data.among(self.scenario.shares(data.sizes, totals, members)))

    def view(self, round: int) -> TaskView:
        """The task of this round as the server sees it."""
        data = self.task(round)
        law = sampling_of(self.scenario.participation, len(data.p))
        return TaskView(data.task, data.p, law, self.scenario.local(self.seed, round, data.sizes), self.lies)

    def problem_at(self, round: int) -> Problem:
        """The problem of this round, with rows compared with the outputs of its task.

        Raises RecipeError if the stream restricts outputs and the problem does not have one output per class.
        """
        return self.clients.problem_of(self.plan.step(round))

    def client(self, i: int, round: int, engine: Engine, lr: float = 1.0) -> Client[Any]:
        """Client i in this round; see `ClientSource.client`."""
        return self.clients.client(i, round, engine, lr, self.task(round).p)

    def cohort(self, round: int) -> tuple[int, ...]:
        """Ids of the clients that take part: the drawn clients that have rows of the task."""
        return self.scenario.cohort(round, self.task(round).sizes, self.seed)

    def evaluator(
        self,
        metrics: Mapping[str, Metric] | None = None,
        grad_norm: bool = False,
        minimiser: bool = False,
        eval_rows: int | None = None,
    ) -> RowEvaluator:
        """An evaluator on this simulation's rows; see `Draw.evaluator`. ``minimiser`` needs all rows."""
        sampled = None if eval_rows is None else RowSample(self.rows, self.seed, eval_rows).loss
        return RowEvaluator(
            self.scenario,
            self.clients,
            self.tasks,
            *self._held,
            at=self.task,
            metrics=metrics or {},
            grad_norm=grad_norm,
            minimiser=minimiser,
            sampled=sampled,
        )

    def evaluate(self, x: Vec, buffers: State | None = None, round: int = 0, grad_norm: bool = False) -> Row:
        """Figures of x on the task of this round; see `RowEvaluator.evaluate`."""
        return self.evaluator(grad_norm=grad_norm).evaluate(x, buffers, round)


def _owner(task: DealtTask, test_rows: Held | None, on: HeldOut, validation: Parts | None) -> np.ndarray | None:
    """The client that each test or validation row of a task belongs to, −1 for shared rows; None if all are shared.

    Args:
        validation: each client's rows for validation, empty if these are shared
    """
    if task.tests is None or test_rows is None:
        return None
    if on == "validation":
        carved = validation is not None and len(validation.rows) == len(test_rows[1])
        return np.repeat(np.arange(len(validation)), validation.sizes) if validation is not None and carved else None
    owner = np.full(len(test_rows[1]), -1)
    owner[task.tests.rows] = np.repeat(np.arange(len(task.tests)), task.tests.sizes)
    return owner


def _test_rows(
    data: Dataset, s: int, on: HeldOut, validation: Parts | None, stream: bool
) -> tuple[Tensor, Tensor] | None:
    """Test or validation rows of task s, or None. Raises RecipeError or BadData if they are missing but needed."""
    X, y = (data.X_test, data.y_test) if on == "test" else (data.X_validation, data.y_validation)
    if on == "validation" and X is None and validation is not None:
        carved = torch.from_numpy(validation.rows)
        X = data.X[carved]
        y = data.y[carved]
    if X is not None and y is not None and len(X):
        return X, y
    if on == "validation":
        raise RecipeError(
            "there is no validation data: pass Federation(validation=0.1), or validation = 0.1 in a recipe's [data]",
            "validation",
        )
    if stream:
        raise BadData(f"task {s} has no test rows; give it some, or use Dataset.split(test=0.2)")
    return None
