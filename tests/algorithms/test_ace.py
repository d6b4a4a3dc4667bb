"""ACE and ACED: the paper's recursions on a run with late replies, gradient descent where all answer, and x*."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.asynchronous import LR, Q, arrivals, displacement, federation, run
from support.oracles import quadratic_parts, states


@pytest.mark.parametrize("max_delay", [None, 0, 3])
@pytest.mark.parametrize("replies", [1, 3])
def test_the_papers_recursion(replies: int, max_delay: int | None):
    """x ← x + η·(mean of the latest update of every client in A(t)), summed anew in every round."""
    eta = 0.2
    method = md.ACE(eta) if max_delay is None else md.ACED(eta, max_delay)
    got = run(method, replies, 20)
    p = [float(v) for v in Q.p]
    latest: dict[int, tuple[int, torch.Tensor]] = {}
    xs, sizes = [torch.zeros_like(Q.x_star)], []
    for t, there in enumerate(arrivals(got), 1):
        latest |= {i: (asked, displacement(i, xs[asked - 1])) for i, asked in there.items()}
        active = [i for i, (asked, _) in latest.items() if max_delay is None or t - asked <= max_delay]
        sizes.append(len(active))
        share = sum(p[i] for i in active)
        xs.append(xs[-1] + (eta * sum(p[i] / share * latest[i][1] for i in active) if active else 0))
    torch.testing.assert_close(got.x, xs[-1], rtol=1e-11, atol=1e-12)
    if max_delay is None:
        assert len(latest) > 3
    else:
        assert got["active"][1:] == sizes
        assert min(sizes) < 5


def test_u_is_the_sum_over_all_clients_latest_updates(tmp_path: Path):
    s, _ = states(md.ACE(0.3), federation(), 40, tmp_path, reply_policy=md.ReplyPolicy(replies=1))
    assert sorted(s.latest) == [0, 1, 2, 3, 4, 5]
    torch.testing.assert_close(s.u, sum(float(Q.p[i]) * u for i, u in s.latest.items()), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_all_answering_is_fedavg_and_with_one_step_gradient_descent():
    for method in (md.ACE(), md.ACED(max_delay=0)):
        torch.testing.assert_close(run(method, None, 8).x, run(md.FedAvg(), None, 8).x, rtol=0, atol=1e-14)
    H, b, p = quadratic_parts(Q)
    x = torch.zeros_like(Q.x_star)
    for _ in range(8):
        x = x - LR * sum(float(p[i]) * (H[i] @ x - b[i]) for i in range(len(H)))
    torch.testing.assert_close(run(md.ACE(), None, 8, steps=1).x, x, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_it_finds_everybodys_optimum_from_late_gradients():
    """Chang et al.'s claim: no bias of participation is left, whoever answers how often. FedBuff's stays."""
    ours, aced, buffered = (
        run(m, 2, 400, steps=1, eval_every=400) for m in (md.ACE(0.7), md.ACED(0.7, 3), md.FedBuff(0.7))
    )
    a, b, c = (float((r.x - Q.x_star).norm() / Q.x_star.norm()) for r in (ours, aced, buffered))
    assert a < 1e-6
    assert b > 0.1  # A(t) leaves out the slowest
    assert c > 0.1


def test_wrong_settings_are_named():
    with pytest.raises(RecipeError, match=r"ACED\(max_delay=-1\): must be a whole number") as e:
        md.ACED(max_delay=-1)
    assert e.value.key == "max_delay"
