"""Metrics by their names in `md.run`, `md.compare` and `md.tune`."""

from __future__ import annotations

import pytest
import torch

import medley as md
from medley.server.options import RunOptions

X = torch.linspace(-1, 1, 40).reshape(-1, 1)
CLIENTS = [(X, (X[:, 0] > 0).long())]
FED = md.Federation(md.problems.Logistic(mu=1e-2), clients=CLIENTS, test=(X, (X[:, 0] > 0.1).long()), validation=0.25)


def test_a_name_is_the_metric_with_its_defaults() -> None:
    by_name = md.run(md.FedAvg(), FED, 2, metrics=["auroc"], progress=False)
    made = md.run(md.FedAvg(), FED, 2, metrics={"auroc": md.metrics.AUROC()}, progress=False)
    assert by_name.summary["auroc"] == made.summary["auroc"] > 0.9
    assert by_name.settings["metrics"] == made.settings["metrics"] == {"auroc": "higher"}


def test_names_stand_for_metrics_wherever_these_may() -> None:
    assert RunOptions(1, metrics=["AUROC"]).functions == {"auroc": md.metrics.AUROC()}
    assert RunOptions(1, metrics={"c": "concordance"}).functions == {"c": md.metrics.concordance}
    options = RunOptions(1, metrics={"c": ("concordance", "min")})
    assert options.functions == {"c": md.metrics.concordance}
    assert options.directions == {"c": "lower"}
    board = md.compare([md.FedAvg()], FED, seeds=1, rounds=1, metrics=["auroc"], progress=False)
    assert "auroc" in board.results[0].summary
    with pytest.raises(md.RecipeError, match=r"run\(metrics=...\) has no 'auroq'. Did you mean 'auroc'\?") as caught:
        RunOptions(1, metrics=["auroq"])
    assert caught.value.key == "auroq"


def test_tune_knows_the_direction_of_a_named_metric() -> None:
    best = md.tune(md.FedAvg(), FED, {"lr": [0.01, 1.0]}, rounds=2, metric="auroc", metrics=["auroc"], jobs=1)
    assert best.lr in (0.01, 1.0)
