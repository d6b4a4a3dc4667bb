"""Fed3R on random Fourier features beside a central run: three very skewed federations of other pages, and CIFAR-10.

    export MEDLEY_DATA=...
    python papers/closed/run.py            # makes what results.json lacks, and prints the table
    python papers/closed/run.py digits     # one federation

The features' scale and the penalty are chosen by generalised cross-validation from the same sums, never by test rows:
the scale on 500 features, once. The central runs train a network on all rows in one place: about the most that the
methods which fight drift could reach with it. The MLP is this page's, the CNN that of papers/niid at its own settings.
A finished run is in results.json at once; the same command goes on.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import medley as md

RESULTS = Path(__file__).with_name("results.json")
SCALES = (1.0, 1.5, 2.0, 3.0, 5.0)


class Cell(NamedTuple):
    """A federation: its data, who has which rows, the numbers of features, and the central run's network and epochs."""

    title: str
    data: Callable[[], Any]
    partition: md.partitions.Partition
    widths: tuple[int, ...]
    hidden: int
    epochs: int
    image: tuple[int, int] | None = None
    """Height and channels of the images for papers/niid's network; None for no such run."""


labels = md.partitions.Labels
CELLS = {
    "digits": Cell(
        "digits, 100 clients, Dirichlet 0.1",
        lambda: md.datasets.digits(),
        md.partitions.Dirichlet(clients=100, alpha=0.1),
        (200, 500, 1000),
        64,
        100,
    ),
    "mnist": Cell(
        "MNIST, one label a client",
        lambda: md.datasets.mnist(),
        labels(10, 1),
        (500, 1000, 2000),
        64,
        10,
        (28, 1),
    ),
    "fashion": Cell(
        "Fashion-MNIST, two labels a client",
        lambda: md.datasets.fashion_mnist(),
        labels(10, 2),
        (500, 1000, 2000),
        64,
        10,
        (28, 1),
    ),
    "cifar10": Cell(
        "CIFAR-10, one label a client",
        lambda: md.datasets.cifar10(),
        labels(10, 1),
        (500, 1000, 2000),
        64,
        10,
        (32, 3),
    ),
}


def fed3r(cell: Cell, data: Any, width: int, scale: float) -> dict[str, Any]:
    """The figures of a run of one exchange."""
    model = md.models.fourier(data.X.shape[1], 10, width=width, scale=scale)
    fed = md.Federation(md.problems.Network(model), data=data, partition=cell.partition)
    run = md.run(md.Fed3R(), fed, rounds=1, progress=False)
    last = run.history[-1]
    return {
        "accuracy": last["accuracy"],
        "validation_error": last["validation_error"],
        "penalty": last["penalty"],
        "scale": scale,
        "up": last["bytes_up"],
        "down": last["bytes_down"],
        "seconds": last["wall"],
    }


def niid() -> Any:
    """The module of papers/niid."""
    place = Path(__file__).parents[1] / "niid" / "run.py"
    spec = importlib.util.spec_from_file_location("niid", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["niid"] = module
    spec.loader.exec_module(module)
    return module


def central(data: Any, network: Any, epochs: int, **pace: Any) -> dict[str, Any]:
    """SGD on all rows in one place: a federation of one client, an epoch a round."""
    fed = md.Federation(
        md.problems.Network(network),
        data=data,
        partition=md.partitions.IID(1),
        pace=md.scenarios.Pace(**pace),
    )
    run = md.run(md.FedAvg(), fed, rounds=epochs, eval_every=epochs, progress=False)
    return {"accuracy": run.history[-1]["accuracy"], "seconds": run.history[-1]["wall"]}


def make(name: str, done: dict[str, Any]) -> None:
    """Add what is not done of a federation, and save after each run."""
    cell = CELLS[name]
    data = cell.data().flatten()
    mine = done.setdefault(name, {})

    def add(key: str, figures: Callable[[], dict[str, Any]]) -> None:
        if key not in mine:
            mine[key] = figures()
            RESULTS.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")

    for scale in SCALES:
        add(f"scale {scale}", lambda scale=scale: fed3r(cell, data, 500, scale))
    best = min(SCALES, key=lambda s: mine[f"scale {s}"]["validation_error"])
    for width in cell.widths:
        add(f"width {width}", lambda width=width: fed3r(cell, data, width, best))
    network = md.models.mlp(data.X.shape[1], 10, (cell.hidden,))
    add("central", lambda: central(data, network, cell.epochs, lr=0.1, batch=32))
    if cell.image is not None:
        pace = {"lr": 0.01, "batch": 64, "momentum": 0.9, "weight_decay": 1e-5}
        add("central CNN", lambda: central(cell.data(), niid().network(*cell.image), 20, **pace))


def table(done: dict[str, Any]) -> str:
    """The table of the page."""
    lines = [
        "| federation | features | scale | accuracy | up, MB | down, MB | central run, MLP | central run, CNN |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, cell in CELLS.items():
        for width in cell.widths:
            f = done.get(name, {}).get(f"width {width}")
            if f:
                sent = f"{f['up'] / 1e6:.1f} | {f['down'] / 1e6:.1f}"
                first = width == cell.widths[0]
                runs = [done[name].get(key) if first else None for key in ("central", "central CNN")]
                beside = " | ".join(f"{100 * r['accuracy']:.1f}" if r else "" for r in runs)
                title = cell.title if first else ""
                lines.append(f"| {title} | {width} | {f['scale']} | {100 * f['accuracy']:.1f} | {sent} | {beside} |")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for chosen in sys.argv[1:] or CELLS:
        make(chosen, results)
    print(table(results))
