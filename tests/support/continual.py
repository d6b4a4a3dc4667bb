"""Small streams of tasks for the tests of continual methods, and a client to question."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import medley as md
from medley.contract.client import Client
from medley.engines import choose


def rows(seed: int = 0, each: int = 8, clients: int = 3) -> list[tuple[Tensor, Tensor]]:
    """Four classes in four dimensions; everybody has ``each`` rows of each."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(4 * each) % 4
    return [
        (2 * torch.eye(4, dtype=torch.float64)[y] + torch.randn(len(y), 4, generator=g, dtype=torch.float64), y)
        for _ in range(clients)
    ]


def stream(
    mode: Any = "class",
    net: bool = False,
    data: list[tuple[Tensor, Tensor]] | None = None,
    replay: Any = md.replay.Ring(8, sample=4),  # noqa: B008
    **pace: Any,
) -> md.Federation:
    """Two tasks, classes (0, 1) and then (2, 3); softmax in float64, or a small network."""
    problem: Any = md.problems.Network(md.models.mlp(4, 4, (6,))) if net else md.problems.Softmax(mu=0.01)
    return md.Federation(
        problem,
        clients=data or rows(),
        test=rows(1, 20, 1)[0],
        classes=4,
        stream=md.tasks.Split(tasks=2, mode=mode, classes=[[0, 1], [2, 3]]),
        replay=replay,
        pace=md.scenarios.Pace(**{"lr": 0.1, "batch": 4} | pace),
    )


def client(fed: md.Federation, task: int, i: int = 0, memory: Any = None) -> Client[Any]:
    """Client i in the first round of a task whose rounds are one each."""
    sim = fed.draw(0, rounds=1)
    me = sim.client(i, task + 1, choose("seq", sim.problem, "cpu"))
    me.memory = memory
    return me


def go(method: Any, fed: md.Federation, rounds: int = 2, **options: Any) -> md.Result:
    return md.run(method, fed, rounds, progress=False, **options)
