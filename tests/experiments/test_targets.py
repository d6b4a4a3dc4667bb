"""Comparisons with a target: methods are compared by the costs of reaching it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import medley as md


def federation(**more: object) -> md.Federation:
    data = md.datasets.digits().split(0.2)
    pace = md.scenarios.Pace(lr=0.1, batch=64)
    parts = md.partitions.IID(clients=4)
    return md.Federation(md.problems.Softmax(mu=1e-3), data=data, partition=parts, pace=pace, **more)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_quickest_method_is_named_and_no_accuracy_after_the_target(tmp_path: Path) -> None:
    quick = md.Tuned(md.FedAvg(), lr=4.0)
    slow = md.FedAvg()
    devices = md.devices.Devices(speed=1e4, up=1e5, down=1e5)
    fed = federation(devices=devices)
    board = md.compare(
        {"slow": slow, "quick": quick}, fed, 40, 2, jobs=1, target={"accuracy": 0.8}, save=tmp_path / "b"
    )
    rounds = {r.method: [row["round"] for row in r.history][-1] for r in board.results if r.seed == 0}
    assert rounds["quick"] < rounds["slow"]
    assert all(r.status.outcome == "target" for r in board.results)
    rows = {row["method"]: row for row in board.rows}
    assert rows["quick"]["compared_by"] == "seconds_to_target"
    assert rows["quick"]["reached"] == 2
    seconds = [r.history[-1]["seconds"] for r in board.results if r.method == "quick"]
    assert rows["quick"]["seconds_to_target"] == pytest.approx(sum(seconds) / 2)
    assert rows["quick"]["seconds_to_target"] < rows["slow"]["seconds_to_target"]
    assert "accuracy" not in str(board).splitlines()[0]
    path = board.save(tmp_path / "page.html")
    assert "quick reached accuracy of at least 80.0 % soonest" in path.read_text()
    assert md.Board.load(tmp_path / "b").rows[0]["compared_by"] == "seconds_to_target"


@pytest.mark.slow
def test_a_target_that_nobody_reached_is_said_below_the_table(tmp_path: Path) -> None:
    board = md.compare([md.FedAvg()], federation(), 2, 2, jobs=1, target={"accuracy": 0.999}, save=tmp_path / "b")
    sentence = "No run reached accuracy of at least 99.9 %, so final figures are compared."
    assert sentence in " ".join(str(board).split())
    assert sentence in board.markdown()
    assert sentence in board._repr_html_()
    assert sentence in md.Board.load(tmp_path / "b").markdown()
    assert sentence in board.save(tmp_path / "page.html").read_text()
    near = md.compare([md.FedAvg()], federation(), 2, 2, jobs=1, target={"accuracy": 0.2})
    assert "No run reached" not in near.markdown() + md.report.markdown(near.results)


@pytest.mark.slow
def test_a_target_may_be_an_own_metric_in_its_own_direction_on_a_mean_of_evaluations() -> None:
    def worst_class(z: torch.Tensor, y: torch.Tensor) -> float:
        return min(float((z.argmax(1)[y == c] == c).double().mean()) for c in range(10))

    @md.lower_is_better
    def surprise(z: torch.Tensor, y: torch.Tensor) -> float:
        return float(-z.log_softmax(1)[torch.arange(len(y)), y].mean())

    metrics = {"worst_class": (worst_class, "max"), "surprise": surprise}
    r = md.run(md.FedAvg(), federation(), 60, metrics=metrics, target={"worst_class": 0.5}, target_over=3)
    assert r.status.outcome == "target"
    assert "worst_class, the mean of the last 3 evaluations, " in r.status.message
    assert sum(r["worst_class"][-3:]) / 3 >= 0.5 > sum(r["worst_class"][-4:-1]) / 3
    r = md.run(md.FedAvg(), federation(), 60, metrics=metrics, target={"surprise": 1.5})
    assert r["surprise"][-1] <= 1.5 < r["surprise"][-2]
    board = md.compare([md.FedAvg(), md.FedAvgM()], federation(), 3, 2, jobs=1, metrics=metrics)
    assert {"worst_class", "surprise_half"} <= board.rows[0].keys()
    assert [" surprise " in line for line in board.markdown().splitlines()][:1] == [True]
    tuned = md.tune(
        md.FedAvg(), federation(validation=0.2), {"lr": [0.1, 5.0]}, 3, jobs=1, metric="surprise", metrics=metrics
    )
    assert tuned.lr == 5.0
    with pytest.raises(md.RecipeError, match=r"run.target=.*no 'worst_clas'. Did you mean 'worst_class'"):
        md.run(md.FedAvg(), federation(), 1, metrics=metrics, target={"worst_clas": 0.5})
