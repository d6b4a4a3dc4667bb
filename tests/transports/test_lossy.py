"""Faults lose nothing: what methods keep in balance stays so, whatever is lost on the way."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.codecs import Delta
from medley.contract import pytree
from medley.contract.algorithm import Algorithm
from medley.contract.errors import ClientFailed, MedleyError, RecipeError, TooFewReplies, WireError
from medley.engines import choose
from medley.storage import checkpoint
from medley.storage.result import Result
from medley.transports import InProcess, Lossy, Processes
from support.pairs import quick
from support.toys import Toy, federation

QUADRATICS = md.problems.synthetic_quadratics(clients=10)
TRYING = md.ReplyPolicy(retries=60)


def fed(**options: Any) -> md.Federation:
    pace = md.scenarios.Pace(
        lr=md.distributions.Uniform(0.02, 0.1), epochs=md.distributions.Integers(1, 10), batch=None
    )
    options = {"pace": pace, "f_star": QUADRATICS.f_star} | options
    return md.Federation(QUADRATICS.problem, clients=QUADRATICS.clients, **options)


def same(a: Result, b: Result) -> None:
    assert torch.equal(a.x, b.x)
    assert [row["loss"] for row in a.history] == [row["loss"] for row in b.history]


EVERYTHING = Lossy(loss=0.1, hang=0.1, late=0.1, truncate=0.1, corrupt=0.1, duplicate=0.2, reorder=True)


@pytest.fixture(scope="module")
def whole() -> Result:
    return md.run(Toy(), federation(11), 6)


@pytest.mark.slow
def test_without_faults_it_is_the_inner_transport_to_the_bit(whole: Result):
    r = md.run(Toy(), federation(11), 6, transport=Lossy())
    same(r, whole)
    assert list(r.ledger) == list(whole.ledger)


@pytest.mark.parametrize("inner", quick(1, [InProcess(), Processes(2)]), ids=["local", "processes"])
def test_with_retries_a_run_of_many_faults_has_the_bits_of_one_without(whole: Result, inner: Any):
    r = md.run(Toy(), federation(11), 6, transport=replace(EVERYTHING, inner=inner), reply_policy=TRYING)
    same(r, whole)
    assert sum(e.up == 0 for e in r.ledger) > 0.2 * len(whole.ledger)
    assert r.ledger.up == whole.ledger.up
    assert r.ledger.down > 1.2 * whole.ledger.down
    assert r.ledger.exchanges == whole.ledger.exchanges


@pytest.mark.slow
def test_faults_are_drawn_by_name_the_same_again_and_others_for_another_seed():
    a, b, c = (
        md.run(Toy(), federation(11), 4, seed=seed, transport=Lossy(loss=0.3), reply_policy=md.ReplyPolicy(deadline=9))
        for seed in (0, 0, 1)
    )
    same(a, b)
    assert [e.client for e in a.ledger if not e.up] != [e.client for e in c.ledger if not e.up]
    silent = sum(e.up == 0 for e in a.ledger) / len(a.ledger)
    assert silent == pytest.approx(0.3, abs=3 * (0.3 * 0.7 / len(a.ledger)) ** 0.5)


@pytest.mark.parametrize("where", quick(1, [1, 3]))
def test_a_run_of_faults_resumes_to_the_same_bits(where: int, tmp_path: Path):
    options: dict[str, Any] = {"transport": EVERYTHING, "reply_policy": md.ReplyPolicy(deadline=0.2, faulty="drop")}
    md.run(Toy(), federation(11), where, checkpoint=tmp_path, **options)
    a, b = md.run(Toy(), federation(11), 5, resume=tmp_path, **options), md.run(Toy(), federation(11), 5, **options)
    same(a, b)
    assert list(a.ledger) == list(b.ledger)


def kept(method: Algorithm[Any, Any], folder: Path, rounds: int, **options: Any) -> tuple[Result, Any, dict[int, Any]]:
    """The run, the server's state and the clients' memories that it has acknowledged."""
    r = md.run(method, fed(), rounds, checkpoint=folder, checkpoint_every=rounds, **options)
    classes = pytree.dataclasses_in(type(method.start(r.x)), method.memory)
    state = checkpoint.load(folder, classes)
    return r, state["server"], state["memories"]


def weighted(values: dict[int, torch.Tensor], p: dict[int, float]) -> torch.Tensor:
    return sum((p[i] * v for i, v in values.items()), torch.zeros(QUADRATICS.x_star.shape, dtype=torch.float64))


LOSSY = Lossy(loss=0.2)
CONVERGING = {
    "SCAFFOLD": (md.SCAFFOLD(), lambda s, m, p: (s.c, weighted({i: k.c for i, k in m.items()}, p))),
    "FedDyn": (
        md.FedDyn(alpha=5.0),
        lambda s, m, p: (s.h, weighted({i: k.h for i, k in m.items()}, dict.fromkeys(p, 0.1))),
    ),
    "FedNorton": (md.FedNorton(), lambda s, m, p: (s.S, weighted(s.J, p))),
    "FedNorton, flows at the clients": (
        md.FedNorton(flows="client"),
        lambda s, m, p: (s.S, weighted({i: k.J for i, k in m.items() if k.J is not None}, p)),
    ),
}


@pytest.mark.parametrize("name", CONVERGING)
def test_a_fifth_of_all_replies_lost_breaks_no_invariant(name: str, tmp_path: Path):
    """c = Σ p_i c_i, h = mean h_i, S = Σ p_i J_i over all clients; a lost client's part is frozen."""
    invariant(name, tmp_path, 6)


