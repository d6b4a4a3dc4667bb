"""The memory of large federations: sums that are folded, and memories that go to disk.

python benchmarks/memory.py [--scale 0.1]
python benchmarks/memory.py --methods [--hidden 2900 2900] [--repeats 3]

Three cases, each in a process of its own: a cohort of 10,000 clients of an MLP with 235,000 parameters, whose replies
together would be 9.4 GB; 100,000 clients of SCAFFOLD with 7,850 parameters each, whose memories together are 3.1 GB,
four fifths of whom are asked; and 1,000 clients of FedNorton with 1.1 million parameters, whose flows are 4.3 GB.
``--scale`` takes so many of the clients, and of the memory that they may have. Printed is the process's peak, data and
torch included.

``--methods`` compares methods whose server or clients keep vectors [d], on an MLP whose clients take one step on 20
rows. Each figure is from runs of 4 and of 8 clients in processes of their own, over three rounds, methods in turns:

- CPU seconds of a round of 8 clients, times FedAvg's of the same turn
- d a further client, from both peaks, and d besides
- vectors [d] that operations read and write for a further reply, local step included. Where operations work in blocks
  that stay in a cache, few of these cross the memory bus
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import medley as md
from medley.numerics import offload
from medley.runtime.operations import OperationMode
from medley.runtime.stopwatch import Stopwatch
from medley.storage import spill as store

METHODS = ("FedAvg", "FedNorton", "SCAFFOLD", "FedDyn", "FedDC", "FedADMM", "ACE")
FEW, MANY, ROUNDS = 4, 8, 3


def peak() -> float:
    """MiB. Not getrusage, whose peak a child inherits from its parent."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def cohort(clients: int) -> tuple[md.Federation, md.contract.algorithm.Algorithm]:
    module = md.models.mlp(784, 10, hidden=(256, 128))
    return federation(module, clients, 1.0), md.FedAvg()


def memories(clients: int) -> tuple[md.Federation, md.contract.algorithm.Algorithm]:
    return federation(md.models.softmax(784, 10), clients, 0.25), md.SCAFFOLD()


def flows(clients: int) -> tuple[md.Federation, md.contract.algorithm.Algorithm]:
    return federation(md.models.mlp(784, 10, hidden=(1024, 256)), clients, 1.0), md.FedNorton()


def federation(module: torch.nn.Module, clients: int, fraction: float) -> md.Federation:
    data = md.datasets.gaussian_classes(clients, 784, 10, seed=0)
    parts = md.partitions.IID(len(data.X))
    pace = md.scenarios.Pace(lr=0.01, batch=None)
    return md.Federation(md.problems.Network(module), data=data, partition=parts, pace=pace, participation=fraction)


CASES = {"cohort": (cohort, 10_000, 1), "memories": (memories, 100_000, 6), "flows": (flows, 1_000, 4)}


def measure(name: str, scale: float) -> dict[str, float]:
    torch.set_num_threads(1)
    store.BUDGET = int(scale * store.BUDGET)
    offload.BUDGET = int(scale * offload.BUDGET)
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


class Moved(OperationMode):
    """Adds up the numbers that operations read and write; views move none."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in func.__name__:
            self.numbers += sum(t.numel() for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor))
        return out


def one_method(name: str, clients: int, hidden: list[int]) -> dict[str, float]:
    """Of one process: CPU seconds of a round, peak and numbers that operations move in a round, both in d."""
    torch.set_num_threads(1)
    time.perf_counter = time.process_time
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(20, 784)).astype("float32"), rng.integers(10, size=20)) for _ in range(clients)]
    problem = md.problems.Network(md.models.mlp(784, 10, hidden=tuple(hidden)))
    fed = md.Federation(problem, clients=rows, pace=md.scenarios.Pace(lr=0.01, batch=20, steps=1))
    method = getattr(md, name)()

    def seconds(rounds: int) -> tuple[float, int]:
        with Stopwatch() as watch:
            result = md.run(method, fed, rounds, eval_every=rounds, progress=False)
        return sum(v for k, v in watch.seconds.items() if k != "evaluation"), result.x.numel()

    first, d = seconds(1)
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before = peak()
    spent = seconds(ROUNDS)[0] - first
    held = (peak() - before) * 2**20 / 4 / d
    moved = []
    for rounds in (1, ROUNDS):
        with Moved() as counter:
            seconds(rounds)
        moved.append(counter.numbers / d)
    return {"d": d, "seconds": spent / (ROUNDS - 1), "held": held, "moved": (moved[1] - moved[0]) / (ROUNDS - 1)}


def methods(hidden: list[int], repeats: int) -> None:
    """Print the table of ``--methods``."""
    turns: dict[str, list[dict[int, dict[str, float]]]] = {name: [] for name in METHODS}
    options = ["--hidden", *map(str, hidden), "--one"]
    for _ in range(repeats):
        for name in METHODS:
            sizes = {}
            for clients in (FEW, MANY):
                command = [sys.executable, __file__, *options, f"{name}:{clients}"]
                sizes[clients] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            turns[name].append(sizes)
    d = turns["FedAvg"][0][MANY]["d"]
    print(f"d = {d / 1e6:.1f} million, {repeats} repeats, load {os.getloadavg()[0]:.1f}")
    print("| method | times FedAvg's round | d a client | d besides | vectors read or written a reply |")
    print("|---|---|---|---|---|")
    for name, sizes in turns.items():
        times = sorted(m[MANY]["seconds"] / a[MANY]["seconds"] for m, a in zip(sizes, turns["FedAvg"], strict=True))
        each, moved = (
            statistics.median((t[MANY][k] - t[FEW][k]) / (MANY - FEW) for t in sizes) for k in ("held", "moved")
        )
        once = statistics.median(t[MANY]["held"] for t in sizes) - MANY * each
        print(f"| {name} | {statistics.median(times):.2f} ({times[0]:.2f}-{times[-1]:.2f}) "
              f"| {each:.1f} | {once:.1f} | {moved:.1f} |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--methods", action="store_true")
    parser.add_argument("--hidden", type=int, nargs="+", default=[2900, 2900])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.methods:
        methods(args.hidden, args.repeats)
        return
    if args.one and ":" in args.one:
        name, clients = args.one.split(":")
        print(json.dumps(one_method(name, int(clients), args.hidden)))
        return
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
