"""Large rows in memory: a federation reads them by number and has no second copy, with the bits of a copy in order."""

from __future__ import annotations

import gc
import math
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import medley as md
from medley.contract.errors import BadData
from medley.federation import rows, simulation
from medley.rows.lazy import Held, Lazy, blocks
from support.pairs import quick

G = torch.Generator().manual_seed(0)
IMAGES, LABELS = torch.randn(400, 3, 8, 8, generator=G), torch.randint(0, 5, (400,), generator=G)
NETS = {
    "convolutions": nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)),
    "dense": nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.Tanh(), nn.Linear(6, 5)),
    "norms": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)),
}


def federation(X: torch.Tensor, net: nn.Module, batch: int | None = 16, **options: Any) -> md.Federation:
    data = md.datasets.Dataset(X[:340], LABELS[:340], X[340:], LABELS[340:], classes=5)
    pace = md.scenarios.Pace(lr=0.1, batch=batch, epochs=2)
    partition = md.partitions.Dirichlet(clients=10, alpha=0.5)
    return md.Federation(md.problems.Network(net), data=data, partition=partition, pace=pace, **options)


CASES: list[tuple[str, int | None, dict[str, Any], dict[str, Any]]] = [
    ("convolutions", 16, {}, {"engine": "seq"}),
    ("convolutions", 16, {}, {"engine": "stacked"}),
    ("convolutions", 16, {}, {"engine": "fused"}),
    ("convolutions", 16, {}, {"engine": "fused", "dtype": "float64"}),
    ("convolutions", None, {}, {"engine": "stacked", "dtype": "float64"}),
    ("dense", 4, {}, {"engine": "fused"}),
    ("dense", None, {"validation": 0.2}, {"engine": "seq"}),
    ("norms", 16, {"participation": 0.5}, {"transport": md.transports.Processes(2)}),
    ("dense", 16, {}, {"eval_rows": 50}),
]


@pytest.mark.parametrize(("net", "batch", "of", "how"), quick(2, CASES))
def test_rows_read_by_number_give_the_bits_of_a_copy(
    monkeypatch: pytest.MonkeyPatch, net: str, batch: int | None, of: dict[str, Any], how: dict[str, Any]
) -> None:
    """One thread, as workers have."""
    fed = federation(IMAGES, NETS[net], batch, **of)
    ends = []
    for least in (math.inf, 0):
        monkeypatch.setattr(rows, "INDEXED", least)
        ends.append(md.run(md.FedAvg(), fed, 2, progress=False, **how))
    copied, read = ends
    assert torch.equal(copied.x, read.x)
    assert copied.digest == read.digest


def test_indexed_rows_are_those_of_the_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = federation(IMAGES, NETS["dense"])
    assert not isinstance(fed.draw(0).rows.X, Lazy)  # 261 KB: a copy in the order of clients
    monkeypatch.setattr(rows, "INDEXED", 0)
    X = fed.draw(0).rows.X
    assert isinstance(X, Lazy)
    assert X.memory is fed.data.X
    assert sorted(X.rows.tolist()) == [*range(340)]


