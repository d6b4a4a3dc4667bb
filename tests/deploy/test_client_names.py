"""A node's name stands in the run's folder, its views, its log and its errors, in the place of a number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import medley as md
from medley.cli import app as cli
from medley.contract.errors import named
from medley.flower import client_app, server_app
from medley.storage import events, run_view

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from support.bench import Bench

RECIPE = """
[problem]
kind = "Softmax"
[data]
name = "digits"
train = 90
flatten = true
[partition]
kind = "IID"
clients = 3
[run]
rounds = 2
[[methods]]
kind = "FedAvg"
"""

NAMES = ("Bern", "Basel", "Chur")


def deploy(path: Path, names: Sequence[str] = NAMES, **config: Any) -> Bench:
    app, config = client_app(path), {"clients": 3, "save": str(path.parent / "run"), "timeout": 60, **config}

    def called(message: Any, context: Context) -> Any:
        context.node_config["name"] = names[int(context.node_config["partition-id"])]
        return app(message, context)

    grid = Bench([called] * 3, config, memory=str(path.parent / "memory"))  # type: ignore[list-item]
    server_app(path)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return grid


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (recipe := tmp_path / "recipe.toml").write_text(RECIPE)
    return recipe


def test_the_folder_and_its_views_have_names(path: Path) -> None:
    deploy(path)
    run = path.parent / "run"
    assert md.Result.load(run).client_names == NAMES
    assert [c.name for c in run_view.view(run).clients] == [*NAMES]
    got = CliRunner().invoke(cli, ["status", str(run)])
    assert all(name in got.output for name in NAMES)
    e = {"at": 0.0, "event": "awaited", "clients": [0, 2], "waited": 12, "most": 60}
    assert "waits for Bern and Chur, for 12 s" in run_view.line(e, run_view.names(run))
    assert "waits for clients [0, 2]" in run_view.line(e)


def test_errors_and_lines_of_the_log_have_names(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from medley.deploy.node.rows import NodeRows

    honest = NodeRows.evaluate

    def fails(self: NodeRows, *args: Any) -> Any:
        if self.i == 1:
            raise ZeroDivisionError("no")
        return honest(self, *args)

    monkeypatch.setattr(NodeRows, "evaluate", fails)
    with pytest.raises(md.MedleyError):
        deploy(path)
    end = [e for e in events.read(path.parent / "run") if e["event"] == "end"][-1]
    assert "client 'Basel' failed: ZeroDivisionError" in end["message"]
    path.write_text(RECIPE + '[reply_policy]\nfaulty = "drop"\n')
    deploy(path, save=str(path.parent / "other"))
    said = [e["message"] for e in events.read(path.parent / "other") if e["event"] == "log"]
    assert any("no answer of client 'Basel'" in line for line in said)
    assert "no answer of client 'Basel'" in capsys.readouterr().out


@pytest.mark.parametrize("says", ["columns", "unread", "missing", "twice"])
def test_errors_before_round_1_have_names(path: Path, says: str) -> None:
    def data(context: Context) -> Any:
        i = int(context.node_config["partition-id"])
        if says == "unread" and i == 1:
            raise RuntimeError("patient Meier")
        features = ("dose", "age") if says == "columns" and i == 1 else ("age", "dose")
        return md.datasets.Dataset([[0.0, 1.0], [1.0, 0.0]], [0, 1], classes=2, features=features)

    app, config = client_app(path, data), {"clients": 3, "save": str(path.parent / "run"), "timeout": 2}

    def called(message: Any, context: Context) -> Any:
        i = int(context.node_config["partition-id"])
        context.node_config["name"] = NAMES[i]
        if says == "twice" and i == 1:
            context.node_config["partition-id"] = 0
        return app(message, context)

    apps: list[Any] = [called] * (2 if says == "missing" else 3)
    with pytest.raises(md.MedleyError):
        server_app(path)(
            grid=Bench(apps, config, memory=str(path.parent / "memory")),
            context=Context(7, 0, {}, RecordDict(), config),
        )
    assert {
        "columns": "client 'Basel' has as column 0 dose, client 'Bern' age: give all clients the same columns, in one",
        "unread": "client 'Basel': its data cannot be read, RuntimeError",
        "missing": "2 of 3 clients are there after 2 s, Bern and Basel, but not clients [2]: start their nodes",
        "twice": " have the same client number, 0: give each its own, by medley node --client",
    }[says] in events.read(path.parent / "run")[-1]["message"]


def test_two_nodes_of_one_name_are_told_apart_before_the_run(path: Path) -> None:
    with pytest.raises(md.BadData, match="clients 0 and 2 are both called 'Bern': give each node its own --name"):
        deploy(path, ("Bern", "Basel", "Bern"))


@pytest.mark.slow
def test_a_name_that_is_another_clients_number_is_refused(path: Path) -> None:
    with pytest.raises(md.BadData, match="client 0 is called '1', another client's number: give each node its own"):
        deploy(path, ("1", "", ""))
    deploy(path, ("0", "", "Chur"))


def test_a_newcomer_has_a_name_of_its_own(tmp_path: Path) -> None:
    from medley.deploy.protocol.reports import Census, ClientReport, RowKind, TaskReport
    from medley.deploy.server.messenger import Messenger
    from medley.deploy.server.roster import Roster, absent
    from medley.recipe.limits import ClientLimits

    def account(i: int, name: str) -> dict[str, Any]:
        kinds = RowKind([8], "float32"), RowKind([], "int64")
        return ClientReport(i, 2, [TaskReport(20, 20.0, 5, [0, 1])], *kinds, None, name=name).plain()

    limits, there = ClientLimits(), {0: account(0, "Bern"), 1: account(1, "Chur")}
    roster = Roster.of(tmp_path, Messenger(Bench([])), there, 3, limits, lambda i, a: a)
    assert Census.of({**there, 2: absent(2)}, limits).names == ["Bern", "Chur", "2"]
    for name, said in (("Chur", "clients 1 and 2 are both called 'Chur'"), ("0", "client 2 is called '0'")):
        with pytest.raises(md.WireError, match=said):
            roster._add(account(2, name))
    roster._add(account(2, "Zug"))
    assert roster.census.names == ["Bern", "Chur", "Zug"]


def test_clients_without_names_keep_their_numbers(path: Path) -> None:
    deploy(path, ("", "Basel", ""))
    assert md.Result.load(path.parent / "run").client_names == ("0", "Basel", "2")
    assert named([0, 1], {1: "Basel"}) == "clients [0, 1]"
    assert named([1], {1: "Basel"}) == "Basel"
