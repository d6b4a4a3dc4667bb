"""Tasks of a run: the order in which clients meet them, their classes, and the outputs compared with each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..contract.task import Mode, Task
from ..datasets import Dataset
from ..partitions.dealing import Parts
from ..runtime import streams
from ..runtime.forwarded import forwarded
from ..tasks import Stream, Tasks


class DealtTask(NamedTuple):
    """One task of a stream, divided among clients; without a stream, all data."""

    data: Dataset
    classes: Sequence[int]
    parts: Parts
    """The training rows of each client in ``data``."""
    tests: Parts | None = None
    """The test rows of each client in ``data``; None if clients have none of their own."""


@dataclass(frozen=True, eq=False)
class TaskPlan:
    """The tasks of a run, step after step. With ``own_order`` clients meet different tasks at the same step.

    Attributes:
        orders: int [1 or clients, tasks]; ``orders[i, s]`` is the task that client i meets at step s. One row if all
            clients meet the same tasks
        masks: bool [tasks, classes], the classes of each task; no columns without a stream
        mode: the mode of the stream; None without a stream, which has one task
    """

    orders: np.ndarray
    masks: Tensor
    mode: Mode | None
    rounds: int

    @classmethod
    def draw(
        cls,
        stream: Stream | Tasks | None,
        labels: Sequence[Sequence[int]],
        classes: int | None,
        clients: int,
        seed: int,
        rounds: int,
        device: str = "cpu",
    ) -> TaskPlan:
        """The plan of a seed."""
        count = len(labels)
        own_order = stream is not None and stream.own_order
        orders = np.arange(count)[None]
        if own_order:
            orders = np.stack([streams.rng(seed, i, "order").permutation(count) for i in range(clients)])
        masks = torch.zeros(count, 0 if stream is None else classes or 0, dtype=torch.bool, device=device)
        for k, its in enumerate(labels if stream is not None else ()):
            masks[k, list(its)] = True
        return cls(orders, masks, None if stream is None else stream.mode, rounds)

    def __len__(self) -> int:
        return len(self.masks)

    def step(self, round: int) -> int:
        """The step of this round, from 0. Rounds count from 1; round 0 belongs to the first step."""
        if self.mode is None:
            return 0
        return min(max(round - 1, 0) // max(1, self.rounds), len(self) - 1)

    @property
    def first_steps(self) -> list[int]:
        """The first step at which a client meets each task."""
        return [int((self.orders == k).argmax(1).min()) for k in range(len(self))]

    def order(self, i: int) -> np.ndarray:
        """The tasks of client i, step after step."""
        row: np.ndarray = self.orders[i if len(self.orders) > 1 else 0]
        return row

    def at(self, s: int, clients: int) -> np.ndarray:
        """The task that each client meets at step s [clients]."""
        return np.broadcast_to(self.orders[:, s], (clients,))

    def current(self, s: int) -> list[int]:
        """The tasks that clients meet at step s, ascending."""
        return np.unique(self.orders[:, s]).tolist()  # type: ignore[no-any-return]

    def before(self, s: int) -> list[int]:
        """The tasks that some client met before step s, ascending."""
        return np.unique(self.orders[:, :s]).tolist()  # type: ignore[no-any-return]

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The server's view of the task at every step: the classes that any client has or had."""
        return tuple(self._task(s) for s in range(len(self)))

    def _task(self, s: int) -> Task:
        if self.mode is None:
            return Task()
        current = self.current(s)
        before = self.before(s)
        order = [*(k for k in before if k not in current), *current]
        masks = self.masks[current].any(0), self.masks[before].any(0)
        return Task(s, len(self), self.mode, *masks, heads=tuple(self.masks[order]))

    def task_of(self, i: int, s: int, first: int) -> Task:
        """The task of client i at step s of a stream; ``first`` is the index of its first row among its own."""
        turn = self.order(i)
        current = self.masks[turn[s]]
        past = self.masks[turn[:s]].any(0)
        heads = tuple(self.masks[turn[: s + 1]])
        return replace(self.tasks[s], now=current, past=past, first=first, heads=heads)

    @cached_property
    def allowed(self) -> tuple[Tensor | None, ...]:
        """The outputs compared with rows at every step: bool [label, output], or None for all outputs."""
        return tuple(self._allowed(s) for s in range(len(self)))

    def _allowed(self, s: int) -> Tensor | None:
        if self.mode == "task":
            return (self.masks[:, :, None] & self.masks[:, None, :]).any(0)
        if self.mode == "class":
            mask = self.tasks[s].seen
            return mask.expand(len(mask), -1)
        return None


class Planned:
    """A draw whose tasks follow its plan; see `medley.server.protocols.ClientSource`."""

    plan: TaskPlan
    (first_steps,) = forwarded("plan", "first_steps")

    @property
    def task_count(self) -> int:
        """The number of tasks; 1 without a stream."""
        return len(self.plan)

    @property
    def rounds_per_task(self) -> int | None:
        """Rounds of one task; None without a stream."""
        return None if self.plan.mode is None else self.plan.rounds