def invariant(name: str, folder: Path, rounds: int) -> tuple[Result, torch.Tensor]:
    """A run, and the sum over its clients, which is the server's."""
    method, sums = CONVERGING[name]
    r, s, memories = kept(method, folder, rounds, transport=LOSSY)
    mine, theirs = sums(s, memories, fed().draw(0).p)
    assert float((mine - theirs).norm()) < 1e-12 * (1 + float(theirs.norm()))
    return r, theirs


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVERGING)
def test_a_fifth_of_all_replies_lost_leaves_the_limit(name: str, tmp_path: Path):
    r, theirs = invariant(name, tmp_path, 80)
    assert float(theirs.norm()) < 1e-3
    assert r.summary["gap"] < 1e-9
    silent = [e.up == 0 for e in r.ledger if e.method != "settle"]
    assert 0.15 < sum(silent) / len(silent) < 0.25


CURVED = md.problems.synthetic_logistic(clients=10, mu=1e-3)
SHEDS = {
    "SHED": (md.SHED(pairs=1), None),
    "above": (md.SHED.fast(pairs=1, rho="auto", search="auto", lbfgs=0, difference=False, above=True), None),
    "fast": (md.SHED.fast(pairs=1), None),
    "codec": (md.SHED(pairs=1), Delta()),
    "budget": (md.SHED(budget=8), None),
}


@pytest.mark.parametrize("name", quick(1, SHEDS))
def test_what_shed_holds_of_a_client_is_what_the_client_thinks_it_holds(name: str, tmp_path: Path):
    """At 20 % loss: as many pairs, the same ones, and the gradient where the client reported last; x* is reached."""
    method, codec = SHEDS[name]
    there = md.Federation(CURVED.problem, clients=CURVED.clients, f_star=CURVED.f_star)
    r = md.run(
        method, there, 60, transport=LOSSY, codec=codec, checkpoint=tmp_path, checkpoint_every=60, target={"gap": 1e-10}
    )
    assert r.status.outcome == "target"
    state = checkpoint.load(tmp_path, pytree.dataclasses_in(type(method.start(r.x)), method.memory))
    s, sim = state["server"], there.draw(0)
    for i, kept in state["memories"].items():
        m = kept["memory"] if codec else kept
        assert s.held.count(i) == m.base + m.sent
        f = sim.client(i, 0, choose("seq", sim.problem, "cpu")).problem
        error = float((s.g[i] - f.grad(m.x)).norm() / f.grad(m.x).norm())
        assert error < (1e-12 if name == "SHED" else 1e-4)
        V = s.held.V[s.held.owner == i]
        if isinstance(method, md.SHED.fast) or method.budget is not None:
            assert torch.equal(s.g[i], m.g)
        if isinstance(method, md.SHED.fast) and method.difference:
            assert torch.equal(V, torch.cat(m.V))
        elif name == "budget":
            assert torch.equal(s.depth[i], m.depth)
        elif name == "SHED":
            H = f.hessian(m.of)
            lam = s.held.lam[s.held.owner == i]
            assert float((V @ H - lam[:, None] * V).norm()) < 1e-10


@pytest.mark.slow
def test_what_a_client_does_wrong_is_named_or_dropped():
    faults = {
        "crash": (ClientFailed, r"client 3 failed in round 1 in train\(\): Lossy: it crashed"),
        "nan": (WireError, r"client 3's answer to Toy\.train, round 1: Heard\.v contains numbers that are not finite"),
        "shape": (WireError, r"client 3's answer to Toy\.train, round 1: Heard\.v is a tensor of float64\[2\]"),
    }
    without = federation(11, participation=md.participation.Fixed([[i for i in range(11) if i != 3]] * 4))
    for fate, (kind, said) in faults.items():
        lossy = Lossy(**{fate: 1.0}, clients=(3,))
        with pytest.raises(kind, match=said):
            md.run(Toy(), federation(11), 4, transport=lossy)
        r = md.run(Toy(), federation(11), 4, transport=lossy, reply_policy=md.ReplyPolicy(faulty="drop"))
        same(r, md.run(Toy(), without, 4, reply_policy=md.ReplyPolicy(faulty="drop")))
        assert {e.up for e in r.ledger if e.client == 3} == {0}
        assert r["lost"][1:] == [2.0] * 4


