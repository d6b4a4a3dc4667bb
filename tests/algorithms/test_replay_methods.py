"""ERring, AGEM and NCCL: FedAvg with one more gradient a step, of rows of past tasks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import medley as md
from medley.contract.errors import RecipeError, Unsupported
from medley.numerics.projection import project
from support.continual import client, go, rows, stream
from support.pairs import quick

ALL = [md.ERring(), md.AGEM(), md.NCCL()]


def model(method: Any, x: Tensor) -> Any:
    return method.message_types["train"].common(x)


@pytest.mark.parametrize("method", quick(1, ALL), ids=lambda m: m.name)
def test_without_past_tasks_it_is_fine_tuning(method: md.ERring) -> None:
    one = stream(batch=4)
    one.stream = md.tasks.Split(tasks=1, mode="class")
    assert torch.equal(go(method, one).x, go(md.FineTune(), one).x)
    assert not torch.equal(go(method, stream()).x, go(md.FineTune(), stream()).x)


@pytest.mark.parametrize("method", ALL, ids=lambda m: m.name)
def test_a_client_that_missed_the_first_task_has_no_memory_and_fine_tunes(method: md.ERring) -> None:
    """A class at one client only, and a task in which a client has no rows."""
    X, y = rows(clients=1)[0]
    data = [(X[y < 2], y[y < 2]), (X[y >= 2], y[y >= 2]), (X, y)]
    fed = stream(data=data)
    late = client(fed, 1, 1)
    x = torch.randn(16, dtype=torch.float64)
    assert late.replay is not None
    assert len(late.replay) == 0
    assert torch.equal(method.train(late, model(method, x)).delta, late.descend(x).step)
    r = go(method, fed)
    assert [sorted({e.client for e in r.ledger if e.round == t}) for t in (1, 3)] == [[0, 2], [1, 2]]


@pytest.mark.parametrize("method", ALL, ids=lambda m: m.name)
def test_it_needs_a_memory(method: md.ERring) -> None:
    with pytest.raises(Unsupported, match=r"replay\.Ring"):
        go(method, stream(replay=None))


@pytest.mark.parametrize("mode", quick(1, ["task", "class"]))
def test_replay_forgets_less(mode: str) -> None:
    ours = go(md.ERring(), stream(mode, lr=0.5), 10).summary
    plain = go(md.FineTune(), stream(mode, lr=0.5), 10).summary
    assert ours["fgt"] < plain["fgt"] - (0.5 if mode == "class" else -0.02)
    assert ours["acc"] > 0.8


def test_er_is_descent_on_the_mean_over_both_batches() -> None:
    """Full batches of 16 new and 8 old rows: the mean over 24, by a separate federation that holds them all."""
    fed = stream(replay=md.replay.Ring(8), batch=None, steps=3)
    me = client(fed, 1)
    assert me.replay is not None
    assert (me.problem.n, len(me.replay)) == (16, 8)
    x = 0.3 * torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    past = me.replay.problem
    both = md.Federation(
        md.problems.Softmax(mu=0.01),
        clients=[(torch.cat([me.problem.X, past.X]), torch.cat([me.problem.y, past.y]))],  # type: ignore[attr-defined]
        classes=4,
        pace=md.scenarios.Pace(lr=0.1, steps=3, batch=None),
    ).draw(0)
    want = both.client(0, 1, me.engine).descend(x).step
    assert torch.allclose(md.ERring().train(me, model(md.ERring(), x)).delta, want, rtol=0, atol=1e-14)


def test_cf13_a_projected_step_raises_no_loss_and_is_no_longer() -> None:
    g = torch.Generator().manual_seed(0)
    conflicts = 0
    for _ in range(500):
        u, r = torch.randn(2, 6, generator=g, dtype=torch.float64)
        v = project(u, r)
        assert v @ r >= -1e-12
        assert v.norm() <= u.norm() * (1 + 1e-15)
        assert torch.allclose(project(v, r), v, rtol=0, atol=1e-14)
        if u @ r >= 0:
            assert torch.equal(v, u)
        else:
            conflicts += 1
            assert abs(float(v @ r)) < 1e-13
            assert torch.allclose((u - v) / (u @ r), r / (r @ r), rtol=0, atol=1e-12)  # along r alone: the nearest
    assert 200 < conflicts < 300
    assert torch.equal(project(u, torch.zeros_like(u)), u)


def test_agem_keeps_the_memorys_loss_where_fine_tuning_raises_it() -> None:
    me = client(stream(replay=md.replay.Ring(8), batch=None, steps=10, lr=0.01), 1)
    assert me.replay is not None
    x = go(md.FineTune(), stream("class"), 20, on_round=_stop_after_first_task(20)).x
    before = me.replay.problem.loss(x)
    plain = me.replay.problem.loss(x + me.descend(x).step)
    ours = me.replay.problem.loss(x + md.AGEM().train(me, model(md.AGEM(), x)).delta)
    assert plain > before + 1e-3
    assert ours - before < 0.05 * (plain - before)


def _stop_after_first_task(round: int):  # type: ignore[no-untyped-def]
    def stop(row: dict[str, float]) -> None:
        if row["round"] == round:
            raise KeyboardInterrupt

    return stop


def test_nccl_in_transference_takes_the_rate_that_minimises_the_bound() -> None:
    """Γ(β) = (Lβ²/2)‖g‖² − β(1 − Lα)⟨f, g⟩ where the memory's own step is α∇f."""
    L, alpha = 5.0, 0.1
    f, g = torch.tensor([1.0, 0.2]), torch.tensor([2.0, 1.0])
    on_memory, beta = md.NCCL(L=L).rates(alpha, f, g)
    gamma = lambda b: L * b * b / 2 * float(g @ g) - b * (1 - L * alpha) * float(f @ g)
    assert on_memory == alpha
    assert 0 < beta < alpha
    assert all(gamma(beta) < gamma(beta + e) for e in (-1e-3, 1e-3))
    assert math.isclose(beta, 0.5 * 2.2 / 25, rel_tol=1e-6)