def test_a_linear_model_has_its_rows_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its gradients is a product of all rows: gathering them each time took longer than the product."""
    monkeypatch.setattr(rows, "INDEXED", 0)
    data = md.datasets.Dataset(IMAGES.flatten(1), LABELS, classes=5)
    for family in (md.problems.Softmax(), md.problems.Softmax(intercept=False)):
        fed = md.Federation(family, data=data, partition=md.partitions.IID(clients=4))
        assert type(fed.draw(0).rows.X) is torch.Tensor


def test_pickled_rows_hold_no_views_of_them() -> None:
    data = md.datasets.Dataset(IMAGES.flatten(1), LABELS, classes=5)
    fed = md.Federation(md.problems.Softmax(), data=data, partition=md.partitions.IID(clients=4))
    held = fed.draw(0).rows
    before = len(pickle.dumps(held))
    assert held.of(0, 0)[0] is held.of(0, 0)[0]
    assert len(pickle.dumps(held)) == before


def test_few_rows_of_many_are_copied() -> None:
    """So a node that holds 2 of 400 rows lets go of the other 398."""
    some = np.arange(7, 9)
    found = rows.gathered([(IMAGES, some)], 0)
    assert type(found) is torch.Tensor
    assert torch.equal(found, IMAGES[7:9])
    assert isinstance(rows.gathered([(IMAGES, np.arange(399, -1, -1))], 0), Lazy)


@pytest.mark.parametrize("least", [0, math.inf])
def test_a_number_beyond_float32_is_named_with_its_client_and_row(
    monkeypatch: pytest.MonkeyPatch, least: float
) -> None:
    X = IMAGES.double()
    X[[5, 77]] = 1e300
    fed = federation(X, NETS["dense"])
    monkeypatch.setattr(rows, "INDEXED", least)
    monkeypatch.setattr("medley.rows.lazy.BLOCK", 8 * 192 * 50)  # 50 rows at a time
    parts = fed.parts(0)[0]
    client, row = next((i, int(np.flatnonzero((p == 5) | (p == 77))[0])) for i, p in enumerate(parts) if {5, 77} & {*p})
    with pytest.raises(BadData, match=f"client {client}, row {row}, column 0: the input is too large for float32"):
        md.run(md.FedAvg(), fed, 1)


@pytest.mark.parametrize("least", [0, math.inf])
def test_the_largest_input_is_found_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch, least: float) -> None:
    X = IMAGES.clone()
    X[123, 1, 2, 3] = -5e4
    monkeypatch.setattr(rows, "INDEXED", least)
    monkeypatch.setattr("medley.rows.lazy.BLOCK", 4 * 192 * 30)
    fed = federation(X, NETS["dense"])
    parts = fed.parts(0)[0]
    client = next(i for i, p in enumerate(parts) if 123 in p)
    said = fed.draw(0).rows.excess("wait")
    assert (
        f"client {client}, row {int(np.flatnonzero(parts[client] == 123)[0])}, column 1: the largest input is -50000"
        in said
    )


def test_blocks_and_single_rows_read_no_more_than_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Counted(Held):
        def read(self, rows: np.ndarray) -> torch.Tensor:
            asked.append(len(rows))
            return super().read(rows)

    lazy = Lazy([Counted(IMAGES)], np.arange(399, -1, -1))
    assert torch.equal(lazy[3], IMAGES[396])
    assert asked == [1]
    monkeypatch.setattr("medley.rows.lazy.BLOCK", 4 * 192 * 150)
    found = [(at, part.clone(), part.data_ptr()) for at, part in blocks(lazy)]
    assert torch.equal(torch.cat([part for _, part, _ in found]), IMAGES.flip(0))
    assert [at for at, _, _ in found] == [0, 150, 300]
    assert len({place for _, _, place in found}) == 1  # one block of memory
    assert asked == [1]
    doubles = [part for _, part in blocks(lazy.double(), 170)]
    assert torch.equal(torch.cat(doubles), IMAGES.flip(0).double())
    assert asked == [1, 150, 20, 150, 20, 60]  # in blocks, since they change their dtype


TASKS: dict[str, Any] = {"stream": md.tasks.Split(tasks=2), "replay": md.replay.Ring(capacity=40)}


@pytest.mark.parametrize(
    ("method", "engine", "options"),
    quick(
        2,
        [
            (md.FedNorton(), "seq", {}),
            (md.FedNorton(), "stacked", {}),
            (md.FedNorton(), "fused", {}),
            (md.CFLAG.joint(), "seq", TASKS),
        ],
    ),
    ids=["seq", "stacked", "fused", "tasks"],
)
def test_rows_go_with_their_run(
    monkeypatch: pytest.MonkeyPatch, method: Any, engine: Any, options: dict[str, Any]
) -> None:
    """A run that is over and has no name left holds no rows, though the collector of cycles has not come by."""
    drawn: weakref.WeakSet[simulation.Simulation] = weakref.WeakSet()
    init = simulation.Simulation.__init__

    def seen(self: simulation.Simulation, *args: Any, **options: Any) -> None:
        drawn.add(self)
        init(self, *args, **options)

    monkeypatch.setattr(simulation.Simulation, "__init__", seen)
    gc.disable()
    try:
        fed = federation(IMAGES, NETS["convolutions"], **options)
        result = md.run(method, fed, 2, engine=engine, progress=False)
        del fed
        assert not drawn
    finally:
        gc.enable()
    assert len(result.history) >= 3


MEMORY = """
import torch, medley as md
from torch import nn
torch.set_num_threads(1)
def status(key):
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))
n = 25_600
data = md.datasets.Dataset(torch.full((n, 3, 32, 32), 0.5), torch.arange(n) % 10, classes=10)
net = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 10))
partition = md.partitions.Dirichlet(clients=100, alpha=0.5)
fed = md.Federation(md.problems.Network(net), data=data, partition=partition, pace=md.scenarios.Pace(batch=20))
open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
before = status("VmRSS")
md.run(md.FedAvg(), fed, 1, {options}, progress=False)
print((status("VmHWM") - before) / n)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak from Linux's /proc")
@pytest.mark.slow
@pytest.mark.parametrize(("engine", "most"), [("seq", 4096), ("stacked", 8192)])
def test_a_hundred_clients_have_no_second_copy(engine: str, most: int) -> None:
    """300 MiB of rows of 12,288 bytes: the peak of a run beyond them, in bytes a row. A copy would be 12,288 more.

    A step of 100 stacked clients has 24 MiB of rows, which the network's gradient takes several times.
    """
    script = MEMORY.replace("{options}", f"engine={engine!r}")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < most