@pytest.mark.slow
def test_a_client_that_raises_by_itself_is_dropped_on_any_transport():
    def trouble(client: int, round: int, exchange: int) -> None:
        if client in (2, 7) and exchange == 0:
            raise ValueError("no disk")

    toy, patient = Toy(trouble=trouble), md.ReplyPolicy(faulty="drop")
    runs = [md.run(toy, federation(11), 3, transport=t, reply_policy=patient) for t in (InProcess(), Processes(2))]
    same(*runs)
    assert {e.client for e in runs[0].ledger if e.method == "train" and not e.up} == {2, 7}


def test_a_quorum_that_is_missed_ends_the_run_and_keeps_what_was_done(tmp_path: Path):
    options: dict[str, Any] = {"transport": Lossy(loss=0.5), "reply_policy": md.ReplyPolicy(quorum=0.5)}
    with pytest.raises(
        TooFewReplies, match=r"of 11 clients asked in round \d+ answered, but ReplyPolicy\(quorum=0\.5\)"
    ) as e:
        md.run(Toy(), federation(11), 40, checkpoint=tmp_path, **options)
    done = int(re.findall(r"asked in round (\d+)", str(e.value))[0]) - 1
    assert e.value.result.history[-1]["round"] == done
    on = md.run(Toy(), federation(11), done, resume=tmp_path, **options)
    assert torch.equal(on.x, e.value.result.x)


def devices(*speeds: float) -> md.devices.Devices:
    return md.devices.Devices(speed=list(speeds), down=1e12, up=1e12, latency=0.0)


def test_a_deadline_leaves_the_slow_out_and_takes_as_long_as_it_says():
    """Two steps on 4 rows and on 5 take 1 and 6.25 seconds; who is late is asked again when it is back."""
    slow = federation(2, devices=devices(8.0, 1.6), pace=md.scenarios.Pace(lr=0.05, steps=2, batch=None))
    r = md.run(md.FedAvg(), slow, 9, reply_policy=md.ReplyPolicy(deadline=2.0))
    asked = [e.round for e in r.ledger if e.client == 1]
    assert asked == [1, 7]
    assert all(e.up == 0 for e in r.ledger if e.client == 1)
    # Round 1 waits for the deadline; afterwards the fast client alone is asked, and answers within a second.
    assert r["seconds"][:4] == pytest.approx([0, 2, 3, 4])
    assert r["late"][1:4] == [1, 0, 0]


def test_enough_replies_end_an_exchange_and_a_lost_one_costs_the_deadline():
    three = federation(3, devices=devices(8.0, 4.0, 1.0), pace=md.scenarios.Pace(lr=0.05, steps=2, batch=None))
    assert md.run(md.FedAvg(), three, 1, reply_policy=md.ReplyPolicy(replies=2)).summary["seconds"] == pytest.approx(
        2.5
    )
    assert md.run(md.FedAvg(), three, 1, reply_policy=md.ReplyPolicy(replies=0.3)).summary["seconds"] == pytest.approx(
        1
    )
    lost = Lossy(hang=1.0, clients=(2,))
    r = md.run(md.FedAvg(), three, 1, transport=lost, reply_policy=md.ReplyPolicy(deadline=5.0))
    assert r.summary["seconds"] == 5
    r = md.run(md.FedAvg(), three, 1, transport=lost, reply_policy=md.ReplyPolicy(deadline=5.0, retries=2))
    assert r.summary["seconds"] == 15
    assert sum(e.client == 2 for e in r.ledger) == 3


def policy_of(**values: Any) -> None:
    """A reply policy of unchecked types: only its own check sees them."""
    policy = md.ReplyPolicy()
    for key, value in values.items():
        object.__setattr__(policy, key, value)
    policy.__post_init__()


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Lossy(loss=1.5), "loss"),
        (lambda: Lossy(loss=0.6, crash=0.6), "loss"),
        (lambda: Lossy(delay=-1.0), "delay"),
        (lambda: md.ReplyPolicy(deadline=0), "deadline"),
        (lambda: md.ReplyPolicy(replies=1.5), "replies"),
        (lambda: md.ReplyPolicy(quorum=2), "quorum"),
        (lambda: md.ReplyPolicy(retries=-1), "retries"),
        (lambda: policy_of(faulty="ignore"), "faulty"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(make: Any, key: str):
    with pytest.raises(RecipeError, match=f"(?i){key}"):
        make()


def test_a_lost_reply_without_a_reply_policy_is_left_out_of_the_mean_and_nobody_at_all_is_an_error():
    with pytest.raises(MedleyError, match="none of the 5 clients asked in round 1 answered"):
        md.run(md.FedAvg(), federation(), 2, transport=Lossy(loss=1.0))
