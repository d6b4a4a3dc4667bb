from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import medley as md
from medley.algorithms.target import Memory, Model
from medley.contract.errors import RecipeError, Unsupported
from medley.contract.task import Task
from medley.numerics.dreams import drawing, statistics
from support.continual import client, go, stream
from support.pretended_gpu import PretendedGPU

NET, MAKER = md.models.mlp(4, 4, (6,)), md.models.generator((4,), 3, (8,), low=-3, high=5)


def method(**settings: Any) -> md.TARGET:
    return md.TARGET(NET, MAKER, **{"latent": 3, "rows": 16, "batch": 8, "steps": 60, **settings})


def test_made_up_rows_are_of_the_classes_wanted_and_the_draws_are_named() -> None:
    """The teacher, trained on real rows, gives them past labels; the same draw gives the same rows."""
    x = go(md.FineTune(), stream(net=True, lr=0.3), 10).x
    now = torch.tensor([False, False, True, True])
    task = Task(1, 2, "class", now, ~now, heads=(~now, now))
    torch.manual_seed(0)
    rows, said = method(rows=40, batch=40).dream(x, None, task)
    assert rows.shape == (40, 4)
    assert said.shape == (40, 4)
    assert float(rows.min()) >= -3
    assert float(rows.max()) <= 5
    problem = stream(net=True).draw(0).problem
    assert torch.equal(problem.outputs(x, rows), said)
    torch.manual_seed(0)
    assert torch.equal(method(rows=40, batch=40).dream(x, None, task)[0], rows)


def test_a_step_is_along_the_new_classes_loss_and_the_distillation_of_the_made_up_rows() -> None:
    g = torch.Generator().manual_seed(0)
    dreams, told = torch.randn(5, 4, generator=g), torch.randn(5, 4, generator=g)
    me = client(stream(net=True, batch=None, steps=1), 1, memory=Memory(dreams, told))
    x = torch.randn(me.problem.d, generator=g)
    net = md.models.mlp(4, 4, (6,))
    nn.utils.vector_to_parameters(x.clone(), net.parameters())
    loss = F.cross_entropy(net(me.problem.X)[:, 2:], me.problem.y - 2)  # type: ignore[attr-defined]
    kd = -((told[:, :2] / 2).softmax(1) * (net(dreams)[:, :2] / 2).log_softmax(1)).sum(1).mean()
    slope = torch.cat([v.reshape(-1) for v in torch.autograd.grad(loss + 3 * kd, list(net.parameters()))])
    assert torch.allclose(method(kd=3.0).train(me, Model(x)).delta, -0.1 * slope, rtol=0, atol=1e-6)


def test_batchnorms_statistics_are_compared_with_the_running_ones() -> None:
    net = nn.Sequential(nn.BatchNorm1d(2))
    X = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    with statistics(net.eval()) as off:
        net(X)
    assert abs(float(off[0]) - (2.0 + (1 + 1) ** 0.5)) < 1e-6  # means (2, 0), variances (2, 0) against 0 and 1
    assert not net[0]._forward_hooks


def test_labels_are_compared_within_their_head_or_with_all_seen() -> None:
    a, b = torch.tensor([True, True, False, False]), torch.tensor([False, False, True, True])
    y = torch.tensor([3, 0])
    assert torch.equal(Task(1, 2, "task", b, a, heads=(a, b)).compared(y), torch.stack([b, a]))
    assert bool(Task(1, 2, "class", b, a, heads=(a, b)).compared(y).all())


def test_it_sends_rows_once_a_task_and_needs_the_clients_network() -> None:
    sent = [(e.round, e.method, e.down, e.up) for e in go(method(steps=2), stream(net=True)).ledger if e.client == 0]
    d = 4 * sum(p.numel() for p in NET.parameters())
    assert sent[:4] == [(1, "train", d, d), (2, "train", d, d), (2, "keep", 4 * 16 * (4 + 4), 0), (3, "train", d, d)]
    with pytest.raises(RecipeError, match="has 58 parameters, the clients' network 9"):
        md.TARGET(NET, MAKER).start(torch.zeros(9))
    for wrong in (md.TARGET(NET, md.models.generator((5,))), md.TARGET(NET, MAKER, latent=7)):
        with pytest.raises(RecipeError, match="the network cannot read the rows") as e:
            wrong.start(torch.zeros(sum(p.numel() for p in NET.parameters())))
        assert e.value.key == "generator"
    with pytest.raises(Unsupported, match="a Network"):
        go(method(), stream())
    for wrong in ({"network": "a"}, {"generator": "b"}):
        with pytest.raises(RecipeError, match=r"must be a torch\.nn\.Module") as e:
            md.TARGET(**{"network": NET, "generator": MAKER} | wrong)  # type: ignore[arg-type]
        assert e.value.key == next(iter(wrong))
    for settings in ({"rows": 0}, {"rows": 2.5}, {"steps": 2.5}, {"batch": True}, {"kd": -1.0}, {"kd": "x"}):
        with pytest.raises(RecipeError, match="TARGET") as e:
            method(**settings)
        assert e.value.key == next(iter(settings))


def test_a_generator_fills_its_range() -> None:
    X = md.models.generator((2, 3, 3), 5, (16,), low=-1.0, high=2.0)(10 * torch.randn(32, 5)).detach()
    assert X.shape == (32, 2, 3, 3)
    assert -1 <= float(X.min()) < 0 < 1 < float(X.max()) <= 2
    with pytest.raises(RecipeError, match="low must be below high"):
        md.models.generator((4,), low=1.0, high=0.0)


def test_the_server_seeds_the_streams_of_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with dropout draws there while the student is trained."""
    seeds: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    for device in ("cpu", "cuda"):
        with PretendedGPU(), drawing(torch.Generator().manual_seed(7), torch.device(device)):
            pass
    assert seeds == [7]
