"""PyTorch's optimizers at clients, dropped batches, and BatchNorm on one row."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import medley as md
from medley.partitions import IID
from medley.scenarios import Pace
from support.pairs import quick

F64 = torch.float64


def rows(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 6, generator=g, dtype=F64)
    return X, (X[:, 0] > 0).long() + (X[:, 1] > 0).long()


def federation(pace: Pace, n: int = 40, clients: int = 3, module: nn.Module | None = None) -> md.Federation:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)) if module is None else module
    return md.Federation(md.problems.Network(net), clients=[rows(n, i) for i in range(clients)], pace=pace)


def by_hand(make: Any, rounds: int, kept: bool, steps: int = 3) -> torch.Tensor:
    """One client, full batches: PyTorch's own loop."""
    fed = federation(Pace(lr=0.05, steps=steps, batch=None), clients=1)
    x0 = md.run(md.FedAvg(), fed, 0, dtype=F64)
    assert x0.model is not None
    model, (X, y) = x0.model.train(), rows(40)
    opt = make(model.parameters(), lr=0.05)
    for _ in range(rounds):
        if not kept:
            opt = make(model.parameters(), lr=0.05)
        for _ in range(steps):
            opt.zero_grad()
            nn.functional.cross_entropy(model(X), y).backward()
            opt.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


