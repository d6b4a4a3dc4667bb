"""Two workers of Ray against two processes and against this one: FedAvg, 100 of 100 clients.

    python benchmarks/workers.py [--model mlp] [--rounds 10] [--repeats 5]

Wall seconds of the exchanges but the first; transports take turns, medians are compared. "two at once" is what the
machine allows: two runs of one process each, side by side, half the longer one's seconds. Needs an otherwise idle
machine of two cores; Ray joins where ``pip install "medley-fl[ray]"`` was.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from networks import module

import medley as md
from medley.testing.faults import Rewired
from medley.wire.connection import Connection, Transport
from medley.wire.exchange import Exchange
from medley.wire.fold import Fold

CLIENTS, ROWS, BATCH, LR = 100, 100, 20, 0.05


def federation(model: str) -> md.Federation:
    data = md.datasets.gaussian_classes(CLIENTS * ROWS, 784, 10, seed=0)
    if model == "cnn":
        images = lambda X: X.reshape(-1, 1, 28, 28)
        data = replace(data, X=images(data.X), X_test=images(data.X_test))
    return md.Federation(
        md.problems.Network(module(model)),
        data=data,
        partition=md.scenarios.IID(CLIENTS),
        pace=md.scenarios.Pace(lr=LR, epochs=1, batch=BATCH),
    )


class Stopwatch:
    """Wall seconds of every exchange."""

    def __init__(self) -> None:
        self.took: list[float] = []

    def deliver(self, connection: Connection, exchange: Exchange) -> Iterator[Fold]:
        began = time.perf_counter()
        yield from connection.exchange(exchange)
        self.took.append(time.perf_counter() - began)


def seconds(fed: md.Federation, transport: Transport, rounds: int) -> tuple[float, torch.Tensor]:
    """Of all exchanges but the first, after which every worker has what it needs; and the final x."""
    watch = Stopwatch()
    there = Rewired(transport, watch.deliver)
    result = md.run(md.FedAvg(), fed, rounds + 1, transport=there, eval_every=rounds + 1, progress=False)
    return sum(watch.took[1:]), result.x


def at_once(fed: md.Federation, rounds: int) -> float:
    """Half the seconds of the slower of two local runs side by side."""
    context = multiprocessing.get_context("fork")
    took, gate = context.SimpleQueue(), context.Barrier(2)

    def one() -> None:
        gate.wait(60)  # whoever dies does not keep the other waiting
        took.put(seconds(fed, md.transports.Local(), rounds)[0])

    both = [context.Process(target=one) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a run ended with {process.exitcode}")
    return max(took.get(), took.get()) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp", choices=("mlp", "cnn"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    fed = federation(args.model)
    with contextlib.ExitStack() as stack:
        ways: dict[str, Transport] = {
            "local": md.transports.Local(),
            "processes": md.transports.Processes(2),
        }
        if importlib.util.find_spec("ray"):
            ways["ray"] = stack.enter_context(md.transports.Ray(2).held())
        took: dict[str, list[float]] = {name: [] for name in (*ways, "two at once")}
        ends = {}
        for _ in range(args.repeats):
            for name, transport in ways.items():
                wall, ends[name] = seconds(fed, transport, args.rounds)
                took[name].append(wall)
            took["two at once"].append(at_once(fed, args.rounds))
    print(f"{args.model}, {args.rounds} rounds, {args.repeats} repeats; wall seconds, 2 workers")
    for name, walls in took.items():
        ratio = statistics.median(a / b for a, b in zip(took["local"], walls, strict=True))
        same = name not in ends or torch.equal(ends[name], ends["processes"])
        print(
            f"{name:12s} {statistics.median(walls):6.2f} s ({min(walls):.2f}-{max(walls):.2f})   "
            f"{ratio:.2f} x as fast as local   {'' if name not in ends else 'the same bits' if same else 'OTHER BITS'}"
        )


if __name__ == "__main__":
    main()
