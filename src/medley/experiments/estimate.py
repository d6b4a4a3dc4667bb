"""The cost of a run before it is run: operations, bytes, memory and seconds, from a short trial."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..federation.evaluation import EVALUATED_AT_ONCE
from ..federation.protocols import Population
from ..federation.row_sample import RowSample
from ..federation.run import sharing
from ..federation.simulation import Simulation
from ..problems.network import NetworkProblem
from ..problems.network.shared import SharedNetwork
from ..runtime import memory
from ..server.options import RunOptions
from ..storage.spill import BUDGET
from .plan import Method, split
from .profile import operations
from .trial import ROUNDS, Small, Trial, TrialRound, local, tried

CHEAP = 1.5
"""Seconds of a round up to which whole rounds are run in place of an estimate from few rows."""

LOOKED_AT = 200
"""Rounds whose cohorts are drawn for the mean number of clients and rows."""

VISITED = 2000
"""Rounds whose cohorts are drawn for the number of different clients."""


@dataclass(frozen=True)
class Estimate:
    """The cost of one method's run.

    Attributes:
        engine: the engine that its trial ran
        parameters: d
        clients: mean number of clients in a round
        rows: mean number of row gradients of local steps in a round
        flops: operations of these; 0 where torch counts none
        down, up: bytes of a round's messages
        memory: the most bytes that the process holds
        seconds: of a round, without evaluation
        evaluation: seconds of one evaluation
        rounds, evaluations: their numbers in a run
        whole: True where whole rounds were run, False where seconds were estimated from few rows
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
    whole: bool

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
    """The cost of each method's runs, one after the other; see `estimate`. A stream's rounds are those of a task."""
    drawn: dict[object, tuple[Population, Shared]] = {}
    for name, method in methods.items():
        algorithm = split(method)[0]
        if (key := algorithm.shares()) not in drawn:
            drawn.clear()  # one draw at a time, as in a run
            mine = sharing(fed, algorithm)
            drawn[key] = mine, prepared(mine, rounds, options)
        yield replace(estimate(method, *drawn[key], seeds), name=name)


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

    Local steps take a·steps + c·rows seconds, clients' other work a·clients + c·rows, by a fit of the trial's rounds.
    Where a round is cheap, whole rounds are run and their median is taken. Raises what `medley.run` raises before its
    first round.
    """
    draw, o = shared.draw, shared.options
    memory.restart()
    trial = tried(method, fed, o, Small(draw))
    tasks, length = draw.task_count, draw.rounds_per_task or o.rounds
    mean = [_mean(draw, s, length) for s in range(tasks)]
    fits = [_seconds(trial.rounds[s * ROUNDS : (s + 1) * ROUNDS]) for s in range(len(trial.rounds) // ROUNDS)]
    by_task = [fits[min(s, len(fits) - 1)](*mean[s]) for s in range(tasks)]
    seconds, whole = statistics.fmean(by_task), False
    if draw.rounds_per_task is None and seconds < CHEAP:
        trial, whole = tried(method, fed, o, Small(draw, cut=False)), True
        seconds = statistics.median(r.wall for r in trial.rounds[1:])
    last = trial.rounds[-1]
    clients = statistics.fmean(m[0] for m in mean)
    scale = clients / len(last.sizes)
    rows, total = statistics.fmean(m[2] for m in mean), tasks * length
    return Estimate(
        split(method)[0].name,
        str(trial.result.settings["engine"]),
        trial.result.x.numel(),
        clients,
        rows,
        3 * rows * shared.forward,  # a gradient is a forward pass and two products of its size on the way back
        last.down * scale,
        last.up * scale,
        _memory(trial, shared, total),
        seconds,
        shared.evaluation,
        total,
        1 + -(-total // o.eval_every),
        seeds,
        whole,
    )


def _mean(draw: Simulation, s: int, length: int) -> tuple[float, float, float, float]:
    """Means over rounds of task s: clients, their local steps, the rows in these, and the clients' own rows."""
    rounds = range(s * length + 1, s * length + 1 + max(1, min(length, LOOKED_AT)))
    sums = [0, 0, 0, 0]
    for t in rounds:
        sizes = draw.task(t).sizes
        for i in draw.cohort(t):
            n = int(sizes[i])
            more = (1, *local(draw.scenario.pace.of(draw.seed, i, t), n), n)
            sums = [a + b for a, b in zip(sums, more, strict=True)]
    clients, steps, rows, own = (x / len(rounds) for x in sums)
    return clients, steps, rows, own


