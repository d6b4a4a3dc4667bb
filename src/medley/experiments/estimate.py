"""Estimates what a run will cost, from a short trial: operations, bytes, memory and seconds."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from ..contract import Need
from ..datasets.on_use import deferred
from ..federation.protocols import Population
from ..federation.row_sample import RowSample
from ..federation.run import sharing
from ..federation.simulation import Simulation
from ..federation.start import start
from ..numerics.offload import resident_bytes
from ..problems.network import NetworkProblem, rows_at_once
from ..problems.network.shared import SharedNetwork
from ..rows.lazy import in_memory
from ..runtime import memory, streams
from ..runtime.tricks import LARGE, trim
from ..server.options import RunOptions
from ..storage.spill import BUDGET as SPILLED
from .plan import Method, split
from .profile import operations
from .read_once import read_once, unheld
from .trial import ROUNDS, ROWS, THIN, Small, Trial, TrialRound, local, tried, tried_thin

BUDGET = 1.6
"""Seconds that the trials of all methods should take: longer rounds are extrapolated from fewer clients or rows."""

FORWARD = 0.1
"""Seconds of forward passes from which one evaluation is extrapolated."""

FREE = 0.02
"""If a trial's largest gradient takes more seconds, its gradients are counted and not computed."""

GRADIENT = 0.4
"""A gradient that takes more seconds is extrapolated from one of fewer rows."""

SLOW = 0.25
"""The first gradient of a size also makes kernels. It is not repeated if it takes more seconds than this."""

SIZES = (16, 1 << 30)
"""Clients of further trials, with all their rows, if the budget allows them."""

MORE = 6
"""The most timed rounds of these trials, of which the median counts; they get half of the budget that is left."""

PIECES = 2
"""Times that a large model's evaluation takes the memory of one pass: a run keeps what is freed, which is in pieces."""

LOOKED_AT = 200
"""The most rounds whose cohorts are drawn to find the mean number of clients and rows."""

PACES = 4000
"""Clients whose pace is looked at for that, about: of large cohorts fewer rounds are drawn, at least two."""

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
        whole_rounds: True if whole rounds were run, False if seconds were estimated from less
        counted: True if the trial only counted the gradients, whose seconds are estimated from one
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
    counted: bool

    @property
    def source(self) -> str:
        """What the seconds are estimated from."""
        return "whole rounds" if self.whole_rounds else "gradient" if self.counted else "few rows"

    @property
    def total(self) -> float:
        """Seconds of all seeds, one run after the other."""
        return self.seeds * (self.rounds * self.seconds + self.evaluations * self.evaluation)


class Gradient(NamedTuple):
    """Seconds of one client's gradient, ``fixed + row * rows``, the bytes that one of a mini-batch takes, and whether a
    trial can count it.
    """

    fixed: float
    row: float
    memory: int = 0
    countable: bool = False

    def free(self, rows: float) -> bool:
        """Whether a trial need not compute gradients of so many rows, as their cost is known from this one."""
        return self.countable and self.seconds(rows) > FREE

    def seconds(self, rows: float) -> float:
        """Seconds of a gradient of so many rows."""
        return self.fixed + self.row * rows


class Shared(NamedTuple):
    """The part of an estimate that is the same for all methods: the federation as the seed drew it, the run's options,
    mean clients and rows of a round by task, operations of one row's forward pass, seconds of one evaluation, a
    client's gradient, the most bytes held so far, bytes of rows that only a run holds, the first model.
    """

    draw: Simulation
    options: RunOptions
    mean: list[tuple[float, float]]
    forward: float
    evaluation: float
    gradient: Gradient
    peak: int
    unheld: int
    x0: torch.Tensor


