"""Where the rivals end up when clients differ in everything: data, size, learning rate, epochs, and who is there."""

from __future__ import annotations

import pytest

import medley as md
from support.oracles import error, federation, run

SEEDS = [s if s < 1 else pytest.param(s, marks=pytest.mark.slow) for s in range(10)]


def unequal(toy, low, high):
    return federation(toy, 0.4, lr=md.distributions.Uniform(low, high), epochs=md.distributions.Integers(1, 10))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_quadratics(seed):
    toy = md.problems.synthetic_quadratics(clients=10, d=10, seed=seed)
    fed = unequal(toy, 0.02, 0.1)
    for method in (md.SCAFFOLD(), md.FedDyn(alpha=8.0)):
        result = run(method, fed, 500, seed=seed, eval_every=10, target={"grad_norm": 2e-9})
        assert error(result, toy.x_star) < 1e-8, method.name
    for method in (md.FedAvg(), md.FedNova()):
        result = run(method, fed, 100, seed=seed, eval_every=100)
        assert error(result, toy.x_star) > 0.1, method.name


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_logistic(seed):
    toy = md.problems.synthetic_logistic(clients=10, d=10, mu=1e-3, spread=2.0, seed=seed)
    fed = unequal(toy, 0.5, 1.5)
    for method in (md.SCAFFOLD(), md.FedDyn(alpha=0.3)):
        result = run(method, fed, 500, seed=seed, eval_every=10, target={"grad_norm": 2e-10})
        assert error(result, toy.x_star) < 1e-8, method.name
