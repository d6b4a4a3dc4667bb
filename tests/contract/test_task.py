"""Tasks of a stream: the classes that a row is compared with, by hand; and draws from a replay memory."""

from __future__ import annotations

from itertools import islice
from typing import Any, cast

import pytest
import torch

from medley.contract.task import Mode, Replay, Task, TaskView
from support.toys import objective


def mask(*classes: int) -> torch.Tensor:
    out = torch.zeros(5, dtype=torch.bool)
    out[list(classes)] = True
    return out


def second(mode: Mode) -> Task:
    """The second of two tasks: classes 2 and 3 after 0 and 1; class 4 is still to come."""
    return Task(1, 2, mode, mask(2, 3), mask(0, 1), 7, (mask(0, 1), mask(2, 3)))


def test_without_a_stream_there_is_one_task_and_no_past() -> None:
    task = Task()
    assert (task.index, task.count, task.mode, task.first) == (0, 1, "domain", 0)
    assert task.kept == ()
    assert task.seen.tolist() == []


def test_seen_are_the_classes_of_this_task_and_of_those_before() -> None:
    assert second("class").seen.tolist() == mask(0, 1, 2, 3).tolist()


@pytest.mark.parametrize(
    ("mode", "old", "new"),
    [
        ("task", mask(0, 1), mask(2, 3)),  # a row of task 0 is compared with task 0's classes only
        ("class", mask(0, 1, 2, 3), mask(0, 1, 2, 3)),
    ],
)
@pytest.mark.shapes
def test_the_outputs_a_row_is_compared_with(mode: Mode, old: torch.Tensor, new: torch.Tensor) -> None:
    compared = second(mode).compared(torch.tensor([1, 3, 0]))
    assert compared.tolist() == torch.stack([old, new, old]).tolist()


def test_a_teacher_compares_past_tasks_one_by_one_or_all_together() -> None:
    assert [k.tolist() for k in second("task").kept] == [mask(0, 1).tolist()]
    assert [k.tolist() for k in second("class").kept] == [mask(0, 1).tolist()]
    third: dict[str, Any] = {"now": mask(4), "past": mask(0, 1, 2, 3), "heads": (mask(0, 1), mask(2, 3), mask(4))}
    assert [k.tolist() for k in Task(2, 3, "task", **third).kept] == [mask(0, 1).tolist(), mask(2, 3).tolist()]
    assert [k.tolist() for k in Task(2, 3, "class", **third).kept] == [mask(0, 1, 2, 3).tolist()]
    first: dict[str, Any] = {"now": mask(0, 1), "past": mask(), "heads": (mask(0, 1),)}
    assert Task(0, 3, "task", **first).kept == Task(0, 3, "class", **first).kept == ()


def replay(n: int, sample: int | None) -> Replay:
    def stream(purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(sum(purpose.encode()))

    return Replay(objective(n), 50, 20, sample, stream)


def test_a_replay_memory_draws_without_replacement_from_a_named_stream() -> None:
    held = replay(6, 4)
    draws = [cast(torch.Tensor, rows).tolist() for rows in islice(held.batches(), 30)]
    assert all(len(set(rows)) == 4 and set(rows) <= set(range(6)) for rows in draws)
    assert {i for rows in draws for i in rows} == set(range(6))
    assert len({tuple(rows) for rows in draws}) > 20
    again = [cast(torch.Tensor, rows).tolist() for rows in islice(held.batches(), 30)]
    other = [cast(torch.Tensor, rows).tolist() for rows in islice(held.batches("other"), 30)]
    assert draws == again
    assert draws != other


@pytest.mark.parametrize(("n", "sample"), [(6, None), (6, 6), (3, 4)])
def test_a_draw_of_all_rows_is_none(n: int, sample: int | None) -> None:
    assert list(islice(replay(n, sample).batches(), 3)) == [None] * 3


def test_an_empty_replay_memory_is_false() -> None:
    assert not replay(0, 4)
    assert len(replay(3, 4)) == 3
    assert replay(3, 4)


def test_the_clients_of_a_task_are_those_with_rows_of_it() -> None:
    assert TaskView(Task(), {0: 0.5, 2: 0.0, 4: 0.5}).present == (0, 4)
