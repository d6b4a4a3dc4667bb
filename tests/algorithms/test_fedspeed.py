from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import digits, error, federation, mean, quadratic_parts, run, states
from support.toys import A_QUARTER_LOST, LossyTransport

UNEQUAL = {"lr": md.distributions.Uniform(0.02, 0.1), "epochs": md.distributions.Integers(1, 10)}


@pytest.mark.parametrize("without", [{"rho": 0.0}, {"blend": 0.0}])
def test_without_perturbation_it_is_feddyn(without):
    for fed in (digits(), federation(md.problems.synthetic_quadratics(5), 0.4, lr=0.1, epochs=3, batch=7)):
        a, b = (run(m, fed, 4, dtype="float64").x for m in (md.FedSpeed(prox=0.5, **without), md.FedDyn(alpha=0.5)))
        assert float((a - b).norm()) < 1e-13 * float(b.norm())


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_rounds_by_hand(decay):
    # The paper's own variables: ĝ_i, λ, and ŵ_i = w_i − λĝ_i, whose mean is the next model. Decay is part of both g.
    toy, lr, steps = md.problems.synthetic_quadratics(4, d=5), [0.1, 0.05, 0.02, 0.1], [2, 7, 5, 1]
    rho, blend = 0.2, 0.7
    H, b, p = quadratic_parts(toy)
    lam = [4 * float(p_i) / 0.6 for p_i in p]
    x, prox_correction = torch.zeros(5).double(), [torch.zeros(5).double()] * 4
    for _ in range(5):
        amended = []
        for i in range(4):
            y = x
            for _ in range(steps[i]):
                g1 = H[i] @ y - b[i] + decay * y
                there = y + rho * g1 / g1.norm()
                g2 = H[i] @ there - b[i] + decay * there
                quasi = (1 - blend) * g1 + blend * g2
                y = y - lr[i] * (quasi - prox_correction[i] + (y - x) / lam[i])
            prox_correction[i] = prox_correction[i] - (y - x) / lam[i]
            amended.append(y - lam[i] * prox_correction[i])
        x = mean(amended, [1] * 4)
    got = run(md.FedSpeed(rho, prox=0.6, blend=blend), federation(toy, lr=lr, steps=steps, weight_decay=decay), 5).x
    assert torch.allclose(got, x, rtol=0, atol=1e-13)


def test_weight_decay_and_clipping_hold_at_the_perturbed_point():
    # As ρ → 0 the perturbed gradient is the plain one, decay and clipping included.
    toy = md.problems.synthetic_quadratics(5, d=5)
    fed = federation(toy, lr=0.1, steps=6, weight_decay=0.3, clip=0.5)
    a, b = run(md.FedSpeed(1e-11, prox=0.5), fed, 5).x, run(md.FedDyn(alpha=0.5), fed, 5).x
    free = run(md.FedDyn(alpha=0.5), federation(toy, lr=0.1, steps=6), 5).x
    assert float((a - b).norm()) < 1e-9 < 1e-2 < float((b - free).norm())


@pytest.mark.slow
def test_it_stays_as_near_to_the_optimum_as_the_perturbation_is_long():
    toy = md.problems.synthetic_quadratics(5, d=5)
    fed = federation(toy, 0.6, **UNEQUAL)
    far = [error(run(md.FedSpeed(rho, prox=5.0), fed, 100, eval_every=100), toy.x_star) for rho in (0.1, 0.01)]
    plain = error(run(md.FedAvg(), fed, 100, eval_every=100), toy.x_star)
    assert 5 < far[0] / far[1] < 20
    assert far[1] < 0.02 < 0.1 < plain


def test_lost_messages_do_not_break_the_mean(tmp_path):
    fed = federation(md.problems.synthetic_quadratics(10), 0.6, **UNEQUAL)
    server, memories = states(md.FedSpeed(prox=5.0), fed, 12, tmp_path, transport=LossyTransport(A_QUARTER_LOST))
    total = sum((m.h for m in memories.values()), torch.zeros(10).double()) / 10
    assert float((server.h - total).norm()) < 1e-14 < float(total.norm())


def test_defaults_are_those_of_the_authors_code():
    assert md.FedSpeed().settings() == {"rho": 0.1, "prox": 0.1, "blend": 1.0}


@pytest.mark.parametrize("setting", [{"rho": -0.1}, {"prox": 0.0}, {"blend": 1.1}])
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match="FedSpeed") as e:
        md.FedSpeed(**setting)
    assert e.value.key in setting
