"""Clients that join and leave a run: shares, sums over memories, the optimum, resume, and the methods that refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.contract.needs import Need
from medley.runtime.recent import FEW
from medley.storage import events, run_view
from support.pairs import quick

from .test_readmit import state

LR, EPOCHS = [0.02, 0.05, 0.1, 0.03, 0.08], [1, 3, 2, 1, 2]

CHANGES = md.scenarios.Membership(joins={3: 4, 4: 7}, leaves={1: 7, 2: 9})
"""Members: 0, 1, 2; with 3 from round 4 on; 0, 2, 3, 4 from round 7 on; 0, 3, 4 from round 9 on."""

METHODS = [md.FedAvg(), md.SCAFFOLD(), md.FedNorton(), md.FedNorton(flows="client"), md.ACE(), md.CA2FL()]

IDS = ["FedAvg", "SCAFFOLD", "FedNorton", "FedNorton of sums", "ACE", "CA2FL"]


def federation(ids: list[int] | None = None, membership: Any = CHANGES, **options: Any) -> tuple[md.Federation, Any]:
    """Quadratics of five clients that differ in rows, learning rate and epochs, or of some of them without changes."""
    q = md.problems.synthetic_quadratics(clients=5, d=6, rows=(6, 20))
    kept = range(5) if ids is None else ids
    pace = md.scenarios.Pace(lr=[LR[i] for i in kept], epochs=[EPOCHS[i] for i in kept], batch=None)
    data = [q.clients[i] for i in kept]
    return md.Federation(q.problem, clients=data, pace=pace, membership=membership, **options), q


def sums(method: Any, s: Any, memories: dict[int, Any], p: dict[int, float]) -> tuple[torch.Tensor, torch.Tensor]:
    """The server's sum over clients, and the same sum over the flows, variates or updates of each."""
    zero = torch.zeros_like(s.x)
    match type(method).__name__:
        case "SCAFFOLD":
            return s.c, sum((p[i] * m.c for i, m in memories.items()), zero)
        case "FedNorton" if method.flows == "client":
            return s.S, sum((p[i] * m.J for i, m in memories.items() if m.J is not None), zero)
        case "FedNorton":
            return s.S, sum((p[i] * J for i, J in s.J.items()), zero)
        case "ACE":
            return s.u, sum((p[i] * u for i, u in s.latest.items()), zero)
        case "CA2FL":
            return s.h, sum((p[i] * h for i, h in s.h_i.items()), zero)
        case _:
            return zero, zero


@pytest.mark.parametrize("participation", quick(1, [None, 0.6]))
@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_sums_over_clients_hold_after_each_change(method: Any, participation: float | None, tmp_path: Path) -> None:
    """Σ p_i = 1 over the members, and S = Σ p_i J_i, c = Σ p_i c_i, u = Σ p_i u_i, h = Σ p_i h_i over them alone."""
    fed, _ = federation(participation=participation)
    draw = fed.draw(0)
    members = {3: {0, 1, 2}, 4: {0, 1, 2, 3}, 6: {0, 1, 2, 3}, 7: {0, 2, 3, 4}, 9: {0, 3, 4}, 12: {0, 3, 4}}
    began: dict[str, Any] = {"checkpoint": tmp_path}
    for t, there in members.items():
        fed.run(method, t, **began)
        began = {"resume": tmp_path}
        p = dict(draw.view(t).p)
        assert set(p) == there
        assert sum(p.values()) == pytest.approx(1.0, abs=1e-15)
        s, memories = state(tmp_path, method)
        assert set(memories) <= there
        held, summed = sums(method, s, memories, p)
        assert torch.allclose(held, summed, rtol=0, atol=1e-13)


