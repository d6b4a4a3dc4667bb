"""A model that is given is measured on all nodes, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import medley as md
from medley import cli, recipe
from medley.deploy.commands import Deployment

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from medley.flower import client_app, server_app
from medley.report.table import rounded
from medley.storage import events
from medley.storage.result import shown as result_figures
from support.bench import Bench

RECIPE = """
[rules]
exact = true
scores = true
[problem]
kind = "Softmax"
mu = 1e-3
[data]
name = "digits"
[partition]
kind = "Dirichlet"
clients = 3
alpha = 0.5
[run]
rounds = 4
[[methods]]
kind = "FedAvg"
"""


def deploy(path: Path, save: Path, settings: str = "") -> md.Result:
    config = {"clients": 3, "save": str(save), "set": settings}
    grid = Bench([client_app(path)] * 3, config, memory=str(path.parent / "memory"))
    server_app(path)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return md.Result.load(save)


def test_a_model_of_other_columns_or_labels_begins_no_run(tmp_path: Path) -> None:
    """Also where the model has as many numbers: it would start as if one column were the other."""
    rows = pd.DataFrame({k: torch.randn(8).numpy() for k in ("age", "bmi", "crp")})
    rows = rows.assign(died=["no", "yes"] * 4, back=["home", "ward"] * 4)

    def trained(columns: list[str], of: str, save: str, settings: str) -> None:
        path = tmp_path / f"{save}.toml"
        path.write_text(f"""
            [problem]
            kind = "Softmax"
            [clients]
            labels = {sorted({*rows[of]})}
            [run]
            rounds = 1
            [[methods]]
            kind = "FedAvg"
        """)
        data = lambda _: md.datasets.frame(rows[[*columns, of]], target=of)
        config = {"clients": 2, "save": str(tmp_path / save), "set": settings}
        grid = Bench([client_app(path, data)] * 2, config, memory=str(tmp_path / save / "memory"))
        server_app(path)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))

    trained(["age", "bmi"], "died", "first", "")
    for inputs, target, text in (
        (["age", "crp"], "died", "of the features age, crp, the result lacks crp and adds bmi; leave init out"),
        (["age", "bmi", "crp"], "died", "of the features age, bmi, crp, the result lacks crp; leave init out"),
        (["age", "bmi"], "back", "labels 'home', 'ward', but the result has 'no', 'yes'.* leave init out"),
    ):
        with pytest.raises(md.RecipeError, match=text):
            trained(inputs, target, "other", f"run.init={tmp_path / 'first'}")


def test_a_run_of_no_rounds_measures_a_given_model_at_every_client(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    trained = deploy(path, tmp_path / "trained")
    there = deploy(path, tmp_path / "measured", f"run.rounds=0 run.init={tmp_path / 'trained'}")
    r = recipe.loads(RECIPE)
    here = r.federation().run(r.methods()[0], 0, init=trained, clients_every=1)
    assert torch.equal(there.x, trained.x)
    assert len(there.history) == 1
    for name in ("loss", "test_loss", "accuracy"):
        assert there.history[0][name] == pytest.approx(here.history[0][name], rel=1e-10)
        assert there.history[0][name] == pytest.approx(trained.history[-1][name], rel=1e-10)
    assert [row["client"] for row in there.clients] == [0, 1, 2]
    for a, b in zip(there.clients, here.clients, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-10)


def test_figures_that_nodes_round_say_so(tmp_path: Path) -> None:
    (path := tmp_path / "rounded.toml").write_text(RECIPE.replace("exact = true", "").replace("scores = true", ""))
    result = deploy(path, tmp_path / "rounded")
    (tmp_path / "exact.toml").write_text(RECIPE)
    exact = deploy(tmp_path / "exact.toml", tmp_path / "exact")
    for row, right in zip(result.history, exact.history, strict=True):
        assert 0.05 < row["accuracy_within"] < 0.5
        assert abs(row["accuracy"] - right["accuracy"]) <= row["accuracy_within"]
        assert abs(row["test_loss"] - right["test_loss"]) <= 1.2 * row["test_loss_within"]  # few rows are replaced, too
        assert 0 < abs(row["loss"] - right["loss"]) <= 1.2 * row["loss_within"]
        assert not {"accuracy_within", "test_loss_within", "loss_within"} & right.keys()
    assert all(row["loss_within"] > 0 for row in result.clients)
    for name in ("loss", "accuracy"):
        assert "rounded: ±" in result_figures(result.history[-1], name)
    assert "loss_within" in next(e for e in events.read(tmp_path / "rounded") if e["event"] == "round")["figures"]
    assert "Nodes rounded their figures" in rounded([exact, result])
    assert rounded([exact]) == ""


def test_the_command_prints_the_figures_of_each_node_and_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Deployment, save: Path, config: dict[str, Any], *_: object) -> md.Status:
        return deploy(self.project / "app" / "recipe.toml", save, config["set"]).status

    monkeypatch.setattr(Deployment, "run", run)
    source, project = tmp_path / "source.toml", tmp_path / "project"
    source.write_text(RECIPE)
    call = lambda *words: CliRunner().invoke(cli.app, ["deploy", *map(str, words)])
    assert call("init", project, "--recipe", source).exit_code == 0
    trained = deploy(project / "app" / "recipe.toml", tmp_path / "it trained")
    got = call("evaluate", tmp_path / "it trained", project, "--save", tmp_path / "figures")
    assert got.exit_code == 0, got.output
    rows = [w for line in got.stdout.splitlines() if (w := line.split()) and w[0] in ("0", "1", "2", "all")]
    assert [row[0] for row in rows] == ["0", "1", "2", "all"]
    assert f"{100 * trained.summary['accuracy']:.1f}" in rows[-1]
    assert sum(cell.startswith("[") for cell in rows[0]) == 2  # of test loss and accuracy
    assert "0: " in got.stdout
    assert ("nodes rounded their figures" in got.stdout) == ("accuracy_within" in trained.summary)
    assert "no such folder" in call("evaluate", tmp_path / "nowhere", project).stderr
