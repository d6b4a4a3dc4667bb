"""Private trees at nodes: their noise, their own account, and a repeated request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import medley as md
from medley.flower import client_app, server_app
from medley.privacy.accountant import Release, epsilon
from medley.runtime import streams

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

from flwr.app import Context, RecordDict

from support.bench import Bench

RECIPE = """
[problem]
kind = "Trees"
loss = "logistic"
trees = 3
depth = 2

[run]
rounds = {rounds}
seed = 3

[[methods]]
kind = "Boost"
bins = 4
ranges = [[-3, 3]]
private = {{ noise = 2.0, unit = "row", rounds = 2 }}
"""


def rows_of(context: Any) -> md.datasets.Dataset:
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    X = rng.normal(size=(24, 5))
    return md.datasets.Dataset(X, (X[:, 0] > 0).astype(int), classes=2)


def deploy(folder: Path, rounds: int) -> Bench:
    """Run the recipe as a Flower app on three nodes, whose owners agreed to two rounds."""
    folder.mkdir(exist_ok=True)
    (path := folder / "recipe.toml").write_text(RECIPE.format(rounds=rounds))
    config = {"clients": 3, "save": str(folder / "run")}
    grid = Bench([client_app(path, rows_of)] * 3, config, memory=str(folder / "memory"))
    server_app(path)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return grid


def test_nodes_draw_the_noise_of_trees_themselves_and_count_a_sum_for_each_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, seeds = streams.Secret.__init__, set[int]()

    def watched(self: Any, seed: int, *name: Any) -> None:
        if "privacy of trees" in str(name[-1]):
            seeds.add(seed)
        right(self, seed, *name)

    monkeypatch.setattr(streams.Secret, "__init__", watched)
    deploy(tmp_path, 2)
    assert len(seeds) == 12  # three nodes, two rounds of two levels
    assert min(seeds) > 2**200
    (path, *_) = sorted(tmp_path.rglob("account.json"))
    (lines,) = json.loads(path.read_text())["spent"].values()
    spent = [Release(**line) for line in lines]
    assert sum(r.rounds for r in spent) == 4
    assert epsilon(spent, 1e-5) == pytest.approx(epsilon([Release("poisson", 24, 1.0, 0, 1, 2.0, 4)], 1e-5))


def test_a_node_refuses_sums_beyond_the_rounds_that_its_owner_agreed_to(tmp_path: Path) -> None:
    with pytest.raises(md.MedleyError, match=r"its rows have spent ε = .* its recipe allows"):
        deploy(tmp_path, 3)
