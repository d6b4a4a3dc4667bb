"""FedNS: the step of the paper's formula, sketches without bias, and Newton where nothing is sketched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import medley as md
from medley.contract.errors import RecipeError, Unsupported
from medley.testing import Check, checks
from support.oracles import digits, error
from support.pairs import quick
from support.rig import Rig

TOY = md.problems.synthetic_logistic(clients=5, d=6, mu=1e-2, rows=(15, 40), spread=0.5)
FED = md.Federation(TOY.problem, clients=TOY.clients, f_star=TOY.f_star)


def go(method: Any, rounds: int, **options: Any) -> md.Result:
    return md.run(method, FED, rounds, progress=False, **options)


@pytest.mark.parametrize("entries", ["gaussian", "rademacher"])
def test_the_step_is_the_papers(entries: Any):
    """x − (Σ p_i (A_iᵀS_iᵀS_iA_i + μI))⁻¹ Σ p_i ∇f_i, with S_i drawn anew from the client's stream."""
    rig, k = Rig(md.FedNS(k=4, entries=entries, step=1.0), TOY), 4
    x = rig.s.x
    for t in (1, 2):
        H, g = torch.zeros(6, 6, dtype=x.dtype), torch.zeros_like(x)
        for i, p in rig.sim.p.items():
            me = rig.client(i, t)
            A, mu = me.problem.factor(x)
            torch.testing.assert_close(A.T @ A + mu * torch.eye(6, dtype=x.dtype), me.problem.hessian(x))
            S = torch.randn(k, len(A), generator=me.rng("sketch"), dtype=x.dtype) / 2
            S = S.sign() / 2 if entries == "rademacher" else S
            H = H + p * (A.T @ S.T @ S @ A + mu * torch.eye(6, dtype=x.dtype))
            g = g + p * me.problem.grad(x)
        x = x - torch.linalg.solve(H, g)
        torch.testing.assert_close(rig().x, x, rtol=1e-10, atol=1e-12)


def test_as_many_rows_as_the_client_has_are_newtons_method():
    torch.testing.assert_close(go(md.FedNS(k=40), 4).x, go(md.Newton(), 4).x, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("entries", ["gaussian", "rademacher"])
def test_sketches_have_no_bias(entries: Any):
    """E ΥᵀΥ = AᵀA; the mean over 300 rounds of k = 5 is off by about √(6/(300·5))."""
    rig = Rig(md.FedNS(k=5, entries=entries), TOY)
    (i, *_), x, method = rig.all, rig.s.x, md.FedNS(k=5, entries=entries)
    A, _ = rig.client(i, 1).problem.factor(x)
    total: Tensor | float = 0.0
    for t in range(1, 301):
        me = rig.client(i, t)
        me.memory = method.remember(x)
        up = method.sketch(me, md.algorithms.fedns.Model(x))
        assert up.root.shape == (5, 6)
        total = total + up.root.T @ up.root / 300
    assert float((total - A.T @ A).norm() / (A.T @ A).norm()) < 0.1
    assert float((up.root.T @ up.root - A.T @ A).norm() / (A.T @ A).norm()) > 0.2


@pytest.mark.slow
def test_more_rows_of_sketch_need_fewer_rounds():
    rounds = [go(md.FedNS(k=k), 100, target={"gap": 1e-10}).history[-1]["round"] for k in (1, 5, 40)]
    assert rounds[0] > rounds[1] > rounds[2]
    assert rounds[2] <= 4
    assert rounds[0] < 60


def test_a_lost_sketch_is_left_out_of_both_sums():
    """The step is that of the federation without the client."""
    rig = Rig(md.FedNS(k=40, step=1.0), TOY, lost={(1, 0, 2): "reply"})
    x = rig.s.x
    others = [(p, rig.client(i, 1).problem) for i, p in rig.sim.p.items() if i != 2]
    H, g = sum(p * f.hessian(x) for p, f in others), sum(p * f.grad(x) for p, f in others)
    torch.testing.assert_close(rig().x, x - torch.linalg.solve(H, g), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_many_outputs_and_bad_settings():
    fed = md.Federation(md.problems.Softmax(mu=1e-2), data=md.datasets.digits(), partition=md.partitions.IID(20))
    run = md.run(md.FedNS(k=100), fed, 3, progress=False)
    with pytest.raises(RecipeError, match=r"FedNS\(k=0\): must be a whole number"):
        md.FedNS(k=0)
    with pytest.raises(RecipeError, match=r"FedNS\(step=-1\): must be a finite number above 0, or 'armijo'"):
        md.FedNS(step=-1)
    assert run.summary["accuracy"] > 0.9
    with pytest.raises(Unsupported, match="FedNS needs"):
        md.run(md.FedNS(), digits(), 1, progress=False)


def test_it_finds_the_optimum():
    assert error(go(md.FedNS(k=5), 40), TOY.x_star) < 1e-8


RANDOM = {"card", "scrambled", "resume", "lost reply"}


@pytest.mark.parametrize("check", quick(2, [c for c in checks(md.FedNS(k=3)) if c.name in RANDOM]), ids=str)
def test_the_battery_with_random_sketches(check: Check):
    """The table of methods has clients with fewer rows than k. Here all are sketched, each from its own stream."""
    check()
