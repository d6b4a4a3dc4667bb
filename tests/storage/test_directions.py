"""Directions of metrics: declared, or told by whole words of the name, or asked for."""

from __future__ import annotations

import pytest
import torch

import medley as md
from medley.storage.directions import by_name, higher_is_better

HIGHER = (
    "recall recall_abnormal normal_recall recent_auc receiver_auc glossary_hits singapore_recall gap_free_share f1 F1 "
    "R2 recall5 ndcg@10 macroF1 neg_log_loss neg_mean_squared_error hit_rate lossless_accuracy error_free test_acc"
)
LOWER = "error mae testMSE rmse log_loss mean_gap l2_norm expected_calibration_error ECE mse2 word_error_rate val-loss"
UNKNOWN = (
    "top3 abnormality glossary normal piece receiver singapore bossy x recall_loss accuracy_gap recall_drop "
    "error_reduction loss_avoided negative_recall neg_recall negative_log_likelihood lossless terrors"
)


@pytest.mark.parametrize(("names", "direction"), [(HIGHER, "higher"), (LOWER, "lower"), (UNKNOWN, "unknown")])
def test_a_name_tells_by_whole_words_and_doubt_is_unknown(names: str, direction: str) -> None:
    assert {name: by_name(name) for name in names.split()} == dict.fromkeys(names.split(), direction)


def test_own_figures_have_their_directions() -> None:
    more = {m for m in ("acc", "accuracy", "personal_accuracy_worst", "learn", "client_accuracy_mean")}
    less = {"loss", "test_loss", "gap", "grad_norm", "fgt", "wall", "bytes_to_target", "client_accuracy_spread"}
    less |= {
        "attack_success",
        "client_test_loss_worst",
        "rounds_to_target",
        "epsilon",
        "loss_error",
        "personal_test_loss",
    }
    assert {m for m in more | less if higher_is_better(m)} == more


def federation() -> md.Federation:
    g = torch.Generator().manual_seed(0)
    X = torch.randn(200, 3, generator=g)
    data = md.datasets.Dataset(X, (X[:, 0] > 0).long()).split(0.2)
    parts = md.partitions.IID(clients=4)
    return md.Federation(md.problems.Logistic(mu=1e-2), data=data, partition=parts, validation=0.2)


def right(z: torch.Tensor, y: torch.Tensor) -> float:
    return float(((z.reshape(-1) > 0) == y).double().mean())


def test_where_the_direction_matters_it_is_asked_for_and_a_declared_one_counts() -> None:
    fed = federation()
    unsaid = {"top3": right}
    question = r"is a larger or a smaller 'top3' better\? .*metrics=\{'top3': \(f, 'max'\)\}"
    with pytest.raises(md.RecipeError, match=question):
        md.run(md.FedAvg(), fed, 1, metrics=unsaid, target={"top3": 0.9})
    with pytest.raises(md.RecipeError, match=question):
        md.tune(md.FedAvg(), fed, {"lr": [1.0, 3.0]}, 1, metric="top3", metrics=unsaid, jobs=1)
    with pytest.raises(md.RecipeError, match=r"give a function, or \(function, 'max' or 'min'\)"):
        md.run(md.FedAvg(), fed, 1, metrics={"top3": (right, "most")})
    board = md.compare([md.FedAvg(), md.FedAvgM()], fed, 2, 2, metrics=unsaid, jobs=1, progress=False)
    assert "top3" in board.markdown()  # a column needs no direction
    with pytest.raises(md.RecipeError, match=question):
        board.paired(metric="top3")
    for r in board.results:
        r.settings["metrics"]["top3"] = "higher"
    assert board.paired(metric="top3")[0].n == 2
    metrics = {"top3": (right, "max"), "recall": (right, "min")}
    r = md.run(md.FedAvg(), fed, 3, metrics=metrics, target={"top3": 1.1})
    assert r.status.ok
    assert r.settings["metrics"] == {"top3": "higher", "recall": "lower"}
    assert r["top3"] == r["recall"]
    assert md.run(md.FedAvg(), fed, 3, metrics=metrics, target={"recall": 1.1}).status.outcome == "target"
    size = lambda z, y: float(z.abs().mean())
    for way, lr in (("max", 9.0), ("min", 0.01)):
        grid = {"lr": [0.01, 9.0]}
        assert md.tune(md.FedAvg(), fed, grid, 2, metric="x", metrics={"x": (size, way)}, jobs=1).lr == lr