@pytest.mark.parametrize("method", quick(1, METHODS), ids=IDS)
def test_a_run_that_is_resumed_between_changes_has_the_same_bits(method: Any, tmp_path: Path) -> None:
    fed, _ = federation(participation=0.6)
    whole = fed.run(method, 12)
    for t in (3, 4, 6, 8):
        folder = tmp_path / str(t)
        fed.run(method, t, checkpoint=folder)
        assert fed.run(method, 12, resume=folder).digest == whole.digest
    asked = {t: {e.client for e in whole.ledger if e.round == t} for t in range(1, 13)}
    for t, ids in asked.items():
        assert ids <= set(CHANGES.at(t, 5))
    assert set.union(*asked.values()) == {0, 1, 2, 3, 4}
    with pytest.raises(md.WireError, match="membership"):
        federation(participation=0.6, membership=None)[0].run(method, 12, resume=folder)


@pytest.mark.slow
@pytest.mark.parametrize("method", [md.SCAFFOLD(), md.FedNorton(), md.FedNorton(flows="client")], ids=IDS[1:4])
@pytest.mark.parametrize("participation", [None, 0.6])
def test_the_optimum_is_that_of_the_members_that_are_left(method: Any, participation: float | None) -> None:
    """Clients 0, 3 and 4 are left. A trace of those that went, or a client counted twice, would move the limit."""
    fed, _ = federation(participation=participation)
    left, _ = federation([0, 3, 4], None)
    r = fed.run(method, 700, eval_every=700)
    best = left.run(md.Newton(), 3)
    assert float((r.x - best.x).norm() / best.x.norm()) < 1e-7
    assert r.history[-1]["loss"] == pytest.approx(best.history[-1]["loss"], rel=1e-9)
    assert [row["client"] for row in r.clients] == [] or {row["client"] for row in r.clients} == {0, 3, 4}


def test_fedavg_after_the_last_change_is_fedavg_among_the_members(tmp_path: Path) -> None:
    """x of round 9 begins FedAvg among clients 0, 3 and 4 alone; batches are whole, so that nothing is drawn."""
    fed, _ = federation()
    at = fed.run(md.FedAvg(), 8).x
    alone, _ = federation([0, 3, 4], None)
    assert torch.allclose(fed.run(md.FedAvg(), 15).x, alone.run(md.FedAvg(), 7, init=at).x, rtol=0, atol=1e-14)


@pytest.mark.slow
def test_shed_goes_on_with_the_pairs_of_the_members() -> None:
    toy = md.problems.synthetic_logistic(clients=5, d=8, mu=1e-3)
    for method in (md.SHED(pairs=2), md.SHED(budget=4), md.SHED.fast(pairs=2)):
        fed = md.Federation(toy.problem, clients=toy.clients, membership=CHANGES)
        best = md.Federation(toy.problem, clients=[toy.clients[i] for i in (0, 3, 4)]).run(md.Newton(), 12)
        r = fed.run(method, 40)
        assert float((r.x - best.x).norm() / best.x.norm()) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("flows", quick(1, ["server", "client"]))
def test_fednorton_begins_to_move_anew_when_members_change(flows: Any) -> None:
    """Five clients with labels that nobody had join a model that has converged: no method's loss runs away."""
    data = md.datasets.digits()
    low, high = data.where(lambda X, y: y < 5, "low"), data.where(lambda X, y: y >= 5, "high")
    clients = [(d.X[i::5], d.y[i::5], d.X_test[i::5], d.y_test[i::5]) for d in (low, high) for i in range(5)]  # type: ignore[index]
    fed = md.Federation(
        md.problems.Softmax(mu=1e-3),
        clients=clients,
        classes=10,
        pace=md.scenarios.Pace(lr=0.2),
        membership=md.scenarios.Membership(joins=dict.fromkeys(range(5, 10), 12)),
    )
    ours, plain = (md.run(m, fed, 16, progress=False)["loss"] for m in (md.FedNorton(flows=flows), md.SCAFFOLD()))
    assert ours[13] < plain[13]


