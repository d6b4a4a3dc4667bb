"""Streams of tasks: the current task, and the rows of past tasks that a client keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .message import Packed
from .problem import Objective
from .sampling import LocalSampling, Sampling

Lies = Callable[[tuple[int, int], Mapping[int, Packed]], dict[int, Packed]]
"""((round, exchange), honest replies by client) -> the replies that the server gets if some clients are Byzantine."""

Mode = Literal["task", "class", "domain"]
"""The logits compared with a row.

"task": the logits of its own task; "class": of all classes seen so far; "domain": all.
"""


def _none() -> Tensor:
    return torch.zeros(0, dtype=torch.bool)


@dataclass(frozen=True, eq=False)
class Task:
    """The task of a call. Without a stream there is one task.

    Attributes:
        index: the task's number, from 0
        count: number of tasks of the stream; default 1
        mode: the logits compared with a row; default "domain": all
        now: the classes of this task, a mask [c]
        past: the classes of the tasks before it, a mask [c]
        first: number of this task's first row; a client numbers its rows from 0, task after task
        heads: the classes of each task so far, as a mask [c] each; this task's comes last
    """

    index: int = 0
    count: int = 1
    mode: Mode = "domain"
    now: Bool[Tensor, " c"] = field(default_factory=_none)
    past: Bool[Tensor, " c"] = field(default_factory=_none)
    first: int = 0
    heads: tuple[Bool[Tensor, " c"], ...] = ()

    @property
    def kept(self) -> tuple[Bool[Tensor, " c"], ...]:
        """Groups of outputs that a teacher of past tasks compares with each other, as a mask [c] each.

        In mode "task" one group for each past task, otherwise one group for all past tasks; none in the first task.
        """
        if self.mode == "task":
            return self.heads[:-1]
        return (self.past,) if bool(self.past.any()) else ()

    def compared(self, y: Int[Tensor, " n"]) -> Bool[Tensor, "n c"]:
        """The outputs compared with each row, a mask [n, c] for labels ``y`` [n]."""
        heads = torch.stack(self.heads if self.mode == "task" else (self.seen,)).float()
        return (heads[:, y].T @ heads) > 0

    @property
    def seen(self) -> Bool[Tensor, " c"]:
        """The classes of this and all earlier tasks, a mask [c]."""
        return self.now | self.past


@dataclass(frozen=True)
class Replay:
    """The rows of past tasks that a client keeps. It is false in an ``if`` as long as there are no past rows.

    Attributes:
        problem: the mean loss over the kept rows
        past: number of rows of past tasks that the client has met, kept or not
        capacity: the size of the replay memory, in the policy's terms
        sample: number of rows that a step uses; None for all
        stream: purpose -> a fresh random stream
    """

    problem: Objective
    past: int
    capacity: int
    sample: int | None
    stream: Callable[[str], torch.Generator]

    def __len__(self) -> int:
        return self.problem.n

    def batches(self, purpose: str = "replay") -> Iterator[Int[Tensor, " b"] | None]:
        """Endless draws of ``sample`` rows without replacement; None means all rows."""
        generator = self.stream(purpose)
        while True:
            if self.sample is None or self.sample >= len(self):
                yield None
            else:
                yield torch.randperm(len(self), generator=generator)[: self.sample]


@runtime_checkable
class ReplayPolicy(Protocol):
    """Chooses the rows that a client keeps when a task is over.

    It draws only from the generator, so its choices are repeatable and need not be stored.
    """

    @property
    def capacity(self) -> int:
        """The size of the replay memory, in the policy's terms."""

    @property
    def sample(self) -> int | None:
        """The number of kept rows that a step uses; None for all."""

    def keep(
        self,
        stored: Int[Tensor, " h"],
        came: Int[Tensor, " n"],
        labels: Int[Tensor, " n"] | None,
        before: int,
        generator: torch.Generator,
    ) -> Int[Tensor, " k"]:
        """The rows to keep, out of ``stored`` and ``came``; rows are numbered as in `Task.first`.

        Args:
            stored: rows kept so far [h]
            came: rows of the task that is over [n]
            labels: labels of ``came`` [n]; None without classes
            before: number of rows of earlier tasks
            generator: the source of random draws
        """


@dataclass(frozen=True)
class TaskView:
    """The server's view of a task: the task and each client's share of its rows.

    Attributes:
        task: its number and classes
        p: p_i of every client: its share of the task's rows
        sampling: the distribution of the round's cohort; None if privacy accounting does not support it
        local: id -> the distribution of the client's batches in this round, for privacy of its rows
        lies: replaces the replies of Byzantine clients; None if all clients are honest
    """

    task: Task
    p: Mapping[int, float]
    sampling: Sampling | None = None
    local: Callable[[int], LocalSampling] = lambda i: LocalSampling(1, 1.0, 0)
    lies: Lies | None = None

    @property
    def present(self) -> tuple[int, ...]:
        """The clients with rows of this task, in the order of ``p``."""
        return tuple(i for i, p in self.p.items() if p > 0)
