"""Two workers of Ray against two processes, and one process: FedAvg, all clients take part.

    python benchmarks/workers.py [--model mlp] [--clients 100] [--rounds 10] [--repeats 5] [--threads]
    unshare --net --map-root-user sh -c "ip link set lo up; python benchmarks/workers.py --nodes"

Wall seconds of the exchanges but the first; ways take turns, medians are compared. "two at once" is what the
machine allows: two runs of one process each, side by side, half the longer one's seconds. Needs an otherwise idle
machine of two cores; Ray joins where the extra ``ray`` was. "fork" is the time in
which two workers of this process begin.

``--nodes`` has Ray's two workers on two nodes of a cluster, each a server of its own on this machine, and counts what
passes over the loopback interface, which nobody else may use: hence ``unshare``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from networks import module
from torch import nn

import medley as md
from medley.testing.faults import Rewired
from medley.transports.arena import Arena
from medley.wire.connection import Connection, Host, Transport
from medley.wire.exchange import Exchange
from medley.wire.fold import Fold

ROWS = 100
BATCH = 20
LR = 0.05

IMAGES = {"cnn": (1, 28, 28), "resnet8": (3, 32, 32), "resnet18": (3, 32, 32)}
"""Shapes of a row, of models that do not take 784 numbers."""


def network(model: str) -> nn.Module:
    """The model; the ResNets have group normalisation and a quarter of the usual width."""
    blocks = {"resnet8": (1, 1, 1), "resnet18": (2, 2, 2, 2)}
    return md.models.resnet(IMAGES[model], 10, blocks[model], 16) if model in blocks else module(model)


def federation(model: str, clients: int) -> md.Federation:
    shape = IMAGES.get(model, (784,))
    data = md.datasets.gaussian_classes(clients * ROWS, math.prod(shape), 10, seed=0)
    images = lambda X: X.reshape(-1, *shape)
    data = replace(data, X=images(data.X), X_test=images(data.X_test))
    return md.Federation(
        md.problems.Network(network(model)),
        data=data,
        partition=md.partitions.IID(clients),
        pace=md.scenarios.Pace(lr=LR, epochs=1, batch=BATCH),
    )


class Stopwatch:
    """Wall seconds of every exchange."""

    def __init__(self) -> None:
        self.durations: list[float] = []

    def deliver(self, connection: Connection, exchange: Exchange) -> Iterator[Fold]:
        began = time.perf_counter()
        yield from connection.exchange(exchange)
        self.durations.append(time.perf_counter() - began)


class Threads:
    """This process, with two threads of torch."""

    def open(self, host: Host) -> Connection:
        torch.set_num_threads(2)
        return md.transports.InProcess().open(host)


def seconds(fed: md.Federation, transport: Transport, rounds: int) -> tuple[float, torch.Tensor]:
    """Of all exchanges but the first, after which every worker has what it needs; and the final x."""
    watch = Stopwatch()
    rewired = Rewired(transport, watch.deliver)
    result = md.run(md.FedAvg(), fed, rounds + 1, transport=rewired, eval_every=rounds + 1, progress=False)
    torch.set_num_threads(1)
    return sum(watch.durations[1:]), result.x


def forking(fed: md.Federation) -> float:
    """Seconds in which two workers are forked."""
    durations: list[float] = []

    class Timed:
        def open(self, host: Host) -> Connection:
            began = time.perf_counter()
            connection = md.transports.Processes(2).open(host)
            durations.append(time.perf_counter() - began)
            return connection

    md.run(md.FedAvg(), fed, 0, transport=Timed(), progress=False)
    return durations[0]


def shared(fed: md.Federation, rounds: int) -> str:
    """What passes through the memory that processes share in a round, and the milliseconds of copying it once."""
    sizes: list[int] = []
    write, read = Arena.write, Arena.read

    def written(self: Arena, value: Any) -> dict[str, Any]:
        layout = write(self, value)
        sizes.append(layout["size"])
        return layout

    def taken(self: Arena, layout: Any, classes: Any) -> Any:
        sizes.append(layout["size"])
        return read(self, layout, classes)

    Arena.write, Arena.read = written, taken  # type: ignore[method-assign]
    try:
        seconds(fed, md.transports.Processes(2), rounds)
    finally:
        Arena.write, Arena.read = write, read  # type: ignore[method-assign]
    block = torch.zeros(max(sizes), dtype=torch.uint8)
    into = block.clone()
    began = time.perf_counter()
    for size in sizes:
        into[:size].copy_(block[:size])
    copying = time.perf_counter() - began
    every = rounds + 1
    return f"{sum(sizes) / every / 1e6:.2f} MB a round in shared memory, {1e3 * copying / every:.2f} ms to copy it once"


def at_once(fed: md.Federation, rounds: int) -> float:
    """Half the seconds of the slower of two local runs side by side."""
    context = multiprocessing.get_context("fork")
    durations = context.SimpleQueue()
    gate = context.Barrier(2)

    def one() -> None:
        gate.wait(60)  # whoever dies does not keep the other waiting
        durations.put(seconds(fed, md.transports.InProcess(), rounds)[0])

    both = [context.Process(target=one) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a run ended with {process.exitcode}")
    return max(durations.get(), durations.get()) / 2


@contextlib.contextmanager
def two_nodes() -> Iterator[Transport]:
    """Ray with a worker on each of two nodes; this process is on a third, which has none."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        with md.transports.Ray(2, cluster.address).held() as held_actors:
            yield held_actors
    finally:
        cluster.shutdown()