def test_cflag_takes_a_client_that_joins_in_the_second_task() -> None:
    parts = {"partition": md.partitions.IID(4), "stream": md.tasks.Split(tasks=2, mode="class")}
    where = {"replay": md.replay.Ring(capacity=20), "pace": md.scenarios.Pace(lr=0.1, steps=2, batch=32)}
    data = md.datasets.digits().take(400, 100)
    changes = md.scenarios.Membership(joins={3: 4}, leaves={0: 5})
    fed = md.Federation(md.problems.Softmax(mu=1e-2), data=data, membership=changes, **parts, **where)  # type: ignore[arg-type]
    r = fed.run(md.CFLAG.joint(), 3)
    asked = [sorted({e.client for e in r.ledger if e.round == t}) for t in range(1, 7)]
    assert asked == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3], [1, 2, 3], [1, 2, 3]]
    assert r.status.ok


def test_a_client_that_comes_back_begins_anew(tmp_path: Path) -> None:
    fed, _ = federation(membership=md.scenarios.Membership(joins={1: 6}, leaves={1: 4}))
    method = md.SCAFFOLD()
    assert [fed.draw(0).cohort(t) == (0, 2, 3, 4) for t in range(1, 8)] == [False] * 3 + [True] * 2 + [False] * 2
    fed.run(method, 6, checkpoint=tmp_path)
    s, memories = state(tmp_path, method)
    p = fed.draw(0).view(6).p
    assert torch.allclose(s.c, sum(p[i] * m.c for i, m in memories.items()), rtol=0, atol=1e-13)  # type: ignore[arg-type]
    said = [(e["round"], e["joined"], e["left"]) for e in events.read(tmp_path) if e["event"] == "members"]
    assert said == [(4, [], [1]), (6, [1], [])]
    assert {c.client: c.standing for c in run_view.view(tmp_path).clients} == dict.fromkeys(range(5), "answered")


def test_the_view_of_a_run_shows_who_left(tmp_path: Path) -> None:
    federation()[0].run(md.FedAvg(), 9, checkpoint=tmp_path)
    v = run_view.view(tmp_path)
    assert {c.client: c.standing for c in v.clients} == dict(
        enumerate(["answered", "left", "left", "answered", "answered"])
    )
    assert 'standing="left"} 2' in run_view.prometheus(v)
    assert sum("clients [1] left" in line for line in v.log) == 1


def test_a_recall_that_is_lost_is_asked_again(tmp_path: Path) -> None:
    """With a third of the replies lost c = Σ p_i c_i holds after every change."""
    fed, _ = federation()
    method, lossy = md.SCAFFOLD(), md.transports.Lossy(loss=0.3)
    fed.run(method, 9, checkpoint=tmp_path, transport=lossy)
    s, memories = state(tmp_path, method)
    p = fed.draw(0).view(9).p
    assert torch.allclose(s.c, sum(p[i] * m.c for i, m in memories.items()), rtol=0, atol=1e-13)  # type: ignore[arg-type]


def test_methods_whose_server_sums_over_memories_refuse_before_round_1() -> None:
    fed, _ = federation()
    wanted = "FedDyn needs the same clients from the first round to the last, since its state on the server sums"
    with pytest.raises(md.Unsupported, match=wanted) as e:
        fed.run(md.FedDyn(), 3)
    assert e.value.need is Need.FIXED
    for method in (md.ECADO(), md.AFedPD(), md.FedADMM(), md.Private(md.FedAvg(), noise=1.0, clip=1.0)):
        with pytest.raises(md.Unsupported, match="the same clients from the first round to the last"):
            federation(weights="uniform")[0].run(method, 3)
    with pytest.raises(md.RecipeError, match="membership= and secure= cannot be combined"):
        fed.run(md.FedAvg(), 3, secure=md.SecureSum())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"joins": {0: 1}}, r"Membership\(joins=\{0: 1\}\): give a client's id, from 0, and a round, from 2"),
        ({"leaves": {-1: 4}}, r"Membership\(leaves=\{-1: 4\}\)"),
        ({"joins": {True: 4}}, r"Membership\(joins=\{True: 4\}\)"),
        ({"joins": [3]}, r"Membership\(joins=\[3\]\): give each client's round"),
        ({"joins": {2: 5}, "leaves": {2: 5}}, "client 2 joins and leaves in round 5"),
    ],
)
def test_a_membership_that_makes_no_sense_is_refused(given: Any, said: str) -> None:
    with pytest.raises(md.RecipeError, match=said):
        md.scenarios.Membership(**given)


