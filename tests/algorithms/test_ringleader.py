"""Ringleader: the two phases arrival by arrival with every update kept, its bound on delays, and FedAvg if all wait."""

from __future__ import annotations

import pytest
import torch

import medley as md
from support.asynchronous import Q, arrivals, displacement, run

ALL = [*range(len(Q.clients))]


def test_two_phases_arrival_by_arrival():
    """Lists of single updates in the place of sums; a phase ends inside the loop over arrivals, not by a set of ids."""
    eta = 0.3
    got = run(md.Ringleader(server_lr=eta), 1, 300)
    p, events = [float(v) for v in Q.p], iter(arrivals(got))
    xs, versions, version, delays = [torch.zeros_like(Q.x_star)], [0], 0, []
    table = {i: [] for i in ALL}
    rounds = 0

    def arrives():
        ((i, asked),) = next(events).items()
        return i, (displacement(i, xs[asked - 1]), versions[asked - 1])

    def goes_on(x, v):
        xs.append(x)
        versions.append(v)

    def stepped(x):
        delays.extend(version - age for updates in table.values() for _, age in updates)
        return x + eta * sum(p[i] * torch.stack([u for u, _ in table[i]]).mean(0) for i in ALL)

    try:
        while True:
            while not all(table.values()):
                i, update = arrives()
                table[i].append(update)
                if not all(table.values()):
                    goes_on(xs[-1], version)
            x, version, later = stepped(xs[-1]), version + 1, {j: [] for j in ALL}
            goes_on(x, version)
            due = set(ALL) - {i}
            while due:
                i, update = arrives()
                if i in due:
                    table[i].append(update)
                    x, version = stepped(xs[-1]), version + 1
                    due.remove(i)
                    goes_on(x, version)
                else:
                    later[i].append(update)
                    goes_on(xs[-1], version)
            table, rounds = later, rounds + 1
    except StopIteration:
        pass
    assert rounds >= 3
    assert max(delays) <= 2 * len(ALL) - 2
    assert max(delays) > 1
    assert max(row["stepped"] for row in got.history[1:]) == 1
    assert sum(row["stepped"] for row in got.history[1:]) == version
    torch.testing.assert_close(got.x, xs[-1], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("replies", [None, 6])
def test_nobody_late_is_fedavg(replies):
    torch.testing.assert_close(run(md.Ringleader(), replies, 8).x, run(md.FedAvg(), None, 8).x, rtol=0, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("replies", [1, 2])
def test_it_ends_at_everybodys_optimum(replies):
    found = run(md.Ringleader(server_lr=0.3), replies, 3000, steps=1, eval_every=3000)
    assert float((found.x - Q.x_star).norm() / Q.x_star.norm()) < 1e-3
