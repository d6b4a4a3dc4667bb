"""Tuning: the right choice where it is known, an honest record of the others."""

from __future__ import annotations

import sys

import pytest
import torch

import medley as md
from medley.experiments.tune import tune


def quadratic(validation=0.2):
    """f_i(x) = ½(x − 3)² for both clients, whatever rows are carved: curvature 1, so that lr = 1 is exact in a step."""
    X = torch.ones(20, 1, dtype=torch.float64)
    clients = [(X, 3 * torch.ones(20, dtype=torch.float64))] * 2
    pace = md.scenarios.Pace(lr=0.5, steps=1, batch=None)
    return md.Federation(md.problems.LeastSquares(), clients=clients, pace=pace, validation=validation)


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_known_best_of_a_quadratic(jobs, caplog):
    grid = {"lr": [0.5, 2.0, 3.0], "server_lr": [0.5, 1.0]}
    best = tune(md.FedAvg(), quadratic(), grid, rounds=4, metric="test_loss", jobs=jobs)
    assert (best.lr, best.method) == (2.0, md.FedAvg(server_lr=1.0))
    # x − 3 shrinks by 1 − η·lr·server_lr a round; the score is the mean loss of rounds 1 to 4.
    for row in best.record:
        shrink = 1 - 0.5 * row["lr"] * row["server_lr"]
        assert row["score"] == pytest.approx(sum(4.5 * shrink ** (2 * t) for t in range(1, 5)) / 4)
    assert [row["chosen"] for row in best.record].index(True) == 3
    assert len(best.record) == 6
    assert best.record[3]["note"] == "server_lr=1.0 is the largest of its grid: a better one may lie beyond"
    assert "note" not in best.record[0]
    assert best.tuning.endswith("; server_lr=1.0 is the largest of its grid: a better one may lie beyond")
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "tune: FedAvg, server_lr=1.0 is the largest of its grid: a better one may lie beyond"
    ]


def test_a_value_inside_its_grid_has_no_note():
    best = tune(md.FedAvg(), quadratic(), {"lr": [1.0, 2.0, 3.0]}, rounds=2, metric="loss", jobs=1)
    assert best.lr == 2.0
    assert all("note" not in row for row in best.record)


def test_what_is_tuned_already_keeps_its_factor():
    best = tune(md.Tuned(md.FedAvg(), lr=4.0), quadratic(), {"lr": [0.25, 0.5]}, rounds=2, metric="loss", jobs=1)
    assert best.lr == 2.0


def test_a_diverged_point_loses_and_says_so():
    best = tune(md.FedAvg(), quadratic(), {"lr": [1e200, 0.1]}, rounds=5, seeds=2, metric="loss", jobs=1)
    assert best.lr == 0.1
    assert "diverged" in best.record[0]["status"]
    assert best.record[1]["status"] == "finished"
    assert len(best.record[1]["scores"]) == 2
    with pytest.raises(md.Diverged, match="all 1 points"):
        tune(md.FedAvg(), quadratic(), {"lr": [1e200]}, rounds=5, metric="loss", jobs=1)


def test_accuracy_is_that_of_the_validation_rows():
    data = md.datasets.digits()
    fed = md.Federation(
        md.problems.Softmax(),
        data=data,
        partition=md.partitions.IID(5),
        validation=0.25,
        pace=md.scenarios.Pace(lr=0.1),
    )
    best = tune(md.FedAvg(), fed, {"lr": [0.01, 1.0]}, rounds=3, jobs=1)
    validated = fed.run(md.FedAvg(), rounds=3, evaluate_on="validation")
    assert best.lr == 1.0
    assert best.record[1]["score"] == pytest.approx(sum(validated["accuracy"][1:]) / 3)
    shown = fed.run(md.FedAvg(), rounds=3)
    assert best.record[1]["score"] != pytest.approx(sum(shown["accuracy"][1:]) / 3)