def test_nccl_never_takes_more_of_the_task_than_plain_descent() -> None:
    f = torch.tensor([1.0, 0.0])
    assert md.NCCL().rates(0.01, f, 1e-6 * f) == (0.01, 0.01)


def test_nccl_bears_a_gradient_whose_square_is_zero() -> None:
    f = torch.ones(4)
    assert md.NCCL().rates(0.1, f, 1e-30 * f) == (0.1, 0.1)


def test_cf7_nccl_in_interference_steps_along_the_memory_as_if_alone() -> None:
    g = torch.Generator().manual_seed(0)
    seen = 0
    for _ in range(100):
        f, u = torch.randn(2, 5, generator=g, dtype=torch.float64)
        if f @ u <= 0:
            on_memory, on_task = md.NCCL(L=1.0).rates(0.05, f, u)
            assert math.isclose(float((on_memory * f + on_task * u) @ f), 0.05 * float(f @ f), rel_tol=1e-12)
            assert torch.allclose(on_task * u + (on_memory - 0.05) * f, 0.05 * project(u, f), rtol=0, atol=1e-14)
            seen += 1
    assert seen > 30
    # The memory's rate grows without bound as ∇f → 0; it is held to 1/L.
    assert md.NCCL(L=2.0).rates(0.05, 1e-9 * f, -f) == (0.5, 0.05)
    assert md.NCCL(L=2.0).rates(0.05, 0 * f, f) == (0.05, 0.05)


def test_nccl_beyond_the_bounds_rate_takes_nothing_of_the_task_where_both_agree() -> None:
    f = torch.tensor([1.0, 0.0])
    assert md.NCCL(L=5.0).rates(0.2, f, f) == (0.2, 0.0)
    assert md.NCCL(L=5.0).rates(0.3, f, f) == (0.3, 0.0)
    for wrong in (0.0, "5", True):
        with pytest.raises(RecipeError, match=rf"NCCL\(L={wrong!r}\): must be a finite number") as e:
            md.NCCL(L=wrong)  # type: ignore[arg-type]
        assert e.value.key == "L"
