"""FedAdagrad, FedAdam and FedYogi against NumPy, and properties of their first steps."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import federation, mean, run, states, walks

LR, STEPS = [0.1, 0.05, 0.02], [1, 6, 11]


# Of a method: its settings, and v after a mean displacement D.
RULES: dict[str, Any] = {
    "FedAdagrad": (md.FedAdagrad(0.05, beta1=0.8, tau=0.01), lambda v, D: v + D**2),
    "FedAdam": (md.FedAdam(0.05, beta1=0.8, beta2=0.9, tau=0.01), lambda v, D: 0.9 * v + 0.1 * D**2),
    "FedYogi": (md.FedYogi(0.05, beta1=0.8, beta2=0.9, tau=0.01), lambda v, D: v - 0.1 * D**2 * np.sign(v - D**2)),
}


@pytest.mark.parametrize("name", RULES)
def test_rounds_by_hand(name):
    toy, (method, second) = md.problems.synthetic_quadratics(3, d=4), RULES[name]
    x, m, v = np.zeros(4), np.zeros(4), np.full(4, 0.01**2)
    for _ in range(3):
        D = mean(walks(toy, torch.from_numpy(x), LR, STEPS), toy.p).numpy()
        m, v = 0.8 * m + 0.2 * D, second(v, D)
        x = x + 0.05 * m / (np.sqrt(v) + 0.01)
    assert np.allclose(run(method, federation(toy, lr=LR, steps=STEPS), 3).x.numpy(), x, rtol=0, atol=1e-14)


REFUSED = [(name, setting) for name in RULES for setting in ({"server_lr": 0.0}, {"tau": 0.0}, {"beta1": 1.0})]


@pytest.mark.parametrize(("name", "setting"), [*REFUSED, ("FedAdam", {"beta2": -0.1}), ("FedYogi", {"beta2": -0.1})])
def test_refuses_settings_that_make_no_sense(name, setting):
    with pytest.raises(RecipeError, match=name) as e:
        getattr(md, name)(**setting)
    assert e.value.key in setting


def test_fedadagrad_the_first_step_is_lr_and_later_ones_shrink(tmp_path):
    fed = federation(md.problems.synthetic_quadratics(3, d=4), lr=LR, steps=STEPS)
    method = md.FedAdagrad(server_lr=0.3, tau=1e-12)
    assert run(method, fed, 1).x.abs().tolist() == pytest.approx([0.3] * 4, rel=1e-6)
    v = [states(method, fed, k, tmp_path / str(k))[0].v for k in range(1, 6)]
    assert all(bool((b > a).all()) for a, b in itertools.pairwise(v))


def test_fedadagrad_it_has_no_momentum_unless_told():
    assert md.FedAdagrad().beta1 == 0
    assert math.isclose(md.FedAdagrad().tau, 1e-3)


def test_fedadam_the_first_step_is_bounded():
    # With v₀ → 0: lr·(1 − β₁)|Δ̄| / √((1 − β₂)Δ̄²), in every coordinate that moves at all.
    fed = federation(md.problems.synthetic_quadratics(3, d=4), lr=LR, steps=STEPS)
    x = run(md.FedAdam(server_lr=0.3, tau=1e-12), fed, 1).x
    assert x.abs().tolist() == pytest.approx([0.3 * (1 - 0.9) / math.sqrt(1 - 0.99)] * 4, rel=1e-6)


@pytest.mark.slow
def test_fedyogi_v_stays_positive_and_moves_a_little_at_a_time(tmp_path):
    fed = federation(md.problems.synthetic_quadratics(3, d=4), lr=LR, steps=STEPS)
    method = md.FedYogi(server_lr=0.5)
    v = [states(method, fed, k, tmp_path / str(k))[0].v for k in range(1, 12)]
    assert all(bool((a > 0).all()) for a in v)
    assert any(bool((b < a).any()) for a, b in itertools.pairwise(v))  # large displacements are forgotten


def test_fedyogi_the_first_step_is_adams():
    # From v ≈ 0 Yogi's first v is (1 − β₂)Δ̄², as Adam's.
    fed = federation(md.problems.synthetic_quadratics(3, d=4), lr=LR, steps=STEPS)
    a, b = (run(m(server_lr=0.3, tau=1e-12), fed, 1).x for m in (md.FedYogi, md.FedAdam))
    assert float((a - b).norm()) < 1e-9
    assert a.abs().tolist() == pytest.approx([0.3 * (1 - 0.9) / math.sqrt(1 - 0.99)] * 4, rel=1e-6)