def estimates(
    methods: Mapping[str, Method],
    fed: Population,
    rounds: int,
    seeds: int = 1,
    tell: Callable[[str], object] = lambda part: None,
    **options: Any,
) -> Iterator[Estimate]:
    """The cost of each method's runs, one after the other; see `estimate`. In a stream, ``rounds`` are of one task.

    ``tell`` gets the name of each part of the work before it begins.
    """
    cached: dict[object, tuple[Population, Shared]] = {}
    budget = BUDGET
    for left, (name, method) in zip(range(len(methods), 0, -1), methods.items(), strict=True):
        algorithm = split(method)[0]
        key = algorithm.shares()
        if key not in cached:
            cached.clear()  # one draw at a time, as in a run
            population = sharing(fed, algorithm)
            cached[key] = population, prepared(population, rounds, options, tell)
        tell(f"trying {name}")
        began = time.perf_counter()
        yield replace(estimate(method, *cached[key], seeds, budget / left), name=name)
        budget = max(0.0, budget - (time.perf_counter() - began))


def prepared(
    fed: Population, rounds: int, options: Mapping[str, Any], tell: Callable[[str], object] = lambda part: None
) -> Shared:
    """Draw the federation, and evaluate its first model on a part of the rows. Raises what `medley.run` raises."""
    o = RunOptions(rounds, **options)
    tell("drawing the clients")
    draw = fed.draw(o.seed, o.evaluate_on, o.float_type, o.device_name, rounds)
    assert isinstance(draw, Simulation)
    more = unheld(fed, draw.rows)
    peak = memory.peak() + more.before
    draw.rows = read_once(draw.rows)
    draw.clients = replace(draw.clients, rows=draw.rows)
    problem = draw.problem
    if isinstance(problem, NetworkProblem) and problem.d >= 2 * THIN:
        x = problem.flat.clone()  # as good to time as fresh weights
    else:
        x = problem.initial(streams.generator(o.seed, "init"))
    x = start(problem, x, o.weights)
    forward = _forward(draw)
    tell("timing a gradient and an evaluation")
    gradient = _gradient(draw, x)
    seconds, held = _evaluation(draw, x, o.eval_rows, gradient)
    mean = [_mean(draw, s, draw.rounds_per_task or rounds) for s in range(draw.task_count)]
    peak = max(peak, held + more.training)
    return Shared(draw, o, mean, forward, seconds, gradient, peak, more.training, x)


