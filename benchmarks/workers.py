"""Two workers of Ray against two processes and against this one: FedAvg, 100 of 100 clients, an MLP of 235,146.

    python benchmarks/workers.py [--rounds 10] [--repeats 5]

Wall seconds of the exchanges but the first; transports take turns, medians are compared. Needs an otherwise
idle machine of two cores and ``pip install "medley[ray]"``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import time
from collections.abc import Iterator

import torch

import medley as md
from medley.core.transport import BlockReply, Exchange, Link, Transport
from medley.testing import Rewired

CLIENTS, ROWS, BATCH, LR = 100, 100, 20, 0.05


def federation() -> md.Federation:
    return md.Federation(
        md.problems.Network(md.models.mlp(784, 10, (256, 128))),
        data=md.datasets.gaussian_classes(CLIENTS * ROWS, 784, 10, seed=0),
        partition=md.scenarios.IID(CLIENTS),
        pace=md.scenarios.Pace(lr=LR, epochs=1, batch=BATCH),
    )


class Stopwatch:
    """Wall seconds of every exchange."""

    def __init__(self) -> None:
        self.took: list[float] = []

    def deliver(self, link: Link, exchange: Exchange) -> Iterator[BlockReply]:
        began = time.perf_counter()
        yield from link.exchange(exchange)
        self.took.append(time.perf_counter() - began)


def seconds(fed: md.Federation, transport: Transport, rounds: int) -> tuple[float, torch.Tensor]:
    """Of all exchanges but the first, after which every worker has what it needs; and the final x."""
    watch = Stopwatch()
    there = Rewired(transport, watch.deliver)
    result = md.run(md.FedAvg(), fed, rounds + 1, transport=there, eval_every=rounds + 1, progress=False)
    return sum(watch.took[1:]), result.x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    fed = federation()
    with contextlib.ExitStack() as stack:
        ways: dict[str, Transport] = {
            "local": md.transports.Local(),
            "processes": md.transports.Processes(2),
        }
        if importlib.util.find_spec("ray"):
            ways["ray"] = stack.enter_context(md.transports.Ray(2).held())
        took: dict[str, list[float]] = {name: [] for name in ways}
        ends = {}
        for _ in range(args.repeats):
            for name, transport in ways.items():
                wall, ends[name] = seconds(fed, transport, args.rounds)
                took[name].append(wall)
    print(f"{args.rounds} rounds, {args.repeats} repeats; wall seconds, 2 workers")
    for name, walls in took.items():
        ratio = statistics.median(a / b for a, b in zip(walls, took["processes"], strict=True))
        same = torch.equal(ends[name], ends["processes"])
        print(
            f"{name:10s} {statistics.median(walls):6.2f} s ({min(walls):.2f}-{max(walls):.2f})   "
            f"{ratio:.2f} x processes   {'the same bits' if same else 'OTHER BITS'}"
        )


if __name__ == "__main__":
    main()
