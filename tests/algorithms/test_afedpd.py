from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import digits, error, federation, mean, quadratic_parts, run, states
from support.toys import A_QUARTER_LOST, LossyTransport

UNEQUAL = {"lr": md.distributions.Uniform(0.02, 0.1), "epochs": md.distributions.Integers(1, 10)}


def test_with_everyone_it_is_feddyn():
    for fed in (digits(), federation(md.problems.synthetic_quadratics(5), **UNEQUAL)):
        a, b = (run(m, fed, 6, dtype="float64").x for m in (md.AFedPD(0.5), md.FedDyn(alpha=0.5)))
        assert float((a - b).norm()) < 1e-12 * float(b.norm())


def test_rounds_by_hand():
    # The dual variable of every client of the population, and the virtual update of those that are absent.
    toy, lr, steps = md.problems.synthetic_quadratics(6, d=5), [0.1, 0.05, 0.02, 0.1, 0.03, 0.1], [2, 7, 5, 1, 3, 4]
    H, b, p = quadratic_parts(toy)
    rho = [0.6 / (6 * float(p_i)) for p_i in p]
    fed = federation(toy, 0.5, lr=lr, steps=steps)
    theta, lam = torch.zeros(5).double(), [torch.zeros(5).double()] * 6
    for t in range(1, 9):
        ids = fed.draw(0).cohort(t)
        ends = {}
        for i in ids:
            y = theta
            for _ in range(steps[i]):
                y = y - lr[i] * (H[i] @ y - b[i] + lam[i] + rho[i] * (y - theta))
            ends[i] = y
        average = mean(list(ends.values()), [1] * len(ids))
        lam = [lam[i] + rho[i] * (ends.get(i, average) - theta) for i in range(6)]
        theta = average + mean([lam[i] / rho[i] for i in range(6)], [1] * 6)
    got = run(md.AFedPD(0.6), fed, 8).x
    assert torch.allclose(got, theta, rtol=0, atol=1e-12)


def test_it_finds_the_minimum():
    toy = md.problems.synthetic_quadratics(6, d=5)
    result = run(md.AFedPD(5.0), federation(toy, 0.5, **UNEQUAL), 200, eval_every=200)
    assert error(result, toy.x_star) < 1e-9
    assert result.history[-1]["drift"] < 1e-9


def test_the_own_parts_of_the_duals_cancel(tmp_path):
    # Σ a_i = 0, so that V is the mean of λ_i/ρ_i, whoever took part and whatever was lost.
    fed = federation(md.problems.synthetic_quadratics(10), 0.6, **UNEQUAL)
    server, _ = states(md.AFedPD(5.0), fed, 12, tmp_path, transport=LossyTransport(A_QUARTER_LOST))
    assert len(server.a) == 10
    assert float(sum(server.a.values()).norm()) < 1e-13 < 0.01 < float(server.a[0].norm())


def test_an_absent_clients_dual_moves_with_the_mean(tmp_path):
    toy = md.problems.synthetic_quadratics(3, d=4)
    fed = federation(toy, lr=0.05, steps=3)
    server, _ = states(md.AFedPD(0.5), fed, 1, tmp_path, transport=LossyTransport({(1, 0, 2): "reply"}))
    assert set(server.a) == {0, 1}
    # x = θ̄ + V with V = θ̄: the third client counts with the others' mean, so the model moves twice as far.
    H, b, p = quadratic_parts(toy)
    ends = []
    for i in (0, 1):
        y = torch.zeros(4).double()
        for _ in range(3):
            y = y - 0.05 * (H[i] @ y - b[i] + 0.5 / (3 * float(p[i])) * y)
        ends.append(y)
    assert torch.allclose(server.V, mean(ends, [1, 1]), rtol=0, atol=1e-14)
    assert torch.allclose(server.x, 2 * server.V, rtol=0, atol=1e-14)


@pytest.mark.parametrize("prox", [0.0, -1.0, float("nan")])
def test_refuses_a_prox_that_makes_no_sense(prox):
    with pytest.raises(RecipeError, match=r"AFedPD\(prox=") as e:
        md.AFedPD(prox=prox)
    assert e.value.key == "prox"
