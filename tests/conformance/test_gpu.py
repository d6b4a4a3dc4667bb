"""Every method on a GPU, where there is one: the numbers of the CPU in float64, and a resumed run the same bits."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import medley as md
from medley.contract.algorithm import Algorithm
from medley.contract.errors import RecipeError
from medley.engines import NAMES
from medley.testing.method_runs import Subject
from medley.testing.toys import Place, places
from support.methods import METHODS

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
]


def on_both(method: Algorithm[Any, Any], place: Place, engine: str, rounds: int) -> None:
    settings: dict[str, Any] = {"progress": False, "engine": engine, "dtype": torch.float64}
    fed = place.federation()
    try:
        on_cpu = md.run(method, fed, rounds, **settings)
    except RecipeError:
        assert engine in ("fused", "stacked")  # which are refused on any device
        return
    on_gpu = md.run(method, fed, rounds, device="cuda", **settings)
    assert on_gpu.x.is_cpu
    torch.testing.assert_close(on_gpu.x, on_cpu.x, rtol=1e-7, atol=1e-9)
    ours = on_cpu.ledger
    theirs = on_gpu.ledger
    assert (ours.up, ours.down, ours.exchanges) == (theirs.up, theirs.down, theirs.exchanges)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_method_and_engine(method: Algorithm[Any, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    *others, last = Subject(method).places
    for place in others:
        on_both(method, place, "auto", 2)
    for engine in NAMES:
        on_both(method, last, engine, 1)


@pytest.mark.parametrize("method", [md.FedNorton(), md.SHED(), md.FedAvg()], ids=lambda m: m.name)
def test_some_methods(method: Algorithm[Any, Any]) -> None:
    on_both(method, Subject(method).places[-1], "auto", 2)


@pytest.mark.slow
@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_convolutions(momentum: float, engine: str) -> None:
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 1, 12, 12, generator=g), torch.arange(n) % 3) for n in (12, 20, 9, 30, 16, 12)]
    pace = md.scenarios.Pace(lr=0.05, batch=8, epochs=2, momentum=momentum)
    fed = md.Federation(md.problems.Network(md.models.cnn((1, 12, 12), 3)), clients=clients, classes=3, pace=pace)
    settings: dict[str, Any] = {"progress": False, "engine": engine, "dtype": torch.float64}
    on_cpu, on_gpu = (md.run(md.FedNorton(), fed, 3, device=device, **settings) for device in ("cpu", "cuda"))
    torch.testing.assert_close(on_gpu.x, on_cpu.x, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [("cuda", "cpu"), ("cpu", "cuda")], ids="-".join)
def test_a_run_goes_on_on_another_device(devices: tuple[str, str], tmp_path: Path) -> None:
    network = next(p for p in places() if p.name == "network")
    fed = md.Federation(network.problem, clients=network.clients, classes=3)
    settings: dict[str, Any] = {"progress": False, "dtype": torch.float64}
    md.run(md.FedNorton(), fed, 2, checkpoint=tmp_path, device=devices[0], **settings)
    rest = md.run(md.FedNorton(), fed, 4, resume=tmp_path, device=devices[1], **settings)
    torch.testing.assert_close(rest.x, md.run(md.FedNorton(), fed, 4, **settings).x, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", [md.SCAFFOLD(), md.Ditto(), md.FedNorton()], ids=lambda m: m.name)
def test_a_resumed_run_has_the_same_bits(method: Algorithm[Any, Any], tmp_path: Path) -> None:
    network = next(p for p in places() if p.name == "network")
    fed = md.Federation(network.problem, clients=network.clients, classes=3, test=network.clients[0])
    settings: dict[str, Any] = {"progress": False, "device": "cuda"}
    uninterrupted = md.run(method, fed, 4, **settings)
    md.run(method, fed, 2, checkpoint=tmp_path, **settings)
    rest = md.run(method, fed, 4, resume=tmp_path, checkpoint=tmp_path, **settings)
    assert torch.equal(rest.x, uninterrupted.x)
    assert rest.model is not None
    assert next(rest.model.parameters()).is_cuda
