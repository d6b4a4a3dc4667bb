"""Trees on nodes whose own rows lack values: the same forest as in one process, and a refusal by every other model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley.flower import client_app, server_app

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from support.bench import Bench

RECIPE = """
[rules]
exact = true
scores = true
[problem]
{problem}
[run]
rounds = 3
[[methods]]
{method}
"""


def own(i: int) -> md.datasets.Dataset:
    rng = np.random.default_rng(i)
    X = rng.normal(size=(20 + 10 * i, 3)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    X[rng.random(X.shape) < 0.3] = np.nan
    return md.datasets.Dataset(X, y, classes=2, missing=True)


def deployed(folder: Path, problem: str, method: str) -> md.Result:
    app = folder / "recipe.toml"
    app.write_text(RECIPE.format(problem=problem, method=method))
    config = {"clients": 3, "save": str(folder / "run")}
    client = client_app(app, lambda context: own(int(context.node_config["partition-id"])))
    grid = Bench([client] * 3, config, memory=str(folder / "memory"))
    server_app(app)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return md.Result.load(folder / "run")


def test_nodes_with_missing_values_grow_the_same_forest(tmp_path: Path) -> None:
    problem = 'kind = "Trees"\nloss = "logistic"\ntrees = 3\ndepth = 3\nmissing = true'
    there = deployed(tmp_path, problem, 'kind = "Boost"\nbins = 16')
    family = md.problems.Trees("logistic", trees=3, depth=3, missing=True)
    clients: list[Any] = [(own(i).X, own(i).y) for i in range(3)]
    here = md.run(md.Boost(bins=16), md.Federation(family, clients=clients, classes=2), 3, progress=False)
    assert torch.equal(here.x, there.x)


@pytest.mark.parametrize(
    ("problem", "method"),
    [('kind = "Trees"\nloss = "logistic"', 'kind = "Boost"'), ('kind = "Logistic"', 'kind = "FedAvg"')],
    ids=["trees", "logistic"],
)
def test_a_node_refuses_its_missing_values_to_other_models(tmp_path: Path, problem: str, method: str) -> None:
    with pytest.raises(md.MedleyError, match=r"give problems.Trees\(..., missing=True\)"):
        deployed(tmp_path, problem, method)