def _seconds(rounds: list[TrialRound]) -> Callable[[float, float, float, float], float]:
    """(clients, local steps, rows in them, own rows) -> seconds of a round, from a trial's last two rounds."""
    large, small = rounds[-2:]
    each = len(small.sizes)
    a, c = _fit("local steps", (large, large.steps), (small, small.steps))
    b, e = _fit("clients beside their steps", (large, each), (small, each))
    mine = ("local steps", "clients beside their steps", "evaluation")
    rest = max(0.0, small.wall - sum(small.parts.get(part, 0.0) for part in mine)) / max(1, each)
    return lambda clients, steps, rows, own: clients * (b + rest) + steps * a + rows * c + own * e


def _fit(part: str, large: tuple[TrialRound, int], small: tuple[TrialRound, int]) -> tuple[float, float]:
    """a and c with a·count + c·rows seconds in both rounds; where one were negative, a = 0 and c of the larger round.

    Args:
        part: the part of the rounds' seconds
        large: the round of many rows, and its count of steps or clients
        small: the same of the round of few rows
    """
    (m, n), (p, q) = ((k, sum(r.sizes.values())) for r, k in (large, small))
    long, short = (r.parts.get(part, 0.0) for r, _ in (large, small))
    if determinant := m * q - p * n:
        a, c = (long * q - short * n) / determinant, (m * short - p * long) / determinant
        if a >= 0 and c >= 0:
            return a, c
    return 0.0, long / max(1, n)


def _memory(trial: Trial, shared: Shared, rounds: int) -> int:
    """The peak, and clients' memories that the trial has not held: the acknowledged one and the one before it."""
    visits = Counter(i for t in range(1, min(rounds, VISITED) + 1) for i in shared.draw.cohort(t))
    held = trial.memory * sum(min(n, 2) for n in visits.values())
    more = min(held, BUDGET) - min(trial.memory * 2 * len(trial.rounds[-1].sizes), BUDGET)
    return max(shared.peak, memory.peak() + int(max(0.0, more)))


def _evaluation(draw: Simulation, x: torch.Tensor, eval_rows: int | None) -> float:
    """Seconds of one evaluation: a forward pass of a part of the first task's rows, scaled to all that it takes."""
    rows, data = draw.clients.rows, draw.tasks[0]
    mine = rows.layout.step(0)
    n = len(rows.y[mine]) if eval_rows is None else len(RowSample(rows, 0, eval_rows).drawn(0, data).places)
    n += 0 if data.held is None else len(data.held[1])
    X, y = rows.X[mine], rows.y[mine]
    size = min(len(y), max(64, EVALUATED_AT_ONCE // max(1, X[0].numel())))
    best = float("inf")
    for attempt in range(3):
        began = time.perf_counter()
        draw.problem.losses(draw.problem.outputs(x, X[:size]), y[:size])
        best = min(best, time.perf_counter() - began)
        if best > (CHEAP if attempt else 2 * CHEAP):  # the first pass also makes oneDNN's kernels
            break
    return best * n / size


def _forward(draw: Simulation) -> float:
    """Operations of one row's forward pass; 0 where torch cannot count them."""
    problem: Any = draw.problem
    problem = problem.joint if isinstance(problem, SharedNetwork) else problem
    if not isinstance(problem, NetworkProblem):
        return 2.0 * draw.problem.d
    problem.mode(False)  # BatchNorm cannot train on one row
    return operations(problem.module, draw.clients.rows.X[:1])
