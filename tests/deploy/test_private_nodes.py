"""What nodes whose rows are private send and draw: their own noise, no counts of rows, people with all their rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley.contract.sampling import LocalSampling
from medley.flower import client_app, server_app
from medley.privacy import rows
from medley.privacy.accountant import epsilon, release
from medley.runtime import streams

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

from flwr.app import Context, RecordDict

from support.bench import Bench

RECIPE = """
[rules]
scores = true

[problem]
kind = "Logistic"
mu = 0.1

[pace]
lr = 0.1
steps = 2
batch = 12

[run]
rounds = 2
seed = 3
metrics = { auroc = ["areas:auroc", "max"] }

[[methods]]
kind = "FedAvg"
"""

UNITS = {
    "row": 'private = { noise = 1.0, unit = "row", rounds = 4 }',
    "person": 'private = { noise = 1.0, unit = "person", by = "patient", rounds = 4 }',
}


@pytest.fixture(autouse=True)
def areas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user with an AUROC of its own bins."""
    (tmp_path / "areas.py").write_text("from medley.metrics import AUROC\nauroc = AUROC(bins=50)\n")
    monkeypatch.syspath_prepend(tmp_path)


def rows_of(context: Any) -> md.datasets.Dataset:
    """24 rows of 8 patients, and 20 test rows."""
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    X, T = rng.normal(size=(24, 5)), rng.normal(size=(20, 5))
    y, labels = (X[:, 0] > 0).astype(int), (T[:, 0] > 0).astype(int)
    return md.datasets.Dataset(X, y, T, labels, classes=2, keys={"patient": np.repeat([*"abcdefgh"], 3)})


def deploy(folder: Path, private: str, head: str = "") -> Bench:
    """Run the recipe as a Flower app on three nodes."""
    folder.mkdir(exist_ok=True)
    (path := folder / "recipe.toml").write_text(head + RECIPE + private)
    config = {"clients": 3, "save": str(folder / "run")}
    grid = Bench([client_app(path, rows_of)] * 3, config, memory=str(folder / "memory"))
    server_app(path)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return grid


def answers(grid: Bench, kind: str) -> list[Mapping[str, Any]]:
    """What the nodes answered to requests of this kind."""
    asked = [m.metadata.message_id for m in grid.sent if m.metadata.message_type == kind]
    return [json.loads(grid.replies[m].content["answer"]["bytes"][1:]) for m in asked]  # after a byte for success


def entries(said: Any, name: str) -> list[Any]:
    """The values of all entries with this name, at any depth."""
    if isinstance(said, list):
        return [v for part in said for v in entries(part, name)]
    if not isinstance(said, dict):
        return []
    return [v for k, part in said.items() for v in ([part] if k == name else entries(part, name))]


@pytest.mark.parametrize("unit", UNITS)
def test_a_node_draws_the_noise_of_its_rows_from_256_bits(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tries 2^200 seeds; 32 bits are tried in minutes. Each training has another one, which is not the run's."""
    right, seeds = streams.Secret.__init__, dict[str, set[int]](noise=set(), batches=set())

    def watched(self: Any, seed: int, *name: Any) -> None:
        for purpose, word in (("noise", "privacy of rows"), ("batches", "private batches")):
            if word in str(name[-1]):
                seeds[purpose].add(seed)
        right(self, seed, *name)

    monkeypatch.setattr(streams.Secret, "__init__", watched)
    deploy(tmp_path / "a", UNITS[unit])
    for drawn in seeds.values():
        assert len(drawn) == 6
        assert max(drawn) > 2**240
        assert min(drawn) > 2**200


@pytest.mark.parametrize("unit", UNITS)
def test_a_node_with_private_rows_sends_no_counts_of_them(unit: str, tmp_path: Path) -> None:
    """Neither classes with their rows, nor counts of test rows by score, from which an AUROC over all sites is made."""
    grid = deploy(tmp_path / "a", UNITS[unit])
    assert [v for said in answers(grid, "query") for v in entries(said, "support")] == [[], [], []]
    assert not [v for said in answers(grid, "evaluate") for v in entries(said, "sums")]


def test_a_node_without_private_rows_sends_both(tmp_path: Path) -> None:
    """So the test above looks where they would be."""
    grid = deploy(tmp_path / "a", "")
    assert all(v for said in answers(grid, "query") for v in entries(said, "support"))
    assert any(v for said in answers(grid, "evaluate") for v in entries(said, "sums"))


def test_people_are_bounded_drawn_and_counted_at_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes all three rows of a patient or none, and the account is that of patients with probability 1/2."""
    right, drawn = rows.NoisyGradient.grad, list[torch.Tensor]()

    def watched(self: Any, x: Any, took: Any = None, *args: Any, **kw: Any) -> Any:
        drawn.append(took)
        assert self.people.tolist() == [k for k in range(8) for _ in range(3)]
        return right(self, x, took, *args, **kw)

    monkeypatch.setattr(rows.NoisyGradient, "grad", watched)
    deploy(tmp_path / "a", UNITS["person"])
    assert len(drawn) == 3 * 2 * 2
    assert all((took.bincount(minlength=24).reshape(8, 3).sum(1) % 3 == 0).all() for took in drawn)
    assert any(0 < len(took) < 24 for took in drawn)
    law = LocalSampling(24, 0.5, 2)
    method = md.Private(md.FedAvg(), unit="person", by="patient", noise=1.0)
    spent = json.loads((tmp_path / "a" / "memory" / "client0" / "account.json").read_text())["spent"]
    assert method.released(law).noise == 1.0
    assert [(r["rate"], r["noise"], r["rounds"]) for r in next(iter(spent.values()))] == [(0.5, 1.0, 4)]
    history = md.Result.load(tmp_path / "a" / "run").history
    assert history[-1]["epsilon"] == pytest.approx(epsilon([release_of_people(law)], 1e-5))


def release_of_people(law: LocalSampling) -> Any:
    """Two rounds of two steps."""
    return release(md.contract.Sampling("poisson", law.rows, law.rate), 1.0, 2 * law.steps)


def test_a_node_without_the_column_refuses(tmp_path: Path) -> None:
    with pytest.raises(md.MedleyError, match=r"patent.*patient"):
        deploy(tmp_path / "a", UNITS["person"].replace("patient", "patent"))
