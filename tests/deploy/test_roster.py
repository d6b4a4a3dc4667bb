"""Clients that come later and leave, over Flower's own objects: the numbers of the local run with the same changes."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import medley as md
from medley import recipe
from medley.cli import app
from medley.deploy import commands as deploy_files
from medley.deploy.commands import Deployment
from medley.deploy.server import messenger, roster
from medley.deploy.server.roster import recorded
from medley.flower import client_app, server_app
from medley.storage import events
from medley.storage.result import Status

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from support.bench import Bench

RECIPE = """
[rules]
exact = true
scores = true
[problem]
kind = "Softmax"
mu = 0.01

[data]
name = "digits"
train = 300
flatten = true

[partition]
kind = "Dirichlet"
clients = 4
alpha = 0.5

[pace]
lr = [0.1, 0.05, 0.2, 0.1]
batch = 32

[run]
rounds = 7
eval_every = 9

[[methods]]
kind = "SCAFFOLD"
"""


@dataclass
class Doors:
    """The rounds in which clients come and go.

    Attributes:
        folder: of the app
        joins: the first round of a client
        leaves: the first round without one
    """

    folder: Path
    joins: dict[int, int] = field(default_factory=dict)
    leaves: dict[int, int] = field(default_factory=dict)

    def done(self) -> int:
        return max([e["round"] for e in events.read(self.folder / "run") if e["event"] == "round"], default=0)

    def there(self, client: int) -> bool:
        """Whether its node is there; one that leaves in the next round gets its owner's word."""
        done = self.done()
        came, went = self.joins.get(client, 1), self.leaves.get(client, 99)
        if done == went - 2:
            own = self.folder / "memory" / f"client{client}"
            own.mkdir(parents=True, exist_ok=True)
            if not (own / "left").exists():
                (own / "leave").touch()
        return done >= came - 1 and done < went


class Coming(Bench):
    """Nodes that are there only while `Doors` lets them in."""

    doors: Doors

    def get_node_ids(self) -> list[int]:
        return [n for n in self.apps if self.doors.there(self.ids[n])]


