from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import medley as md
from medley.contract.errors import RecipeError, Unsupported
from medley.contract.messages import TaughtModel
from support.continual import client, go, stream


def test_without_a_teacher_it_is_fine_tuning() -> None:
    """In the first task; and, without weight, in mode "task" ever after."""
    one = stream("task")
    one.stream = md.tasks.Split(tasks=1)
    assert torch.equal(go(md.LwF(), one).x, go(md.FineTune(), one).x)
    off = (go(md.LwF(lam=0.0), stream("task")).x - go(md.FineTune(), stream("task")).x).abs().max()
    assert off < 1e-14


@pytest.mark.parametrize("mode", ["task", "class"])
def test_a_step_is_along_the_loss_as_written(mode: Any) -> None:
    """CE among the new classes + λ·Σ softmax(t/T) log softmax(s/T) over the old ones, by autograd."""
    me = client(stream(mode, batch=None, steps=1), 1)
    g = torch.Generator().manual_seed(0)
    x, teacher = torch.randn(2, 16, generator=g, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    X, y = me.problem.X, me.problem.y  # type: ignore[attr-defined]
    z, t = X @ leaf.view(4, 4).T, X @ teacher.view(4, 4).T
    loss = F.cross_entropy(z[:, 2:], y - 2) + 0.005 * leaf.square().sum()
    loss = loss - 3.0 * ((t[:, :2] / 2).softmax(1) * (z[:, :2] / 2).log_softmax(1)).sum(1).mean()
    (slope,) = torch.autograd.grad(loss, leaf)
    step = md.LwF(lam=3.0).train(me, TaughtModel(x, teacher)).delta
    assert torch.allclose(step, -0.1 * slope, rtol=0, atol=1e-14)


def test_cf14_a_student_that_is_its_teacher_is_not_pulled() -> None:
    me = client(stream("class", batch=None, steps=1), 1)
    x = torch.randn(16, dtype=torch.float64)
    steps = [md.LwF(lam=lam).train(me, TaughtModel(x, x)).delta for lam in (0.0, 100.0)]
    assert torch.allclose(*steps, rtol=0, atol=1e-14)


def test_the_teachers_answers_are_those_of_the_batchs_rows() -> None:
    """A mini-batch run is the run of a federation that takes the same rows one by one."""
    x, teacher = torch.randn(2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    me = client(stream("class", batch=4, epochs=1), 1)
    got = md.LwF(lam=2.0).train(me, TaughtModel(x, teacher)).delta
    X, y, z = me.problem.X, me.problem.y, x  # type: ignore[attr-defined]
    for rows in me.batches():
        leaf = z.clone().requires_grad_()
        s, t = X[rows] @ leaf.view(4, 4).T, X[rows] @ teacher.view(4, 4).T
        kd = -((t[:, :2] / 2).softmax(1) * (s[:, :2] / 2).log_softmax(1)).sum(1).mean()
        loss = F.cross_entropy(s[:, 2:], y[rows] - 2) + 2 * kd + 0.005 * leaf.square().sum()
        z = z - 0.1 * torch.autograd.grad(loss, leaf)[0]
    assert torch.allclose(got, z - x, rtol=0, atol=1e-14)


def test_in_mode_task_every_old_head_is_distilled_apart() -> None:
    """With one more constant on a whole old head, its softmax is the same; with all old classes in one it is not."""
    digits = md.datasets.digits()
    fed = md.Federation(
        md.problems.Softmax(), data=digits, partition=md.partitions.IID(2), stream=md.tasks.Split(tasks=5),
        pace=md.scenarios.Pace(lr=0.1, steps=1, batch=None),
    )  # fmt: skip
    me = client(fed, 2)
    assert [int(h.sum()) for h in me.task.kept] == [2, 2]
    head = me.task.kept[0].nonzero()[:, 0]
    d = me.problem.d
    x = 0.01 * torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    same = x.view(10, -1).clone()
    same[head] += 0.3 * torch.rand(same.shape[1], dtype=torch.float64)
    steps = [md.LwF(lam=5.0).train(me, TaughtModel(x, t)).delta for t in (x, same.reshape(-1))]
    assert torch.allclose(*steps, rtol=0, atol=1e-14)


def test_it_forgets_less_than_fine_tuning() -> None:
    runs = {m.name: go(m, stream("task", net=True, lr=0.5), 10).summary for m in (md.LwF(), md.FineTune())}
    assert runs["LwF"]["fgt"] <= runs["FineTune"]["fgt"]
    assert runs["LwF"]["acc"] > 0.85


def test_it_needs_a_stream_of_classes_and_sensible_settings() -> None:
    toy = md.problems.synthetic_quadratics(clients=3)
    with pytest.raises(Unsupported, match="LwF needs"):
        go(md.LwF(), md.Federation(toy.problem, clients=toy.clients))
    for settings in ({"lam": -1.0}, {"T": 0.0}):
        with pytest.raises(RecipeError, match="LwF") as e:
            md.LwF(**settings)
        assert e.value.key == next(iter(settings))