def estimate(method: Method, fed: Population, shared: Shared, seeds: int = 1, budget: float = BUDGET) -> Estimate:
    """Estimate the cost of a run of ``method`` by a trial of one client with few rows, and by larger ones.

    A round takes server + a·clients + c·rows seconds: server and a are of the trial's last round, and c is of a
    gradient measured alone, times the work of the trial for a row. Trials with all rows of more clients follow while
    ``budget`` seconds last; they replace a. If they had the whole cohort, their round is the estimate. Raises what
    `medley.run` raises before its first round.
    """
    draw = shared.draw
    o = shared.options
    memory.restart()
    mean = shared.mean
    tasks = draw.task_count
    length = draw.rounds_per_task or o.rounds
    whole_rounds = False
    if draw.rounds_per_task is None:
        trial, fit = _first(method, fed, shared)
        trial, fit, whole_rounds = _grown(method, fed, shared, trial, fit, budget)
        fits = [fit]
    else:
        trial, fits = _streamed(method, fed, shared)
    by_task = [fits[min(s, len(fits) - 1)] for s in range(tasks)]
    batch = _batch(draw)
    seconds = statistics.fmean(
        fit.server + fit.client * k + fit.work * n * shared.gradient.seconds(batch) / batch * fit.pace
        for fit, (k, n) in zip(by_task, mean, strict=True)
    )
    if whole_rounds:
        seconds = statistics.median(r.wall for r in trial.rounds[1:])
    last = trial.rounds[-1]
    clients = statistics.fmean(m[0] for m in mean)
    scale = clients / last.clients
    rows = statistics.fmean(m[1] for m in mean)
    total = tasks * length
    return Estimate(
        name=split(method)[0].name,
        engine=str(trial.result.settings["engine"]),
        parameters=shared.x0.numel(),
        clients=clients,
        rows=rows,
        flops=3 * rows * shared.forward,  # a gradient is a forward pass and two products of its size on the way back
        down=last.down * scale,
        up=last.up * scale,
        memory=_memory(trial, shared, total, clients),
        seconds=seconds,
        evaluation=shared.evaluation,
        rounds=total,
        evaluations=1 + -(-total // o.eval_every),
        seeds=seeds,
        whole_rounds=whole_rounds,
        counted=trial.counted,
    )


def _mean(draw: Simulation, s: int, length: int) -> tuple[float, float]:
    """Means over rounds of task s, first and last among them: clients, and the rows in their local steps."""
    first = s * length + 1
    count = min(LOOKED_AT, max(2, PACES // max(1, len(draw.cohort(first)))), max(1, length))
    rounds = [first + k * max(0, length - 1) // max(1, count - 1) for k in range(count)]
    of = draw.scenario.pace.of
    pace = cache(lambda i, t: of(draw.seed, i, t))
    steady = draw.scenario.pace.steady
    clients = rows = 0
    for t in rounds:
        cohort = draw.cohort(t)
        sizes = draw.task(t).sizes
        clients += len(cohort)
        rows += sum(local(pace(i, first if steady else t), int(sizes[i])) for i in cohort)
    return clients / count, rows / count


class Fit(NamedTuple):
    """Seconds of the server's part of a round and of a client besides its rows' gradients, row gradients for a row of
    local steps, and seconds of a row gradient relative to `Gradient`.
    """

    server: float
    client: float
    work: float
    pace: float = 1.0


def _first(method: Method, fed: Population, shared: Shared) -> tuple[Trial, Fit]:
    """The trial of one client with few rows, or of a whole cohort if the method does not run with one, and its fit.
    Large gradients are counted, and not computed.
    """
    draw = shared.draw
    free = shared.gradient.free(ROWS)
    trial = None
    if len(draw.cohort(1)) > 1:
        with contextlib.suppress(Exception):
            trial = _counted(method, fed, shared, Small(draw, 1, free=free))
    if trial is None:
        free = False
        trial = tried(method, fed, shared.options, Small(draw, 1 << 30), shared.x0)
    return trial, _fit(trial.rounds[-1], shared.gradient, free)


def _counted(method: Method, fed: Population, shared: Shared, small: Small) -> Trial:
    """The trial; of a few coordinates of a large model, if its gradients are free and the method needs no layers."""
    o = shared.options
    large = small.free and shared.x0.numel() >= 2 * THIN and Need.ADAPTERS not in small.problem.gives
    if large and o.codec is None and o.secure is None:
        with contextlib.suppress(Exception):
            return tried_thin(method, fed, o, small, shared.x0)
    return tried(method, fed, o, small, shared.x0)


def _fit(r: TrialRound, gradient: Gradient, free: bool = False) -> Fit:
    """The fit of a trial of few rows, whose gradients take what a gradient of as many rows takes alone, or nothing."""
    work = r.work / max(1, r.rows)
    gradients = 0.0 if free else work * r.clients * gradient.seconds(r.rows / max(1, r.clients))
    return Fit(r.server, max(0.0, r.served - gradients) / max(1, r.clients), work)


def _streamed(method: Method, fed: Population, shared: Shared) -> tuple[Trial, list[Fit]]:
    """A stream's trial of one client, or of a whole cohort if the method does not run with one: in each task a round of
    one step and one of two. The fits have the work of all steps. Large gradients are counted, and not computed.
    """
    draw = shared.draw
    small = Small(draw, 1, None)
    small = replace(small, free=shared.gradient.free(sum(small.sizes(1).values())))
    with contextlib.suppress(Exception):
        trial = _counted(method, fed, shared, small)
        return trial, _steps(trial, small, shared.gradient)
    small = replace(small, clients=1 << 30)
    trial = tried(method, fed, shared.options, small, shared.x0)
    return trial, _steps(trial, small, shared.gradient)


def _steps(trial: Trial, small: Small, gradient: Gradient) -> list[Fit]:
    """A fit for each task of a stream, from a round of one step and one of two."""
    fits = []
    draw = small.draw
    batch = _batch(draw)
    for t in range(ROUNDS, len(trial.rounds) + 1, ROUNDS):
        one, two = trial.rounds[t - 2], trial.rounds[t - 1]
        sizes = small.sizes(t)
        paces = {i: draw.scenario.pace.of(draw.seed, i, small.real(t)) for i in sizes}
        rows = sum(local(paces[i], n) for i, n in sizes.items())
        steps = rows / max(1, two.rows - one.rows)
        work = one.work + (two.work - one.work) * (steps - 1)
        paid = 0.0 if small.free else two.work * gradient.seconds(batch) / batch
        fits.append(Fit(two.server, max(0.0, two.served - paid) / max(1, two.clients), work / max(1, rows)))
    return fits


def _grown(
    method: Method, fed: Population, shared: Shared, trial: Trial, fit: Fit, budget: float
) -> tuple[Trial, Fit, bool]:
    """Trials of more and more clients with all rows while the budget lasts: the last one, its fit, and whether it had
    the whole cohort of a round with about the mean number of rows.
    """
    draw = shared.draw
    cohort = len(draw.cohort(1))
    batch = _batch(draw)
    row = shared.gradient.seconds(batch) / batch
    for size in SIZES:
        small = Small(draw, min(size, cohort), None)
        rows = sum(local(small.pace(i, 1), n) for i, n in small.sizes(1).items())
        expected = ROUNDS * (fit.server + fit.client * min(size, cohort) + fit.work * fit.pace * rows * row)
        if expected > budget and size >= cohort:  # as many clients as the budget has room for
            affordable = int(len(small.cohort(1)) * budget / expected)
            small = replace(small, clients=affordable)
            if affordable <= trial.rounds[-1].clients:
                break
        elif expected > budget:
            break
        began = time.perf_counter()
        trial = tried(method, fed, shared.options, small, shared.x0)
        left = budget - (time.perf_counter() - began)
        more = int(min(MORE, left / 2 / max(1e-9, trial.rounds[-1].wall)))
        if more > 1:  # the second round of a process is not warm yet
            trial = tried(method, fed, shared.options, small, shared.x0, 1 + more)
        budget -= time.perf_counter() - began
        timed = sorted(trial.rounds[1:], key=lambda r: r.wall)
        r = timed[len(timed) // 2]
        clients, mean = shared.mean[0]
        if r.clients == cohort and 0.8 * mean < r.rows < 1.25 * mean:
            return trial, fit, True
        if 2 * r.rows * clients < mean * r.clients:
            return trial, fit, False  # these clients have too few rows to tell the pace of others
        rate = r.served / max(1e-9, r.clients * fit.client + fit.work * r.rows * row)
        fit = Fit(r.server, fit.client * rate, fit.work, rate)
    return trial, fit, False


def _typical(draw: Simulation) -> int:
    """A client of the first task with about as many rows as the client of a row has on average."""
    n = draw.task(1).sizes.astype(float)
    return int(np.abs(n - (n @ n) / max(1.0, n.sum())).argmin())


def _batch(draw: Simulation) -> int:
    """Rows of a mini-batch of the client of `_typical`."""
    n = max(1, int(draw.task(1).sizes[_typical(draw)]))
    batch = draw.scenario.pace.of(draw.seed, _typical(draw), 1).batch
    return n if batch is None else min(batch, n)


def _gradient(draw: Simulation, x: torch.Tensor) -> Gradient:
    """A gradient of a few rows and one of a mini-batch, or as many as are quick, of the client of `_typical`."""
    try:
        objective = draw.problem.bind(*draw.clients.rows.of(draw.plan.step(1), _typical(draw)))

        def taken(rows: int) -> float:
            began = time.perf_counter()
            objective.grad(x, torch.arange(rows))
            return time.perf_counter() - began

        few = min(2, objective.n)
        began = time.process_time()
        first = taken(few)  # makes oneDNN's kernels
        slow = time.process_time() - began > SLOW  # else it may have waited for others
        least = first if slow else min(taken(few), taken(few))
        rows = max(few, min(_batch(draw), objective.n, int(few * GRADIENT / max(1e-9, least))))
        memory.restart()
        before = memory.peak()
        seconds = taken(rows)
        if seconds <= SLOW:  # the less of two, since the machine may pause in one
            seconds = min(taken(rows), taken(rows))
    except Exception:  # the trial names the client and the reason
        return Gradient(0.0, 0.0)
    problem = draw.problem
    countable = isinstance(problem, NetworkProblem) and problem.family.train is None
    row = seconds / rows if rows == few or slow else max(0.0, seconds - least) / (rows - few)
    return Gradient(max(0.0, seconds - rows * row), row, memory.peak() - before, countable)


def _memory(trial: Trial, shared: Shared, rounds: int, clients: float) -> int:
    """The peak, plus what the trial did not hold: a mini-batch's gradient, replies that the server holds apart, and
    clients' memories, the acknowledged one and its predecessor.
    """
    once, twice = set[int](), set[int]()
    for t in range(1, min(rounds, VISITED) + 1 if trial.memory else 1):
        cohort = set(shared.draw.cohort(t))
        twice |= once & cohort
        once |= cohort
        if len(twice) == len(shared.draw.sizes):
            break
    last = trial.rounds[-1]
    memories = trial.memory * (len(once) + len(twice))
    more = min(memories, SPILLED) - min(trial.memory * 2 * last.clients, SPILLED)
    replies = resident_bytes(last.up / last.clients, clients - last.clients) if trial.apart else 0.0
    held = trial.peak + shared.unheld + shared.gradient.memory
    return max(shared.peak, held + int(max(0.0, more) + max(0.0, replies)))


def _evaluation(draw: Simulation, x: torch.Tensor, eval_rows: int | None, gradient: Gradient) -> tuple[float, int]:
    """Seconds of one evaluation and the most bytes held in it: of a forward pass over part of the first task's rows,
    scaled up to all its rows, and to as many as it takes at a time.
    """
    rows = draw.clients.rows
    data = draw.tasks[0]
    mine = rows.layout.step(0)
    n = len(rows.y[mine]) if eval_rows is None else len(RowSample(rows, 0, eval_rows).sample(0, data).places)
    n += 0 if data.held is None else len(data.held[1])
    X = rows.X[mine]
    y = rows.y[mine]
    most = min(len(y), rows_at_once(X, draw.problem if isinstance(draw.problem, NetworkProblem) else None))
    size = min(most, max(2, min(16, int(FORWARD / max(1e-9, gradient.row / 3)))))
    best = spent = 0.0
    peak = held = memory.peak()
    times = PIECES if x.nbytes >= LARGE and n > most else 1
    while spent < FORWARD:  # from few rows to many; the first pass also makes oneDNN's kernels
        some = in_memory(X[:size]) if deferred(X) else X[:size]
        trim()
        memory.restart()
        before = memory.peak()
        began = time.perf_counter()
        draw.problem.losses(draw.problem.outputs(x, some), y[:size])
        seconds = time.perf_counter() - began
        if seconds < FORWARD / 4:  # in memory that is there already, as in a run
            spent += seconds
            began = time.perf_counter()
            draw.problem.losses(draw.problem.outputs(x, some), y[:size])
            seconds = min(seconds, time.perf_counter() - began)
        peak = max(peak, memory.peak())
        held = max(peak, before + times * (memory.peak() - before) * most // size)
        spent += seconds
        best = seconds / size
        if size == most:
            break
        size = min(most, 4 * size)
    return best * n, held


def _forward(draw: Simulation) -> float:
    """Operations of one row's forward pass; 0 if torch cannot count them."""
    problem: Any = draw.problem
    problem = problem.joint if isinstance(problem, SharedNetwork) else problem
    if not isinstance(problem, NetworkProblem):
        return 2.0 * draw.problem.d
    problem.mode(False)  # BatchNorm cannot train on one row
    return operations(problem.module, draw.clients.rows.X[:1])
