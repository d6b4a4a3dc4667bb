from __future__ import annotations

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.oracles import federation, mean, run, walks

RULES = ("official", "paper")


@pytest.mark.parametrize("participation", [None, 0.6])
@pytest.mark.parametrize("rule", RULES)
def test_rounds_by_hand(rule, participation):
    toy = md.problems.synthetic_quadratics(5, d=6)
    lr = [0.1, 0.05, 0.2, 0.1, 0.02]
    steps = [3, 9, 1, 4, 7]
    eps = 0.01
    decay = 0.9
    fed = federation(toy, participation, lr=lr, steps=steps)
    world = fed.draw(0)
    x = before = torch.zeros(6).double()
    etas = []
    for t in range(1, 5):
        ids = world.cohort(t)
        everyone = walks(toy, x, lr, steps)
        D, p = [everyone[i] for i in ids], [world.p[i] for i in ids]
        w = [k / sum(p) for k in p] if rule == "official" else [1 / len(ids)] * len(ids)
        D_bar, eps_t = mean(D, w), eps * decay ** (2 * t)
        numerator = sum(float(k) * float(d @ d) for k, d in zip(w, D, strict=True))
        etas.append(
            max(1.0, numerator / (2 * (float(D_bar @ D_bar) + eps_t * (len(ids) if rule == "official" else 1))))
        )
        x, before = x + etas[-1] * D_bar, x
    got = run(md.FedExP(eps, decay, rule), fed, 4)
    assert [row["server_step"] for row in got.history[1:]] == pytest.approx(etas, rel=1e-12)
    assert max(etas) > 1
    # What is handed out is the mean of the last two iterates.
    assert torch.allclose(got.x, (x + before) / 2, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_the_server_never_steps_short(rule):
    fed = federation(md.problems.synthetic_quadratics(10), 0.4, lr=0.05, epochs=md.distributions.Integers(1, 5))
    steps = [row["server_step"] for row in run(md.FedExP(rule=rule), fed, 40).history[1:]]
    assert min(steps) >= 1
    assert max(steps) > 1


@pytest.mark.parametrize("rule", RULES)
def test_clients_that_agree_are_averaged_plainly(rule):
    X, y = md.problems.synthetic_quadratics(1, d=5).clients[0]
    fed = md.Federation(md.problems.LeastSquares(), clients=[(X, y)] * 4, pace=md.scenarios.Pace(lr=0.1, batch=None))
    got = run(md.FedExP(eps=1e-12, rule=rule), fed, 3)
    assert [row["server_step"] for row in got.history[1:]] == [1, 1, 1]
    x1, x2, x3 = (run(md.FedAvg(), fed, k).x for k in (1, 2, 3))
    assert torch.allclose(got.x, (x2 + x3) / 2, rtol=0, atol=1e-14)
    assert torch.allclose(run(md.FedExP(eps=1e-12, rule=rule), fed, 1).x, x1 / 2, rtol=0, atol=1e-14)  # x₀ = 0 counts


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("M", [2, 6, 9])
def test_clients_at_right_angles_make_it_half_their_number(rule, M):
    clients = [(e[None], torch.ones(1).double()) for e in torch.eye(M).double()]
    fed = md.Federation(md.problems.LeastSquares(), clients=clients, pace=md.scenarios.Pace(lr=0.1, batch=None))
    row = run(md.FedExP(eps=1e-20, rule=rule), fed, 1).history[-1]
    assert row["server_step"] == pytest.approx(M / 2, rel=1e-12)


def test_it_stands_still_where_nobody_moves():
    x = torch.ones(4).double()
    clients = [(X, X @ x) for X in torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0)).double()]
    fed = md.Federation(md.problems.LeastSquares(), clients=clients, pace=md.scenarios.Pace(lr=0.1, batch=None))
    got = run(md.FedExP(), fed, 3, init=x)
    assert [row["server_step"] for row in got.history[1:]] == [1, 1, 1]
    assert torch.allclose(got.x, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("setting", [{"eps": 0.0}, {"decay": 0.0}, {"decay": 1.1}, {"rule": "papers"}])
def test_refuses_settings_that_make_no_sense(setting):
    with pytest.raises(RecipeError, match="FedExP") as e:
        md.FedExP(**setting)
    assert e.value.key in (*setting, *setting.values())
