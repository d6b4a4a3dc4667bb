"""Protocols of a run: a source of clients, and an evaluator of models."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from ..contract import Client, Engine, PersonalModels, Problem, State, TaskView, Vec
from ..storage.history import Row


@runtime_checkable
class ClientSource(Protocol):
    """The clients of one run, by id and round. Pure: the same arguments give the same clients in any order of calls."""

    @property
    def problem(self) -> Problem:
        """The problem that clients work on, with all outputs allowed."""

    @property
    def rounds_per_task(self) -> int | None:
        """Rounds of one task; None without a stream."""

    @property
    def task_count(self) -> int:
        """The number of tasks; 1 without a stream."""

    @property
    def first_steps(self) -> list[int]:
        """The first step at which a client meets each task."""

    def view(self, round: int) -> TaskView:
        """The task of this round: its number, its classes, and each client's share p_i of its rows."""

    def cohort(self, round: int) -> tuple[int, ...]:
        """Ids of the clients that take part in this round, ascending."""

    def client(self, i: int, round: int, engine: Engine, lr: float = 1.0) -> Client[Any]:
        """Client i in this round, without its memory; ``lr`` is a factor on its learning rate.

        Raises MedleyError if the client is on another machine.
        """


@runtime_checkable
class Evaluator(Protocol):
    """Measures models."""

    def evaluate(self, x: Vec, buffers: State | None, round: int) -> Row:
        """The figures of a history row, on the task of this round (0 for x₀): loss, and whatever can be measured."""

    @property
    def own_tests(self) -> bool:
        """Whether clients have test rows of their own."""

    def by_client(self, x: Vec, buffers: State | None, round: int, models: PersonalModels | None = None) -> list[Row]:
        """A row of figures for each client that has rows of the task of this round, by id: client, rows, loss, ...

        Args:
            models: gives the models that clients use; None if all use x
        """

    def accuracies(self, x: Vec, buffers: State | None, round: int) -> list[float]:
        """Test accuracy on every task, of the model after this round; empty if there are no classes."""

    def remedy(self, advice: str) -> str:
        """The remedy for a run that diverges: smaller rows if they are the likely cause, else ``advice``."""
