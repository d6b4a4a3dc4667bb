"""Divergence of finite numbers: rows by hand, and runs that end lost."""

from __future__ import annotations

import math

import numpy as np
import pytest

import medley as md
from medley.report import with_target
from medley.server.ending import diverged


def rows(loss: list[float], accuracy: list[float] | None = None, **more: float) -> list[dict[str, float]]:
    out = [{"round": float(k), "loss": v, **more} for k, v in enumerate(loss)]
    for row, a in zip(out, accuracy or [], strict=False):
        row["accuracy"] = a
    return out


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ([1.0, 0.5, 3.1, 3.2, 3.3], "the loss ends at 3.3, and began at 1: the run diverges"),
        ([1.0, 0.5, 3.1, 2.9, 3.3], ""),  # one of the last three is not far above
        ([1.0, 1.2, 1.5, 1.8, 1.9], ""),  # above its start, and not far
        ([-2.0, -3.0, 2.1, 2.2, 2.3], "the loss ends at 2.3, and began at -2: the run diverges"),
        ([0.0, 0.0, 1.0, 1.0, 1.0], ""),  # no scale
        ([1.0, 0.5, 999.0], ""),  # too short to judge
        ([1.0, 1e200, 0.5], ""),  # the end counts
        ([1.0, 0.5, 1001.0], "the loss ends at 1001, and began at 1: the run diverges"),
        ([2.0, 3e3], "the loss ends at 3000, and began at 2: the run diverges"),
        ([1e-12, 1e-3, 5.0], ""),  # it began at a minimum
        ([0.0, 1e4], ""),  # no scale
        ([1.0], ""),
        ([], ""),
    ],
)
def test_a_loss_far_above_its_start(loss: list[float], said: str) -> None:
    assert diverged(rows(loss)) == said


def test_a_high_loss_with_a_better_accuracy_is_no_divergence() -> None:
    loss = [2.3, 5.0, 8.0, 8.0, 8.0]
    assert diverged(rows(loss, [0.1, 0.5, 0.6, 0.6, 0.6])) == ""
    assert "began at 2.3" in diverged(rows(loss, [0.1, 0.1, 0.1, 0.1, 0.1]))
    assert "began at 2.3" in diverged(rows(loss, [0.1, 0.12, 0.11, 0.12, 0.12]))  # chance, by a few rows better
    assert diverged(rows(loss, [0.1, 0.2, 0.2, 0.2, 0.2])) == ""
    wild = [2.3, 9.0, 3e3, 3e3, 3e3]
    assert "the loss ends at 3000" in diverged(rows(wild, [0.1, 0.2, 0.25, 0.25, 0.25]))
    assert diverged(rows(wild, [0.1, 0.3, 0.4, 0.4, 0.4])) == ""
    assert diverged(rows([2.3, 3e3], [0.1, 0.4])) == ""
    assert "began at 2.3" in diverged(rows([2.3, 3e3], [0.1, 0.1]))


def test_an_accuracy_back_at_its_start_after_learning() -> None:
    flat = [2.3] * 6
    assert diverged(rows(flat, [0.1, 0.6, 0.8, 0.12, 0.1, 0.11])) == (
        "the accuracy fell to 0.11 after it had been 0.8; it was 0.1 at the start: the run diverges"
    )
    assert diverged(rows(flat, [0.1, 0.6, 0.8, 0.12, 0.2, 0.11])) == ""  # not lost in all of the last rows
    lost = [0.1, 0.6, 0.8, 0.12, 0.1, 0.11]
    assert diverged(rows([0.69, 0.5, 0.4, 0.39, 0.39, 0.39], lost)) == ""  # it has come to the larger class's share
    assert diverged(rows([0.69, 0.5, 0.39, 0.45, 0.5, 0.54], lost)) == ""  # half of the fall is 0.54
    assert "the accuracy fell" in diverged(rows([0.69, 0.5, 0.39, 0.45, 0.55, 0.5], lost))
    assert diverged(rows(flat, [0.1, 0.15, 0.2, 0.12, 0.1, 0.11])) == ""  # it had hardly learnt
    assert diverged(rows(flat, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0])) == ""
    assert diverged(rows(flat, [0.1, 0.8, 0.1])) == ""  # one evaluation


def test_a_stream_of_tasks_is_not_judged() -> None:
    assert diverged(rows([1.0, 0.5, 9.0, 9.0, 9.0], task=1.0)) == ""


def test_a_run_with_three_rows_diverges_too():
    clients = [(np.ones((4, 1)), np.full(4, float(i))) for i in range(4)]
    pace = md.scenarios.Pace(lr=10.0, epochs=2, batch=None)
    fed = md.Federation(md.problems.LeastSquares(), clients=clients, pace=pace)
    with pytest.raises(md.Diverged, match=r"the loss ends at 1\.173e\+229, and began at 1\.75"):
        md.run(md.FedAvg(), fed, rounds=60, eval_every=30, progress=False)


def test_a_run_that_ends_lost_says_so_in_result_and_table_and_raises() -> None:
    toy = md.problems.synthetic_quadratics(clients=4, d=5, high=5.0, seed=0)
    fed = md.Federation(toy.problem, clients=toy.clients, pace=md.scenarios.Pace(lr=0.6, steps=3, batch=None))
    result = md.run(md.FedAvg(), fed, 6, throw=False, progress=False)
    assert math.isfinite(result.summary["loss"])
    assert result.status.outcome == "diverged"
    assert f"began at {result.history[0]['loss']:.4g}" in result.status.message
    board = md.compare([md.FedAvg()], fed, 6, seeds=2, jobs=1, progress=False)
    assert "diverged after round 6" in str(board.rows[0]["status"])
    with pytest.raises(md.Diverged, match="the loss ends at") as caught:
        md.run(md.FedAvg(), fed, 6, progress=False)
    assert caught.value.result is not None
    fine = md.run(md.FedAvg(), fed, 6, init=None, throw=False, progress=False, target={"loss": 1e9})
    assert fine.status.outcome == "target"


@pytest.mark.parametrize(("key", "goal"), [("bytes", 30_000), ("bytes_up", 12_000), ("seconds", 5.0), ("exchanges", 4)])
def test_a_run_ends_at_the_first_evaluation_that_reaches_a_cost(key, goal):
    fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(2))
    result = md.run(md.FedAvg(), fed, rounds=50, target={key: goal, "accuracy": 1.0}, progress=False)
    costs = [row.get(key, row["bytes_down"] + row["bytes_up"]) for row in result.history]
    assert costs[-1] >= goal > costs[-2]
    assert result.status.outcome == "target"
    assert result.status.message.startswith(f"{key} {costs[-1]:.6g} reached the limit {goal:g} of target in round ")


def test_a_cost_alone_is_no_target_to_compare_by():
    fed = md.Federation(md.problems.Softmax(mu=1e-3), data=md.datasets.digits(), partition=md.partitions.IID(2))
    board = md.compare([md.FedAvg(), md.FedAvg(server_lr=0.5)], fed, 9, 1, jobs=1, target={"seconds": 3.0})
    assert len({*(len(r.history) for r in board.results)}) == 1
    assert not any("seconds_to_target" in r.summary for r in with_target(board.results))
