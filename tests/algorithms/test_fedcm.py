from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import digits, error, federation, mean, quadratic_parts, run, walk

UNEQUAL = {"lr": [0.1, 0.05, 0.02, 0.1], "steps": [2, 7, 5, 1]}


def test_without_momentum_it_is_fedavg_bit_for_bit():
    for fed in (digits(), federation(md.problems.synthetic_quadratics(5), 0.4, lr=0.1, epochs=3, batch=7)):
        a, b = (run(m, fed, 5, seed=3) for m in (md.FedCM(alpha=1), md.FedAvg()))
        assert torch.equal(a.x, b.x)


@pytest.mark.parametrize("participation", [None, 0.5])
def test_rounds_by_hand(participation):
    toy, alpha, eta = md.problems.synthetic_quadratics(4, d=5), 0.3, 0.7
    lr, steps = UNEQUAL["lr"], UNEQUAL["steps"]
    H, b, p = quadratic_parts(toy)
    fed = federation(toy, participation, **UNEQUAL)
    x = Delta = torch.zeros(5).double()
    for t in range(1, 6):
        moved, times, ids = [], [], fed.draw(0).cohort(t)
        for i in ids:
            y = x
            for _ in range(steps[i]):
                y = y - lr[i] * (alpha * (H[i] @ y - b[i]) + (1 - alpha) * Delta)
            moved.append(y - x)
            times.append(torch.tensor(lr[i] * steps[i], dtype=torch.float64))
        weights = [float(p[i]) for i in ids]
        step = mean(moved, weights)
        Delta = -step / mean(times, weights)
        x = x + eta * step
    got = run(md.FedCM(alpha, server_lr=eta), fed, 5).x
    assert torch.allclose(got, x, rtol=0, atol=1e-13)


def test_weight_decay_of_the_whole_step_is_that_of_the_pace_divided_by_alpha():
    # y ← y − lr·(α∇f_i(y) + (1 − α)Δ + λy), by hand, is not what weight_decay=λ does.
    toy, alpha, decay = md.problems.synthetic_quadratics(4, d=5), 0.2, 0.01
    H, b, p = quadratic_parts(toy)
    x = Delta = torch.zeros(5).double()
    for _ in range(6):
        moved = []
        for i in range(4):
            y = x
            for _ in range(3):
                y = y - 0.1 * (alpha * (H[i] @ y - b[i]) + (1 - alpha) * Delta + decay * y)
            moved.append(y - x)
        step = mean(moved, p)
        Delta, x = -step / (3 * 0.1), x + step
    there = run(md.FedCM(alpha), federation(toy, lr=0.1, steps=3, weight_decay=decay / alpha), 6).x
    assert torch.allclose(there, x, rtol=0, atol=1e-13)
    here = run(md.FedCM(alpha), federation(toy, lr=0.1, steps=3, weight_decay=decay), 6).x
    assert float((here - x).norm()) > 1e-3 * float(x.norm())


def test_of_single_steps_it_is_server_momentum():
    # Δ⁺ = α∇f(x) + (1 − α)Δ and x⁺ = x − lr·Δ⁺: FedAvgM with β = 1 − α at the rate α·lr.
    toy, alpha = md.problems.synthetic_quadratics(6, d=5), 0.25
    a = run(md.FedCM(alpha), federation(toy, lr=0.1, steps=1), 20).x
    b = run(md.FedAvgM(beta=1 - alpha), federation(toy, lr=0.1 * alpha, steps=1), 20).x
    assert float((a - b).norm()) < 1e-13 * float(b.norm())


@pytest.mark.slow
def test_its_fixed_point_is_fedavgs_at_a_smaller_rate():
    # Where x rests, Δ is 0 and clients descend at the rate α·lr: less drift than FedAvg, but drift.
    toy, alpha = md.problems.synthetic_quadratics(4, d=4), 0.2
    H, b, p = quadratic_parts(toy)
    went = [torch.eye(4).double() - torch.linalg.matrix_power(torch.eye(4).double() - 0.1 * alpha * h, 10) for h in H]
    rest = torch.linalg.solve(
        mean(went, p), mean([m @ torch.linalg.solve(h, c) for m, h, c in zip(went, H, b, strict=True)], p)
    )
    assert all(float(mean([walk(H[i], b[i], rest, 0.02, 10) for i in range(4)], p)[k]) < 1e-14 for k in range(4))
    got = run(md.FedCM(alpha), federation(toy, lr=0.1, steps=10), 200, eval_every=200)
    assert error(got, rest) < 1e-9
    plain = run(md.FedAvg(), federation(toy, lr=0.1, steps=10), 200, eval_every=200)
    assert 1e-3 < error(got, toy.x_star) < error(plain, toy.x_star) / 1.5


def test_defaults_are_the_papers():
    assert md.FedCM().settings() == {"alpha": 0.1, "server_lr": 1.0}


@pytest.mark.parametrize("alpha", [0.0, 1.5, float("nan")])
def test_refuses_an_alpha_that_makes_no_sense(alpha):
    with pytest.raises(RecipeError, match=r"FedCM\(alpha=") as e:
        md.FedCM(alpha=alpha)
    assert e.value.key == "alpha"