@pytest.mark.parametrize(
    ("grid", "over", "says"),
    [
        ({"lrr": [1]}, {}, "Did you mean 'lr'"),
        ({}, {}, "give settings to try"),
        ({"lr": []}, {}, "give a list of values"),
        ({"lr": "12"}, {}, "give a list of values"),
        ({"lr": ["1"]}, {}, "has '1'; give numbers above 0"),
        ({"lr": [1, 1]}, {}, "the same value occurs twice"),
        ({"lr": [1]}, {"metric": "los"}, "Did you mean 'loss'"),
        ({"lr": [1]}, {"seeds": []}, "give a number from 1"),
        ({"epochs": [1, 2]}, {}, r"of the clients' pace.* one federation per Pace\(epochs="),
        ({"lr": [1]}, {"evaluate_on": "test"}, "tune chooses by validation rows"),
        ({"lr": [1]}, {"evalevery": 2}, "has no 'evalevery'. Did you mean 'eval_every'"),
    ],
)
def test_settings_that_make_no_sense(grid, over, says):
    with pytest.raises(md.RecipeError, match=says):
        tune(md.FedAvg(), quadratic(), grid, rounds=1, jobs=1, **over)


def test_the_default_metric_is_the_first_that_there_is():
    best = tune(md.FedAvg(), quadratic(), {"lr": [1.0, 2.0, 3.0]}, rounds=2, jobs=1)
    assert best.lr == 2.0
    assert best.record[0]["score"] == pytest.approx(4.5 * (1 / 4 + 1 / 16) / 2)  # the test loss of rounds 1 and 2
    tuned = tune(
        md.FedAvg(),
        quadratic(),
        {"lr": [1.0, 2.0, 3.0]},
        rounds=2,
        jobs=1,
        metric="error",
        metrics={"error": lambda out, y: float((out.flatten() - y).abs().mean())},
    )
    assert tuned.record[0]["score"] == pytest.approx(3 * (1 / 2 + 1 / 4) / 2)
    assert tune(md.FedAvg(), quadratic(), {"lr": [1.0]}, rounds=0, jobs=1).record[0]["score"] == pytest.approx(4.5)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_metric_that_is_not_there_is_refused_after_one_round(jobs):
    rows = []
    with pytest.raises(md.RecipeError, match="Did you mean 'test_loss'") as caught:
        tune(
            md.FedAvg(),
            quadratic(),
            {"lr": [1.0, 2.0]},
            rounds=1000,
            jobs=jobs,
            metric="testloss",
            on_round=lambda row: rows.append(row["round"]),
        )
    assert set(rows) <= {0}
    assert "loss, seconds, test_loss" in str(caught.value)


@pytest.mark.slow
def test_figures_that_come_late_are_awaited():
    data = md.datasets.digits()
    stream = md.tasks.Split(2)
    fed = md.Federation(md.problems.Softmax(), data=data, partition=md.partitions.IID(2), validation=0.2, stream=stream)
    best = tune(md.FedAvg(), fed, {"lr": [0.1, 1.0]}, rounds=4, metric="fgt", jobs=1)
    assert all(row["status"] == "finished" for row in best.record)
    assert tune(md.FedAvg(), fed, {"lr": [0.1]}, rounds=4, jobs=1).record[0]["score"] <= 1


def test_no_validation_split_is_refused_with_what_to_do():
    with pytest.raises(md.RecipeError, match=r"validation=0\.1.*validation = 0\.1 in a recipe's \[data\]"):
        tune(md.FedAvg(), quadratic(validation=0.0), {"lr": [1.0]}, rounds=1, metric="loss", jobs=1)


def test_a_folder_keeps_the_grid(tmp_path, monkeypatch):
    first = tune(md.FedAvg(), quadratic(), {"lr": [1.0, 2.0]}, rounds=2, metric="loss", jobs=1, save=tmp_path)
    monkeypatch.setattr(md.Federation, "run", lambda *a, **k: pytest.fail("made again"))
    again = tune(md.FedAvg(), quadratic(), {"lr": [1.0, 2.0]}, rounds=2, metric="loss", jobs=1, save=tmp_path)
    assert first.record == again.record


def test_the_record_is_a_frame(monkeypatch):
    best = tune(md.FedAvg(), quadratic(), {"lr": [0.5, 2.0], "server_lr": [0.5, 1.0]}, rounds=2, metric="loss", jobs=1)
    frame = best.frame()
    assert list(frame.columns[:3]) == ["method", "lr", "server_lr"]
    assert frame.loc[frame["chosen"], ["lr", "server_lr"]].to_numpy().tolist() == [[2.0, 1.0]]
    assert frame["score"].idxmin() == list(frame["chosen"]).index(True)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(md.MedleyError, match=r"Tuned.frame\(\) makes a pandas DataFrame; pip install pandas"):
        best.frame()
