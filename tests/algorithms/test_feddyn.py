from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import error, federation, mean, quadratic_parts, run, states, walk
from support.pairs import quick
from support.toys import A_QUARTER_LOST, LossyTransport

UNEQUAL = {"lr": md.distributions.Uniform(0.02, 0.1), "epochs": md.distributions.Integers(1, 10)}


@pytest.mark.parametrize("participation", [None, 0.5])
def test_rounds_by_hand(participation):
    # Gradient descent on f_i(θ) + α_i(⟨θ, h_i − x⟩ + ½‖θ‖²), with every term as the paper has it.
    toy, lr, steps, alpha = md.problems.synthetic_quadratics(4, d=5), [0.1, 0.05, 0.02, 0.1], [2, 7, 5, 1], 0.6
    H, b, p = quadratic_parts(toy)
    x = torch.zeros(5).double()
    h = [torch.zeros(5).double()] * 4
    fed = federation(toy, participation, lr=lr, steps=steps)
    for t in range(1, 6):
        theta, ids = [], fed.draw(0).cohort(t)
        for i in ids:
            a = alpha / (4 * float(p[i]))
            y = x
            for _ in range(steps[i]):
                y = y - lr[i] * (H[i] @ y - b[i] + a * (h[i] - x) + a * y)
            theta.append(y)
        for i, y in zip(ids, theta, strict=True):
            h[i] = h[i] + y - x
        x = mean(theta, [1] * len(ids)) + mean(h, [1] * 4)
    got = run(md.FedDyn(alpha), fed, 5).x
    assert torch.allclose(got, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rounds", [1, 7, 20])
def test_h_is_the_mean_over_everybody_asked_or_not(rounds, tmp_path):
    fed = federation(md.problems.synthetic_quadratics(10), 0.4, **UNEQUAL)
    server, memories = states(md.FedDyn(5.0), fed, rounds, tmp_path)
    total = sum((m.h for m in memories.values()), torch.zeros(10).double()) / 10
    assert float(total.norm()) > 1e-3
    assert float((server.h - total).norm()) < 1e-14


def test_lost_messages_do_not_break_the_mean(tmp_path):
    fed = federation(md.problems.synthetic_quadratics(10), 0.6, **UNEQUAL)
    server, memories = states(md.FedDyn(5.0), fed, 12, tmp_path, transport=LossyTransport(A_QUARTER_LOST))
    total = sum((m.h for m in memories.values()), torch.zeros(10).double()) / 10
    assert float((server.h - total).norm()) < 1e-14 < float(total.norm())


def test_at_the_optimum_h_is_every_clients_gradient(tmp_path):
    toy = md.problems.synthetic_quadratics(5, d=5)
    server, memories = states(md.FedDyn(5.0), federation(toy, 0.4, **UNEQUAL), 300, tmp_path)
    H, b, p = quadratic_parts(toy)
    assert float(server.h.norm()) < 1e-12
    for i, m in memories.items():
        assert float((H[i] @ toy.x_star - b[i] + 5 / (5 * float(p[i])) * m.h).norm()) < 1e-9


@pytest.mark.slow
def test_clients_count_by_their_size():
    toy = md.problems.synthetic_quadratics(6, rows=(10, 200), seed=1)
    H, b, p = quadratic_parts(toy)
    assert float(p.max() / p.min()) > 4
    plain = torch.linalg.solve(mean(H, [1] * 6), mean(b, [1] * 6))
    assert float((plain - toy.x_star).norm() / toy.x_star.norm()) > 0.05
    got = run(md.FedDyn(2.0), federation(toy, lr=0.05, steps=10), 200, eval_every=200)
    assert error(got, toy.x_star) < 1e-10


@pytest.mark.parametrize("steps", quick(1, [5, 50]))
def test_the_fixed_point_does_not_depend_on_how_well_clients_solve(steps):
    toy = md.problems.synthetic_quadratics(4, d=4)
    H, b, p = quadratic_parts(toy)
    # From the optimum with the right h_i nobody moves, however long the descent.
    for i in range(4):
        a = 1.0 / (4 * float(p[i]))
        h = -(H[i] @ toy.x_star - b[i]) / a
        assert float(walk(H[i], b[i], toy.x_star, 0.05, steps, mu=a, shift=a * h).norm()) < 1e-14
    result = run(md.FedDyn(2.0), federation(toy, lr=0.1, steps=steps), 300, target={"grad_norm": 1e-11})
    assert error(result, toy.x_star) < 1e-10


def test_it_tells_how_far_h_has_drifted(tmp_path):
    fed = federation(md.problems.synthetic_quadratics(10), 0.4, **UNEQUAL)
    server, _ = states(md.FedDyn(), fed, 5, tmp_path)
    assert run(md.FedDyn(), fed, 5).history[-1]["drift"] == pytest.approx(float(server.h.norm()), rel=1e-14)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_refuses_an_alpha_that_makes_no_sense(alpha):
    with pytest.raises(RecipeError, match=r"FedDyn\(alpha=") as e:
        md.FedDyn(alpha=alpha)
    assert e.value.key == "alpha"
