"""Estimates what a run will cost, from a short trial: operations, bytes, memory and seconds."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..federation.protocols import Population
from ..federation.row_sample import RowSample
from ..federation.run import sharing
from ..federation.simulation import Simulation
from ..problems.network import NetworkProblem, rows_at_once
from ..problems.network.shared import SharedNetwork
from ..runtime import memory
from ..server.options import RunOptions
from ..storage.spill import BUDGET
from .plan import Method, split
from .profile import operations
from .trial import ROUNDS, Small, Trial, TrialRound, local, tried

CHEAP = 1.5
"""If a round takes at most so many seconds, whole rounds are run instead of an estimate from few rows."""

LOOKED_AT = 200
"""Rounds whose cohorts are drawn to find the mean number of clients and rows."""

VISITED = 2000
"""Rounds whose cohorts are drawn to find the number of different clients."""


@dataclass(frozen=True)
class Estimate:
    """The cost of one method's run.

    Attributes:
        engine: the engine that its trial used
        parameters: d
        clients: mean number of clients in a round
        rows: mean number of row gradients of local steps in a round
        flops: operations of these; 0 if torch counts none
        down, up: bytes of a round's messages
        memory: the most bytes that the process holds
        seconds: seconds of a round, without evaluation
        evaluation: seconds of one evaluation
        rounds, evaluations: how many there are in a run
        whole_rounds: True if whole rounds were run, False if seconds were estimated from few rows
    """

    name: str
    engine: str
    parameters: int
    clients: float
    rows: float
    flops: float
    down: float
    up: float
    memory: int
    seconds: float
    evaluation: float
    rounds: int
    evaluations: int
    seeds: int
    whole_rounds: bool

    @property
    def total(self) -> float:
        """Seconds of all seeds, one run after the other."""
        return self.seeds * (self.rounds * self.seconds + self.evaluations * self.evaluation)


class Shared(NamedTuple):
    """The part of an estimate that is the same for all methods: the federation as the seed drew it, the run's options,
    operations of one row's forward pass, seconds of one evaluation, and the most bytes held so far.
    """

    draw: Simulation
    options: RunOptions
    forward: float
    evaluation: float
    peak: int


def estimates(
    methods: Mapping[str, Method], fed: Population, rounds: int, seeds: int = 1, **options: Any
) -> Iterator[Estimate]:
    """The cost of each method's runs, one after the other; see `estimate`. In a stream, ``rounds`` are of one task."""
    cached: dict[object, tuple[Population, Shared]] = {}
    for name, method in methods.items():
        algorithm = split(method)[0]
        key = algorithm.shares()
        if key not in cached:
            cached.clear()  # one draw at a time, as in a run
            population = sharing(fed, algorithm)
            cached[key] = population, prepared(population, rounds, options)
        yield replace(estimate(method, *cached[key], seeds), name=name)


def prepared(fed: Population, rounds: int, options: Mapping[str, Any]) -> Shared:
    """Draw the federation, and evaluate its first model on a part of the rows. Raises what `medley.run` raises."""
    o = RunOptions(rounds, **options)
    draw = fed.draw(o.seed, o.evaluate_on, o.float_type, o.device_name, rounds)
    assert isinstance(draw, Simulation)
    x = draw.problem.initial(torch.Generator().manual_seed(0))
    forward = _forward(draw)
    seconds = _evaluation(draw, x, o.eval_rows)
    return Shared(draw, o, forward, seconds, memory.peak())


