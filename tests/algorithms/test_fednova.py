from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import medley as md
from medley import engines
from medley.algorithms.fednova import Model
from medley.contract.errors import RecipeError
from support.oracles import error, federation, mean, run, walks


def work(method, **pace):
    """‖a_i‖₁, or Σ lr·a, as client 0 reports it."""
    toy = md.problems.synthetic_quadratics(2, d=3)
    world = federation(toy, **pace).draw(0)
    me = world.client(0, 1, engines.choose("seq", world.problem, "cpu"))
    return method.train(me, Model(torch.ones(3, dtype=torch.float64))).work


def weights(tau, rho, lr, mu):
    """Σ of the weights that a descent gives its gradients, each one's followed to the end."""
    moved, buffer = torch.zeros(tau).double(), torch.zeros(tau).double()
    for k in range(tau):
        buffer = rho * buffer
        buffer[k] += 1
        moved = (1 - lr * mu) * moved + buffer
    return float(moved.sum())


@pytest.mark.slow
@given(
    st.integers(1, 30), st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([0.0, 0.1, 2.0]), st.sampled_from([0.01, 0.1])
)
def test_the_work_is_the_sum_of_gradient_weights(tau, rho, mu, lr):
    got = work(md.FedNova(mu=mu), lr=lr, steps=tau, momentum=rho)
    assert got == pytest.approx(weights(tau, rho, lr, mu), rel=1e-12)
    assert work(md.FedNova(mu=mu, lr_aware=True), lr=lr, steps=tau, momentum=rho) == pytest.approx(lr * got, rel=1e-12)
    if mu == 0:
        assert got == pytest.approx(
            tau if rho == 0 else (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho), rel=1e-12
        )
    if rho == 0 and mu > 0:
        assert got == pytest.approx((1 - (1 - lr * mu) ** tau) / (lr * mu), rel=1e-12)


@pytest.mark.parametrize("lr_aware", [False, True])
def test_equal_work_is_fedavg(lr_aware):
    fed = federation(md.problems.synthetic_quadratics(10), 0.4, lr=0.05, steps=7, momentum=0.5)
    a, b = (run(m, fed, 5).x for m in (md.FedNova(lr_aware=lr_aware), md.FedAvg()))
    assert float((a - b).norm()) < 1e-14 * float(b.norm()) * 5


def test_a_round_by_hand():
    toy, lr, steps = md.problems.synthetic_quadratics(3, d=4), [0.1, 0.05, 0.02], [1, 6, 11]
    x = torch.linspace(-1, 1, 4).double()
    D = walks(toy, x, lr, steps)
    for lr_aware, w in ((False, steps), (True, [r * k for r, k in zip(lr, steps, strict=True)])):
        tau = float((toy.p * torch.tensor(w, dtype=torch.float64)).sum())
        want = x + tau * mean([d / k for d, k in zip(D, w, strict=True)], toy.p)
        got = run(md.FedNova(lr_aware=lr_aware), federation(toy, lr=lr, steps=steps), 1, init=x).x
        assert torch.allclose(got, want, rtol=0, atol=1e-13)


def test_server_momentum_by_hand():
    toy, lr, steps = md.problems.synthetic_quadratics(3, d=4), [0.1, 0.05, 0.02], [1, 6, 11]
    fed = federation(toy, lr=lr, steps=steps)
    x, v = torch.zeros(4).double(), torch.zeros(4).double()
    for _ in range(4):
        v = 0.6 * v + run(md.FedNova(), fed, 1, init=x).x - x
        x = x + v
    assert torch.allclose(run(md.FedNova(server_momentum=0.6), fed, 4).x, x, rtol=0, atol=1e-13)


def test_when_aware_of_lr_its_error_is_of_the_order_of_lr():
    toy = md.problems.synthetic_quadratics(8, d=6)
    errors = []
    for scale in (1.0, 0.1, 0.01):
        # The fixed point of a full round is affine in x: no need to wait until it is reached.
        fed = federation(
            toy,
            lr=[scale * r for r in (0.04, 0.02, 0.05, 0.01, 0.03, 0.05, 0.02, 0.04)],
            steps=[1, 9, 3, 7, 2, 5, 8, 4],
        )
        starts = torch.cat([torch.zeros(1, 6), torch.eye(6)]).double()
        origin, *ends = [run(md.FedNova(lr_aware=True), fed, 1, init=x).x for x in starts]
        A = torch.stack([end - origin for end in ends], 1)
        x = torch.linalg.solve(torch.eye(6).double() - A, origin)
        errors.append(float((x - toy.x_star).norm() / toy.x_star.norm()))
    assert 8 < errors[0] / errors[1] < 12
    assert 8 < errors[1] / errors[2] < 12


@pytest.mark.slow
def test_unequal_lr_leave_the_papers_form_far_off():
    toy = md.problems.synthetic_quadratics(8)
    fed = federation(toy, lr=[0.1, 0.01] * 4, epochs=[3, 8] * 4)
    official, aware = (error(run(md.FedNova(lr_aware=a), fed, 100, eval_every=100), toy.x_star) for a in (False, True))
    assert official > 0.1
    assert official > 2 * aware


@pytest.mark.parametrize("setting", [{"mu": -1}, {"server_momentum": 1.0}, {"server_momentum": -0.1}])
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match=r"FedNova\(") as e:
        md.FedNova(**setting)
    assert e.value.key in setting
