from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import digits, error, federation, mean, quadratic_parts, run, states
from support.toys import A_QUARTER_LOST, LossyTransport

UNEQUAL = {"lr": md.distributions.Uniform(0.02, 0.1), "epochs": md.distributions.Integers(1, 10)}


def test_without_perturbation_it_is_scaffold():
    for fed in (digits(), federation(md.problems.synthetic_quadratics(5), 0.4, lr=0.1, epochs=3, batch=7)):
        a, b = (run(m, fed, 4, dtype="float64").x for m in (md.FedGAMMA(rho=0), md.SCAFFOLD()))
        assert float((a - b).norm()) < 1e-13 * float(b.norm())


def test_rounds_by_hand():
    toy, lr, steps = md.problems.synthetic_quadratics(4, d=5), [0.1, 0.05, 0.02, 0.1], [2, 7, 5, 1]
    rho, eta = 0.2, 0.8
    H, b, p = quadratic_parts(toy)
    x, c = torch.zeros(5).double(), torch.zeros(5).double()
    cs = [c] * 4
    for _ in range(5):
        ends, means = [], []
        for i in range(4):
            y, met = x, []
            for _ in range(steps[i]):
                g = H[i] @ y - b[i]
                met.append(H[i] @ (y + rho * g / g.norm()) - b[i])
                y = y - lr[i] * (met[-1] - cs[i] + c)
            ends.append(y)
            means.append(mean(met, [1] * steps[i]))
        x = x + eta * mean([y - x for y in ends], p)
        cs, c = means, mean(means, p)
    got = run(md.FedGAMMA(rho, server_lr=eta), federation(toy, lr=lr, steps=steps), 5).x
    assert torch.allclose(got, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("lossy", [False, True])
def test_c_is_the_mean_of_all_c(lossy, tmp_path):
    fed = federation(md.problems.synthetic_quadratics(10), 0.6, **UNEQUAL)
    server, memories = states(
        md.FedGAMMA(), fed, 12, tmp_path, transport=LossyTransport(A_QUARTER_LOST if lossy else {})
    )
    p = fed.draw(0).p
    total = sum((p[i] * m.c for i, m in memories.items()), torch.zeros(10).double())
    assert float((server.c - total).norm()) < 1e-14 < float(total.norm())


@pytest.mark.slow
def test_it_stays_as_near_to_the_optimum_as_the_perturbation_is_long():
    toy = md.problems.synthetic_quadratics(5, d=5)
    fed = federation(toy, 0.6, **UNEQUAL)
    far = [error(run(md.FedGAMMA(rho), fed, 100, eval_every=100), toy.x_star) for rho in (0.1, 0.01)]
    assert 5 < far[0] / far[1] < 20
    assert far[1] < 0.02


def test_defaults():
    assert md.FedGAMMA().settings() == {"rho": 0.1, "server_lr": 1.0}


@pytest.mark.parametrize("setting", [{"rho": -0.1}, {"server_lr": 0.0}])
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match="FedGAMMA") as e:
        md.FedGAMMA(**setting)
    assert e.value.key in setting