def estimate(method: Method, fed: Population, shared: Shared, seeds: int = 1) -> Estimate:
    """Estimate the cost of a run of ``method`` by a trial of a few rounds with few rows.

    A round takes a·clients + c·rows seconds, by a fit of the trial's rounds, where rows are those in local steps; other
    work on a client's rows is assumed to grow with them. If a round is cheap, whole rounds are run and the estimate is
    their median. Raises what `medley.run` raises before its first round.
    """
    draw = shared.draw
    o = shared.options
    memory.restart()
    trial = tried(method, fed, o, Small(draw))
    tasks = draw.task_count
    length = draw.rounds_per_task or o.rounds
    mean = [_mean(draw, s, length) for s in range(tasks)]
    fits = [_fit(trial.rounds[s * ROUNDS : (s + 1) * ROUNDS]) for s in range(len(trial.rounds) // ROUNDS)]
    by_task = [fits[min(s, len(fits) - 1)] for s in range(tasks)]
    seconds = statistics.fmean(a * k + b * n for (a, b), (k, n) in zip(by_task, mean, strict=True))
    whole_rounds = False
    if draw.rounds_per_task is None and seconds < CHEAP:
        trial = tried(method, fed, o, Small(draw, cut=False))
        whole_rounds = True
        seconds = statistics.median(r.wall for r in trial.rounds[1:])
    last = trial.rounds[-1]
    clients = statistics.fmean(m[0] for m in mean)
    scale = clients / last.clients
    rows = statistics.fmean(m[1] for m in mean)
    total = tasks * length
    return Estimate(
        name=split(method)[0].name,
        engine=str(trial.result.settings["engine"]),
        parameters=trial.result.x.numel(),
        clients=clients,
        rows=rows,
        flops=3 * rows * shared.forward,  # a gradient is a forward pass and two products of its size on the way back
        down=last.down * scale,
        up=last.up * scale,
        memory=_memory(trial, shared, total),
        seconds=seconds,
        evaluation=shared.evaluation,
        rounds=total,
        evaluations=1 + -(-total // o.eval_every),
        seeds=seeds,
        whole_rounds=whole_rounds,
    )


def _mean(draw: Simulation, s: int, length: int) -> tuple[float, float]:
    """Means over rounds of task s: clients, and the rows in their local steps."""
    rounds = range(s * length + 1, s * length + 1 + max(1, min(length, LOOKED_AT)))
    clients = rows = 0
    for t in rounds:
        cohort = draw.cohort(t)
        sizes = draw.task(t).sizes
        clients += len(cohort)
        rows += sum(local(draw.scenario.pace.of(draw.seed, i, t), int(sizes[i])) for i in cohort)
    return clients / len(rounds), rows / len(rounds)


def _fit(rounds: list[TrialRound]) -> tuple[float, float]:
    """Seconds of a client and of a row of its local steps, from a trial's last two rounds: many rows and few.

    Neither is negative: a noisy second round assigns all seconds to the clients, a noisy first one to the rows.
    """
    large, small = rounds[-2:]
    row = max(0.0, large.wall - small.wall) / max(1, large.rows - small.rows)
    client = (small.wall - row * small.rows) / max(1, small.clients)
    return (client, row) if client >= 0 else (0.0, large.wall / max(1, large.rows))


def _memory(trial: Trial, shared: Shared, rounds: int) -> int:
    """The peak, plus clients' memories that the trial did not hold: the acknowledged one and its predecessor."""
    visits = Counter[int]()
    for t in range(1, min(rounds, VISITED) + 1):
        visits.update(shared.draw.cohort(t))
    memories = trial.memory * sum(min(n, 2) for n in visits.values())
    more = min(memories, BUDGET) - min(trial.memory * 2 * trial.rounds[-1].clients, BUDGET)
    return max(shared.peak, memory.peak() + int(max(0.0, more)))


def _evaluation(draw: Simulation, x: torch.Tensor, eval_rows: int | None) -> float:
    """Seconds of one evaluation: a forward pass over part of the first task's rows, scaled up to all its rows."""
    rows = draw.clients.rows
    data = draw.tasks[0]
    mine = rows.layout.step(0)
    n = len(rows.y[mine]) if eval_rows is None else len(RowSample(rows, 0, eval_rows).sample(0, data).places)
    n += 0 if data.held is None else len(data.held[1])
    X = rows.X[mine]
    y = rows.y[mine]
    size = min(len(y), rows_at_once(X))
    best = float("inf")
    for attempt in range(3):
        began = time.perf_counter()
        draw.problem.losses(draw.problem.outputs(x, X[:size]), y[:size])
        best = min(best, time.perf_counter() - began)
        if best > (CHEAP if attempt else 2 * CHEAP):  # the first pass also makes oneDNN's kernels
            break
    return best * n / size


def _forward(draw: Simulation) -> float:
    """Operations of one row's forward pass; 0 if torch cannot count them."""
    problem: Any = draw.problem
    problem = problem.joint if isinstance(problem, SharedNetwork) else problem
    if not isinstance(problem, NetworkProblem):
        return 2.0 * draw.problem.d
    problem.mode(False)  # BatchNorm cannot train on one row
    return operations(problem.module, draw.clients.rows.X[:1])
