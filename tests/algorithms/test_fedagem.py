"""Fed-A-GEM: the mean of all memories' gradients, projection against it, and FedAvg where nothing is remembered."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import medley as md
from medley.contract.errors import Unsupported
from support.continual import client, go, rows, stream


def first_task(fed: md.Federation) -> Tensor:
    """x after the first task's only round."""

    def stop(row: dict[str, float]) -> None:
        if row["round"] == 1:
            raise KeyboardInterrupt

    return go(md.FedAvg(), fed, 1, on_round=stop).x


def test_without_past_tasks_it_is_fedavg() -> None:
    one = stream(batch=4)
    one.stream = md.tasks.Split(tasks=1, mode="class")
    ours = go(md.FedAGEM(), one)
    assert torch.equal(ours.x, go(md.FedAvg(), one).x)
    assert ours.history[-1]["exchanges"] == 2
    assert not torch.equal(go(md.FedAGEM(), stream()).x, go(md.FedAvg(), stream()).x)


def test_the_papers_round() -> None:
    """g_ref is the mean of the memories' gradients at x; g ← g − (gᵀg_ref/‖g_ref‖²) g_ref where gᵀg_ref < 0."""
    fed = stream(replay=md.replay.Ring(8), batch=None, steps=3, lr=0.5)
    x = first_task(fed)
    mes = [client(fed, 1, i) for i in range(3)]
    g_ref = sum(me.p * me.replay.problem.grad(x) for me in mes)  # type: ignore[union-attr]
    assert isinstance(g_ref, Tensor)
    want, projections = x, 0
    for me in mes:
        y = x
        for _ in range(3):
            g = me.problem.grad(y)
            if g @ g_ref < 0:
                g, projections = g - (g @ g_ref) / (g_ref @ g_ref) * g_ref, projections + 1
            y = y - 0.5 * g
        want = want + me.p * (y - x)
    assert projections > 3
    torch.testing.assert_close(go(md.FedAGEM(), fed, 1).x, want, rtol=1e-12, atol=1e-13)


def test_a_client_that_remembers_nothing_is_held_to_the_memories_of_the_others() -> None:
    """Client 1 has rows of the second task only: A-GEM leaves its step as it is, Fed-A-GEM projects it."""
    X, y = rows(clients=1)[0]
    fed = stream(data=[(X, y), (X[y >= 2], y[y >= 2])], replay=md.replay.Ring(8), batch=None, steps=3)
    x = first_task(fed)
    late, other = client(fed, 1, 1), client(fed, 1, 0)
    assert not late.replay
    assert other.replay
    method = md.FedAGEM()
    up = method.refer(late, method.message_types["refer"].common(x))
    assert (up.holds, float(up.g.norm())) == (0.0, 0.0)
    g_ref = other.replay.problem.grad(x)
    free = late.descend(x).step
    held = method.train(late, method.message_types["train"].common(x, g_ref)).delta
    assert float(free @ g_ref) > 1e-3
    assert float(held @ g_ref) <= 1e-12
    # The mean is over those who remember: client 0 alone, whatever its share of the task.
    both = x + other.p * method.train(other, method.message_types["train"].common(x, g_ref)).delta + late.p * held
    torch.testing.assert_close(go(method, fed, 1).x, both, rtol=1e-12, atol=1e-13)


def test_it_forgets_less_than_fedavg() -> None:
    ours, plain = (go(m, stream("class", lr=0.1), 6).summary for m in (md.FedAGEM(), md.FedAvg()))
    assert ours["fgt"] < plain["fgt"] - 0.05
    assert ours["acc"] > plain["acc"] + 0.05


def test_it_needs_a_memory() -> None:
    with pytest.raises(Unsupported, match=r"replay\.Ring"):
        go(md.FedAGEM(), stream(replay=None))
