"""The cost of a run before it is run, beside the run."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from torch import nn

import medley as md
from medley.datasets import on_use
from medley.experiments import estimate as module
from medley.experiments import trial as trials
from medley.experiments.estimate import estimates
from medley.experiments.trial import ROUNDS, Small, TrialRound, local, tried
from medley.models import cnn, lstm, mlp
from medley.problems.network.objective import NetworkObjective
from medley.runtime import memory
from medley.server.options import RunOptions
from support.pairs import quick


def images(
    n: int = 600,
    rule: float | None = 0.5,
    batch: int = 16,
    epochs: int = 3,
    pace: md.scenarios.Pace | None = None,
    network: nn.Module | None = None,
) -> md.Federation:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 10
    data = md.datasets.Dataset(torch.randn(n, 1, 14, 14, generator=g), y, torch.randn(50, 1, 14, 14), y[:50], 10)
    module = network or cnn((1, 14, 14), 10, channels=[8, 16], hidden=32)
    pace = pace or md.scenarios.Pace(lr=0.01, epochs=epochs, batch=batch)
    problem = md.problems.Network(module)
    return md.Federation(problem, data=data, partition=md.partitions.IID(6), pace=pace, participation=rule)


@pytest.mark.parametrize(
    ("pace", "rows"),
    [
        ({"epochs": 3, "batch": 32}, 300),
        ({"epochs": 3, "batch": 32, "drop_last": True}, 288),
        ({"steps": 7, "batch": 32}, 224),
        ({"steps": 7, "batch": 256}, 700),
        ({"epochs": 2, "batch": None}, 200),
    ],
)
def test_rows_in_the_local_steps_of_a_client_with_100(pace: dict[str, int], rows: int) -> None:
    assert local(md.scenarios.Pace(**pace).of(0, 0, 1), 100) == rows


@pytest.mark.parametrize("whole_rounds", quick(1, [True, False]))
@pytest.mark.parametrize("method", quick(1, [md.FedAvg(), md.SCAFFOLD(), md.FedNorton()]), ids=lambda m: m.name)
def test_bytes_are_those_of_a_round(method: md.Algorithm, whole_rounds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUDGET", math.inf if whole_rounds else 0.0)  # not by the clock of a busy machine
    fed = images(n=120)
    (e,) = estimates({"mine": method}, fed, 5)
    ledger = [entry for entry in md.run(method, fed, 3, throw=False).ledger if entry.round == 3]
    assert (e.down, e.up) == (sum(entry.down for entry in ledger), sum(entry.up for entry in ledger))
    assert (e.name, e.whole_rounds, e.clients, e.rounds, e.evaluations) == ("mine", whole_rounds, 3, 5, 6)
    assert e.rows == 3 * 20 * 3
    assert e.memory >= memory.peak() - 2**28


def test_operations_of_local_steps_are_three_forward_passes_a_row() -> None:
    fed = md.Federation(
        md.problems.Network(mlp(64, 10, hidden=(8,))),
        data=md.datasets.digits().flatten(),
        partition=md.partitions.IID(4),
    )
    n = len(fed.data.X)
    (e,) = estimates({"FedAvg": md.FedAvg()}, fed, 2, seeds=3)
    assert e.flops == 3 * n * 2 * (64 * 8 + 8 * 10)
    assert e.total == pytest.approx(3 * (2 * e.seconds + 3 * e.evaluation))


@pytest.mark.parametrize("own", [False, True])
def test_a_network_with_batchnorm_and_dropout_is_estimated_on_a_device_of_torchs_own(own: bool) -> None:
    parts = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 3)
    network = nn.Sequential(nn.Sequential(*parts), nn.Identity()) if own else nn.Sequential(*parts)
    y = torch.arange(40) % 3
    fed = md.Federation(md.problems.Network(network), clients=[(torch.randn(40, 6), y)] * 3)
    (e,) = estimates({"FedAvg": md.FedAvg()}, fed, 2, device=torch.device("cpu"))
    assert e.flops > 0


def test_a_recurrent_layers_operations_are_counted() -> None:
    X = torch.randint(0, 50, (40, 12))
    fed = md.Federation(
        md.problems.Network(lstm(50, 2, embedding=6, hidden=5)),
        data=(X, torch.arange(40) % 2),
        partition=md.partitions.IID(2),
    )
    (e,) = estimates({"FedAvg": md.FedAvg()}, fed, 1)
    steps = 12 * 2 * 4 * 5 * (6 + 5)
    assert 3 * 40 * steps <= e.flops <= 3 * 40 * (steps + 200)


def test_a_trial_asks_as_many_clients_for_as_many_batches_as_it_is_told() -> None:
    for pace in ({"epochs": 3}, {"steps": 500}):
        fed = images(pace=md.scenarios.Pace(lr=0.01, batch=16, **pace))
        draw = fed.draw(0)
        for clients, batches, rows in ((1, 0, [2]), (9, 0, [2, 2, 2]), (2, 2, [32, 32])):
            small = Small(draw, clients, batches)
            trial = tried(md.FedAvg(), fed, RunOptions(), small)
            assert [[*small.sizes(t).values()] for t in (1, 2)] == [rows, rows]
            assert [small.cohort(t) for t in (1, 2)] == [draw.cohort(1)[:clients]] * 2
            assert [(r.clients, r.rows, r.work) for r in trial.rounds] == [(len(rows), sum(rows), sum(rows))] * 2
            assert len(trial.result.history) == 1 + ROUNDS == 1 + len(trial.rounds)
    whole = tried(md.FedAvg(), images(), RunOptions(), Small(images().draw(0), 9, None))
    assert [(r.clients, r.rows, r.work) for r in whole.rounds] == [(3, 900, 900.0)] * 2


def test_the_first_round_of_a_trial_takes_no_product_with_a_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUDGET", 0.0)
    taken = []
    product = NetworkObjective.hvp
    monkeypatch.setattr(NetworkObjective, "hvp", lambda *args: taken.append(args) or product(*args))
    (e,) = estimates({"FedECADO": md.FedECADO()}, images(), 4)
    assert (taken, e.whole_rounds) == ([], False)
    assert 0 < e.seconds < math.inf


def test_gradients_that_take_long_are_counted_and_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUDGET", 0.0)
    taken = list[int]()
    grad = NetworkObjective.grad
    monkeypatch.setattr(NetworkObjective, "grad", lambda *args, **kw: taken.append(1) or grad(*args, **kw))
    fed = images(n=120)
    few = next(estimates({"mine": md.FedRS()}, fed, 5))
    monkeypatch.setattr(module, "FREE", 0.0)
    taken.clear()
    parts = list[str]()
    counted, losses = estimates({"mine": md.FedAvg(), "losses": md.FedRS()}, fed, 5, tell=parts.append)
    assert (counted.source, losses.source, few.source) == ("gradient", "gradient", "few rows")
    assert (counted.engine, losses.engine, few.engine) == ("fused", "seq", "seq")
    assert (losses.up, losses.down, losses.rows) == (few.up, few.down, few.rows)
    assert len(taken) <= 6  # those of one client, before the trials
    assert parts == [
        "drawing the clients", "timing a gradient and an evaluation", "trying mine", "trying losses"
    ]  # fmt: skip


@pytest.mark.parametrize(("method", "fits"), [(md.FedNorton(), True), (md.FedDecorr(), True), (md.MOON(), False)])
def test_a_large_model_is_tried_on_few_coordinates_unless_the_method_needs_layers(
    method: md.Algorithm, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are exact: here of a vector, and of buffers that do not grow with it."""
    for name, value in (("BUDGET", 0.0), ("FREE", -1.0)):
        monkeypatch.setattr(module, name, value)
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(196), nn.Linear(196, 32), nn.ReLU(), nn.Linear(32, 10))
    fed = images(n=120, network=network)
    (whole,) = estimates({"mine": method}, fed, 5)
    sizes = []
    start = trials.tried
    for where in (module, trials):
        monkeypatch.setattr(where, "THIN", 1024)
    monkeypatch.setattr(trials, "tried", lambda *args: sizes.append(len(args[4])) or start(*args))
    (e,) = estimates({"mine": method}, fed, 5)
    assert sizes == ([512, 1024] if fits else [512])
    assert (e.down, e.up, e.parameters, e.engine) == (whole.down, whole.up, whole.parameters, whole.engine)
    assert e.source == "gradient"


