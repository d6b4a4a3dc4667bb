"""The growth of a round's cost with the cohort, the population, the model and the tasks.

python benchmarks/scaling.py [--repeats 7]

CPU milliseconds a round of FedAvg without evaluation, two batches of 10 rows a client (of 2 where N grows); everything
in one process and one thread, cases interleaved, medians over repeats.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import medley as md

FEATURES = 32
CLASSES = 10
ROUNDS = 5


class First:
    """The first ``k`` clients beginning where the round says; looks at the clock, since that begins a round."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.began = list[float]()

    def draw(self, round: int, sizes: np.ndarray, seed: int) -> np.ndarray:
        self.began.append(time.process_time())
        return np.sort((np.arange(self.k) + 7 * round) % len(sizes))


def case(clients: int, k: int, hidden: tuple[int, ...] = (), tasks: int = 1, rows: int = 20) -> Any:
    """A function that gives the CPU seconds of some rounds."""
    who = First(k)
    family = md.problems.Network(md.models.mlp(FEATURES, CLASSES, hidden=hidden))
    fed = md.Federation(
        family,
        data=md.datasets.gaussian_classes(int(1.25 * clients * rows), FEATURES, CLASSES, seed=0),
        partition=md.partitions.IID(clients),
        pace=md.scenarios.Pace(lr=0.05, steps=2, batch=rows // 2),
        participation=who,
        stream=md.tasks.Split(tasks=tasks) if tasks > 1 else None,
    )

    def rounds() -> list[float]:
        who.began = []
        md.run(md.FedAvg(), fed, ROUNDS + 1, eval_every=10**6, progress=False)
        # A task's first round follows the evaluation of the one before.
        inner = [b - a for k, (a, b) in enumerate(itertools.pairwise(who.began), 1) if k % (ROUNDS + 1)]
        return inner[1:]

    return rounds


CASES: dict[str, dict[Any, dict[str, Any]]] = {
    "K taking part of 1,000 (softmax)": {k: {"clients": 1000, "k": k} for k in (10, 30, 100, 300, 1000)},
    "N clients, 10 taking part (softmax)": {
        n: {"clients": n, "k": 10, "rows": 4} for n in (100, 1000, 10_000, 100_000)
    },
    "hidden units, 10 taking part": {h: {"clients": 100, "k": 10, "hidden": (h, h)} for h in (32, 100, 316, 1000)},
    "tasks, 10 taking part (softmax)": {t: {"clients": 100, "k": 10, "tasks": t} for t in (1, 2, 5)},
}


def measure(repeats: int) -> dict[str, dict[str, list[float]]]:
    """By axis and value: the median, least and most CPU milliseconds a round over repeats."""
    torch.set_num_threads(1)
    out: dict[str, dict[str, list[float]]] = {}
    for axis, values in CASES.items():
        ways = {v: case(**how) for v, how in values.items()}
        times: dict[Any, list[float]] = {v: [] for v in ways}
        for way in ways.values():
            way()
        for _ in range(repeats):
            for v, way in ways.items():
                times[v].append(1e3 * statistics.median(way()))
        out[axis] = {str(v): [statistics.median(t), min(t), max(t)] for v, t in times.items()}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    results = measure(parser.parse_args().repeats)
    for axis, values in results.items():
        print(f"\n{axis}\n{'':12}{'CPU ms a round':>16}{'least':>10}{'most':>10}")
        for v, ms in values.items():
            print(f"{v:>12}{ms[0]:16.2f}{ms[1]:10.2f}{ms[2]:10.2f}")


if __name__ == "__main__":
    main()
