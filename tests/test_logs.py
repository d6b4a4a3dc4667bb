"""A line a round for people and for machines, the bar, and trackers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import medley as md
from medley import logs, sinks
from medley.cli import app
from medley.federation import progress
from medley.transports import InProcess, Processes
from support.pairs import quick
from support.toys import Toy, federation


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    log = logging.getLogger("medley")
    handlers, level = log.handlers[:], log.level
    yield
    for new in set(log.handlers) - set(handlers):
        new.close()
    log.handlers[:], log.level = handlers, level


def test_a_line_a_round(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "medley")
    r = md.run(Toy(), federation(), 2)
    assert len(caplog.messages) == 3
    assert caplog.messages[2].startswith(f"Toy, seed 0, round 2 of 2: loss {r['loss'][2]:.4g}; 0.00048 MB down, ")


def test_json_lines_are_the_rows(tmp_path: Path):
    logs.lines("json", tmp_path / "log.jsonl")
    r = md.run(Toy(), federation(), 2)
    logging.getLogger("medley").warning("something else")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in line.items() if k not in ("at", "level", "method", "seed")} for line in lines[:3]]
    assert rows == r.history
    assert {(line["method"], line["seed"], line["level"]) for line in lines[:3]} == {("Toy", 0, "INFO")}
    assert lines[3]["message"] == "something else"
    with pytest.raises(md.RecipeError, match="It knows: json, text"):
        logs.lines("jsn")


def test_the_shell_can_ask_for_lines(tmp_path: Path):
    recipe = tmp_path / "a.toml"
    recipe.write_text(
        '[problem]\nkind = "Softmax"\n[data]\nname = "digits"\n[partition]\nkind = "IID"\nclients = 3\n'
        '[run]\nrounds = 1\n[[methods]]\nkind = "FedAvg"\n'
    )
    result = CliRunner().invoke(app, ["run", str(recipe), "--log", "json"])
    taken, *rounds = map(json.loads, result.stderr.splitlines())
    assert taken["message"] == "a.toml: Dataset(digits: 1438 rows [64], 359 test rows, 10 classes)"
    assert [line["round"] for line in rounds] == [0, 1]
    assert CliRunner().invoke(app, ["run", str(recipe), "--log", "jsn"]).exit_code == 2


@pytest.mark.parametrize("transport", quick(1, [InProcess(), Processes(2)]), ids=["local", "processes"])
def test_the_bar_moves_within_a_round_on_any_transport(transport: Any, monkeypatch: pytest.MonkeyPatch):
    lines: list[str] = []
    answered = progress.ProgressBar.answered

    def note(self: Any, exchange: Any, count: int) -> None:
        answered(self, exchange, count)
        at = self.shown.tasks[0]
        lines.append(f"{at.completed} {at.fields['live']}")

    monkeypatch.setattr(progress.ProgressBar, "answered", note)
    r = md.run(Toy(), federation(11), 2, transport=transport, progress=True)
    assert lines == ["0 train 11/11", "0 shift 11/11", "1 train 11/11", "1 shift 11/11"]
    assert torch.equal(r.x, md.run(Toy(), federation(11), 2).x)


def columns(r: md.Result, name: str) -> list[float]:
    return [row[name] for row in r.history]


def test_tensorboard(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with closing(sinks.TensorBoard(tmp_path)) as sink:
        r = md.run(Toy(), federation(), 2, on_round=sink)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [
        (k, pytest.approx(v, rel=1e-6)) for k, v in enumerate(columns(r, "loss"))
    ]


@pytest.mark.filterwarnings("ignore")  # of the libraries that it brings along
def test_mlflow(tmp_path: Path):
    client = pytest.importorskip("mlflow.tracking").MlflowClient
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path}/runs.db"
    with closing(sinks.MLflow("toys", uri=uri, name="a", params={"rounds": 2})) as sink:
        r = md.run(Toy(), federation(), 2, on_round=sink)
    client_ = client(uri)
    (run,) = client_.search_runs([client_.get_experiment_by_name("toys").experiment_id])
    assert (run.info.status, run.data.params) == ("FINISHED", {"rounds": "2"})
    assert [(m.step, m.value) for m in client_.get_metric_history(run.info.run_id, "loss")] == list(
        enumerate(columns(r, "loss"))
    )


def test_wandb(tmp_path: Path):
    pytest.importorskip("wandb")
    with closing(sinks.WandB("toys", mode="offline", dir=str(tmp_path))) as sink:
        r = md.run(Toy(), federation(), 2, on_round=sink)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert file.read_bytes().count(f"{r.summary['loss']!r}".encode()) >= 1
    assert file.read_bytes().count(b"bytes_down") >= len(r.history)


def test_a_tracker_that_is_not_there_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(md.MedleyError, match=r"pip install .*\[wandb\]'"):
        sinks.WandB()
