from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import digits, federation, mean, run, walks


def test_without_momentum_it_is_fedavg():
    a, b = (run(m, digits(), 3).x for m in (md.FedAvgM(beta=0), md.FedAvg()))
    assert torch.equal(a, b)


def test_rounds_by_hand():
    toy, lr, steps = md.problems.synthetic_quadratics(3, d=4), [0.1, 0.05, 0.02], [1, 6, 11]
    x, v = torch.zeros(4).double(), torch.zeros(4).double()
    for _ in range(5):
        v = 0.7 * v + mean(walks(toy, x, lr, steps), toy.p)
        x = x + 0.5 * v
    got = run(md.FedAvgM(beta=0.7, server_lr=0.5), federation(toy, lr=lr, steps=steps), 5).x
    assert torch.allclose(got, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("setting", [{"beta": 1.0}, {"beta": -0.1}, {"server_lr": 0.0}])
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match="FedAvgM") as e:
        md.FedAvgM(**setting)
    assert e.value.key in setting
