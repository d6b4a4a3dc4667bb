"""Secure runs: they reach what plain ones reach, pay true bytes, and refuse what would tell of single clients."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.codecs import Cast, Plain, Quantise, TwoWay
from medley.secure.ring import Ring
from support.pairs import quick


def federation(clients: int = 6, participation: Any = None, **more: Any) -> md.Federation:
    partition = md.partitions.Dirichlet(clients, 0.5)
    return md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=md.datasets.digits(),
        partition=partition,
        participation=participation,
        **more,
    )


@pytest.mark.parametrize("method", quick(1, [md.FedAvg(), md.SCAFFOLD(), md.FedDyn(), md.FedNorton(flows="client")]))
def test_methods_of_sums_reach_what_they_reach_without(method: Any) -> None:
    fed = federation(participation=0.7)
    plain = md.run(method, fed, 10, progress=False)
    for secure, tolerance in ((md.SecureSum(bits=64, bound=100.0), 1e-7), (md.SecureSum(bound=100.0), 1e-4)):
        run = md.run(method, fed, 10, secure=secure, progress=False)
        assert float((run.x - plain.x).norm() / plain.x.norm()) < tolerance
        assert abs(run.summary["accuracy"] - plain.summary["accuracy"]) < 0.005


@pytest.mark.slow
def test_the_same_run_again_and_a_resumed_one_have_the_same_bits(tmp_path: Path) -> None:
    fed, secure = federation(participation=0.7), md.SecureSum()
    once, again = (md.run(md.SCAFFOLD(), fed, 6, secure=secure, progress=False) for _ in range(2))
    assert torch.equal(once.x, again.x)  # fresh keys each time
    assert once.ledger == again.ledger
    md.run(md.SCAFFOLD(), fed, 3, secure=secure, checkpoint=tmp_path, progress=False)
    resumed = md.run(md.SCAFFOLD(), fed, 6, secure=secure, resume=tmp_path, progress=False)
    assert torch.equal(once.x, resumed.x)
    assert resumed.ledger == once.ledger
    with pytest.raises(md.MedleyError, match="secure"):
        md.run(md.SCAFFOLD(), fed, 9, resume=tmp_path, progress=False)


@pytest.mark.slow
def test_workers_bring_the_same_bits() -> None:
    fed, secure = federation(), md.SecureSum()
    here = md.run(md.FedAvg(), fed, 2, secure=secure, progress=False)
    there = md.run(md.FedAvg(), fed, 2, secure=secure, transport=md.transports.Processes(2), progress=False)
    assert torch.equal(here.x, there.x)


def test_the_ledger_has_the_true_bytes() -> None:
    n, d = 6, 640
    run = md.run(md.FedAvg(), federation(n), 1, secure=md.SecureSum(), progress=False)
    up, down = Counter[str](), Counter[str]()
    for e in run.ledger:
        up[e.method] += e.up
        down[e.method] += e.down
    assert run.ledger.exchanges == 1
    assert up["train"] == n * 4 * d  # a masked entry has 32 bits
    assert up["secure keys"] == n * 64
    assert down["secure shares"] == n * (n - 1) * (64 + 4)  # public keys of the others, with their ids
    assert up["secure shares"] == n * (n - 1) * (32 + 16 + 4)  # two shares, sealed, with an id
    assert down["secure opening"] == n * ((n - 1) * (32 + 16 + 4) + n * 4)
    assert up["secure opening"] == n * n * (16 + 4)
    assert run.ledger.up == sum(up.values()) == run.history[-1]["bytes_up"]


def test_the_protocol_takes_time_on_the_virtual_clock() -> None:
    slow = md.devices.Devices(latency=1.0)
    plain = md.run(md.FedAvg(), federation(devices=slow), 1, progress=False)
    secure = md.run(md.FedAvg(), federation(devices=slow), 1, secure=md.SecureSum(), progress=False)
    assert secure.history[-1]["seconds"] - plain.history[-1]["seconds"] == pytest.approx(3.0, abs=0.1)  # three steps


def test_a_lost_reply_leaves_the_sum_and_the_invariants_of_memories() -> None:
    """SCAFFOLD's c is Σ p_i c_i, over the clients whose reply came: the others keep the memory that they had."""
    fed, lossy = federation(8), md.transports.Lossy(loss=0.2)
    how: dict[str, Any] = {"transport": lossy, "progress": False}
    plain = md.run(md.SCAFFOLD(), fed, 8, **how)
    secure = md.run(md.SCAFFOLD(), fed, 8, secure=md.SecureSum(bits=64), **how)
    assert any(e.up == 0 and e.method == "train" for e in secure.ledger)
    assert float((secure.x - plain.x).norm() / plain.x.norm()) < 1e-10


def test_below_the_threshold_the_round_is_refused() -> None:
    lossy = md.transports.Lossy(loss=0.9)
    for policy in (None, md.ReplyPolicy(faulty="drop")):
        with pytest.raises(
            md.TooFewReplies, match=r"of 6 clients sent a reply, but SecureSum\(threshold=0.6\) needs 4"
        ) as e:
            md.run(
                md.FedAvg(),
                federation(),
                3,
                secure=md.SecureSum(),
                transport=lossy,
                reply_policy=policy,
                progress=False,
            )
        assert e.value.result.history[-1]["round"] == 0  # the model is that of the last whole round


