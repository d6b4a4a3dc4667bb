from __future__ import annotations

from functools import partial

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import digits, error, federation, mean, quadratic_parts, run, states
from support.toys import A_QUARTER_LOST, LossyTransport

UNEQUAL = {"lr": md.distributions.Uniform(0.02, 0.1), "epochs": md.distributions.Integers(1, 10)}


@pytest.mark.parametrize("server_lr", [1.0, "share"])
def test_with_everyone_it_is_feddyn(server_lr):
    for fed in (digits(), federation(md.problems.synthetic_quadratics(5), **UNEQUAL)):
        a, b = (run(m, fed, 6, dtype="float64").x for m in (md.FedADMM(0.5, server_lr=server_lr), md.FedDyn(alpha=0.5)))
        assert float((a - b).norm()) < 1e-12 * float(b.norm())


@pytest.mark.parametrize("server_lr", [1.0, 0.6, "share"])
def test_rounds_by_hand(server_lr):
    # All w_i start at θ⁰, which is not 0 here; y_i is the paper's dual variable.
    toy, lr, steps = md.problems.synthetic_quadratics(6, d=5), [0.1, 0.05, 0.02, 0.1, 0.03, 0.1], [2, 7, 5, 1, 3, 4]
    H, b, p = quadratic_parts(toy)
    rho = [0.6 / (6 * float(p_i)) for p_i in p]
    fed = federation(toy, 0.5, lr=lr, steps=steps)
    start = torch.linspace(-1, 1, 5, dtype=torch.float64)
    theta, w, y = start, [start] * 6, [torch.zeros(5).double()] * 6
    for t in range(1, 9):
        changes, ids = [], fed.draw(0).cohort(t)
        for i in ids:
            v = theta
            for _ in range(steps[i]):
                v = v - lr[i] * (H[i] @ v - b[i] + y[i] + rho[i] * (v - theta))
            dual = y[i] + rho[i] * (v - theta)
            changes.append(v + dual / rho[i] - (w[i] + y[i] / rho[i]))
            w[i], y[i] = v, dual
        eta = len(ids) / 6 if server_lr == "share" else server_lr
        theta = theta + eta * mean(changes, [1] * len(ids))
    got = run(md.FedADMM(0.6, server_lr=server_lr), fed, 8, init=start).x
    assert torch.allclose(got, theta, rtol=0, atol=1e-12)


def test_momentum_over_the_pull_is_torchs_sgd():
    # The authors' step: m ← ½m + (∇f_i(w) + y_i + ρ_i(w − θ)). Momentum of the pace leaves the pull out of m.
    toy, rho = md.problems.synthetic_quadratics(4, d=5, rows=(8, 8)), 0.6
    H, b, _ = quadratic_parts(toy)
    theta, y = torch.zeros(5).double(), [torch.zeros(5).double()] * 4
    for _ in range(3):
        w_y = []
        for i in range(4):
            v, m = theta, torch.zeros(5).double()
            for _ in range(6):
                m = 0.5 * m + (H[i] @ v - b[i] + y[i] + rho * (v - theta))
                v = v - 0.05 * m
            y[i] = y[i] + rho * (v - theta)
            w_y.append(v + y[i] / rho)
        theta = mean(w_y, [1] * 4)
    sgd = partial(torch.optim.SGD, momentum=0.5)
    there = run(md.FedADMM(rho), federation(toy, lr=0.05, steps=6, optimizer=sgd), 3).x
    assert torch.allclose(there, theta, rtol=0, atol=1e-13)
    here = run(md.FedADMM(rho), federation(toy, lr=0.05, steps=6, momentum=0.5), 3).x
    assert float((here - theta).norm()) > 1e-3 * float(theta.norm())


@pytest.mark.slow
def test_the_share_leads_to_the_minimum_and_a_number_elsewhere():
    toy = md.problems.synthetic_quadratics(6, d=5)
    fed = federation(toy, 0.5, **UNEQUAL)
    share, one = (
        error(run(md.FedADMM(5.0, server_lr=eta), fed, 200, eval_every=200, throw=False), toy.x_star)
        for eta in ("share", 1.0)
    )
    assert share < 1e-9
    assert one > 1e-4


def test_theta_is_the_mean_of_all_augmented_models(tmp_path):
    start = torch.linspace(-1, 1, 10, dtype=torch.float64)
    for rounds in (1, 12):  # not everyone has taken part after the first
        fed = federation(md.problems.synthetic_quadratics(10), 0.6, **UNEQUAL)
        method = md.FedADMM(5.0, server_lr="share")
        folder = tmp_path / str(rounds)
        server, memories = states(method, fed, rounds, folder, transport=LossyTransport(A_QUARTER_LOST), init=start)
        met = {i: m.w + m.h for i, m in memories.items() if not m.first}
        assert len(met) < 10 or rounds > 1
        total = sum((met.get(i, start) for i in range(10)), torch.zeros(10).double()) / 10
        assert float((server.x - total).norm()) < 1e-13
        assert float((server.x - start).norm()) > 0.01


def test_defaults_are_those_of_the_authors_code():
    assert md.FedADMM().settings() == {"prox": 0.01, "server_lr": 1.0}


@pytest.mark.parametrize("setting", [{"prox": 0.0}, {"server_lr": 0.0}, {"server_lr": "half"}])
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match="FedADMM") as e:
        md.FedADMM(**setting)
    assert e.value.key in (*setting, *setting.values())
