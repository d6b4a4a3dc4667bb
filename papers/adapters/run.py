"""Methods whose clients run AdamW or Muon, on six federations; half of them train LoRA adapters of a pretrained model.

    python papers/adapters/run.py --list
    python papers/adapters/run.py digits --methods "FedAvg;FedExLoRA"     # federations by the beginnings of their names
    python papers/adapters/run.py mnist fashion cifar --jobs 2

Each method is tuned alike, on validation rows of seed 100: the clients' learning rate over a ladder, then its own main
setting over three values. Then it has five fresh seeds on test rows. A finished run is a line of results/; the same
command goes on after Ctrl-C, a kill or a crash. Images but the digits are looked for in $MEDLEY_DATA. Tuning, files and
the command are those of papers/tables/run.py.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import medley as md
from medley.datasets import Dataset
from medley.partitions import Dirichlet
from medley.scenarios import Pace

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tables"))
spec = importlib.util.spec_from_file_location("tables_run", HERE.parent / "tables" / "run.py")
assert spec is not None
assert spec.loader is not None
tables = importlib.util.module_from_spec(spec)
sys.modules["tables_run"] = tables
spec.loader.exec_module(tables)

OPTIMIZERS: dict[str, Any] = {
    "adamw": torch.optim.AdamW,
    "muon": functools.partial(getattr(torch.optim, "Muon", torch.optim.AdamW), adjust_lr_fn="match_rms_adamw"),
}
METHODS = {
    "FedAvg": md.FedAvg(), "FedAvgM": md.FedAvgM(), "FedAdam": md.FedAdam(), "FedCM": md.FedCM(), "FedDyn": md.FedDyn(),
    "AFedPD": md.AFedPD(),
}  # fmt: skip
KNOBS = {
    "FedAvgM": {"beta": (0.5, 0.7)}, "FedAdam": {"server_lr": (0.001, 0.003)}, "FedCM": {"alpha": (0.3, 0.5)},
    "FedDyn": {"alpha": (0.01, 1.0)}, "AFedPD": {"prox": (0.01, 1.0)}, "FedAdamW": {"alpha": (0.1, 0.9)},
}  # fmt: skip
"""Each method's own setting: these two values and the default."""

ROUNDS = 40
LR = 3e-3
RANK = 4
PRETRAINED = 200


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter that adds nothing at first, in peft's names."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.Linear(layer.in_features, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, layer.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, X: Tensor) -> Any:
        """The layer's outputs."""
        return self.base_layer(X) + self.lora_B(self.lora_A(X))


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One federation under one optimizer, with a title, its methods by name, and the federation that a method gets."""

    title: str
    methods: Mapping[str, Any]
    build: Callable[[str], md.Federation]
    tasks: bool = False


def data(name: str, rows: int = 2000) -> Dataset:
    """Rows of a data set, images at half their width and height."""
    if name == "digits":
        return md.datasets.digits().split(0.2)
    dataset: Dataset = getattr(md.datasets, name)().take(rows, 1000)
    return dataset.pool(2).standardise()


@cache
def pretrained(name: str, other: str) -> nn.Module:
    """An MLP trained on another data set of the same shape; of the digits on 0 to 4 alone. Adapters, frozen layers."""
    source = data(other)
    X = source.X.flatten(1).float()
    y = source.y
    if other == name:
        X = X[y < 5]
        y = y[y < 5]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = nn.Linear(X.shape[1], 64)
        second = nn.Linear(64, 64)
        body = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
        head = nn.Linear(64, int(y.max()) + 1)
        optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)
        for _ in range(PRETRAINED):
            rows = torch.randint(len(X), (128,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(body(X[rows])), y[rows]).backward()
            optimizer.step()
        body.requires_grad_(False)
        return nn.Sequential(nn.Flatten(), Adapted(first), nn.ReLU(), Adapted(second), nn.ReLU(), nn.Linear(64, 10))


def full_model(name: str, model: Callable[[], nn.Module], optimizer: str, alpha: float, method: str) -> md.Federation:
    """Clients that train all of a network."""
    del method
    return federation(md.problems.Network(model()), name, optimizer, alpha)


def adapters(name: str, other: str, optimizer: str, alpha: float, method: str) -> md.Federation:
    """Clients that train adapters and a head; FedExLoRA also gets the layers' weights in x."""
    model = pretrained(name, other)
    for path, p in model.named_parameters():
        if path.endswith("base_layer.weight"):
            p.requires_grad_(method == "FedExLoRA")
    return federation(md.problems.Network(model, start="module"), name, optimizer, alpha)