def deploy(doors: Doors, clients: int = 4, data: Any = None, **config: Any) -> Coming:
    path = doors.folder / "recipe.toml"
    config = {"clients": 4, "save": str(doors.folder / "run"), "timeout": 20, "open": 2, **config}
    grid = Coming([client_app(path, data)] * clients, config, memory=str(doors.folder / "memory"))
    grid.doors = doors
    server_app(path)(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    return grid


@pytest.fixture
def doors(tmp_path: Path) -> Doors:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return Doors(tmp_path, {2: 3, 3: 5}, {1: 5})


def local(doors: Doors, kind: str, rounds: int = 7) -> md.Result:
    r = recipe.load(doors.folder / "recipe.toml").with_settings([f"methods.0.kind={kind}"])
    fed = r.federation()
    fed.membership = md.scenarios.Membership(joins=doors.joins, leaves=doors.leaves)
    return fed.run(r.methods()[0], rounds, eval_every=9)


def same(here: md.Result, there: md.Result) -> None:
    assert float((here.x - there.x).abs().max()) < 1e-12
    assert [e._replace(overhead=0) for e in here.ledger] == [e._replace(overhead=0) for e in there.ledger]
    assert there.history[-1]["loss"] == pytest.approx(here.history[-1]["loss"], rel=1e-10)


@pytest.mark.parametrize("kind", ["FedAvg", "SCAFFOLD", "FedNorton"])
def test_clients_that_come_and_go_are_those_of_a_local_run(kind: str, doors: Doors) -> None:
    """Client 2 comes in round 3, client 3 in round 5, from which on client 1 is gone."""
    grid = deploy(doors, set=f"methods.0.kind={kind}")
    there = md.Result.load(doors.folder / "run")
    same(local(doors, kind), there)
    asked = {t: {e.client for e in there.ledger if e.round == t} for t in range(1, 8)}
    assert asked == {1: {0, 1}, 2: {0, 1}, 3: {0, 1, 2}, 4: {0, 1, 2}, 5: {0, 2, 3}, 6: {0, 2, 3}, 7: {0, 2, 3}}
    assert sum(m.metadata.message_type == "query" for m in grid.sent) == 4
    said = [(e["round"], e["joined"], e["left"]) for e in events.read(doors.folder / "run") if e["event"] == "members"]
    assert said == [(3, [2], []), (5, [3], [1])]
    assert (doors.folder / "run" / roster.FILE).stat().st_mode & 0o077 == 0
    kept = recorded(doors.folder / "run")
    assert kept is not None
    assert sorted(kept.founders) == [0, 1]
    assert {t: (sorted(joined), left) for t, (joined, left) in kept.changes.items()} == {3: ([2], []), 5: ([3], [1])}
    assert kept.members == (0, 2, 3)


def test_a_method_of_several_exchanges_takes_newcomers_and_goes_on_without_one_that_leaves(doors: Doors) -> None:
    """In the round in which a client leaves, the exchanges after its last answer are without it."""
    deploy(doors, set="methods.0.kind=SHED")
    ledger = md.Result.load(doors.folder / "run").ledger
    answered = {t: {(e.exchange, e.client) for e in ledger if e.round == t and e.up} for t in (3, 4, 5)}
    assert {i for _, i in answered[3]} == {0, 1, 2}
    assert [k for k, i in sorted(answered[4]) if i == 1] == [0]
    assert {i for _, i in answered[5]} == {0, 2, 3}
    doors.leaves = {}
    shutil.rmtree(doors.folder / "run")
    shutil.rmtree(doors.folder / "memory")
    deploy(doors, set="methods.0.kind=SHED")
    same(local(doors, "SHED"), md.Result.load(doors.folder / "run"))


def test_a_run_that_is_resumed_has_the_members_that_it_had(doors: Doors) -> None:
    """Stopped after round 4, and after round 6, from where it goes on with clients 0, 2 and 3 that it waits for."""
    for rounds, where in (
        (4, {}),
        (6, {"resume": str(doors.folder / "run")}),
        (7, {"resume": str(doors.folder / "run")}),
    ):
        deploy(doors, set=f"run.rounds={rounds}", **where)
    same(local(doors, "SCAFFOLD"), md.Result.load(doors.folder / "run"))


def test_a_client_that_left_comes_back_as_a_new_one(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    doors.joins, doors.leaves = {1: 6}, {1: 4}
    there = Doors.there

    def again(self: Doors, client: int) -> bool:
        if client == 1 and self.done() >= 5:
            (self.folder / "memory" / "client1" / "left").unlink(missing_ok=True)
            return True
        self.joins, kept = {}, self.joins
        found = there(self, client)
        self.joins = kept
        return found

    monkeypatch.setattr(Doors, "there", again)
    deploy(doors, open=4)
    same(local(doors, "SCAFFOLD"), md.Result.load(doors.folder / "run"))


def test_a_method_that_needs_the_same_clients_says_so_before_anything_is_sent(doors: Doors) -> None:
    with pytest.raises(md.Unsupported, match=r"FedDyn needs the same clients .* sums over them; leave --open out"):
        deploy(doors, set="methods.0.kind=FedDyn")
    assert not (doors.folder / "run" / roster.FILE).exists()


def test_a_client_that_leaves_a_closed_run_is_named_with_the_remedy(doors: Doors) -> None:
    doors.joins, doors.leaves = {}, {1: 4}
    with pytest.raises(md.WireError, match=r"client 1 has left, but this run needs the same clients .* --open"):
        deploy(doors, open=0)
    end = [e for e in events.read(doors.folder / "run") if e["event"] == "end"][-1]
    assert end["outcome"] == "failed"
    assert "client 1 has left" in end["message"]


def test_newcomers_that_do_not_fit_are_refused_and_the_run_goes_on(
    doors: Doors, caplog: pytest.LogCaptureFixture
) -> None:
    """One says an id of a client that is there, one an id beyond the number of clients, one has other rows."""
    doors.joins, doors.leaves = {2: 3, 3: 3, 4: 3, 5: 3}, {}
    r = recipe.load(doors.folder / "recipe.toml")
    head, _, tail = RECIPE.partition("[data]")
    (doors.folder / "recipe.toml").write_text(head + tail[tail.index("[pace]") :])
    fed = r.federation()
    parts = fed.parts(0)[0]

    def data(context: Context) -> md.datasets.Dataset:
        i = int(context.node_config["partition-id"])
        X = fed.data.X[parts[i % 4]]
        return md.datasets.Dataset(X[:, :5] if i == 3 else X, fed.data.y[parts[i % 4]], classes=10)

    config = {"clients": 4, "save": str(doors.folder / "run"), "timeout": 20, "open": 2}
    grid = Coming([client_app(doors.folder / "recipe.toml", data)] * 6, config, memory=str(doors.folder / "memory"))
    grid.doors = doors
    ids = dict(grid.ids)
    grid.ids[104], grid.ids[105] = 0, 9  # after `Doors` was asked by number, they say these
    grid.get_node_ids = lambda: [n for n in grid.apps if doors.there(ids[n])]  # type: ignore[method-assign]
    server_app(doors.folder / "recipe.toml")(grid=grid, context=Context(7, 0, {}, RecordDict(), config))
    there = md.Result.load(doors.folder / "run")
    assert {e.client for e in there.ledger if e.round == 7} == {0, 1, 2}
    for said in (
        "node 104 says that it is client 0, which is node 100 in this run, so the server refuses it",
        "node 105 says that it is client 9, but the app has clients = 4, with ids from 0",
        "client 3 cannot join: client 3 has rows of shape and type [[5], 'float32'], client",
    ):
        assert caplog.text.count(said) == 1, caplog.text


def test_the_command_tells_the_client_that_is_named(tmp_path: Path) -> None:
    own, run = tmp_path / "client1", CliRunner().invoke
    got = run(app, ["node", "--leave", "--key", "keys/node1", "--memory", str(tmp_path)])
    assert got.exit_code == 2
    assert "is not the memory folder of client 1's node" in " ".join(got.output.split())
    own.mkdir()
    for words in (["--client", "1"], ["--key", "keys/node1"]):
        got = run(app, ["node", "--leave", *words, "--memory", str(tmp_path)])
        assert got.exit_code == 0, got.output
        assert "client 1 leaves: its node answers the next request, and ends" in got.output
        assert (own / "leave").stat().st_mode & 0o077 == 0
        (own / "leave").unlink()
    got = run(app, ["node", "--leave", "--memory", str(tmp_path)])
    assert "say which client this is" in got.output


def test_the_command_that_runs_the_app_says_with_how_many_clients_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(Deployment, "run", lambda self, save, config, *more: given.append(config) or Status("finished"))
    deploy_files.init(tmp_path / "project")
    for words in ([], ["--open", "2"]):
        got = CliRunner().invoke(app, ["deploy", "run", str(tmp_path / "project"), *words])
        assert got.exit_code == 0, got.output
    assert given == [{}, {"open": 2}]
    assert "open = 0" in (tmp_path / "project" / "app" / "pyproject.toml").read_text()


def test_a_damaged_file_of_members_is_refused(doors: Doors) -> None:
    deploy(doors, set="run.rounds=2")
    path = doors.folder / "run" / roster.FILE
    for text in ("{", "[]", '{"founders": {"x": {}}, "changes": {}}', '{"founders": {}, "changes": {"3": 4}}'):
        path.write_text(text)
        with pytest.raises(md.WireError, match="does not say who the members are"):
            deploy(doors, resume=str(doors.folder / "run"))


def test_a_client_whose_rows_changed_is_not_taken_for_the_one_that_joined(doors: Doors) -> None:
    deploy(doors, set="run.rounds=4")
    path = doors.folder / "run" / roster.FILE
    kept = json.loads(path.read_text())
    kept["founders"]["0"]["tasks"][0]["rows"] += 1
    kept["founders"]["0"]["tasks"][0]["weight"] += 1
    path.write_text(json.dumps(kept))
    with pytest.raises(md.BadData, match="client 0's data has changed since it joined"):
        deploy(doors, resume=str(doors.folder / "run"))


def test_a_run_that_nobody_is_left_in_ends_with_a_sentence(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messenger, "POLL", 0.01)
    doors.joins, doors.leaves = {2: 99, 3: 99}, {0: 3, 1: 3}
    with pytest.raises(md.MedleyError, match=r"round 3: the last members, \[0, 1\], leave; no client is left"):
        deploy(doors)
