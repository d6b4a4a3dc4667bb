from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import error, federation, mean, quadratic_parts, run, states
from support.toys import A_QUARTER_LOST, LossyTransport

UNEQUAL = {"lr": md.distributions.Uniform(0.02, 0.1), "epochs": md.distributions.Integers(1, 10)}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("participation", [None, 0.5])
def test_rounds_by_hand(participation, scaled):
    toy, lr, steps = md.problems.synthetic_quadratics(4, d=5), [0.1, 0.05, 0.02, 0.1], [2, 7, 5, 1]
    H, b, p = quadratic_parts(toy)
    alpha = [0.6 / (4 * float(p_i)) for p_i in p]
    zero = torch.zeros(5).double()
    w, c, h, own = zero, zero, [zero] * 4, [zero] * 4
    fed = federation(toy, participation, lr=lr, steps=steps)
    for t in range(1, 6):
        ends, ids, news = [], fed.draw(0).cohort(t), list(own)
        for i in ids:
            c_seen = c / (4 * float(p[i])) if scaled else c
            theta, gradients = w, []
            # T = lr·S, with S the weight that a constant gradient has after these steps of a pull.
            S = sum((1 - lr[i] * alpha[i]) ** k for k in range(steps[i]))
            for k in range(steps[i]):
                g = H[i] @ theta - b[i] + alpha[i] * h[i]
                gradients.append((1 - lr[i] * alpha[i]) ** (steps[i] - 1 - k) / S * g)
                theta = theta - lr[i] * (g + alpha[i] * (theta - w) + c_seen - own[i])
            news[i] = sum(gradients, zero)  # the weighed mean gradient of the descent, the drift's included
            h[i] = h[i] + theta - w
            ends.append(theta)
        w = mean(ends, [1] * len(ids)) + mean(h, [1] * 4)
        c, own = c + sum((float(p[i]) * (news[i] - own[i]) for i in ids), zero), news
    got = run(md.FedDC(0.6, scaled=scaled), fed, 5).x
    assert torch.allclose(got, w, rtol=0, atol=1e-13)
    other = run(md.FedDC(0.6, scaled=not scaled), fed, 5).x
    assert float((other - w).norm()) > 1e-3 * float(w.norm())


def test_with_the_same_data_it_is_feddyn():
    # All c_i are c, and nothing is left to correct but the drift. Clients of equal size are not enough.
    (X, y) = md.problems.synthetic_quadratics(1, d=5).clients[0]
    toy = md.problems.synthetic_quadratics(1, d=5)
    fed = md.Federation(toy.problem, clients=[(X, y)] * 4, pace=md.scenarios.Pace(lr=0.05, steps=5, batch=None))
    a, b = (run(m, fed, 10).x for m in (md.FedDC(0.5), md.FedDyn(alpha=0.5)))
    assert float((a - b).norm()) < 1e-13 * float(b.norm())
    others = federation(md.problems.synthetic_quadratics(4, d=5, rows=(8, 8)), lr=0.05, steps=5)
    a, b = (run(m, others, 10).x for m in (md.FedDC(0.5), md.FedDyn(alpha=0.5)))
    assert float((a - b).norm()) > 1e-3 * float(b.norm())


def test_without_a_pull_its_first_descents_are_scaffolds():
    # Only the server differs: it adds the mean drift, which is the mean displacement over again.
    toy = md.problems.synthetic_quadratics(4, d=5, rows=(8, 8))
    fed = federation(toy, lr=0.05, steps=5)
    a, b = run(md.FedDC(1e-13), fed, 1).x, run(md.SCAFFOLD(), fed, 1).x
    assert float((a - 2 * b).norm()) < 1e-11 * float(b.norm())


def test_clients_of_equal_size_are_not_scaled():
    fed = federation(md.problems.synthetic_quadratics(4, d=5, rows=(8, 8)), lr=0.05, steps=5)
    a, b = (run(md.FedDC(0.5, scaled), fed, 10).x for scaled in (False, True))
    assert float((a - b).norm()) < 1e-13 * float(b.norm())


@pytest.mark.parametrize("scaled", [pytest.param(False, marks=pytest.mark.slow), True])
def test_it_finds_the_minimum(scaled):
    toy = md.problems.synthetic_quadratics(6, d=5)
    result = run(md.FedDC(8.0, scaled), federation(toy, 0.5, **UNEQUAL), 200, eval_every=200)
    assert error(result, toy.x_star) < 1e-9
    assert result.history[-1]["drift"] < 1e-9


def test_lost_messages_do_not_break_the_means(tmp_path):
    fed = federation(md.problems.synthetic_quadratics(10), 0.6, **UNEQUAL)
    server, memories = states(md.FedDC(8.0), fed, 12, tmp_path, transport=LossyTransport(A_QUARTER_LOST))
    zero, p = torch.zeros(10).double(), fed.draw(0).p
    c = sum((p[i] * m.c for i, m in memories.items()), zero)
    h = sum((m.h for m in memories.values()), zero) / 10
    assert float((server.c - c).norm()) < 1e-13 < float(c.norm())
    assert float((server.h - h).norm()) < 1e-14 < float(h.norm())


def test_defaults_are_those_of_the_authors_code():
    assert md.FedDC().settings() == {"alpha": 0.01, "scaled": False}


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_refuses_an_alpha_that_makes_no_sense(alpha):
    with pytest.raises(RecipeError, match=r"FedDC\(alpha=") as e:
        md.FedDC(alpha=alpha)
    assert e.value.key == "alpha"
