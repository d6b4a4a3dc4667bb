"""Cells of NIID-Bench at its own settings: 10 epochs a round, batch 64, lr 0.01, momentum 0.9, weight decay 1e-5.

    python papers/niid/run.py fashion-2 mnist-1 --jobs 2
    python papers/niid/run.py --table

The network has two convolutions of 6 and 16 channels; that of fashion-2-mlp is ours. NIID-Bench (Li, Diao, Chen & He,
ICDE 2022) runs 50 rounds of 10 clients that all take part, or 500 of 100 clients, of whom a tenth does. The accuracy on
all test rows is a line of results/ at once. A run that was stopped or killed goes on from its checkpoint, to the same
bits. Data sets are looked for in $MEDLEY_DATA.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import medley as md
from medley.algorithms.scaffold import Memory, Server
from medley.contract.algorithm import Algorithm
from medley.datasets import augment

sys.path.append(str(Path(__file__).parents[1]))
import packed

HERE = Path(__file__).parent / "results"
Work = tuple[Path, Path, str, str, int, int | None, str]
"""Folders of results and checkpoints, cell, method, seed, rounds or None for the cell's own, device."""


def small_images(X: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """NIID-Bench's augmentation of CIFAR-10: a random window of the mirrored image, flipped or not."""
    return augment.flip(augment.crop(X, generator, mode="reflect"), generator)


@dataclass(frozen=True)
class Cell:
    """A federation of NIID-Bench."""

    data: str
    partition: md.partitions.Partition
    published: tuple[str, str, str, str]
    """Accuracy in per cent of FedAvg, SCAFFOLD, FedProx and FedNova. For 10 clients the best of all rounds, mean and
    deviation, from the replication in Flower's baselines; for 100 the mean of three runs on the leader board."""
    share: float | None = None
    """Of the clients in a round; None for all."""
    rounds: int = 50
    eval_every: int = 1
    side: int = 28
    channels: int = 1
    transform: Callable[[torch.Tensor, torch.Generator], torch.Tensor] | None = None
    network: Callable[[], nn.Module] | None = None
    """None for NIID-Bench's of convolutions."""


def hundred(partition: md.partitions.Partition, published: tuple[str, str, str, str]) -> Cell:
    """A row of CIFAR-10 with 100 clients."""
    return Cell("cifar10", partition, published, 0.1, 500, 5, 32, 3, small_images)


class Narrow(nn.Linear):
    """A layer of NIID-Bench's network for tables: weights from N(0, .1²), biases .1."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, 0.0, 0.1)
        nn.init.constant_(self.bias, 0.1)


def tabular() -> nn.Module:
    """123, 32, 16, 8 and 2 units, NIID-Bench's for a9a; 4,650 parameters."""
    layers = [layer for k, n in pairwise((123, 32, 16, 8, 2)) for layer in (Narrow(k, n), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def adult(partition: md.partitions.Partition) -> Cell:
    """A row of a9a, whose published figures are in the paper alone."""
    return Cell("a9a", partition, ("", "", "", ""), network=tabular)


def dense() -> nn.Module:
    """784, 64 and 10 units; 50,890 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


labels = md.partitions.Labels
dirichlet = md.partitions.Dirichlet
CELLS = {
    "fashion-2": Cell("fashion_mnist", labels(10, 2), ("78.1 ± 2.5", "33.8 ± 41.2", "78.1 ± 1.0", "71.7 ± 2.3")),
    "mnist-1": Cell("mnist", labels(10, 1), ("19.3 ± 11.8", "9.9 ± .1", "51.8 ± 26.8", "52.6 ± 14.1")),
    "fashion-dir": Cell("fashion_mnist", dirichlet(10, 0.5), ("88.1 ± .3", "88.4 ± .3", "88.2 ± .4", "88.2 ± .1")),
    "fashion-3": Cell("fashion_mnist", labels(10, 3), ("82.4 ± 1.5", "80.3 ± 5.0", "83.0 ± .5", "82.0 ± 1.3")),
    "cifar-100-clients": hundred(dirichlet(100, 0.5), ("59.4", "10.0", "58.8", "60.0")),
    "adult-1": adult(labels(10, 1)),
    "adult-dir": adult(dirichlet(10, 0.5)),
    "adult-quantity": adult(md.partitions.Quantity(10, 0.5, minimum=10)),
    "adult-iid": adult(md.partitions.IID(10)),
    "fashion-2-mlp": Cell("fashion_mnist", labels(10, 2), ("", "", "", ""), network=dense),
}
"""Two labels or one a client, Dirichlet(0.5), three labels a client, 100 clients of Dirichlet(0.5); four of a9a, by
labels, sizes or at random; and the first with another network, which has no published figures."""


@dataclass(frozen=True)
class FromWeights(md.SCAFFOLD):
    """SCAFFOLD whose c and c_i begin at a draw of the network's weights and not at 0, as NIID-Bench's code has it.

    There the correction is added beside the momentum 0.9, here it goes through it, ten times as far: hence the tenth.
    """

    def start(self, x: torch.Tensor) -> Server:
        return Server(x, drawn_model(len(x)).to(x))

    def remember(self, x: torch.Tensor) -> Memory:
        return Memory(drawn_model(len(x)).to(x))


def drawn_model(d: int) -> torch.Tensor:
    """A tenth of the weights [d] of a network of a seed of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        networks = (network(cell.side, cell.channels) for cell in CELLS.values())
        fitting = next(n for n in networks if sum(p.numel() for p in n.parameters()) == d)
    return nn.utils.parameters_to_vector(fitting.parameters()).detach() / 10


METHODS: dict[str, Algorithm[Any, Any] | md.Tuned] = {
    "FedAvg": md.FedAvg(),
    "SCAFFOLD": md.SCAFFOLD(),
    "FedProx": md.FedProx(mu=0.01),
    "FedNova": md.FedNova(),
    "FedNorton": md.FedNorton(),
    "SCAFFOLD from weights": FromWeights(),
    "FedProx mu 10": md.FedProx(mu=10.0),
}
METHODS |= {
    f"{name} lr {lr}": md.Tuned(METHODS[name], lr / 0.01)
    for name in ("FedAvg", "SCAFFOLD", "FedProx", "FedNova", "FedNorton")
    for lr in (0.001, 0.003, 0.03, 0.1)
}
"""The first four have published figures. SCAFFOLD from weights differs from SCAFFOLD where a part of the clients takes
part. FedProx mu 10 is the replication's strongest, mu = 1: its pull goes through the momentum, ours is added after it.
"""


def network(side: int = 28, channels: int = 1) -> nn.Module:
    """NIID-Bench's network; for 28×28 images with 44,426 parameters, for colour photographs with 62,006.

    The maximum comes before the ReLU here: the same numbers to the bit, in some 0.7 of the time.
    """
    convolutions = [
        nn.Conv2d(channels, 6, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
    ]
    last = ((side - 4) // 2 - 4) // 2
    dense = [nn.Linear(16 * last**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*convolutions, nn.Flatten(), *dense)


def federation(cell: Cell) -> md.Federation:
    pace = md.scenarios.Pace(lr=0.01, epochs=10, batch=64, momentum=0.9, weight_decay=1e-5)
    model = cell.network() if cell.network else network(cell.side, cell.channels)
    problem = md.problems.Network(model, transform=cell.transform)
    data = getattr(md.datasets, cell.data)()
    return md.Federation(problem, data=data, partition=cell.partition, pace=pace, participation=cell.share)


def file_of(out: Path, cell: str, method: str, seed: int) -> Path:
    return out / f"{cell}_{method.replace(' ', '-')}_{seed}.jsonl"


def fill(work: Work) -> str:
    """A run from where it stands to the wanted round: on the same device, and on a CPU, to the same bits."""
    out, checkpoints, cell, method, seed, last, device = work
    spec = CELLS[cell]
    rounds = last or spec.rounds
    torch.set_num_threads(1)
    logging.getLogger("medley").setLevel(logging.ERROR)
    path = file_of(out, cell, method, seed)
    folder = checkpoints / path.stem
    accuracies = curve(path)
    if rounds <= max(accuracies, default=0):
        return f"{path.stem}: has {max(accuracies)} rounds"

    def add(row: Any) -> None:
        accuracies[int(row["round"])] = float(row["accuracy"])
        lines = [json.dumps({"round": r, "accuracy": a}) + "\n" for r, a in sorted(accuracies.items())]
        path.write_text("".join(lines), encoding="utf-8")

    where: dict[str, Any] = {"resume": folder} if folder.exists() else {"checkpoint": folder}
    result = md.run(
        METHODS[method],
        federation(spec),
        rounds,
        seed=seed,
        eval_rows=1000,
        eval_every=spec.eval_every,
        checkpoint_every=1,
        device=device,
        transport=md.transports.InProcess(),
        on_round=add,
        throw=False,
        progress=False,
        **where,
    )
    return f"{path.stem}: {result.status}"


def curve(path: Path) -> dict[int, float]:
    """Accuracy by round."""
    return {line["round"]: line["accuracy"] for line in packed.read(path)}


def table(out: Path) -> str:
    """The published figures, and ours after some rounds."""
    shown = (1, 2, 5, 10, 20, 50, 100, 200, 500)
    heads = ["cell", "method", "published", "seed", "best", *(f"round {r}" for r in shown)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, cell in CELLS.items():
        published = dict(zip(METHODS, cell.published, strict=False))
        for method in METHODS:
            stem = file_of(out, name, method, 0).stem[:-1]
            for path in (p for p in packed.files(out) if p.stem.removeprefix(stem).isdigit()):
                accuracies = curve(path)
                figures = [f"{100 * accuracies[r]:.1f}" if r in accuracies else "" for r in shown]
                cells = [name, method, published.get(method, ""), path.stem.rsplit("_", 1)[1]]
                lines.append(f"| {' | '.join([*cells, f'{100 * max(accuracies.values()):.1f}', *figures])} |")
    return "\n".join(lines)


def runs(work: list[Work], jobs: int) -> None:
    """The runs, each in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for line in pool.imap_unordered(fill, work):
            print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", help=f"of {', '.join(CELLS)}")
    usual = ";".join(m for m in METHODS if " lr " not in m)
    parser.add_argument("--methods", default=usual, help="separated by ;")
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--rounds", type=int, help="the round to go on to; default the cell's own, 50 or 500")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="torch's name; numbers of a GPU differ by roundings")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--kept", type=Path, default=Path("runs/niid"), help="the folder of the checkpoints")
    parser.add_argument("--table", action="store_true", help="print the table and end")
    args = parser.parse_args()
    if args.table:
        print(table(args.out))
        return 0
    unknown = [c for c in args.cells if c not in CELLS] + [m for m in args.methods.split(";") if m not in METHODS]
    if unknown:
        print(f"Error: unknown: {', '.join(unknown)}", file=sys.stderr)
        return 2
    args.kept.mkdir(parents=True, exist_ok=True)
    methods = args.methods.split(";")
    seeds = [int(s) for s in args.seeds.split(",")]
    work = [
        (args.out, args.kept, c, m, s, args.rounds, args.device) for c in args.cells for m in methods for s in seeds
    ]
    try:
        with packed.used(args.out):
            runs(work, args.jobs)
    except KeyboardInterrupt:
        print("stopped by Ctrl-C; the same command goes on", file=sys.stderr)
        return 130
    except md.MedleyError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    print(table(args.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
