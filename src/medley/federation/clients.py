"""Builds the clients of a run from their rows: pace, task, objective and replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch

from ..contract import Client, Engine, Index, Pace, Problem, Replay
from ..runtime import streams
from .rows import ClientRows
from .scenario import Scenario
from .tasks import TaskPlan


@dataclass(frozen=True, eq=False)
class ClientFactory:
    """Builds clients, by id and round. It caches two values; neither depends on the order of calls.

    Attributes:
        scenario: pace, stream and replay
        problem: the problem, with all outputs allowed
        plan: the order in which clients meet the tasks
    """

    scenario: Scenario
    seed: int
    problem: Problem
    rows: ClientRows
    plan: TaskPlan
    _paces: dict[int, Pace] = field(default_factory=dict, repr=False)
    """Paces that are the same in every round."""
    _kept: dict[tuple[int, int], Index] = field(default_factory=dict, repr=False)
    """Rows that a client holds of its tasks before a step."""

    def problem_of(self, s: int) -> Problem:
        """The problem at step s, with rows compared with the outputs of its task."""
        allowed = self.plan.allowed[s]
        return self.problem if allowed is None else self.problem.restricted(allowed)

    def client(self, i: int, round: int, engine: Engine, lr: float, shares: Mapping[int, float]) -> Client[Any]:
        """Client i in this round, see `ClientSource.client`; it reads only its own entry of ``shares``, p_i by id."""
        s = self.plan.step(round)
        problem = self.problem_of(s)
        objective = problem.bind(*self.rows.of(s, i))
        task = self.plan.tasks[s]
        # Client[Any](...) would take twice as long: it also writes the parameter into the object.
        me: Client[Any] = Client(i, shares[i], objective, self._pace(i, round, lr), engine, self.seed, round, task)
        if self.rows.people is not None:
            me.people = self.rows.people[self.rows.layout.place(s, i)]
        if getattr(objective, "transform", None) is not None:
            objective.rng = me.rng("transform")  # type: ignore[attr-defined]
        if self.plan.mode is not None:
            first, _ = self.rows.layout.span(s, i)
            me.task = self.plan.task_of(i, s, first)
            me.objective_of = lambda rows: self.rows.recall(problem, i, s, rows)
            policy = self.scenario.replay
            if policy is not None:
                past = self.rows.recall(problem, i, s, self.past_rows(i, s))
                stream = partial(streams.generator, self.seed, i, round)  # not me.rng, which would hold the client
                me.replay = Replay(past, first, policy.capacity, policy.sample, stream)
        return me

    def _pace(self, i: int, round: int, lr: float) -> Pace:
        pace = self._paces.get(i)
        if pace is None:
            pace = self.scenario.pace.of(self.seed, i, round)
            if self._steady:
                self._paces[i] = pace
        return pace if lr == 1.0 else replace(pace, lr=pace.lr * lr)

    @cached_property
    def _steady(self) -> bool:
        return self.scenario.pace.steady

    def past_rows(self, i: int, s: int) -> Index:
        """The rows that client i holds of its tasks before step s, by its own numbers.

        They follow from the seed alone, so every process computes the same rows.
        """
        if s == 0:
            return torch.zeros(0, dtype=torch.int64)
        if (i, s) not in self._kept:
            policy = self.scenario.replay
            layout = self.rows.layout
            labels = self.rows.labels
            assert policy is not None
            first, end = layout.span(s - 1, i)
            mine = None if labels is None else labels[layout.place(s - 1, i)]
            generator = streams.generator(self.seed, i, s - 1, "replay")
            self._kept[i, s] = policy.keep(self.past_rows(i, s - 1), torch.arange(first, end), mine, first, generator)
        return self._kept[i, s]
