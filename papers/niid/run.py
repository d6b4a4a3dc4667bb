"""Cells of NIID-Bench at its own settings: 10 clients that all take part, 10 epochs a round, batch 64, momentum 0.9.

    python papers/niid/run.py fashion-2 mnist-1 --jobs 2
    python papers/niid/run.py --table

lr is 0.01, the weight decay 1e-5, the network two convolutions of 6 and 16 channels. NIID-Bench (Li, Diao, Chen & He,
ICDE 2022) runs 50 rounds. The accuracy on all test rows after every round is a line of results/ at once. A run that was
stopped or killed goes on from its checkpoint, to the same bits. Data sets are looked for in $MEDLEY_DATA.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import medley as md
from medley.contract.algorithm import Algorithm

HERE = Path(__file__).parent / "results"
Work = tuple[Path, Path, str, str, int]
"""Folders of results and checkpoints, cell, method, rounds."""

ROUNDS, SEED = 50, 0

CELLS = {
    "fashion-2": ("fashion_mnist", md.scenarios.Labels(10, 2)),
    "mnist-1": ("mnist", md.scenarios.Labels(10, 1)),
    "fashion-dir": ("fashion_mnist", md.scenarios.Dirichlet(10, 0.5)),
    "fashion-3": ("fashion_mnist", md.scenarios.Labels(10, 3)),
}
"""Data and split: two labels or one a client, Dirichlet(0.5), three labels a client."""


METHODS: dict[str, Algorithm[Any, Any]] = {
    "FedAvg": md.FedAvg(),
    "SCAFFOLD": md.SCAFFOLD(),
    "FedProx": md.FedProx(mu=0.01),
    "FedNova": md.FedNova(),
    "FedECADO": md.FedECADO(),
}

PUBLISHED = {
    "fashion-dir": {"FedAvg": 88.4, "SCAFFOLD": 88.4, "FedProx": 88.6, "FedNova": 88.1},
    "fashion-2": {"FedAvg": 81.0, "SCAFFOLD": 10.0, "FedProx": 78.8, "FedNova": 70.5},
    "fashion-3": {"FedAvg": 83.2, "SCAFFOLD": 84.2, "FedProx": 82.5, "FedNova": 83.2},
    "mnist-1": {"FedAvg": 10.0, "SCAFFOLD": 10.0, "FedProx": 81.3, "FedNova": 55.1},
}
"""Accuracy in per cent after 50 rounds, from the replication in Flower's baselines."""


def network() -> nn.Module:
    """NIID-Bench's network for 28×28 images, with 44,426 parameters."""
    convolutions = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*convolutions, nn.Flatten(), *dense)


def federation(cell: str) -> md.Federation:
    name, partition = CELLS[cell]
    pace = md.scenarios.Pace(lr=0.01, epochs=10, batch=64, momentum=0.9, weight_decay=1e-5)
    problem = md.problems.Network(network())
    return md.Federation(problem, data=getattr(md.datasets, name)(), partition=partition, pace=pace)


def file_of(out: Path, cell: str, method: str) -> Path:
    return out / f"{cell}_{method}.jsonl"


def fill(work: Work) -> str:
    """A run from where it stands to the wanted round."""
    out, kept, cell, method, rounds = work
    torch.set_num_threads(1)
    logging.getLogger("medley").setLevel(logging.ERROR)
    path, folder = file_of(out, cell, method), kept / f"{cell}_{method}"
    known = curve(path)
    if rounds <= max(known, default=0):
        return f"{cell} {method}: has {max(known)} rounds"

    def add(row: Any) -> None:
        known[int(row["round"])] = float(row["accuracy"])
        path.write_text("".join(json.dumps([r, a]) + "\n" for r, a in sorted(known.items())), encoding="utf-8")

    where: dict[str, Any] = {"resume": folder} if folder.exists() else {"checkpoint": folder}
    result = md.run(
        METHODS[method],
        federation(cell),
        rounds,
        seed=SEED,
        eval_rows=1000,
        checkpoint_every=1,
        transport=md.transports.Local(),
        on_round=add,
        throw=False,
        progress=False,
        **where,
    )
    return f"{cell} {method}: {result.status}"


def curve(path: Path) -> dict[int, float]:
    """Accuracy by round."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return {r: a for r, a in map(json.loads, text[: text.rfind("\n") + 1].splitlines())}


def table(out: Path) -> str:
    """The published figures, and ours after the first rounds and the last."""
    shown = (1, 2, 5, 10, 20, 50)
    heads = ["cell", "method", "published, round 50", *(f"round {r}" for r in shown)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for cell in CELLS:
        for method in METHODS:
            found = curve(file_of(out, cell, method))
            if found:
                cells = [f"{100 * found[r]:.1f}" if r in found else "" for r in shown]
                lines.append(f"| {cell} | {method} | {PUBLISHED[cell].get(method, '')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def runs(work: list[Work], jobs: int) -> None:
    """The runs, each in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for said in pool.imap_unordered(fill, work):
            print(said, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", help=f"of {', '.join(CELLS)}")
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by ;")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the round to go on to; default 50")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--kept", type=Path, default=Path("runs/niid"), help="the folder of the checkpoints")
    parser.add_argument("--table", action="store_true", help="print the table and end")
    given = parser.parse_args()
    if given.table:
        print(table(given.out))
        return 0
    unknown = [c for c in given.cells if c not in CELLS] + [m for m in given.methods.split(";") if m not in METHODS]
    if unknown:
        print(f"Error: unknown: {', '.join(unknown)}", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    given.kept.mkdir(parents=True, exist_ok=True)
    work = [(given.out, given.kept, c, m, given.rounds) for c in given.cells for m in given.methods.split(";")]
    try:
        runs(work, given.jobs)
    except KeyboardInterrupt:
        print("stopped by Ctrl-C; the same command goes on", file=sys.stderr)
        return 130
    except md.MedleyError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    print(table(given.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