def passed() -> int:
    """Bytes that the loopback interface has carried."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def bytes_a_round(model: str, clients: int, rounds: int, transport: Transport) -> str:
    """What passes between nodes in a round, beside what the ledger counts; both without the first round."""
    fed = federation(model, clients)
    at = list[tuple[int, float]]()

    class Watched(md.FedAvg):
        def round(self, s: object, clients: object) -> None:
            at.append((passed(), time.perf_counter()))
            super().round(s, clients)  # type: ignore[arg-type]

    run = md.run(Watched(), fed, rounds + 2, transport=transport, eval_every=rounds + 2, progress=False)
    first, began = at[1]
    last, ended = at[-1]
    time.sleep(10)
    before = passed()
    moment = time.perf_counter()
    time.sleep(10)
    idle = (passed() - before) / (time.perf_counter() - moment) * (ended - began)
    counted = sum(e.up + e.down for e in run.ledger if 2 <= e.round < rounds + 2)
    return (
        f"{model}, {clients} clients, two nodes: {(last - first - idle) / rounds / 1e6:.2f} MB a round between nodes, "
        f"of which the ledger has {counted / rounds / 1e6:.2f}; Ray's own {idle / rounds / 1e6:.2f} MB are taken off"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp", choices=("softmax", "mlp", *IMAGES))
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", action="store_true", help="two threads of torch, too")
    parser.add_argument("--nodes", action="store_true", help="count bytes between two nodes of Ray")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.nodes:
        with two_nodes() as transport:
            print(bytes_a_round(args.model, args.clients, args.rounds, transport))
        return
    fed = federation(args.model, args.clients)
    with contextlib.ExitStack() as stack:
        ways: dict[str, Transport] = {
            "local": md.transports.InProcess(),
            **({"threads": Threads()} if args.threads else {}),
            "processes": md.transports.Processes(2),
            "auto": md.transports.Auto(2),
        }
        if importlib.util.find_spec("ray"):
            ways["ray"] = stack.enter_context(md.transports.Ray(2).held())
        durations: dict[str, list[float]] = {name: [] for name in (*ways, "two at once")}
        ends = {}
        for _ in range(args.repeats):
            for name, transport in ways.items():
                wall, ends[name] = seconds(fed, transport, args.rounds)
                durations[name].append(wall)
            durations["two at once"].append(at_once(fed, args.rounds))
    fork = 1e3 * statistics.median(forking(fed) for _ in range(args.repeats))
    print(
        f"{args.model}, {args.clients} clients, {args.rounds} rounds, {args.repeats} repeats; wall seconds, 2 workers; "
        f"fork {fork:.0f} ms; load {os.getloadavg()[0]:.0f}; {shared(fed, 2)}"
    )
    for name, walls in durations.items():
        ratio = statistics.median(a / b for a, b in zip(durations["local"], walls, strict=True))
        same = name not in ends or torch.equal(ends[name], ends["processes"])
        print(
            f"{name:12s} {statistics.median(walls):6.2f} s ({min(walls):.2f}-{max(walls):.2f})   "
            f"{ratio:.2f} x as fast as local   {'' if name not in ends else 'the same bits' if same else 'OTHER BITS'}"
        )


if __name__ == "__main__":
    main()
