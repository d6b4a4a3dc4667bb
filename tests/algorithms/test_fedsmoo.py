from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import digits, error, federation, mean, quadratic_parts, run, states
from support.toys import A_QUARTER_LOST, LossyTransport

UNEQUAL = {"lr": md.distributions.Uniform(0.02, 0.1), "epochs": md.distributions.Integers(1, 10)}


def test_without_perturbation_it_is_feddyn():
    for fed in (digits(), federation(md.problems.synthetic_quadratics(5), 0.4, lr=0.1, epochs=3, batch=7)):
        a, b = (run(m, fed, 4, dtype="float64").x for m in (md.FedSMOO(rho=0, prox=0.5), md.FedDyn(alpha=0.5)))
        assert float((a - b).norm()) < 1e-13 * float(b.norm())


@pytest.mark.parametrize("participation", [None, 0.5])
def test_rounds_by_hand(participation):
    # λ_i and β as in the paper, and the server's λ = mean λ_i: x ← mean w_i − βλ.
    toy, lr, steps, r = md.problems.synthetic_quadratics(4, d=5), [0.1, 0.05, 0.02, 0.1], [2, 7, 5, 1], 0.2
    H, b, p = quadratic_parts(toy)
    beta = [4 * float(p_i) / 0.6 for p_i in p]
    zero = torch.zeros(5).double()
    x, s, lam, mu = zero, zero, [zero] * 4, [zero] * 4
    fed = federation(toy, participation, lr=lr, steps=steps)
    for t in range(1, 6):
        ends, ids = [], fed.draw(0).cohort(t)
        for i in ids:
            y = x
            for _ in range(steps[i]):
                up = H[i] @ y - b[i] - mu[i] - s
                s_i = r * up / up.norm()
                mu[i] = mu[i] + s_i - s
                y = y - lr[i] * (H[i] @ (y + s_i) - b[i] - lam[i] + (y - x) / beta[i])
            lam[i] = lam[i] - (y - x) / beta[i]
            ends.append(y)
        x = mean(ends, [1] * len(ids)) - mean([beta[i] * lam[i] for i in range(4)], [1] * 4)
        average = mean([mu[i] for i in ids], [1] * len(ids))
        s = r * average / average.norm()
    got = run(md.FedSMOO(r, prox=0.6), fed, 5).x
    assert torch.allclose(got, x, rtol=0, atol=1e-13)


def test_perturbations_have_their_length(tmp_path):
    # After one step from nothing, μ_i is the client's first perturbation.
    fed = federation(md.problems.synthetic_quadratics(5), lr=0.05, steps=1)
    server, memories = states(md.FedSMOO(0.3), fed, 1, tmp_path)
    assert [float(m.mu.norm()) for m in memories.values()] == pytest.approx([0.3] * 5, rel=1e-13)
    assert float(server.s.norm()) == pytest.approx(0.3, rel=1e-13)
    total = sum((m.mu for m in memories.values()), torch.zeros(10).double())
    assert float(server.s @ total) == pytest.approx(0.3 * float(total.norm()), rel=1e-13)


def test_it_stays_near_the_optimum():
    toy = md.problems.synthetic_quadratics(5, d=5)
    fed = federation(toy, 0.6, **UNEQUAL)
    far = [error(run(md.FedSMOO(rho, prox=5.0), fed, 100, eval_every=100), toy.x_star) for rho in (0.1, 0.001)]
    assert 20 < far[0] / far[1] < 500
    assert far[1] < 0.005


def test_lost_messages_do_not_break_the_mean(tmp_path):
    fed = federation(md.problems.synthetic_quadratics(10), 0.6, **UNEQUAL)
    server, memories = states(md.FedSMOO(prox=5.0), fed, 12, tmp_path, transport=LossyTransport(A_QUARTER_LOST))
    total = sum((m.h for m in memories.values()), torch.zeros(10).double()) / 10
    assert float((server.h - total).norm()) < 1e-14 < float(total.norm())


def test_defaults_are_those_of_the_authors_code():
    assert md.FedSMOO().settings() == {"rho": 0.1, "prox": 0.1}


@pytest.mark.parametrize("setting", [{"rho": -0.1}, {"prox": 0.0}])
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match="FedSMOO") as e:
        md.FedSMOO(**setting)
    assert e.value.key in setting
