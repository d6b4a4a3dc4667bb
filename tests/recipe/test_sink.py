"""The table [sink]: figures of runs, and the recipe's settings, in a tracker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from medley import cli, recipe
from medley.contract.errors import RecipeError
from medley.recipe.recipe import filed

SINK = """
import json
from medley.sinks import Sink

class Kept(Sink):
    def __init__(self, file: str):
        self.file, self.said = file, []
    def settings(self, values):
        self.said.append(dict(values))
    def __call__(self, row):
        self.said.append(dict(row))
    def close(self):
        with open(self.file, "w") as f:
            json.dump(self.said, f)
"""

RECIPE = """
[problem]
kind = "Softmax"
mu = 0.1
[data]
name = "digits"
[partition]
kind = "IID"
clients = 2
[run]
rounds = 2
seeds = 2
[[methods]]
kind = "FedAvg"
[[methods]]
kind = "SCAFFOLD"
[sink]
kind = "keptsink:Kept"
file = "kept.json"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keptsink.py").write_text(SINK)
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def invoke(*words: object) -> Any:
    result = CliRunner().invoke(cli.app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result


def test_a_run_files_settings_and_rows(file: Path) -> None:
    invoke("run", file, "--set", "pace.lr=0.05")
    settings, *rows = json.loads(Path("kept.json").read_text())
    assert settings["pace.lr"] == "0.05"
    assert settings["partition.kind"] == "IID"
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert all("accuracy" in row for row in rows)


def test_a_comparison_files_every_method_and_seed(file: Path) -> None:
    invoke("compare", file, "--jobs", 1)
    _, *rows = json.loads(Path("kept.json").read_text())
    assert {(row["method"], row["seed"]) for row in rows} == {(m, s) for m in ("FedAvg", "SCAFFOLD") for s in (0, 1)}


def test_a_folder_that_is_resumed_files_nothing_by_its_own_recipe(file: Path) -> None:
    invoke("run", file, "--save", "a", "--rounds", 1)
    Path("kept.json").unlink()
    result = invoke("run", "--resume", "a", "--rounds", 2)
    assert "[sink] of a/recipe.toml is left out" in result.stderr
    assert not Path("kept.json").exists()


def test_a_kind_that_is_not_there_is_refused_before_the_run(file: Path) -> None:
    wrong = recipe.load(file).with_settings(['sink.kind="TensorBord"'])
    with pytest.raises(RecipeError, match=r"Did you mean 'TensorBoard'"), wrong.filing():
        pass


def test_a_deployed_run_says_that_it_has_no_sink(file: Path) -> None:
    with pytest.raises(RecipeError, match=r"\[sink\] stores figures of medley run and medley compare"):
        recipe.load(file).scenario((64,), 10)


def test_neither_the_sinks_own_settings_nor_secret_seeds_are_filed(file: Path) -> None:
    invoke("run", file, "--method", "FedAvg", "--set", f"run.seed={1 << 70}")
    (settings, *_) = json.loads(Path("kept.json").read_text())
    assert settings["run.seed"] == "hidden"
    assert not [key for key in settings if key.startswith("sink")]
    private = "kind = 'FedAvg'\nprivate = {noise = 1.0, clip = 1.0, delta = 1e-5}"
    r = recipe.loads(f"[sink]\nkind = 'WandB'\n[run]\nseed = 3\n[[methods]]\n{private}")
    assert filed(r.tables)["run.seed"] == "hidden"
    r = recipe.loads("[sink]\nkind = 'WandB'\n[run]\nseed = 3\n[[methods]]\nkind = 'FedAvg'")
    assert filed(r.tables)["run.seed"] == "3"
