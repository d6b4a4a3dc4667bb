"""A client in a call: steps and mini-batches of its pace, its named streams, its work, and the descent it passes on."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from medley.contract.client import Client, Descent, LocalUpdate
from medley.contract.errors import Unsupported
from medley.contract.pace import Pace
from medley.contract.task import Replay
from medley.contract.types import Vec
from support.toys import objective


class Recorder:
    """An engine that takes down its calls, and goes by -1 in every coordinate."""

    name = "recorder"

    def __init__(self) -> None:
        self.calls: list[Descent] = []

    def descend(self, me: Client[Any], x: Vec, how: Descent) -> LocalUpdate:
        self.calls.append(how)
        return LocalUpdate(-torch.ones_like(x), 0.5, me.steps, self.name)


X0 = torch.zeros(3, dtype=torch.float64)


def client(n: int = 10, **pace: Any) -> Client[Any]:
    return Client(2, 0.25, objective(n), Pace(**pace), Recorder(), seed=3, round=4)


@pytest.mark.parametrize(
    ("pace", "steps", "sizes"),
    [
        ({"epochs": 2, "batch": 4}, 6, [4, 4, 2, 4, 4, 2]),
        ({"epochs": 1, "batch": 5}, 2, [5, 5]),
        ({"steps": 4, "batch": 4}, 4, [4, 4, 2, 4]),  # steps take the place of epochs
        ({"steps": 2, "batch": 4}, 2, [4, 4]),
        ({"epochs": 3, "batch": None}, 3, [None] * 3),
        ({"epochs": 2, "batch": 10}, 2, [None] * 2),  # a batch of all rows is the full batch
        ({"epochs": 1, "batch": 11}, 1, [None]),
    ],
)
def test_steps_and_sizes_of_mini_batches(pace: dict[str, Any], steps: int, sizes: list[int | None]) -> None:
    me = client(**pace)
    assert me.steps == steps
    assert [None if rows is None else len(rows) for rows in me.batches()] == sizes
    assert me.full_batch == (sizes[0] is None)


def test_an_epoch_meets_every_row_once_in_an_order_of_its_own() -> None:
    batches = cast("list[torch.Tensor]", list(client(epochs=2, batch=4).batches()))
    first, second = (torch.cat(batches[k : k + 3]).tolist() for k in (0, 3))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_the_first_batch_is_the_first_of_the_batches() -> None:
    me = client(epochs=2, batch=4)
    assert torch.equal(cast(torch.Tensor, me.first_batch), cast(torch.Tensor, next(me.batches())))
    assert client(epochs=1, batch=None).first_batch is None


def test_a_stream_has_the_name_of_seed_client_round_and_purpose() -> None:
    def draw(purpose: str = "noise", **over: int) -> float:
        me = client()
        for name, value in over.items():
            setattr(me, name, value)
        return torch.rand((), generator=me.rng(purpose)).item()

    assert draw() == draw()
    others = {draw("other"), draw(seed=4), draw(id=3), draw(round=5), draw()}
    assert len(others) == 5


def test_work_counts_the_rows_of_past_tasks_too() -> None:
    me = client()
    me.problem.grad(X0)
    assert me.work == 10
    me.replay = Replay(objective(3), 3, 3, None, lambda purpose: torch.Generator())
    me.objective_of = lambda rows: objective(len(rows))
    me.replay.problem.grad(X0)
    assert me.work == 10 + 3
    me.recall(torch.tensor([1, 4])).grad(X0)
    assert me.work == 10 + 3 + 2


def test_recall_outside_of_a_stream_names_the_remedy() -> None:
    with pytest.raises(Unsupported, match=r"recall\(\) needs a stream of tasks; pass Federation\(stream=\.\.\.\)"):
        client().recall(torch.tensor([0]))


def test_a_descent_has_the_pace_s_optimizer_unless_the_method_names_one() -> None:
    me = client(optimizer="adam", steps=7)
    update = me.descend(X0, scale=2.0, pull=(0.1, X0))
    me.descend(X0, optimizer="sgd")
    first, second = cast(Recorder, me.engine).calls
    assert (first.scale, first.pull, first.shift, first.optimizer) == (2.0, (0.1, X0), None, "adam")
    assert (second.scale, second.pull, second.optimizer) == (1.0, None, "sgd")
    assert update.step.tolist() == [-1.0] * 3
    assert update.steps == 7
    assert me.ran == {"recorder"}


def test_one_client_is_its_only_member() -> None:
    me = client()
    assert me.members == (me,)