def test_a_client_that_fails_is_left_out_where_the_policy_says_so() -> None:
    crash = md.transports.Lossy(crash=1.0, clients=[2])
    secure, policy = md.SecureSum(), md.ReplyPolicy(faulty="drop")
    run = md.run(md.FedAvg(), federation(), 2, secure=secure, transport=crash, reply_policy=policy, progress=False)
    assert {e.client for e in run.ledger if e.method == "train" and e.up == 0} == {2}
    with pytest.raises(md.ClientFailed, match="client 2"):
        md.run(md.FedAvg(), federation(), 2, secure=secure, transport=crash, progress=False)
    policy = md.ReplyPolicy(faulty="drop", quorum=0.9)
    with pytest.raises(md.TooFewReplies, match="5 of 6 clients asked in round 1 are in the secure sum"):
        md.run(md.FedAvg(), federation(), 2, secure=secure, transport=crash, reply_policy=policy, progress=False)


@pytest.mark.slow
def test_private_sums_are_bounded_at_the_clients_and_summed_securely() -> None:
    fed = federation(10, md.participation.Bernoulli(0.8), weights="uniform")
    method = md.Private(md.FedAvg(), noise=0.5, clip=0.5)
    plain = md.run(method, fed, 3, progress=False)
    secure = md.run(method, fed, 3, secure=md.SecureSum(), progress=False)
    assert secure.history[-1]["epsilon"] == plain.history[-1]["epsilon"]
    assert float((secure.x - plain.x).norm() / plain.x.norm()) < 1e-6


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        (md.FedNorton(), {}, r"FedNorton needs replies one by one, .*or use FedNorton\(flows='client'\)"),
        (md.FedBuff(), {}, "FedBuff needs replies one by one, and a secure run gives the server their sums only"),
        (md.SHED(), {}, "SHED needs replies one by one"),
        (md.Robust(md.FedAvg(), md.robust.Median()), {}, "Median-FedAvg needs .*(the same weight|replies one by one)"),
        (md.FedAvg(), {"codec": Quantise()}, "no codec can shorten; leave codec= out"),
        (md.FedAvg(), {"codec": Cast()}, "no codec can shorten"),
        (md.FedAvg(), {"reply_policy": md.ReplyPolicy(deadline=3.0)}, "leave deadline=, replies= and retries= out"),
        (md.FedAvg(), {"reply_policy": md.ReplyPolicy(clock="wall")}, "has no late replies; leave clock= out"),
        (md.FedAvg(), {"secure": md.SecureSum(threshold=9)}, "9 clients must stay, but the cohort has 6"),
        (md.FedAvg(), {"secure": md.SecureSum(bound=1e-9)}, r"client \d: 'delta' has an entry of magnitude .* beyond"),
        (
            md.FedAvg(),
            {"secure": md.SecureSum(bound={"x": 1.0})},
            r"SecureSum\(bound=...\): a reply's field has no 'delta'",
        ),
    ],
)
def test_runs_that_cannot_be_secure_are_refused(method: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(md.MedleyError, match=sentence):
        md.run(method, federation(), 1, **{"secure": md.SecureSum(), "progress": False, **options})


def test_requests_may_have_a_codec() -> None:
    codec = TwoWay(up=Plain(), down=Cast())
    run = md.run(md.FedAvg(), federation(), 2, secure=md.SecureSum(), codec=codec, progress=False)
    assert {e.down for e in run.ledger if e.method == "train"} == {2 * 640}


def test_a_model_with_buffers_is_refused() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10))
    fed = md.Federation(md.problems.Network(net), data=md.datasets.digits(), partition=md.partitions.IID(3))
    with pytest.raises(md.Unsupported, match="this network has buffers"):
        md.run(md.FedAvg(), fed, 1, secure=md.SecureSum(), progress=False)


def test_attacks_are_refused() -> None:
    fed = federation(attack=md.scenarios.Attack("sign flip", 0.3))
    with pytest.raises(md.RecipeError, match="attacks change single replies, which a secure sum hides"):
        md.run(md.FedAvg(), fed, 1, secure=md.SecureSum(), progress=False)


def test_a_recipe_has_a_table_of_its_own() -> None:
    from medley import recipe

    text = '[problem]\nkind = "Softmax"\n[data]\nname = "digits"\n[partition]\nkind = "IID"\nclients = 4\n'
    r = recipe.loads(text + "[secure]\nbound = 10.0\nbits = 64\n[[methods]]\nkind = 'FedAvg'\n")
    assert r.options()["secure"] == md.SecureSum(bits=64, bound=10.0)
    with pytest.raises(md.RecipeError, match="bitz"):
        recipe.loads(text + "[secure]\nbitz = 32\n").options()


@pytest.mark.slow
def test_noise_is_whole_with_the_shares_that_a_client_insists_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that lies about the graph could open a sum of 12 of 60 clients, a client's own threshold."""
    seen, right = [], Ring.share_of_noise
    monkeypatch.setattr(Ring, "share_of_noise", lambda self, *args: seen.append(self.stay) or right(self, *args))
    fed = md.Federation(
        md.problems.Softmax(), data=md.datasets.digits(), partition=md.partitions.IID(60), weights="uniform"
    )
    method = md.Private(md.FedAvg(), noise=1.0, noise_at="clients")
    md.run(method, fed, rounds=1, secure=md.SecureSum(), progress=False)
    assert set(seen) == {md.SecureSum().least(60)} != {md.SecureSum().needed(60)}
