"""The cost of privacy: a round of FedAvg and of its private forms, taking turns in one process.

    python benchmarks/privacy.py [--repeats 7] [--out benchmarks/privacy.json]

50 of 1,000 clients a round, 60 rows each, batches of 20; a softmax regression and a small network. CPU seconds of
30 rounds after three, evaluation left out. Ratios to the plain run are formed within a repeat; the median of the
repeats is given with the least and the most.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import medley as md

CLIENTS = 1000
ROWS = 60
WIDTH = 196
ROUNDS = 30
FIRST = 3


BEGAN: list[float] = []


@dataclass(frozen=True)
class Clock(md.participation.Bernoulli):
    """Looks at the clock whenever a cohort is drawn, which is when a round begins."""

    def draw(self, round: int, sizes: Any, seed: int) -> Any:
        BEGAN.append(time.process_time())
        return super().draw(round, sizes, seed)


def federation(job: str) -> md.Federation:
    rng = torch.Generator().manual_seed(0)
    X = torch.randn(CLIENTS * ROWS, WIDTH, generator=rng)
    y = torch.arange(CLIENTS * ROWS) % 10
    X[torch.arange(len(y)), y] += 2
    network = md.problems.Network(md.models.mlp(WIDTH, 10, (64,)))
    problem: Any = md.problems.Softmax(mu=1e-3) if job == "softmax" else network
    return md.Federation(
        problem,
        clients=list(zip(X.split(ROWS), y.split(ROWS), strict=True)),
        participation=Clock(0.05),
        pace=md.scenarios.Pace(lr=0.05, batch=20),
        weights="uniform",
    )


METHODS = {
    "plain": md.FedAvg(),
    "client": md.Private(md.FedAvg(), noise=1.0, clip=0.5),
    "client, ε given": md.Private(md.FedAvg(), epsilon=8, delta=1e-4, rounds=ROUNDS + FIRST + 1, clip=0.5),
    "client, quantile": md.Private(md.FedAvg(), noise=1.0, clip=md.privacy.Quantile()),
    "row": md.Private(md.FedAvg(), unit="row", noise=1.0, clip=1.0),
}


def seconds(method: Any, fed: md.Federation) -> float:
    """CPU seconds of `ROUNDS` rounds, evaluation left out."""
    BEGAN.clear()
    # One round more than is timed: its beginning is the last one's end, and an evaluation follows it.
    md.run(method, fed, FIRST + ROUNDS + 1, eval_every=FIRST + ROUNDS + 1, progress=False)
    return BEGAN[FIRST + ROUNDS] - BEGAN[FIRST]


def main() -> None:
    """Take turns, and write every repeat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for job in ("softmax", "network"):
        fed = federation(job)
        times = [{name: seconds(method, fed) for name, method in METHODS.items()} for _ in range(args.repeats)]
        print(f"{job}: plain {statistics.median(1000 * t['plain'] / ROUNDS for t in times):.1f} ms a round")
        for name in list(METHODS)[1:]:
            ratios = [t[name] / t["plain"] for t in times]
            print(f"  {name}: {statistics.median(ratios):.2f} times ({min(ratios):.2f}-{max(ratios):.2f})", flush=True)
        results[job] = [{name: round(1000 * s / ROUNDS, 3) for name, s in t.items()} for t in times]
    if args.out:
        args.out.write_text(
            json.dumps({"unit": "CPU ms a round", "load": os.getloadavg()[0], **results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
