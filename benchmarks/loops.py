"""A round of real networks on the CPU: `md.run` beside the loop written by hand, and beside torch alone.

    python benchmarks/loops.py [--repeats 5] [--clients 4] [--rows 64] [--only NAME]

CPU seconds of a round on one thread, without evaluation: FedAvg, one pass in batches of 20. The loop and `md.run` take
turns in one process; each turn's first round is not counted. Ratios are formed within a turn. The ResNet and the VGG
have a quarter of the usual width.

"torch alone" is the least that can be had with torch's kernels: forward, backward and one addition of the gradient a
step, with batches that lie ready, and nothing of a round around it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
from gpu import BATCH, LR, Clients, Job, by_engine, by_hand
from torch import nn

import medley as md

JOBS = {
    "ResNet-18, GroupNorm, width 16": Job(
        "resnet", lambda: md.models.resnet((3, 32, 32), 10, (2, 2, 2, 2), 16), (3, 32, 32)
    ),
    "VGG-11, width 16": Job("vgg", lambda: md.models.vgg11(width=16), (3, 32, 32)),
    "LSTM, 10,000 words": Job("lstm", lambda: md.models.lstm(10_000, 2), (64,), 2, 10_000),
    "vision transformer, 0.3 million": Job("vit", md.models.vit, (3, 32, 32)),
}


def timed_alone(job: Job, clients: Clients, rounds: int) -> list[float]:
    """CPU seconds of each round's steps, in torch alone."""
    torch.manual_seed(0)
    model = job.network()
    parameters = [p for p in model.parameters() if p.requires_grad]
    times = []
    for _ in range(rounds):
        began = time.process_time()
        for X, y in clients:
            for rows, labels in zip(X.split(BATCH), y.split(BATCH), strict=True):
                loss = nn.functional.cross_entropy(model(rows), labels)
                gradient = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradient, alpha=-LR)
        times.append(time.process_time() - began)
    return times


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
        fed = job.federation(clients)
        turns = list[list[float]]()
        for _ in range(args.repeats):
            ways = (
                timed_alone(job, clients, 3),
                by_hand(job, clients, "cpu", 3, time.process_time),
                by_engine(fed, "auto", "cpu", 3, time.process_time),
            )
            turns.append([statistics.median(way[1:]) for way in ways])
        floor, loop, mine = (statistics.median(way) for way in zip(*turns, strict=True))
        print(
            f"{name:32} torch alone {floor:6.3f} s  loop {loop:6.3f} s  md.run {mine:6.3f} s  "
            f"over torch alone {ratio(turns, 0)}  over the loop {ratio(turns, 1)}  load {os.getloadavg()[0]:.0f}",
            flush=True,
        )


def ratio(turns: list[list[float]], to: int) -> str:
    """`md.run` over another way: the median, with the least and the most."""
    ratios = sorted(turn[2] / turn[to] for turn in turns)
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"


if __name__ == "__main__":
    main()
