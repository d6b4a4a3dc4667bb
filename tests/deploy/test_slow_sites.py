"""Runs by the clock on the wall, in which a site is slower than the rest."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.deploy.server.messenger import Messenger
from medley.report.timeline import timeline
from medley.storage import events, run_view

pytest.importorskip("flwr")

from flwr.app import Message

from support.bench import Bench, FlowerInProcess
from support.deployed import Deployment, started, until
from support.killed import rounds, table

SLOW = 4
LATE = 2
"""The slow client's reply arrives so many rounds after its request."""


class Slow(Bench):
    """The slow client's replies are held back until the first one was asked so many times more."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        asked = [int(m.metadata.message_id[1:]) for m in self.sent if m.metadata.dst_node_id == 100]
        node = {m.metadata.message_id: m.metadata.dst_node_id for m in self.sent}
        since = lambda m: sum(k > int(m[1:]) for k in asked)
        ready = [m for m in message_ids if node[m] != 100 + SLOW or since(m) >= LATE]
        return super().pull_messages(ready)


class SlowInProcess(FlowerInProcess):
    def open(self, host: Any) -> Any:
        connection = super().open(host)
        self.grid.__class__ = Slow
        return connection


def federation(**more: Any) -> md.Federation:
    toy = md.problems.synthetic_quadratics(clients=5)
    return md.Federation(toy.problem, clients=toy.clients, pace=md.scenarios.Pace(lr=0.05, batch=None, steps=4), **more)


FIRST = md.FedBuff()
MORE = (md.FedNorton(), md.FedNorton(flows="client"), md.CA2FL(), md.FedAvg(), md.SCAFFOLD())
METHODS = (FIRST, *(pytest.param(m, marks=pytest.mark.slow) for m in MORE))


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_late_reply_counts_as_in_a_simulation_with_arrivals_of_the_same_order(method: Any, tmp_path: Path) -> None:
    devices = lambda fast, slow: md.devices.Devices(speed=[fast] * SLOW + [slow])
    work = md.run(method, federation(devices=devices(1e9, 1.0)), 1, progress=False).summary["seconds"]
    simulated = md.run(
        method,
        federation(devices=devices(work / 0.9, work / (LATE + 0.5))),
        8,
        reply_policy=md.ReplyPolicy(deadline=1.0),
        transport=md.transports.Lossy(),
        progress=False,
    )
    policy = md.ReplyPolicy(deadline=0.02, clock="wall")
    real = md.run(method, federation(), 8, reply_policy=policy, transport=SlowInProcess(tmp_path), progress=False)
    assert torch.equal(simulated.x, real.x)
    assert [row["late"] for row in real.history[1:]] == [row["late"] for row in simulated.history[1:]]
    assert [row["bytes_up"] for row in real.history] == [row["bytes_up"] for row in simulated.history]
    assert sum(row["late"] for row in real.history[1:]) == 3
    assert real.summary["lost"] == 0


def test_after_a_restart_the_client_of_an_open_request_is_asked_again(tmp_path: Path) -> None:
    policy = md.ReplyPolicy(deadline=0.02, clock="wall")
    about = {"reply_policy": policy, "checkpoint": tmp_path / "run", "checkpoint_every": 1, "progress": False}
    slow = SlowInProcess(tmp_path)
    first = md.run(md.FedNorton(), federation(), 2, transport=slow, **about)
    assert first.history[-1]["late"] == 0  # it is under way since round 1
    second = md.run(
        md.FedNorton(), federation(), 3, transport=SlowInProcess(tmp_path), resume=tmp_path / "run", **about
    )
    asked = [(e.round, e.client) for e in second.ledger if e.down]
    assert [t for t, i in asked if i == SLOW] == [1, 3]
    assert second.history[-1]["late"] == 1


def test_a_late_reply_that_is_lost_is_told_and_its_client_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = md.ReplyPolicy(deadline=0.02, clock="wall")
    collect = Messenger.collect
    lost = lambda *args: {i: None if i == SLOW else a for i, a in collect(*args).items()}
    monkeypatch.setattr(Messenger, "collect", lost)
    with caplog.at_level(logging.WARNING, "medley"):
        end = md.run(
            md.FedNorton(), federation(), 4, reply_policy=policy, transport=SlowInProcess(tmp_path), progress=True
        )
    said = [r.getMessage() for r in caplog.records if "late reply" in r.getMessage()]
    assert said == ["round 3: the late reply of client 4 to round 1 is lost"]
    assert [e.round for e in end.ledger if e.client == SLOW and e.down] == [1, 4]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("deployed")
@pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs openssl and ssh-keygen")
def test_on_nodes_each_reply_enters_the_exchange_in_which_it_arrived_and_only_once(tmp_path: Path) -> None:
    """A node stands still until two rounds have ended without it; what must hold at any load."""
    with Deployment.running(tmp_path / "server") as server:
        server.app(table("FedNorton", 8))
        folder = server.folder / "run"
        clock = ["--set", "reply_policy.clock=wall", "--set", "reply_policy.deadline=4"]
        command = ["medley", "deploy", "run", ".", "--superlink=medley", f"--save={folder}", "--timeout=300", *clock]
        with server.nodes() as nodes, started(command, server.folder, server.env, "run") as (p, log):
            until(lambda: rounds(folder) >= 1, p, log)
            os.kill(nodes[2][0].pid, signal.SIGSTOP)
            done = rounds(folder)
            until(lambda: rounds(folder) >= done + 2, p, log)
            os.kill(nodes[2][0].pid, signal.SIGCONT)
            assert p.wait(600) == 0, f"{log.read_text()}\n{server.logs()}"
    end = md.Result.load(folder)
    assert end.summary["round"] == 8
    asked = [[e.round for e in end.ledger if e.client == i and e.down] for i in range(3)]
    entered = [[e.round for e in end.ledger if e.client == i and e.up] for i in range(3)]
    found = events.read(folder)
    exchanges = [e for e in found if e["event"] == "exchange"]
    visits = [e["visits"] for e in found if e["event"] == "visits" and e["kind"] != "evaluate"]
    assert len(visits) == len(exchanges) == 8
    for i in range(3):
        came = [e["round"] for e, v in zip(exchanges, visits, strict=True) if v.get(str(i), (0, None))[1]]
        assert entered[i] == came
        # Each request has one reply at most, and no client is asked while it is at work on an earlier request.
        for t in range(1, 9):
            open_ = sum(r <= t for r in asked[i]) - sum(r <= t for r in entered[i])
            assert open_ in (0, 1)
            assert (i in exchanges[t - 1]["late"]) == (t in asked[i] and open_ == 1)
    assert len(asked[2]) < 8


def test_the_wall_clock_is_refused_where_no_node_is() -> None:
    with pytest.raises(md.RecipeError, match="is for nodes: here clients take turns"):
        md.run(md.FedNorton(), federation(), 1, reply_policy=md.ReplyPolicy(clock="wall", deadline=3), progress=False)
    with pytest.raises(md.RecipeError, match="leave retries out"):
        md.ReplyPolicy(clock="wall", retries=2)


def test_the_timeline_shows_who_was_at_work_and_which_reply_was_late(tmp_path: Path) -> None:
    md.run(md.FedAvg(), federation(), 2, checkpoint=tmp_path, progress=False)
    with pytest.raises(md.WireError, match="only runs on nodes record them"):
        timeline(tmp_path)
    at = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[0])["at"]
    visit = lambda t, kind, **v: {"at": t, "event": "visits", "kind": kind, "visits": v["visits"]}
    exchange = {"round": 1, "exchange": 0, "method": "train", "asked": 2, "missing": 0, "waiting": 1, "lost": []}
    exchange |= {"refused": {}, "took": 2.0}
    lines = [
        visit(at + 2, "query.train", visits={"0": [at, at + 1], "1": [at, None]}),
        {"at": at + 2, "event": "exchange", **exchange, "late": [1]},
        visit(at + 5, "query.train", visits={"0": [at + 2, at + 3], "1": [at, at + 5]}),
        {"at": at + 5, "event": "exchange", **exchange, "late": []},
        visit(at + 10, "evaluate", visits={"0": [at + 9, at + 10]}),
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    picture = timeline(tmp_path)
    assert "client 0 30% at work; client 1 50% at work" in picture
    assert picture.count(">late</text>") == 1
    assert "client 0 50% at work; client 1 100% at work" in timeline(tmp_path, 4.0)
    assert run_view.view(tmp_path).log == []
    lines += [visit(at + 9, "query.train", visits={"1": [at + 6, None]})]  # lost with the server
    lines += [visit(at + 10, "query.train", visits={"1": [at + 8, at + 9]})]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "client 0 30% at work; client 1 80% at work" in timeline(tmp_path)
