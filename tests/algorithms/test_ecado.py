"""ECADO: its server's steady state is a consensus ADMM step, and its fixed point is the optimum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import medley as md
from support.oracles import error, federation, quadratic_parts, run, walk
from support.rig import Rig

N, LR, STEPS = 5, [0.02, 0.1, 0.05, 0.08, 0.03], [1, 4, 2, 3, 7]
TOY = md.problems.synthetic_quadratics(clients=N, d=4, seed=7)
PACES = {
    "lr": st.lists(st.floats(1e-3, 0.1), min_size=N, max_size=N),
    "steps": st.lists(st.integers(1, 8), min_size=N, max_size=N),
}


@given(**PACES)
@settings(max_examples=8)
def test_a_round_is_a_step_of_consensus_admm(lr, steps):
    """With duals u_i = −I_i and penalty G: z ← mean of y_i + u_i/G, u_i ← u_i + G(y_i − z), Σ u_i = 0 after it."""
    H, b, p = quadratic_parts(TOY)
    G = 1 / max(a * k for a, k in zip(lr, steps, strict=True))
    rig = Rig(md.ECADO(), TOY, lr=lr, epochs=steps)
    z, u = rig.s.x, torch.zeros(N, 4, dtype=torch.float64)
    for _ in range(4):
        w = [N * float(v) for v in p]
        y = torch.stack([z + walk(w[i] * H[i], w[i] * b[i], z, lr[i], steps[i], shift=u[i]) for i in range(N)])
        z = (y + u / G).mean(0)
        u = u + G * (y - z)
        rig()
        assert torch.allclose(rig.s.x, z, rtol=0, atol=1e-11)
        assert all(torch.allclose(rig.s.I[i], -u[i], rtol=0, atol=1e-10 * max(1.0, G)) for i in range(N))
        assert float(sum(rig.s.I.values()).norm()) <= 1e-12 * max(1.0, G)
        assert float(rig.s.S.norm()) == 0.0


@given(**PACES)
@settings(max_examples=8)
def test_at_rest_nothing_moves(lr, steps):
    rig = Rig(md.ECADO(), TOY, TOY.x_star, lr=lr, epochs=steps)
    rig.s.I = {i: N * rig.sim.p[i] * rig.grad(i, TOY.x_star) for i in range(N)}
    before = dict(rig.s.I)
    rig()
    assert float((rig.s.x - TOY.x_star).norm()) <= 1e-13
    G = 1 / max(a * k for a, k in zip(lr, steps, strict=True))
    assert all(float((rig.s.I[i] - before[i]).norm()) <= 1e-13 * max(1.0, G) for i in range(N))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_unequal_clients_get_to_the_optimum(seed):
    toy = md.problems.synthetic_quadratics(clients=8, d=6, seed=seed)
    fed = federation(toy, lr=md.distributions.Uniform(0.02, 0.1), epochs=md.distributions.Integers(2, 10))
    result = run(md.ECADO(), fed, 1500, seed=seed, eval_every=50, target={"grad_norm": 2e-9})
    assert result.status.outcome == "target"
    assert error(result, toy.x_star) < 1e-8


def test_a_lost_reply_leaves_a_constant_current():
    lost = {(2, 0, 1): "reply", (4, 0, 3): "request", (5, 0, 0): "reply"}
    rig = Rig(md.ECADO(), TOY, lost=lost, lr=LR, epochs=STEPS)
    for t in range(1, 7):
        before = dict(rig.s.I)
        rig()
        assert float(sum(rig.s.I.values()).norm()) <= 1e-12
        for i in range(N):
            kept = (t, 0, i) in lost
            assert kept == (i in before and torch.equal(rig.s.I[i], before[i]))


def test_when_nobody_answers_nothing_changes():
    rig = Rig(md.ECADO(), TOY, lost={(2, 0, i): "reply" for i in range(N)}, lr=LR, epochs=STEPS)
    rig()
    x, I = rig.s.x, dict(rig.s.I)
    rig()
    assert torch.equal(rig.s.x, x)
    assert all(torch.equal(rig.s.I[i], I[i]) for i in range(N))


def test_it_needs_everybody():
    with pytest.raises(md.Unsupported, match="every client in every round"):
        run(md.ECADO(), federation(TOY, 0.4), 1)