def federation(problem: md.problems.Network, name: str, optimizer: str, alpha: float) -> md.Federation:
    """Ten clients, half of them a round, two passes over their rows."""
    pace = Pace(lr=LR, epochs=2, batch=32, optimizer=OPTIMIZERS[optimizer])
    more: dict[str, Any] = {"participation": 0.5, "validation": 0.1, "pace": pace}
    return md.Federation(problem, data=data(name), partition=Dirichlet(clients=10, alpha=alpha), **more)


def vit() -> nn.Module:
    return md.models.vit((1, 14, 14), 10, patch=2, width=32, depth=2)


def cnn() -> nn.Module:
    return md.models.cnn((1, 14, 14), 10)


EXPERIMENTS: dict[str, Experiment] = {}
for name in OPTIMIZERS:
    entries = METHODS | ({"FedAdamW": md.FedAdamW()} if name == "adamw" else {})
    exact = entries | {"FedExLoRA": md.FedExLoRA()}
    for start, title, build in (
        (
            "digits-mlp",
            "an MLP on digits",
            functools.partial(full_model, "digits", lambda: md.models.mlp(64, 10), name, 0.3),
        ),
        ("mnist-vit", "a ViT on MNIST", functools.partial(full_model, "mnist", vit, name, 0.3)),
        ("fashion-cnn", "a CNN on Fashion-MNIST", functools.partial(full_model, "fashion_mnist", cnn, name, 0.1)),
        ("digits-lora", "digits, from 0 to 4", functools.partial(adapters, "digits", "digits", name, 0.3)),
        ("mnist-lora", "MNIST, from Fashion-MNIST", functools.partial(adapters, "mnist", "fashion_mnist", name, 0.3)),
        ("cifar-lora", "CIFAR-10, from CIFAR-100", functools.partial(adapters, "cifar10", "cifar100", name, 0.3)),
    ):
        methods = exact if "lora" in start else entries
        EXPERIMENTS[f"{start}-{name}"] = Experiment(f"{title}, {name} at 10 clients", methods, build)


def once(name: str, method: str, lr: float, settings: dict[str, float], seed: int, on: str) -> dict[str, Any]:
    """One run, as a line of its file."""
    e = EXPERIMENTS[name]
    began = time.process_time()
    wall = time.perf_counter()
    line: dict[str, Any] = {"kind": "tuning" if on == "validation" else "final", "lr": lr, "seed": seed}
    line |= {"settings": settings} if settings else {}
    set_ = md.Tuned(dataclasses.replace(e.methods[method], **settings), lr)
    options: dict[str, Any] = {"evaluate_on": on, "eval_every": ROUNDS, "transport": md.transports.InProcess()}
    try:
        result = md.run(set_, e.build(method), ROUNDS, seed=seed, throw=False, progress=False, **options)
    except md.MedleyError as error:
        line |= {"status": "failed", "score": None, "message": str(error)}
    else:
        score = result.summary.get("accuracy", math.nan)
        line |= {"status": result.status.outcome, "score": score if math.isfinite(score) else None}
        line |= {"bytes_up": result.ledger.up, "bytes_down": result.ledger.down}
    return line | {"cpu": round(time.process_time() - began, 2), "wall": round(time.perf_counter() - wall, 2)}


fill_of_tables = tables.fill


def fill(work: tuple[Path, str, str]) -> str:
    """As that of the tables, in processes that import this file."""
    return str(fill_of_tables(work))


vars(tables).update(
    EXPERIMENTS=EXPERIMENTS, KNOBS=KNOBS, SEEDS=range(5), HERE=HERE / "results", once=once, fill=fill, __doc__=__doc__
)

if __name__ == "__main__":
    sys.exit(tables.main())
