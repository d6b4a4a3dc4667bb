"""The memory of large federations: sums that are folded, and memories that go to disk.

python benchmarks/memory.py [--scale 0.1]

Two cases, each in a process of its own: a cohort of 10,000 clients of an MLP with 235,000 parameters, whose replies
together would be 9.4 GB; and 100,000 clients of SCAFFOLD with 7,850 parameters each, whose memories together are
3.1 GB, four fifths of whom are asked. ``--scale`` takes so many of the clients, and of the memory that they may have.
Printed is the process's peak, data and torch included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import medley as md
from medley.storage import spill as store


def peak() -> float:
    """MiB. Not getrusage, whose peak a child inherits from its parent."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def cohort(clients: int) -> tuple[md.Federation, md.contract.algorithm.Algorithm]:
    module = md.models.mlp(784, 10, hidden=(256, 128))
    return federation(module, clients, 1.0), md.FedAvg()


def memories(clients: int) -> tuple[md.Federation, md.contract.algorithm.Algorithm]:
    return federation(md.models.softmax(784, 10), clients, 0.25), md.SCAFFOLD()


def federation(module: torch.nn.Module, clients: int, fraction: float) -> md.Federation:
    data = md.datasets.gaussian_classes(clients, 784, 10, seed=0)
    parts = md.partitions.IID(len(data.X))
    pace = md.scenarios.Pace(lr=0.01, batch=None)
    return md.Federation(md.problems.Network(module), data=data, partition=parts, pace=pace, participation=fraction)


CASES = {"cohort": (cohort, 10_000, 1), "memories": (memories, 100_000, 6)}


def measure(name: str, scale: float) -> dict[str, float]:
    torch.set_num_threads(1)
    store.BUDGET = int(scale * store.BUDGET)
    make, clients, rounds = CASES[name]
    fed, method = make(int(scale * clients))
    before = peak()
    began = time.process_time()
    result = md.run(method, fed, rounds, eval_every=rounds, progress=False)
    floats = result.x.numel()
    participants = len({e.client for e in result.ledger})
    expected = 4e-9 * floats * (len(result.ledger) if name == "cohort" else participants)
    return {"clients": participants, "d": floats, "GB if all were held": expected,
            "MiB before": before, "MiB peak": peak(), "CPU s": time.process_time() - began}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.scale)))
        return
    results = {}
    for name in CASES:
        command = [sys.executable, __file__, "--one", name, "--scale", str(args.scale)]
        results[name] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    print(json.dumps(results) if args.json else "\n".join(
        f"{name:10}" + "".join(f"{key} {value:,.4g}   " for key, value in row.items()) for name, row in results.items()
    ))  # fmt: skip


if __name__ == "__main__":
    main()
