"""FedAdamW against a loop that writes AdamW out, number by number, on a network of four blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import medley as md
from medley.problems import Network
from support.oracles import run

STEPS, LR = (3, 5, 2, 4), (0.02, 0.01, 0.03, 0.02)


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def clients() -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 5, generator=g).double(), torch.arange(n) % 3) for n in (4, 9, 6, 5)]


def federation(participation: Any = None, **more: Any) -> md.Federation:
    pace = md.scenarios.Pace(**{"lr": [*LR], "steps": [*STEPS], "batch": None, **more})
    return md.Federation(Network(network(), start="module"), clients=clients(), pace=pace, participation=participation)


def by_hand(cohorts: list[tuple[int, ...]], method: md.FedAdamW) -> Tensor:
    """x after a round of each cohort."""
    module, data = network(), clients()
    x, lean = ([q.detach().clone() for q in module.parameters()] for _ in range(2))
    blocks, t = [0.0] * len(x), 0.0
    lean = [torch.zeros_like(q) for q in x]
    for ids in cohorts:
        total = sum(len(data[i][1]) for i in ids)
        share = {i: len(data[i][1]) / total for i in ids}
        moves, seen, time, count = [torch.zeros_like(q) for q in x], [0.0] * len(x), 0.0, 0.0
        for i in ids:
            y, m = [q.clone() for q in x], [torch.zeros_like(q) for q in x]
            v = [torch.full_like(q, b) for q, b in zip(x, blocks, strict=True)]
            for k in range(1, STEPS[i] + 1):
                for q, value in zip(module.parameters(), y, strict=True):
                    q.data = value.clone()
                loss = nn.functional.cross_entropy(module(data[i][0]), data[i][1])
                for j, g in enumerate(torch.autograd.grad(loss, [*module.parameters()])):
                    m[j] = method.beta1 * m[j] + (1 - method.beta1) * g
                    v[j] = method.beta2 * v[j] + (1 - method.beta2) * g**2
                    m_hat, v_hat = m[j] / (1 - method.beta1 ** (t + k)), v[j] / (1 - method.beta2 ** (t + k))
                    step = m_hat / (v_hat**0.5 + method.eps) + method.weight_decay * y[j]
                    y[j] = y[j] - LR[i] * step + method.alpha * LR[i] * lean[j]
            for j in range(len(x)):
                moves[j] = moves[j] + share[i] * (y[j] - x[j])
                seen[j] += share[i] * float(v[j].mean())
            time, count = time + share[i] * LR[i] * STEPS[i], count + share[i] * STEPS[i]
        x = [q + move for q, move in zip(x, moves, strict=True)]
        lean, blocks, t = [move / time for move in moves], seen, t + count
    return torch.cat([q.reshape(-1) for q in x])


@pytest.mark.parametrize("participation", [None, md.participation.Fraction(0.5)])
@pytest.mark.parametrize("method", [md.FedAdamW(), md.FedAdamW(0.9, 0.1, 0.8, 0.95, 1e-3)], ids=["default", "others"])
def test_rounds_by_hand(method: md.FedAdamW, participation: Any) -> None:
    fed = federation(participation)
    cohorts = [fed.draw(0).cohort(t) for t in range(1, 6)]
    got = md.run(method, fed, 5, dtype="float64", progress=False).x
    assert float((got - by_hand(cohorts, method)).abs().max()) < 1e-12


def test_the_first_round_is_fedavg_with_adamw() -> None:
    plain = federation(optimizer=torch.optim.AdamW)
    one, other = (md.run(m, f, 1, dtype="float64", progress=False) for m, f in (
        (md.FedAdamW(), federation()), (md.FedAvg(), plain)
    ))  # fmt: skip
    assert float((one.x - other.x).abs().max()) < 1e-14


def test_a_linear_model_is_one_block() -> None:
    toy = md.problems.synthetic_quadratics(4, d=6)
    fed = md.Federation(toy.problem, clients=toy.clients, pace=md.scenarios.Pace(lr=0.01, steps=2, batch=None))
    assert {(e.round, e.down, e.up) for e in run(md.FedAdamW(), fed, 2).ledger} == {(1, 104, 72), (2, 112, 72)}
