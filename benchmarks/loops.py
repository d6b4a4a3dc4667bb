"""A round of real networks on the CPU: `md.run` beside the loop written by hand, in the same memory format.

    python benchmarks/loops.py [--repeats 5] [--clients 4] [--rows 64] [--only NAME]

CPU seconds of a round on one thread, without evaluation: FedAvg, one pass in batches of 20. The loop and `md.run` take
turns in one process; each turn's first round is not counted. Ratios are formed within a turn. The ResNet and the VGG
have a quarter of the usual width.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
from gpu import Job, by_engine, by_hand

import medley as md

JOBS = {
    "ResNet-18, GroupNorm, width 16": Job(
        "resnet", lambda: md.models.resnet((3, 32, 32), 10, (2, 2, 2, 2), 16), (3, 32, 32)
    ),
    "VGG-11, width 16": Job("vgg", lambda: md.models.vgg11(width=16), (3, 32, 32)),
    "LSTM, 10,000 words": Job("lstm", lambda: md.models.lstm(10_000, 2), (64,), 2, 10_000),
}


def main() -> None:
    """Print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--only", choices=JOBS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in [args.only] if args.only else JOBS:
        job = JOBS[name]
        clients = job.clients(args.clients, args.rows)
        fed, turns = job.federation(clients), list[tuple[float, float]]()
        for _ in range(args.repeats):
            loop = by_hand(job, clients, "cpu", 3, time.process_time)[1:]
            mine = by_engine(fed, "auto", "cpu", 3, time.process_time)[1:]
            turns.append((statistics.median(loop), statistics.median(mine)))
        ratios = sorted(b / a for a, b in turns)
        print(
            f"{name:32} loop {statistics.median(a for a, _ in turns):6.3f} s  "
            f"md.run {statistics.median(b for _, b in turns):6.3f} s  "
            f"x{statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})  load {os.getloadavg()[0]:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