def test_a_membership_that_does_not_fit_the_clients_is_refused() -> None:
    with pytest.raises(md.RecipeError, match=r"joins=...\): there is no client 5; ids end at 4"):
        federation(membership=md.scenarios.Membership(joins={5: 3}))[0].run(md.FedAvg(), 1)
    with pytest.raises(md.RecipeError, match="round 4 has no member"):
        federation(membership=md.scenarios.Membership(leaves=dict.fromkeys(range(5), 4)))[0].run(md.FedAvg(), 1)
    with pytest.raises(md.RecipeError, match="the optimum moves when clients join or leave"):
        federation(f_star=0.0)
    with pytest.raises(md.RecipeError, match="membership"):
        federation(membership={3: 4})


def test_a_client_that_replied_left_and_came_back_has_taken_part(tmp_path: Path) -> None:
    cohorts = md.participation.Fixed([[0, 1], [0], [0], [0], [0, 2]])
    fed, _ = federation(membership=md.scenarios.Membership(leaves={1: 2}, joins={1: 4}), participation=cohorts)
    parts = [
        fed.run(md.FedAvg(), 3, clients_every=1, checkpoint=tmp_path),
        fed.run(md.FedAvg(), 5, clients_every=1, resume=tmp_path),
    ]
    for r in (fed.run(md.FedAvg(), 5, clients_every=1), parts[1]):
        there = {(row["round"], row["client"]): row["took_part"] for row in r.clients}
        assert [there.get((t, 1)) for t in range(1, 6)] == [1, None, None, 1, 1]
        assert [there[t, 2] for t in range(1, 6)] == [0, 0, 0, 0, 1]


class Counted:
    """Members of every round, all but one in turn, or all but the last; counts how often it is asked."""

    fingerprint = "counted"

    def __init__(self, turns: bool) -> None:
        self.turns, self.calls = turns, 0

    def at(self, round: int, clients: int) -> tuple[int, ...]:
        self.calls += 1
        away = round % clients if self.turns else clients - 1
        return tuple(i for i in range(clients) if i != away)


def test_members_are_asked_for_a_few_times_a_round_whatever_the_number_of_clients() -> None:
    calls = []
    for n in (10, 40):
        members = Counted(False)
        q = md.problems.synthetic_quadratics(clients=n, d=2)
        md.Federation(q.problem, clients=q.clients, membership=members).run(md.FedAvg(), 3)
        calls.append(members.calls)
    assert calls[0] == calls[1] < 40


def test_few_sets_of_members_are_held() -> None:
    q = md.problems.synthetic_quadratics(clients=30, d=2)
    fed = md.Federation(q.problem, clients=q.clients, membership=Counted(True))
    sim = fed.draw(0)
    evaluator = sim.evaluator(eval_rows=60)
    found = {t: (evaluator.evaluate(torch.ones(2, dtype=torch.float64), None, t), sim.view(t).p) for t in range(1, 25)}
    assert len(found) == 24
    assert len(sim._members) == len(sim._rounds) == len(evaluator.sampled.__self__._drawn) == FEW  # type: ignore[union-attr]
    for t in (1, 13):  # and what was dropped is made again
        assert sim.view(t).p == found[t][1]
        assert evaluator.evaluate(torch.ones(2, dtype=torch.float64), None, t) == found[t][0]
