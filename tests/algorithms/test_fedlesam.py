from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import digits, federation, mean, quadratic_parts, run, states
from support.toys import LossyTransport


def test_without_perturbation_it_is_fedavg_bit_for_bit():
    for fed in (digits(), federation(md.problems.synthetic_quadratics(5), 0.4, lr=0.1, epochs=3, batch=7)):
        a, b = (run(m, fed, 5, seed=3) for m in (md.FedLESAM(rho=0), md.FedAvg()))
        assert torch.equal(a.x, b.x)


def test_a_client_that_has_met_no_model_perturbs_nothing():
    fed = digits()
    a, b = (run(m, fed, 1) for m in (md.FedLESAM(rho=0.5), md.FedAvg()))
    assert torch.equal(a.x, b.x)
    a, b = (run(m, fed, 2) for m in (md.FedLESAM(rho=0.5), md.FedAvg()))
    assert float((a.x - b.x).norm()) > 1e-3


def test_rounds_by_hand():
    # As the paper has it: the gradient is taken at y + δ, y itself is not perturbed.
    toy = md.problems.synthetic_quadratics(6, d=5)
    lr = [0.1, 0.05, 0.02, 0.1, 0.03, 0.1]
    steps = [2, 7, 5, 1, 3, 4]
    rho = 0.3
    H, b, p = quadratic_parts(toy)
    fed = federation(toy, 0.5, lr=lr, steps=steps)
    x, old = torch.zeros(5).double(), {}
    for t in range(1, 9):
        moved, ids = [], fed.draw(0).cohort(t)
        for i in ids:
            back = old[i] - x if i in old else torch.zeros(5).double()
            delta = rho * back / back.norm() if i in old else back
            y = x
            for _ in range(steps[i]):
                y = y - lr[i] * (H[i] @ (y + delta) - b[i])
            moved.append(y - x)
            old[i] = x
        x = x + 0.8 * mean(moved, [float(p[i]) for i in ids])
    got = run(md.FedLESAM(rho, server_lr=0.8), fed, 8).x
    assert torch.allclose(got, x, rtol=0, atol=1e-13)


def test_a_lost_reply_leaves_the_clients_last_model(tmp_path):
    fed = federation(md.problems.synthetic_quadratics(3), lr=0.05, steps=2)
    lost = {(2, 0, 1): "reply", (2, 0, 2): "request"}
    first = run(md.FedLESAM(), fed, 1).x
    _, memories = states(md.FedLESAM(), fed, 2, tmp_path, transport=LossyTransport(lost))
    assert torch.equal(memories[0].x, first)
    assert float(memories[1].x.norm()) == float(memories[2].x.norm()) == 0.0 < float(first.norm())
    assert memories[1].met


@pytest.mark.parametrize("setting", [{"rho": -0.1}, {"server_lr": 0.0}])
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match="FedLESAM") as e:
        md.FedLESAM(**setting)
    assert e.value.key in setting
