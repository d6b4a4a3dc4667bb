"""The state of a run, read out of its folder while it goes, after it has ended, and after it was killed."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import medley as md
from medley.contract.algorithm import Client, on_client
from medley.contract.errors import WireError
from medley.contract.messages import Model, Step
from medley.storage import events, run_view
from medley.transports import Lossy


def federation(n: int = 6) -> md.Federation:
    q = md.problems.synthetic_quadratics(clients=n, d=4)
    return md.Federation(q.problem, clients=q.clients)


class Picky(md.FedAvg):
    """A method that fails at client 2."""

    @on_client
    def train(self, me: Client, request: Model) -> Step:
        if me.id == 2:
            raise ValueError("no")
        return Step(me.descend(request.x).step)


def test_a_run_is_seen_while_it_goes_and_at_its_end(tmp_path: Path) -> None:
    views: list[run_view.RunView] = []
    later = Counter[str]()

    def look(row: object) -> None:
        views.append(run_view.view(tmp_path))
        later.update(run_view.view(tmp_path, time.time() + 121).standings)

    r = federation().run(md.FedAvg(), 6, checkpoint=tmp_path, eval_every=2, on_round=look)
    assert [v.state for v in views] == ["running"] * 4
    assert [v.round for v in views] == [0, 2, 4, 6]
    assert [len(v.history) for v in views][1:] == [2, 3, 4]
    assert views[2].standings == {"alive": 6}
    assert later == {"not asked yet": 6, "answered": 18}  # nobody who last answered minutes ago is called alive
    v = run_view.view(tmp_path)
    assert (v.state, v.round, v.rounds, v.method) == ("finished", 6, 6, "FedAvg")
    assert (v.bytes_up, v.bytes_down) == (r.ledger.up, r.ledger.down)
    assert v.asked == 36
    assert v.lost == v.late == v.refused == 0
    assert [c.total for c in v.clients] == [6 * 4 * 8] * 6
    assert all(c.answered is not None and c.answered <= v.at for c in v.clients)
    assert v.rate > 0
    assert v.log[-1].endswith("finished")
    assert "round 1: 6 of 6 answers in " in v.log[1]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("events.jsonl", '{"at": 1, "event": "round", "round": "x"}'),
        ("events.jsonl", '{"at": 1, "event": "round", "round": 3}'),
        ("events.jsonl", '{"at": 1, "event": "exchange", "round": 1, "exchange": 0, "lost": 5}'),
        ("events.jsonl", '{"at": 1, "event": "refused", "clients": [3]}'),
        ("events.jsonl", '{"at": 1e300, "event": "log"}'),
        ("ledger.csv", "1,0,train,x,1,1,1"),
    ],
)
def test_a_damaged_file_is_a_sentence(tmp_path: Path, name: str, line: str) -> None:
    federation(2).run(md.FedAvg(), 1, checkpoint=tmp_path)
    with (tmp_path / name).open("a") as f:
        f.write(line + "\n")
    if '"exchange"' in line:
        with (tmp_path / "ledger.csv").open("a") as f:
            f.write("1,0,train,0,1,1,1\n")
    with pytest.raises(WireError, match=r"cannot be shown: events.jsonl or ledger.csv there is damaged"):
        run_view.view(tmp_path)


def test_lost_and_refused_clients_are_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "medley")  # a test before may have asked for a line every round
    policy = md.ReplyPolicy(faulty="drop")
    r = federation().run(Picky(), 20, checkpoint=tmp_path, transport=Lossy(loss=0.2), reply_policy=policy)
    v = run_view.view(tmp_path)
    last = {e.client: e.up for e in r.ledger if e.round == 20}
    assert v.asked == 120
    assert v.lost == sum(row.get("lost", 0) for row in r.history) > 10
    assert 10 < v.refused <= 20
    assert v.clients[2].answered is None
    refused = [e for e in events.read(tmp_path) if e["event"] == "exchange" and e["refused"]]
    assert all("client 2 failed in round" in e["refused"]["2"] for e in refused)
    assert {c.client for c in v.clients if c.standing == "answered"} == {i for i, up in last.items() if up}
    assert any("no answer of client" in line for line in v.log)


def test_a_client_that_is_waited_for_is_late(tmp_path: Path) -> None:
    q = md.problems.synthetic_quadratics(clients=4, d=4)
    slow = md.devices.Devices(speed=[1000.0] * 3 + [0.5])
    fed = md.Federation(q.problem, clients=q.clients, devices=slow)
    fed.run(md.FedBuff(), 3, checkpoint=tmp_path, reply_policy=md.ReplyPolicy(replies=3))
    v = run_view.view(tmp_path)
    assert v.clients[3].standing == "late"
    assert v.clients[3].answered is None
    assert v.late >= 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_run_that_was_killed_says_how_it_goes_on(tmp_path: Path) -> None:
    q = md.problems.synthetic_quadratics(clients=3, d=4)
    fed = md.Federation(q.problem, clients=q.clients)

    def run_until_killed() -> None:
        stop = lambda row: row["round"] == 3 and os.kill(os.getpid(), 9)
        md.run(md.FedAvg(), fed, 9, checkpoint=tmp_path / "run", on_round=stop)

    child = multiprocessing.get_context("fork").Process(target=run_until_killed)
    child.start()
    child.join()
    assert child.exitcode == -9
    v = run_view.view(tmp_path / "run")
    assert v.state == "stopped"
    assert v.standings == {"stopped": 3}
    assert f"run(resume={str(tmp_path / 'run')!r}) resumes it" in v.message
    md.run(md.FedAvg(), fed, 9, resume=tmp_path / "run")
    again = run_view.view(tmp_path / "run")
    assert (again.state, again.round, again.asked) == ("finished", 9, 27)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system does not say when a process began")
def test_a_number_that_is_another_process_by_now_is_no_run(tmp_path: Path) -> None:
    q = md.problems.synthetic_quadratics(clients=2, d=3)
    md.run(md.FedAvg(), md.Federation(q.problem, clients=q.clients), 2, checkpoint=tmp_path / "run")
    file = tmp_path / "run" / "events.jsonl"
    records = [e for e in events.read(tmp_path / "run") if e["event"] != "end"]
    (born,) = (e["born"] for e in records if e["event"] == "start")
    assert born == run_view.birth(os.getpid())
    for recorded, state in ((born, "running"), ("another boot 17", "stopped"), (None, "running")):
        changed = [{**e, "born": recorded} if e["event"] == "start" else e for e in records]
        file.write_text("".join(f"{json.dumps(e)}\n" for e in changed))
        assert run_view.view(tmp_path / "run").state == state


def test_a_deployed_run_that_stopped_names_its_own_command_and_one_that_starts_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    q = md.problems.synthetic_quadratics(clients=2, d=3)
    md.run(md.FedAvg(), md.Federation(q.problem, clients=q.clients), 2, checkpoint=folder)
    records = [e | ({"pid": 0} if "pid" in e else {}) for e in events.read(folder) if e["event"] != "end"]
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in records))
    assert f"; run(resume={str(folder)!r}) resumes it" in run_view.view(folder).message
    (folder / "recipe.toml").touch()
    assert f"; medley run --resume {folder} resumes it" in run_view.view(folder).message
    (folder / "flower.json").write_text("{}")
    assert "; medley deploy run --resume " in run_view.view(folder).message
    (folder / "run.json").unlink()
    (folder / "events.jsonl").write_text(
        '{"at": 1.0, "event": "log", "level": "info", "message": "waits for clients [1], for 600 s at most"}\n'
    )
    with pytest.raises(WireError, match=r"has no rounds yet: .* waits for clients \[1\]"):
        run_view.view(folder)


def test_a_failed_run_shows_its_sentence(tmp_path: Path) -> None:
    def boom(row: Any) -> None:
        if row["round"] == 1:
            raise md.BadData("client 2: row 7 is empty", client=2)

    with pytest.raises(md.BadData):
        federation().run(md.FedAvg(), 3, checkpoint=tmp_path, on_round=boom)
    v = run_view.view(tmp_path)
    assert (v.state, v.message) == ("failed", "client 2: row 7 is empty")


def test_events_neither_disturb_a_run_nor_are_disturbed(tmp_path: Path) -> None:
    bare = federation().run(md.SCAFFOLD(), 4)
    saved = federation().run(md.SCAFFOLD(), 4, checkpoint=tmp_path / "a")
    assert bare.digest == saved.digest
    assert (tmp_path / "a" / events.FILE).stat().st_mode & 0o777 == 0o600
    with (tmp_path / "a" / events.FILE).open("ab") as f:
        f.write(b'garbage\n[]\n{"at": "x"}\n{"at": 1')
    assert run_view.view(tmp_path / "a").state == "finished"
    with pytest.raises(WireError, match="there is no run in"):
        run_view.view(tmp_path)


@pytest.mark.slow
def test_a_file_of_events_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SIZE", 4000)
    federation().run(md.FedAvg(), 100, checkpoint=tmp_path, eval_every=50)
    sizes = [(tmp_path / name).stat().st_size for name in (events.FILE, events.EARLIER)]
    assert max(sizes) < 5000
    assert run_view.view(tmp_path).round == 100


def test_prometheus_text_has_a_type_and_a_value_for_each_metric(tmp_path: Path) -> None:
    federation().run(md.FedAvg(), 3, checkpoint=tmp_path / 'a"b')
    text = run_view.prometheus(run_view.view(tmp_path / 'a"b'))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert f'medley_round{{run="{json.dumps(str(tmp_path / "a"))[1:-1]}\\"b",method="FedAvg",seed="0"}} 3' in lines
    typed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {line.partition("{")[0] for line in lines} == typed
    assert all(float(line.rpartition(" ")[2]) >= 0 for line in lines)
