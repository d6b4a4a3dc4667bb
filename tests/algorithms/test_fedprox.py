from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import digits, federation, mean, quadratic_parts, run


def test_without_a_pull_it_is_fedavg_bit_for_bit():
    for fed in (digits(), federation(md.problems.synthetic_quadratics(5), 0.4, lr=0.1, epochs=3, batch=7)):
        a, b = (run(m, fed, 5, seed=3) for m in (md.FedProx(mu=0), md.FedAvg()))
        assert torch.equal(a.x, b.x)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_anchor_stays_where_the_client_started(steps):
    # y_K − m = (I − lr(H + mu I))^K (x − m), m the minimum of f_i + (mu/2)‖y − x‖²
    toy, mu, lr = md.problems.synthetic_quadratics(4, d=6), 0.7, 0.1
    H, b, p = quadratic_parts(toy)
    x = torch.linspace(-1, 1, 6, dtype=torch.float64)
    ends = []
    for H_i, b_i in zip(H, b, strict=True):
        A = H_i + mu * torch.eye(6, dtype=torch.float64)
        m = torch.linalg.solve(A, b_i + mu * x)
        ends.append(m + torch.linalg.matrix_power(torch.eye(6).double() - lr * A, steps) @ (x - m))
    got = run(md.FedProx(mu=mu), federation(toy, lr=lr, steps=steps), 1, init=x).x
    assert torch.allclose(got, mean(ends, p), rtol=0, atol=1e-13)
    plain = run(md.FedAvg(), federation(toy, lr=lr, steps=steps), 1, init=x).x
    # At its first step a client stands on the anchor and feels nothing.
    assert float((got - plain).norm()) < 1e-15 if steps == 1 else float((got - plain).norm()) > 1e-3


def test_a_strong_pull_holds_clients_back():
    toy = md.problems.synthetic_quadratics(4)
    x = torch.ones(10, dtype=torch.float64)
    far = [
        float((run(md.FedProx(mu=mu), federation(toy, lr=0.015, steps=200), 1, init=x).x - x).norm())
        for mu in (1, 10, 100)
    ]
    assert far[0] > far[1] > far[2]
    assert 105 / 15 <= far[1] / far[2] <= 100.5 / 10.5  # y − x = (H + mu I)⁻¹∇f, H in [0.5, 5]


@pytest.mark.parametrize("mu", [-0.1, float("nan"), float("inf")])
def test_refuses_a_pull_that_makes_no_sense(mu):
    with pytest.raises(RecipeError, match=r"FedProx\(mu=") as e:
        md.FedProx(mu=mu)
    assert e.value.key == "mu"
