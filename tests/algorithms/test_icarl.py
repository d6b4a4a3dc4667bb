from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import medley as md
from medley.algorithms.icarl import Memory
from medley.contract.errors import RecipeError, Unsupported
from medley.contract.messages import Model, TaughtModel
from support.continual import client, go, rows, stream
from support.oracles import states
from support.pairs import quick


def test_cf15_exemplars_are_herded_and_cut_to_a_prefix() -> None:
    """Greedy choice by trying every row; the first is the nearest to the mean; a smaller budget keeps a prefix."""
    me = client(stream(net=True), 0, memory=Memory())
    x = torch.randn(me.problem.d, generator=torch.Generator().manual_seed(0))
    md.ICaRL(capacity=10).choose(me, Model(x))
    kept = me.memory.exemplars
    assert {c: len(r) for c, r in kept.items()} == {0: 5, 1: 5}
    for c, chosen in kept.items():
        own = (me.problem.y == c).nonzero()[:, 0]
        phi = F.normalize(me.problem.features(x, own))
        mean, picked = phi.mean(0), []
        for k in range(5):
            off = [
                (mean - (phi[[*picked, j]].sum(0)) / (k + 1)).norm() if j not in picked else torch.tensor(9.0)
                for j in range(len(own))
            ]
            picked.append(int(torch.stack(off).argmin()))
        assert own[picked].tolist() == chosen.tolist()
        assert picked[0] == int((phi - mean).norm(dim=1).argmin())
    later = client(stream(net=True), 1, memory=me.memory)
    md.ICaRL(capacity=10).choose(later, Model(x))
    assert {c: len(r) for c, r in later.memory.exemplars.items()} == {0: 2, 1: 2, 2: 2, 3: 2}
    assert all(later.memory.exemplars[c].tolist() == kept[c][:2].tolist() for c in (0, 1))
    assert later.recall(later.memory.exemplars[3]).y.tolist() == [3, 3]


@pytest.mark.slow
@pytest.mark.parametrize("net", quick(1, [True, False]))
def test_the_model_after_a_task_is_the_nearest_class_mean(net: bool, tmp_path: Any) -> None:
    """Normalised features of all clients' exemplars, averaged by class and compared as vectors, against its logits."""
    method, fed = md.ICaRL(capacity=12), stream(net=net, lr=0.3)
    r = go(method, fed, 4)
    server, memories = states(method, fed, 4, tmp_path)
    assert torch.equal(r.x, server.nearest)
    assert not torch.equal(server.x, server.nearest)
    x, phi, y = server.x, [], []
    for i in range(3):
        me = client(fed, 1, i)
        held = me.recall(torch.cat(list(memories[i].exemplars.values())))
        phi.append(F.normalize(held.features(x)))
        y.append(held.y)
    features, labels = torch.cat(phi), torch.cat(y)
    assert torch.bincount(labels).tolist() == [9, 9, 9, 9]
    mu = F.normalize(torch.stack([features[labels == c].mean(0) for c in range(4)]))
    test = fed.draw(0).problem
    X, truth = rows(1, 20, 1)[0]
    bound = test.bind(test.inputs(X), truth)
    nearest = torch.cdist(F.normalize(bound.features(x)), mu).argmin(1)
    assert torch.equal(bound.outputs(r.x).argmax(1), nearest)
    matrix = r.summary["matrix"][1]
    assert abs(sum(matrix) / 2 - float((nearest == truth).double().mean())) < 1e-12


@pytest.mark.slow
def test_training_goes_on_from_the_trained_layer() -> None:
    """Whichever way it predicts, the next rounds are the same."""
    means, head = (go(md.ICaRL(capacity=12, predict=p), stream(net=True), 3) for p in ("means", "head"))
    rows = [(a["loss"], b["loss"]) for a, b in zip(means.history, head.history, strict=True)]
    assert [a == b for a, b in rows] == [True, True, True, False, True, True, False]


