from __future__ import annotations

import dataclasses

import pytest
import torch

import medley as md
from medley.algorithms.ewc import AnchoredModel
from medley.contract.errors import RecipeError, Unsupported
from medley.engines import choose
from support.continual import client, go, rows, stream


def test_cf12_without_weight_it_is_fine_tuning() -> None:
    off = (go(md.EWC(lam=0.0), stream()).x - go(md.FineTune(), stream()).x).abs().max()
    assert off < 1e-15


def test_cf12_the_penalty_pulls_the_local_parameters_and_is_nothing_at_the_anchor() -> None:
    me = client(stream(batch=None, steps=1), 1)
    a, M = torch.randn(16, dtype=torch.float64), torch.rand(16, dtype=torch.float64)
    free = me.descend(a).step
    assert torch.allclose(md.EWC().train(me, AnchoredModel(a, M, a)).delta * (1 + 0.1 * M), free, rtol=0, atol=1e-15)
    # From elsewhere: z⁺ = (z − lr·g + lr·M a)/(1 + lr·M), whose penalty gradient is M(z⁺ − a).
    z = a + 1
    went = md.EWC().train(me, AnchoredModel(z, M, a)).delta
    assert torch.allclose(went, me.descend(z).step - 0.1 * M * (z + went - a), rtol=0, atol=1e-15)
    two = client(stream(batch=None, steps=2), 1)
    assert (md.EWC().train(two, AnchoredModel(a, M, a)).delta - two.descend(a).step).abs().max() > 1e-3


def test_a_boundless_weight_freezes_what_has_information() -> None:
    """Where an explicit step would diverge. The new classes' weights have none in the first task."""
    first = go(md.EWC(lam=1e12), stream("task"), on_round=_until(2))
    last = go(md.EWC(lam=1e12), stream("task"))
    moved = (last.x - first.x).view(4, 4).abs()
    assert moved[:2].max() < 1e-10
    assert moved[2:].max() > 0.1
    assert last.summary["matrix"][1][0] == last.summary["matrix"][0][0]


def _until(round: int):  # type: ignore[no-untyped-def]
    def stop(row: dict[str, float]) -> None:
        if row["round"] == round:
            raise KeyboardInterrupt

    return stop


def test_the_fisher_information_is_the_federations_and_of_every_row_apart() -> None:
    """Σ p_i mean_j (∂l_j/∂x)², row by row with autograd, clients of unequal size; a batch's square is much less."""
    data = [(X[: 8 + 8 * i], y[: 8 + 8 * i]) for i, (X, y) in enumerate(rows())]
    fed = stream(data=data, net=True)
    world = fed.draw(0, dtype=torch.float64)
    x = world.problem.initial(torch.Generator().manual_seed(0))
    by_hand, of_batch = torch.zeros_like(x), torch.zeros_like(x)
    for i in range(3):
        me = client(fed, 0, i)
        F = md.EWC().fisher(me, AnchoredModel(x.float())).F
        mine = world.client(i, 1, me.engine)
        each = torch.stack([mine.problem.grad(x, torch.tensor([j])) for j in range(mine.problem.n)])
        assert torch.allclose(F.double(), each.square().mean(0), rtol=1e-4, atol=1e-9)
        by_hand += mine.p * each.square().mean(0)
        of_batch += mine.p * each.mean(0).square()
    assert by_hand.sum() > 1.5 * of_batch.sum()


def test_with_quadratics_whose_fisher_is_their_hessian_two_tasks_end_at_their_joint_optimum() -> None:
    """f_1 = ½(x−u)ᵀH_1(x−u), F = H_1 diagonal, anchor u: then f_2 + ½(x−u)ᵀH_1(x−u) is f_1 + f_2."""
    g = torch.Generator().manual_seed(0)
    H1, u = torch.rand(3, generator=g, dtype=torch.float64), torch.randn(3, generator=g, dtype=torch.float64)
    X, y = torch.randn(9, 3, generator=g, dtype=torch.float64), torch.randn(9, generator=g, dtype=torch.float64)
    fed = md.Federation(
        md.problems.LeastSquares(), clients=[(X, y)], pace=md.scenarios.Pace(lr=0.2, steps=800, batch=None)
    )
    world = fed.draw(0)
    me = world.client(0, 1, choose("seq", world.problem, "cpu"))
    end = u + md.EWC().train(me, AnchoredModel(u, H1, u)).delta
    joint = torch.linalg.solve(X.T @ X / 9 + H1.diag(), X.T @ y / 9 + H1 * u)
    assert torch.allclose(end, joint, rtol=0, atol=1e-10)


def test_what_it_keeps_grows_by_a_task_and_the_anchor_is_the_last_model() -> None:
    method, fed = md.EWC(), stream("task")
    one = go(method, fed, on_round=_until(2))
    assert {e.method for e in one.ledger} == {"train", "fisher"}
    down = {(e.round, e.method): e.down for e in go(method, fed).ledger}
    assert down == {(1, "train"): 128, (2, "train"): 128, (2, "fisher"): 128, (3, "train"): 384, (4, "train"): 384,
                    (4, "fisher"): 128}  # fmt: skip


def test_it_needs_a_stream_and_sensible_weights() -> None:
    fed = md.Federation(md.problems.Softmax(), clients=rows())
    with pytest.raises(Unsupported, match="EWC needs a stream of tasks"):
        go(md.EWC(), fed)
    for wrong in (-1.0, "a", None, True):
        with pytest.raises(RecipeError, match=rf"EWC\(lam={wrong!r}\): must be a finite number") as e:
            md.EWC(lam=wrong)  # type: ignore[arg-type]
        assert e.value.key == "lam"
    assert dataclasses.asdict(md.EWC()) == {"lam": 100.0}