def test_rows_that_are_read_on_use_count_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUDGET", 0.0)
    network = md.problems.Network(cnn((1, 14, 14), 10, channels=[8], hidden=8))
    blob = np.zeros((90_000, 1, 14, 14), np.uint8)

    def announced() -> md.Federation:
        X = on_use.rows(len(blob), lambda some: torch.from_numpy(blob[some].astype(np.float32)), blob.nbytes)
        data = md.datasets.Dataset(X, torch.arange(len(blob)) % 10, classes=10)
        return md.Federation(network, data=data, partition=md.partitions.IID(900), participation=0.01)

    with on_use.read_on_use():
        fed = announced()
    memory.restart()
    before = memory.peak()
    (e,) = estimates({"FedAvg": md.FedAvg()}, fed, 5)
    held = blob.nbytes * (4 + 4 - 1)  # the data set, and a copy in the clients' order, for the pixels of one byte each
    assert memory.peak() - before < held / 2
    assert held < e.memory - before < 1.5 * held
    assert (e.clients, e.rows, e.whole_rounds) == (9, 900, False)


def test_a_method_that_does_not_run_with_one_client_is_tried_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUDGET", 0.0)

    class Pairs(md.FedAvg):
        def round(self, s, clients):
            if len(clients.ids) < 2:
                raise ValueError("no pairs")
            super().round(s, clients)

    (e,) = estimates({"pairs": Pairs()}, images(), 4)
    assert (e.clients, e.rows, e.whole_rounds) == (3, 900, False)
    assert e.seconds > 0


