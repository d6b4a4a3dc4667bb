"""Every method on a pretended GPU: a tensor on the wrong device fails, and so do more waits than said."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import medley as md
from medley.contract.algorithm import Algorithm
from medley.contract.errors import RecipeError
from medley.engines import NAMES
from medley.testing.method_runs import Subject
from medley.testing.toys import Place, places
from medley.transports import Processes
from support.methods import METHODS
from support.pretended_gpu import Event, PretendedGPU

LAYERS = [nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3)]


def place(name: str) -> Place:
    return next(p for p in places() if p.name == name)


def agree(a: md.Result, b: md.Result) -> None:
    """The pretended GPU computes as the CPU; a shortened correction and batches of one size may round otherwise."""
    torch.testing.assert_close(a.x, b.x, rtol=1e-5, atol=1e-6)
    assert [row.keys() for row in a.history] == [row.keys() for row in b.history]
    assert (a.ledger.up, a.ledger.down, a.ledger.exchanges) == (b.ledger.up, b.ledger.down, b.ledger.exchanges)


# The device itself


def test_tensors_are_where_torch_would_have_them() -> None:
    with PretendedGPU(devices=2) as gpu:
        x = torch.ones(2, 3, device="cuda")
        tensors = [x, 2 * x, x.sum(), x[0], x.view(6), torch.zeros_like(x), x.new_zeros(3), x.new_tensor([1.0])]
        tensors += [
            torch.tensor([1.0], device="cuda"),
            x.to(torch.float64),
            torch.ones(1).to(x),
            nn.Linear(3, 1).to(x)(x),
        ]
        assert {str(t.device) for t in tensors} == {"cuda:0"}
        assert x.is_cuda
        assert not x.is_cpu
        assert x.get_device() == 0
        assert str(torch.ones(1, device="cuda:1").device) == "cuda:1"
        home = [x.cpu(), x.to("cpu"), torch.ones(2), torch.zeros_like(x, device="cpu"), x.cpu().to(torch.float64)]
        assert {str(t.device) for t in home} == {"cpu"}
        leaf = torch.ones(3, device="cuda", requires_grad=True)
        torch.func.vmap(lambda row: (row * leaf).sum() + torch.zeros((), device=row.device))(x).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.is_cuda
        assert leaf.grad.tolist() == [2.0] * 3
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.ones(1, device="cuda:2")
    assert [e.what for e in gpu.waits] == ["copy to the host"] * 3 + ["tolist"]
    assert not torch.cuda.is_available()


MIXED: list[Callable[[torch.Tensor, torch.Tensor], object]] = [
    lambda g, c: g + c,
    lambda g, c: c + g,
    lambda g, c: c.add_(g[0, 0]),
    lambda g, c: g @ c,
    lambda g, c: torch.cat([g, c]),
    lambda g, c: torch.stack([g, c]),
    lambda g, c: torch.where(g > 0, g, c),
    lambda g, c: nn.functional.linear(g, c),
    lambda g, c: nn.functional.cross_entropy(g, torch.zeros(2, dtype=torch.long)),
    lambda g, c: g.index_select(0, torch.zeros(1, dtype=torch.long)),
    lambda g, c: c[torch.zeros(1, dtype=torch.long).to(g.device)],
    lambda g, c: torch.cat([g.sum()[None], c.sum()[None]]),
]


def test_two_devices_are_refused() -> None:
    with PretendedGPU():
        for mixed in MIXED:
            with pytest.raises(RuntimeError, match=r"on the same device|indices should be either on cpu"):
                mixed(torch.ones(2, 2, device="cuda"), torch.ones(2, 2))


def test_a_number_of_the_host_and_an_index_of_the_host_are_taken() -> None:
    with PretendedGPU() as gpu:
        x = torch.ones(3, 2, device="cuda")
        assert (x * torch.tensor(2.0)).is_cuda
        assert x.masked_fill(x > 0, torch.tensor(0.0)).is_cuda
        assert x[torch.tensor([0, 2])].shape == (2, 2)
        for refused in (x.numpy, lambda: torch.randn(2, device="cuda", generator=torch.Generator())):
            with pytest.raises((TypeError, RuntimeError), match=r"cuda:0 device type|Expected a 'cuda' device type"):
                refused()
    assert gpu.waits == []
    assert [e.what for e in gpu.uploads] == ["upload"]


def test_draws_on_a_device_are_counted() -> None:
    with PretendedGPU() as gpu:
        x = torch.randn(3).to("cuda")
        assert gpu.draws == []
        nn.functional.dropout(x)
        nn.Linear(2, 2).to("cuda").reset_parameters()
        torch.rand(2, device="cuda")
        nn.functional.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 2).to("cuda")] * 3)
    assert [e.what for e in gpu.draws] == ["draw"] * 4
    assert [e.what for e in gpu.waits] == []


def test_waits_are_counted_with_the_line_that_waits() -> None:
    with PretendedGPU() as gpu:
        x = torch.arange(3.0, device="cuda")
        float(x.sum()), bool(x[0] > 1), x.tolist(), x.nonzero(), x[x > 0], torch.equal(x, x), x.cpu()
        torch.linalg.cholesky(torch.eye(2, device="cuda"))
        from medley.contract.message import is_finite

        is_finite(x)
    words = ["item", "item", "tolist", "nonzero", "boolean mask", "equal", "copy to the host"]
    assert [e.what for e in gpu.waits] == [*words, "check of a factorization", "item"]
    assert [e.line for e in gpu.waits[:-1]] == [""] * 8
    assert gpu.waits[-1].line.startswith("contract/message.py:")
    assert gpu.lines()[" item"] == 2


# Methods and engines


def on_gpu(method: Algorithm[Any, Any], place: Place, engine: str, rounds: int = 2) -> None:
    fed = place.federation()
    try:
        want = md.run(method, fed, rounds, progress=False, engine=engine)
    except RecipeError:
        return  # refused on any device
    with PretendedGPU() as gpu:
        result = md.run(method, fed, rounds, progress=False, engine=engine, device="cuda")
    agree(result, want)
    assert gpu.uploads
    assert gpu.draws == []  # the network has no dropout, and nothing else has a seed there
    assert result.x.is_cpu


@pytest.mark.slow
@pytest.mark.parametrize("method", [m for m in METHODS if "trees" not in m.needs], ids=lambda m: m.name)
def test_every_method_and_engine(method: Algorithm[Any, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    *others, last = Subject(method).places
    for other in others:
        on_gpu(method, other, "auto")
    for engine in NAMES:
        on_gpu(method, last, engine, rounds=1)


@pytest.mark.parametrize("method", [md.SCAFFOLD(), md.SHED()], ids=lambda m: m.name)
def test_some_methods(method: Algorithm[Any, Any]) -> None:
    on_gpu(method, Subject(method).places[-1], "auto")


@pytest.mark.slow
def test_paces_of_every_kind_with_each_engine() -> None:
    """Momentum, weight decay, clipping, Adam, a factory that is kept, batches of unequal size, dropout, BatchNorm."""
    paces: list[dict[str, Any]] = [
        {"momentum": 0.9, "weight_decay": 0.1, "clip": 0.5, "batch": [2, 3, 4, 5, 6]},
        {"optimizer": "adam"},
        {"optimizer": torch.optim.AdamW, "optimizer_state": "kept"},
    ]
    data = place("network").clients
    for layers in (LAYERS, [nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3)]):
        for settings in paces:
            pace = md.scenarios.Pace(**{"batch": 4, "lr": 0.05} | settings)
            fed = md.Federation(md.problems.Network(nn.Sequential(*layers)), clients=data, classes=3, pace=pace)
            with PretendedGPU():
                result = md.run(md.FedAvg(), fed, 2, progress=False, device="cuda")
            agree(result, md.run(md.FedAvg(), fed, 2, progress=False))


def test_engines_are_refused_by_name() -> None:
    batchnorm = md.problems.Network(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    fed = md.Federation(batchnorm, clients=place("network").clients, classes=3)
    with PretendedGPU():
        for name, why in (("stacked", "the network has buffers"), ("fused", "it takes linear models")):
            with pytest.raises(RecipeError, match=rf"run\(engine='{name}'\): {why}"):
                md.run(md.FedAvg(), fed, 1, progress=False, device="cuda", engine=name)
        with pytest.raises(RecipeError, match="Processes: workers use the CPU, but the run is on cuda"):
            md.run(md.FedAvg(), fed, 1, progress=False, device="cuda", transport=Processes(2))


@pytest.mark.slow
def test_checkpoint_resume_and_prediction(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    network = place("network")
    fed = md.Federation(network.problem, clients=network.clients, classes=3, test=network.clients[0])
    settings: dict[str, Any] = {"progress": False, "device": "cuda", "clients_every": 2}
    for method in (md.SCAFFOLD(), md.Ditto(), md.FedAdam()):
        with PretendedGPU():
            uninterrupted = md.run(method, fed, 4, **settings)
            md.run(method, fed, 2, checkpoint=tmp_path / method.name, **settings)
            rest = md.run(method, fed, 4, resume=tmp_path / method.name, checkpoint=tmp_path / method.name, **settings)
            assert torch.equal(rest.x, uninterrupted.x)
            assert rest.x.is_cpu
            assert rest.history[-1]["accuracy"] == uninterrupted.history[-1]["accuracy"]
            assert uninterrupted.model is not None
            assert next(uninterrupted.model.parameters()).is_cuda
            X = network.clients[0][0].float()
            predicted = uninterrupted.model(X.to("cuda")).argmax(1)
            assert predicted.is_cuda
        agree(uninterrupted, md.run(method, fed, 4, **settings | {"device": "cpu"}))
        for devices in (("cuda", "cpu"), ("cpu", "cuda")):
            folder = tmp_path / f"{method.name} {devices[0]}"
            caplog.clear()
            with PretendedGPU():
                md.run(method, fed, 2, checkpoint=folder, **settings | {"device": devices[0]})
                rest = md.run(method, fed, 4, resume=folder, **settings | {"device": devices[1]})
            agree(rest, uninterrupted)
            assert f"was written with device {devices[0]} and resumes with {devices[1]}: bits may differ" in caplog.text
            starts = json.loads((folder / "run.json").read_text())["starts"]
            assert [start["device"] for start in starts] == list(devices)


# Waits


def waits_a_round(method: Algorithm[Any, Any], name: str, engine: str = "stacked") -> Counter[Event]:
    """Waits of a round without evaluation: those of a longer run less those of a shorter one."""
    problem = place(name)
    if not name.endswith("stream"):
        problem = Place(name, md.problems.Network(nn.Sequential(*LAYERS)), problem.clients, 3)
    runs = []
    for rounds in (2, 3):
        with PretendedGPU() as gpu:
            md.run(method, problem.federation(), rounds, progress=False, device="cuda", engine=engine, eval_every=100)
        runs.append(Counter(gpu.waits))
    runs[1].subtract(runs[0])
    more = 1 if problem.stream is None else 2  # a round of each task
    assert all(n % more == 0 for n in runs[1].values())
    return Counter({e: n // more for e, n in runs[1].items() if n})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "name", "most"),
    [
        (md.FedAvg(), "network", 1),
        pytest.param(md.SCAFFOLD(), "network", 1, marks=pytest.mark.slow),
        pytest.param(md.FedNorton(), "network", 3, marks=pytest.mark.slow),
        pytest.param(md.CFLAG.joint(), "network stream", 1, marks=pytest.mark.slow),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_a_round_waits_no_more_often_than_it_must(method: Algorithm[Any, Any], name: str, most: int) -> None:
    waits = waits_a_round(method, name)
    assert sum(waits.values()) == most, waits


def test_a_client_that_diverges_is_named_where_checks_are_gathered() -> None:
    clients = list(place("network").clients)
    clients[3] = clients[3][0] * 1e30, clients[3][1]
    pace = md.scenarios.Pace(lr=1e30, batch=None, epochs=2)
    fed = md.Federation(md.problems.Network(nn.Sequential(*LAYERS[::3])), clients=clients, classes=3, pace=pace)
    results = []
    for device in ("cpu", "cuda"):
        with PretendedGPU():
            settings = {"progress": False, "engine": "stacked", "throw": False}
            results.append(md.run(md.FedAvg(), fed, 3, device=device, **settings))
    on_host, on_gpu_ = results
    assert on_host.status.outcome == on_gpu_.status.outcome == "diverged"
    assert on_gpu_.status.message == on_host.status.message
    assert "client" in on_gpu_.status.message
