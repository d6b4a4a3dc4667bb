"""CA2FL: the paper's recursion on a run with late replies, its cache, and FedAvg where nobody is late."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import medley as md
from medley.contract.errors import RecipeError
from support.asynchronous import Q, arrivals, displacement, federation, run
from support.oracles import states


@pytest.mark.parametrize("replies", [1, 3])
def test_the_papers_recursion(replies: int):
    """v = h + Σ p̃_i (Δ_i − h_i), x ← x + η v, h_i ← Δ_i: Algorithm 2, with every h_i kept and summed anew."""
    eta = 0.4
    got = run(md.CA2FL(server_lr=eta), replies, 20)
    p, h = [float(v) for v in Q.p], [torch.zeros_like(Q.x_star) for _ in Q.clients]
    xs, late = [torch.zeros_like(Q.x_star)], 0
    for t, there in enumerate(arrivals(got), 1):
        share = sum(p[i] for i in there)
        delta = {i: displacement(i, xs[asked - 1]) for i, asked in there.items()}
        late += sum(asked < t for asked in there.values())
        v = sum(p[i] * h[i] for i in range(len(h))) + sum(p[i] / share * (delta[i] - h[i]) for i in there)
        for i in there:
            h[i] = delta[i]
        xs.append(xs[-1] + eta * v)
    assert late > 8
    torch.testing.assert_close(got.x, xs[-1], rtol=1e-11, atol=1e-12)


def test_h_is_the_mean_of_the_cached_updates(tmp_path: Path):
    s, _ = states(md.CA2FL(server_lr=0.5), federation(), 40, tmp_path, reply_policy=md.ReplyPolicy(replies=2))
    assert sorted(s.h_i) == [0, 1, 2, 3, 4, 5]
    torch.testing.assert_close(s.h, sum(float(Q.p[i]) * h for i, h in s.h_i.items()), rtol=0, atol=1e-14)


def test_nobody_late_is_fedavg():
    for replies in (None, 6):
        torch.testing.assert_close(run(md.CA2FL(), replies, 8).x, run(md.FedAvg(), None, 8).x, rtol=0, atol=1e-14)


@pytest.mark.slow
def test_it_ends_at_everybodys_optimum_where_fedbuff_ends_at_the_fast_ones():
    """One local step and a small rate: all f_i are quadratic, so that only the weights decide where x comes to rest."""
    ours, buffered = (
        run(m, 2, 300, steps=1, eval_every=300) for m in (md.CA2FL(server_lr=0.5), md.FedBuff(server_lr=0.5))
    )
    a, b = (float((r.x - Q.x_star).norm() / Q.x_star.norm()) for r in (ours, buffered))
    assert a < 1e-5
    assert b > 0.1


def test_a_wrong_step_size_is_named():
    with pytest.raises(RecipeError, match=r"CA2FL\(server_lr=0\): must be a finite number above 0") as e:
        md.CA2FL(server_lr=0)
    assert e.value.key == "server_lr"