def test_training_is_on_the_union_of_new_rows_and_exemplars() -> None:
    """CE over all seen + KD over the old, over 16 new rows and 6 old ones; full batch, by autograd."""
    me = client(stream(batch=None, steps=1), 1, memory=Memory({0: torch.tensor([0, 4, 8]), 1: torch.tensor([1, 5, 9])}))
    x, teacher = torch.randn(2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    both = me.recall(torch.cat([torch.arange(16, 32), torch.tensor([0, 4, 8, 1, 5, 9])]))
    assert sorted(both.y.tolist()) == [0] * 3 + [1] * 3 + [2] * 8 + [3] * 8
    leaf = x.clone().requires_grad_()
    z, t = both.X @ leaf.view(4, 4).T, both.X @ teacher.view(4, 4).T  # type: ignore[attr-defined]
    kd = -((t[:, :2] / 2).softmax(1) * (z[:, :2] / 2).log_softmax(1)).sum(1).mean()
    (slope,) = torch.autograd.grad(F.cross_entropy(z, both.y) + kd + 0.005 * leaf.square().sum(), leaf)
    step = md.ICaRL(capacity=6).train(me, TaughtModel(x, teacher)).delta
    assert torch.allclose(step, -0.1 * slope, rtol=0, atol=1e-14)


def test_a_class_at_one_client_only_and_a_client_without_rows_of_a_task() -> None:
    X, y = rows(clients=1)[0]
    data = [(X[y < 2], y[y < 2]), (X[y == 2], y[y == 2]), (X[y != 2], y[y != 2])]
    r = go(md.ICaRL(capacity=8), stream(data=data, lr=0.5), 5)
    asked = {(e.client, e.method) for e in r.ledger if e.round == 10}
    assert asked == {(0, "choose"), (1, "choose"), (1, "train"), (2, "choose"), (2, "train")}
    assert r.summary["acc"] > 0.7


def test_without_exemplars_the_trained_layer_answers_with_what_it_has() -> None:
    r = go(md.ICaRL(capacity=0, predict="head"), stream(lr=0.5), 5)
    assert r.summary["matrix"][0][0] > 0.8


def test_too_few_exemplars_for_a_mean_of_every_class_are_refused() -> None:
    with pytest.raises(RecipeError, match="predict='head'"):
        md.ICaRL(capacity=0)
    me = client(stream(), 1, memory=Memory({0: torch.tensor([0]), 1: torch.tensor([1])}, {0: 8, 1: 8}))
    with pytest.raises(RecipeError, match="client 0 may keep 3 exemplars, too few for one of each of its 4 classes"):
        md.ICaRL(capacity=3).choose(me, Model(torch.zeros(16).double()))


def test_a_class_that_comes_again_keeps_exemplars_of_both_tasks() -> None:
    """Herding by hand, over the exemplars held and the new rows, to the mean of all rows the class ever had."""
    g = torch.Generator().manual_seed(3)
    y = torch.arange(40) % 4
    X = 2 * torch.eye(4, dtype=torch.float64)[y] + torch.randn(40, 4, generator=g, dtype=torch.float64)
    fed = md.Federation(
        md.problems.Softmax(mu=0.01),
        clients=[(X, y)],
        test=(X, y),
        stream=md.tasks.Permuted(tasks=3),
        pace=md.scenarios.Pace(lr=0.1),
    )
    method, x, memory = md.ICaRL(capacity=16), torch.zeros(16).double(), Memory()
    for task in range(3):
        me = client(fed, task, memory=memory)
        held = dict(memory.exemplars)
        method.choose(me, Model(x))
        memory = me.memory
        for c in range(4):
            came = 40 * task + torch.arange(c, 40, 4)
            rows = torch.cat([held.get(c, came[:0]), came])
            phi = F.normalize(me.recall(rows).features(x))
            old = len(rows) - 10
            mean = phi[old:].sum(0) / (10 * task + 10)
            if old:
                mean = mean + 10 * task / (10 * task + 10) * phi[:old].mean(0)
            picked: list[int] = []
            for _ in range(4):
                off = [
                    9.0 if j in picked else float((mean - phi[[*picked, j]].mean(0)).norm()) for j in range(len(rows))
                ]
                picked.append(off.index(min(off)))
            assert memory.exemplars[c].tolist() == rows[picked].tolist()
        assert memory.met == dict.fromkeys(range(4), 10 * task + 10)
    tasks = torch.cat(list(memory.exemplars.values())) // 40
    assert set(tasks.tolist()) == {0, 1, 2}


def test_a_budget_of_its_own_or_the_replay_memorys() -> None:
    me = client(stream(replay=md.replay.Ring(6)), 1, memory=Memory())
    assert md.ICaRL().budget(me) == 12
    assert md.ICaRL(capacity=5).budget(me) == 5
    with pytest.raises(Unsupported, match=r"replay\.Ring"):
        go(md.ICaRL(), stream(replay=None))
    assert go(md.ICaRL(capacity=4), stream(replay=None)).summary["acc"] > 0


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings in (
        {"capacity": -1},
        {"capacity": True},
        {"lam": -1.0},
        {"lam": "a"},
        {"T": 0.0},
        {"T": "2"},
        {"predict": "mean"},
    ):
        with pytest.raises(RecipeError, match="ICaRL") as e:
            md.ICaRL(**settings)  # type: ignore[arg-type]
        assert e.value.key in (next(iter(settings)), "mean", None)