def test_many_tiny_clients_are_tried_by_more_and_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The announced round of 3,000 clients takes what 16 of them take, as often as they fit."""
    monkeypatch.setattr(module, "SIZES", (16,))
    g = torch.Generator().manual_seed(0)
    rows = [(torch.randn(6, 8, generator=g), torch.arange(6) % 3) for _ in range(3000)]
    fed = md.Federation(md.problems.Network(mlp(8, 3, hidden=(4,))), clients=rows)
    sizes = []
    fit = module._fit
    monkeypatch.setattr(module, "_fit", lambda r, *args: sizes.append(r.clients) or fit(r, *args))
    began = time.process_time()
    (e,) = estimates({"FedAvg": md.FedAvg()}, fed, 4)
    assert (sizes, e.clients, e.rows, e.whole_rounds) == ([1], 3000, 18000, False)
    assert 0 < e.seconds < 20 * max(1.0, time.process_time() - began)


def test_of_large_cohorts_the_paces_of_few_rounds_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last round at least: their steps are 1 and 39 here, on average those of all rounds."""
    steps = md.scenarios.Pace(steps=lambda t: 2 * t - 1, batch=1)
    fed = md.Federation(md.problems.LeastSquares(), clients=[(torch.ones(2, 1), torch.ones(2))] * 50, pace=steps)
    draw = fed.draw(0)
    seen = []
    cohort = draw.cohort
    monkeypatch.setattr(draw, "cohort", lambda t: seen.append(t) or cohort(t))
    for most, rounds in ((4000, [*range(1, 21)]), (150, [1, 10, 20]), (1, [1, 20])):
        seen.clear()
        monkeypatch.setattr(module, "PACES", most)
        clients, rows = module._mean(draw, 0, 20)
        assert seen[1:] == rounds
        assert (clients, rows) == (50, pytest.approx(50 * 20, rel=0.04))


def test_a_trial_of_a_stream_visits_two_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    g = torch.Generator().manual_seed(0)
    X = torch.randn(300, 8, generator=g)
    y = torch.arange(300) % 6
    fed = md.Federation(
        md.problems.Network(mlp(8, 6, hidden=(4,))),
        data=md.datasets.Dataset(X, y, X[:60], y[:60], 6),
        partition=md.partitions.IID(2),
        stream=md.tasks.Split(tasks=3),
        replay=md.replay.Ring(capacity=20),
    )
    (e,) = estimates({"CFLAG.joint": md.CFLAG.joint()}, fed, 7)
    assert (e.rounds, e.evaluations, e.whole_rounds) == (21, 22, False)
    assert e.rows == 100
    assert 0 < e.seconds < 10


def test_a_gradient_is_that_of_a_client_with_many_rows() -> None:
    """Also if the first round asks a client with one row: most steps are on full mini-batches."""
    rows = [(torch.randn(n, 2), torch.arange(n) % 2) for n in (1, 1, 1, 80, 50)]
    fed = md.Federation(md.problems.Network(mlp(2, 2)), clients=rows, pace=md.scenarios.Pace(batch=32))
    draw = fed.draw(0)
    assert (module._typical(draw), module._batch(draw)) == (3, 32)


def test_seconds_are_the_servers_the_clients_and_their_gradients() -> None:
    gradient = module.Gradient(fixed=0.01, row=0.002)
    r = TrialRound(wall=0.5, served=0.3, clients=2, rows=8, work=16.0, down=0, up=0)
    server, client, work, pace = module._fit(r, gradient)
    assert (server, work, pace) == (pytest.approx(0.2), 2.0, 1.0)
    assert client == pytest.approx((0.3 - 2 * 2 * (0.01 + 4 * 0.002)) / 2)


def test_a_noisy_fit_has_no_negative_part() -> None:
    r = TrialRound(wall=0.1, served=0.2, clients=2, rows=8, work=8.0, down=0, up=0)
    assert module._fit(r, module.Gradient(1.0, 0.0))[:2] == (0.0, 0.0)


@pytest.mark.slow
@pytest.mark.timed
def test_seconds_are_about_those_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", time.process_time)
    monkeypatch.setattr(module, "BUDGET", 0.0)
    fed = images(n=6000, batch=32)
    ratios = []
    for _ in range(3):
        began = time.process_time()
        md.run(md.FedAvg(), fed, 4, eval_every=100)
        spent = time.process_time() - began
        (e,) = estimates({"FedAvg": md.FedAvg()}, fed, 4)
        ratios.append((4 * e.seconds + 2 * e.evaluation) / spent)
    assert 0.5 < sorted(ratios)[1] < 2