class Heads(nn.Module):
    """A head for each task: a batch uses that of its first row's task."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.heads = nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)])

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.heads[int(X[0, 0] > 0)](torch.tanh(self.body(X)))
        return z


sgd = functools.partial(torch.optim.SGD, weight_decay=0.1)


@pytest.mark.parametrize(
    ("pace", "make"),
    [
        ({"weight_decay": 0.1}, sgd),
        ({"momentum": 0.9, "weight_decay": 0.1}, functools.partial(sgd, momentum=0.9)),
        ({"optimizer": "adam", "weight_decay": 0.1}, functools.partial(torch.optim.Adam, weight_decay=0.1)),
        ({"optimizer": torch.optim.AdamW}, torch.optim.AdamW),
    ],
)
@pytest.mark.parametrize("clients", [1, 6])  # from five on the engine is stacked, where it can be
def test_a_parameter_that_a_batch_does_not_use_takes_no_step(pace: Any, make: Any, clients: int) -> None:
    X, y = rows(40)
    X[:20, 0], X[20:, 0] = -1.0, 1.0  # one head, then the other
    net = Heads().to(F64)
    fed = md.Federation(
        md.problems.Network(net, start="module"),
        clients=[(X[:20], y[:20])] + [(X[20:], y[20:])] * (clients - 1),
        pace=Pace(lr=0.05, epochs=3, batch=None, **pace),
    )
    wanted = []
    for part in [slice(20)] + [slice(20, 40)] * (clients - 1):
        model = copy.deepcopy(net)
        opt = make(model.parameters(), lr=0.05)
        for _ in range(3):
            opt.zero_grad()
            nn.functional.cross_entropy(model(X[part]), y[part]).backward()
            opt.step()
        wanted.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    got = md.run(md.FedAvg(), fed, 1, dtype=F64).x
    torch.testing.assert_close(got, torch.stack(wanted).mean(0))


MAKERS = [
    torch.optim.AdamW,
    torch.optim.RMSprop,
    functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    functools.partial(torch.optim.Adagrad, weight_decay=0.1),
    torch.optim.Adafactor,  # its steps depend on the parameters' shapes
]


@pytest.mark.parametrize("kept", quick(1, [False, True]))
@pytest.mark.parametrize("make", MAKERS)
def test_a_client_takes_the_steps_of_pytorchs_own_loop(make: Any, kept: bool) -> None:
    pace = Pace(lr=0.05, steps=3, batch=None, optimizer=make, optimizer_state="kept" if kept else "fresh")
    r = md.run(md.FedAvg(), federation(pace, clients=1), 3, dtype=F64)
    torch.testing.assert_close(r.x, by_hand(make, 3, kept), rtol=1e-9, atol=1e-9)
    assert r.settings["engine"] == "seq"


@pytest.mark.slow
def test_kept_states_survive_a_stop_workers_and_stacks(tmp_path: Path) -> None:
    pace = Pace(lr=0.05, batch=8, optimizer=torch.optim.AdamW, optimizer_state="kept")
    fed = federation(pace, clients=6)
    whole = md.run(md.SCAFFOLD(), fed, 4)
    two = md.run(md.SCAFFOLD(), fed, 4, transport=md.transports.Processes(workers=2))
    md.run(md.SCAFFOLD(), fed, 2, checkpoint=tmp_path)
    resumed = md.run(md.SCAFFOLD(), fed, 4, resume=tmp_path)
    assert torch.equal(whole.x, two.x)
    assert torch.equal(whole.x, resumed.x)
    fresh = md.run(md.SCAFFOLD(), federation(Pace(lr=0.05, batch=8, optimizer=torch.optim.AdamW), clients=6), 4)
    assert not torch.equal(whole.x, fresh.x)
    lost = md.transports.Lossy(loss=0.5)
    a, b = (md.run(md.FedAvg(), fed, 4, transport=lost) for _ in range(2))
    assert torch.equal(a.x, b.x)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer": torch.optim.LBFGS}, "closure"),
        ({"optimizer": nn.Linear}, "Use a class of torch.optim"),
        ({"optimizer": lambda params, lr: 3}, "it makes a int"),
        ({"optimizer": "adam", "optimizer_state": "kept"}, "set optimizer_state='fresh'"),
        ({"optimizer": torch.optim.SGD, "momentum": 0.9}, "functools.partial"),
    ],
)
def test_optimizers_that_cannot_work_are_refused_when_they_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(md.RecipeError, match=said):
        Pace(**settings)


def test_drop_last_leaves_out_the_short_batch_as_a_dataloader_does() -> None:
    seen: list[int] = []

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(len(y)) if outputs.requires_grad else None
        return nn.functional.cross_entropy(outputs, y)

    def batches(n: int, drop_last: bool, epochs: int = 2) -> list[int]:
        seen.clear()
        pace = Pace(lr=0.1, epochs=epochs, batch=16, drop_last=drop_last)
        net = md.problems.Network(nn.Linear(6, 3), loss=loss)
        begin = lambda row: seen.clear() if row["round"] == 0 else None  # without the trials of the loss
        md.run(md.FedAvg(), md.Federation(net, clients=[rows(n)], pace=pace), 1, engine="seq", on_round=begin)
        return [*seen]

    assert batches(40, False) == [16, 16, 8] * 2
    assert batches(40, True) == [16, 16] * 2
    assert batches(32, True) == [16, 16] * 2
    assert batches(9, True, epochs=1) == [9]  # fewer rows than a batch: all of them, not nothing


@pytest.mark.parametrize("engine", ["auto", "seq"])
def test_engines_agree_on_drop_last(engine: str) -> None:
    fed = federation(Pace(lr=0.1, batch=16, drop_last=True), clients=6)
    r = md.run(md.FedAvg(), fed, 2, engine=engine, dtype=F64)
    assert r.settings["engine"] == "seq"
    even = federation(Pace(lr=0.1, batch=16, drop_last=True), n=32, clients=6)
    assert md.run(md.FedAvg(), even, 1).settings["engine"] != "seq"  # nothing is dropped: the fast engine runs


@pytest.mark.slow
def test_batchnorm_survives_a_batch_of_one_row_in_every_seed() -> None:
    norm = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    X, y = rows(33 * 5)
    data = md.datasets.Dataset(X.float(), y, X.float(), y, classes=3)
    for seed in range(5):
        fed = md.Federation(
            md.problems.Network(norm), data=data, partition=IID(clients=5), pace=Pace(lr=0.2, batch=32, epochs=3)
        )
        r = md.run(md.FedAvg(), fed, 4, seed=seed)
        assert r.summary["loss"] < r.history[0]["loss"]
        assert r.model is not None
        assert r.model.training is False
    # The last row trains the layers behind BatchNorm with its running statistics, and leaves these as they were.
    one = md.Federation(md.problems.Network(norm), clients=[(X[:1].float(), y[:1])], classes=3)
    alone = md.run(md.FedAvg(), one, 2)
    assert alone.summary["loss"] < alone.history[0]["loss"]
    assert alone.model is not None
    assert torch.equal(alone.model[1].running_mean, torch.zeros(5))  # type: ignore[index]


Muon = getattr(torch.optim, "Muon", None)
MUON = functools.partial(Muon or torch.optim.SGD, adjust_lr_fn="match_rms_adamw", weight_decay=0.02)


@pytest.mark.skipif(Muon is None, reason="this torch has no Muon")
@pytest.mark.parametrize("kept", [False, True])
def test_muon_takes_the_matrices_and_adamw_the_biases(kept: bool) -> None:
    pace = Pace(lr=0.05, steps=3, batch=None, optimizer=MUON, optimizer_state="kept" if kept else "fresh")
    start = md.run(md.FedAvg(), federation(pace, clients=1), 0, dtype=F64).model
    assert start is not None
    (X, y), model = rows(40), start.train()
    weights, biases = ([p for p in model.parameters() if p.ndim == n] for n in (2, 1))
    for t in range(6):
        if t == 0 or (t == 3 and not kept):
            both = MUON(weights, lr=0.05), torch.optim.AdamW(biases, lr=0.05, weight_decay=0.02)
        model.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        for optimizer in both:
            optimizer.step()
    wanted = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    got = md.run(md.FedAvg(), federation(pace, clients=1), 2, dtype=F64, progress=False).x
    assert torch.allclose(got, wanted, rtol=0, atol=1e-14)


@pytest.mark.skipif(Muon is None, reason="this torch has no Muon")
def test_muon_says_what_to_do_where_it_cannot_take_a_parameter() -> None:
    plain = Pace(lr=0.05, optimizer=Muon)
    with pytest.raises(md.RecipeError, match=r"has a parameter \[5\]; use functools.*AdamW then trains the others"):
        md.run(md.FedAvg(), federation(plain), 1, progress=False)
    linear = md.Federation(md.problems.Softmax(), clients=[rows(40)], pace=Pace(optimizer=MUON))
    with pytest.raises(md.RecipeError, match="it takes only matrices, but this model has none"):
        md.run(md.FedAvg(), linear, 1, progress=False)
    matrices = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False))
    md.run(md.FedAvg(), federation(plain, module=matrices), 1, progress=False)
