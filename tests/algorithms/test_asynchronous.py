"""Replies that come late: asynchronous methods where one client is twenty times slower than the others."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.contract import pytree as tree
from medley.contract.algorithm import Algorithm
from medley.storage import checkpoint
from support.pairs import quick

Q = md.problems.synthetic_quadratics(clients=6)
DEVICES = md.devices.Devices(speed=[1000.0] * 5 + [50.0], down=1e9, up=1e9, latency=0.01)


def run(method: Algorithm[Any, Any], replies: float | None, rounds: int = 8, **options: Any) -> md.Result:
    fed = md.Federation(
        Q.problem, clients=Q.clients, f_star=Q.f_star, devices=DEVICES, pace=md.scenarios.Pace(lr=0.05, epochs=5)
    )
    return md.run(
        method, fed, rounds, reply_policy=md.ReplyPolicy(replies=replies), throw=False, progress=False, **options
    )


ASYNC = [md.FedBuff(), md.FedAsync(), md.FedNorton(), md.CA2FL(), md.ACE(0.5), md.ACED(0.5), md.Ringleader(0.5)]


@pytest.mark.parametrize("method", quick(1, ASYNC), ids=lambda m: m.name)
def test_nobody_late_is_nobody_stale(method: Algorithm[Any, Any]):
    a, b = run(method, None), run(method, 6)
    assert torch.equal(a.x, b.x)
    assert a["seconds"] == pytest.approx(b["seconds"])


def test_fedbuff_where_all_answer_is_fedavg():
    assert torch.allclose(run(md.FedBuff(), None).x, run(md.FedAvg(), None).x, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("method", "said"),
    quick(
        2,
        [
            (md.FedBuff(), "the method is then FedAvg. Pass"),
            (md.FedAsync(), "the method is then FedAvg with a proximal term"),
            (md.CA2FL(), "the method is then FedAvg if everybody takes part. Pass"),
            (md.ACED(), "the method is then FedAvg if everybody takes part. Pass"),
        ],
    ),
    ids=lambda v: getattr(v, "name", ""),
)
def test_a_run_that_waits_for_all_begins_with_one_warning(
    method: Algorithm[Any, Any], said: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    caplog.set_level(logging.WARNING, "medley")
    fed = md.Federation(Q.problem, clients=Q.clients, devices=DEVICES, pace=md.scenarios.Pace(lr=0.05))
    md.run(method, fed, 2, checkpoint=tmp_path, progress=False)
    (warning,) = caplog.messages
    assert warning.startswith(f"{method.name} is made for late replies")
    assert said in warning
    caplog.clear()
    md.run(method, fed, 3, resume=tmp_path, progress=False)
    run(method, 3, 2)
    md.run(method, fed, 2, reply_policy=md.ReplyPolicy(deadline=1.0), progress=False)
    run(md.FedNorton(), None, 2)
    assert caplog.messages == []


def test_a_late_reply_is_delivered_in_the_round_in_which_it_arrives_and_its_bytes_are_booked_there():
    r = run(md.FedBuff(), 5, rounds=40)
    asked = [e.round for e in r.ledger if e.client == 5 and e.down]
    came = [e.round for e in r.ledger if e.client == 5 and e.up]
    assert asked[0] == 1
    assert 5 < came[0] <= 40
    assert asked[1] == came[0] + 1
    stale = dict(zip(r["round"], r["staleness"], strict=True))
    there = [e.client for e in r.ledger if e.round == came[0] and e.up]
    assert stale[came[0]] == pytest.approx((came[0] - 1) / len(there))


@pytest.mark.parametrize("method", quick(2, ASYNC), ids=lambda m: m.name)
def test_replies_in_flight_survive_a_checkpoint(method: Algorithm[Any, Any], tmp_path: Path):
    whole = run(method, 2, 20)
    run(method, 2, 7, checkpoint=tmp_path)
    again = run(method, 2, 20, resume=tmp_path)
    assert torch.equal(whole.x, again.x)
    assert list(whole.ledger) == list(again.ledger)


@pytest.mark.slow
def test_kirchhoffs_sum_holds_with_flows_that_arrive_late(tmp_path: Path):
    """S = Σ p_i J_i, and the fixed point is everybody's, not that of the fast."""
    r = run(md.FedNorton(), 3, 150, checkpoint=tmp_path)
    method = md.FedNorton()
    kept = checkpoint.load(tmp_path, tree.dataclasses_in(type(method.start(r.x)), method.memory))
    s = kept["server"]
    sizes = [len(X) for X, _ in Q.clients]
    p = {i: n / sum(sizes) for i, n in enumerate(sizes)}
    total = sum(p[i] * J for i, J in s.J.items())
    assert float((s.S - total).norm()) < 1e-12


@pytest.mark.parametrize("seed", quick(1, range(3)))
def test_rounds_of_three_replies_reach_the_same_loss_sooner(seed: int):
    """The clients are alike but for speed, so what FedAvg reaches in five rounds FedBuff reaches without waiting."""
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=md.datasets.digits(),
        partition=md.partitions.IID(6),
        devices=DEVICES,
        pace=md.scenarios.Pace(lr=0.1),
    )
    waiting = md.run(md.FedAvg(), fed, 5, seed=seed)
    goal = {"loss": waiting.summary["loss"]}
    going = md.run(md.FedBuff(), fed, 100, seed=seed, reply_policy=md.ReplyPolicy(replies=3), target=goal)
    assert going.status.outcome == "target"
    assert going.summary["seconds"] < waiting.summary["seconds"]
