from __future__ import annotations

import numpy as np
import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import error, federation, quadratic_parts, run

UNEQUAL = {"lr": [0.1, 0.05, 0.02, 0.1], "steps": [2, 7, 5, 1]}


@pytest.mark.parametrize("participation", [None, 0.5])
def test_rounds_by_hand(participation):
    """Gradients added up as in (3), in numpy; unequal paces, weights and server step."""
    toy, beta, step = md.problems.synthetic_quadratics(4, d=5), 0.3, 0.8
    H, b, p = ([np.asarray(v) for v in part] for part in quadratic_parts(toy))
    fed = federation(toy, participation, **UNEQUAL)
    x, c, g = np.zeros(5), np.zeros(5), np.zeros(5)
    c_i = np.zeros((4, 5))
    for t in range(1, 7):
        ids = fed.draw(0).cohort(t)
        share = sum(p[i] for i in ids)
        moved, times, new = np.zeros(5), 0.0, {}
        for i in ids:
            y, lr, K = x, UNEQUAL["lr"][i], UNEQUAL["steps"][i]
            gradients = []
            for _ in range(K):
                gradients.append(H[i] @ y - b[i])
                y = y - lr * (beta * (gradients[-1] - c_i[i] + c) + (1 - beta) * g)
            new[i] = np.mean(gradients, axis=0)
            moved = moved + p[i] / share * (y - x)
            times += p[i] / share * lr * K
        c = c + sum(p[i] * (new[i] - c_i[i]) for i in ids)
        for i in ids:
            c_i[i] = new[i]
        g = -moved / times
        x = x - step * times * g
    result = run(md.SCAFFOLDM(beta, server_lr=step), fed, 6).x.numpy()
    assert np.abs(result - x).max() < 1e-12


def test_of_equal_clients_it_is_the_papers_rule():
    """Equal weights and K steps of size η: the listing, with 1/N and 1/(ηK|S|)."""
    toy, beta, eta, K, gamma = md.problems.synthetic_quadratics(4, d=5, rows=(20, 20)), 0.4, 0.05, 6, 0.2
    H, b, p = ([np.asarray(v) for v in part] for part in quadratic_parts(toy))
    assert np.allclose(p, 0.25)
    fed = federation(toy, 0.5, lr=eta, steps=K)
    x, c, g = np.zeros(5), np.zeros(5), np.zeros(5)
    c_i = np.zeros((4, 5))
    for t in range(1, 6):
        S = fed.draw(0).cohort(t)
        ends, new = [], {}
        for i in S:
            y, total = x, np.zeros(5)
            for _ in range(K):
                gradient = H[i] @ y - b[i]
                total = total + gradient
                y = y - eta * (beta * (gradient - c_i[i] + c) + (1 - beta) * g)
            ends.append(y)
            new[i] = total / K
        g = sum(x - y for y in ends) / (eta * K * len(S))
        c = c + sum(new[i] - c_i[i] for i in S) / 4
        for i in S:
            c_i[i] = new[i]
        x = x - gamma * g
    result = run(md.SCAFFOLDM(beta, server_lr=gamma / (eta * K)), fed, 5).x.numpy()
    assert np.abs(result - x).max() < 1e-12


def test_without_momentum_it_is_scaffold():
    toy = md.problems.synthetic_quadratics(5)
    fed = federation(toy, 0.4, lr=0.1, epochs=3, batch=7)
    a, b = (run(m, fed, 8, seed=3).x for m in (md.SCAFFOLDM(beta=1.0), md.SCAFFOLD()))
    assert float((a - b).norm()) < 1e-12 * float(b.norm())


def test_it_rests_at_the_minimum_whatever_the_paces():
    toy = md.problems.synthetic_quadratics(4, d=4)
    assert error(run(md.SCAFFOLDM(beta=0.3), federation(toy, **UNEQUAL), 200, eval_every=200), toy.x_star) < 1e-6
    assert error(run(md.FedCM(alpha=0.3), federation(toy, **UNEQUAL), 200, eval_every=200), toy.x_star) > 1e-3


def test_c_is_the_mean_of_the_clients_variates_when_replies_are_lost():
    toy = md.problems.synthetic_quadratics(6, d=3)
    fed = federation(toy, lr=0.1, steps=3)
    result = run(md.SCAFFOLDM(beta=0.5), fed, 100, transport=md.transports.Lossy(loss=0.2), eval_every=100)
    assert error(result, toy.x_star) < 1e-6


@pytest.mark.parametrize("beta", [0.0, 1.5, float("nan")])
def test_refuses_a_beta_that_makes_no_sense(beta):
    with pytest.raises(RecipeError, match=r"SCAFFOLDM\(beta=") as e:
        md.SCAFFOLDM(beta=beta)
    assert e.value.key == "beta"


def test_defaults():
    assert md.SCAFFOLDM().settings() == {"beta": 0.1, "server_lr": 1.0}
    assert torch.equal(md.SCAFFOLDM().start(torch.ones(3)).g, torch.zeros(3))
