"""FedAvg on 1,000 clients and 60,000 rows: Medley against the loop that one would write by hand, in one run.

    python benchmarks/simulation.py [--models softmax mlp] [--repeats 7]

Both do the same work on the same batches: the hand-written loop is given Medley's batch orders, drawn before its clock
starts, and ‖x_end − x_0‖ must agree. Evaluation is left out of both. Repeats are interleaved, medians compared.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

import medley as md
from medley.core import streams

CLIENTS, ROWS, FEATURES, CLASSES, BATCH, LR = 1000, 60_000, 32, 10, 20, 0.05


def federation(module: nn.Module) -> md.Federation:
    data = md.datasets.gaussian_classes(ROWS, FEATURES, CLASSES, seed=0)
    return md.Federation(
        md.problems.Network(module),
        data=data,
        partition=md.scenarios.IID(CLIENTS),
        pace=md.scenarios.Pace(lr=LR, epochs=1, batch=BATCH),
    )


def by_medley(fed: md.Federation, rounds: int) -> tuple[float, torch.Tensor]:
    """CPU seconds from round 1 on, and the final x."""
    began: list[float] = []

    def watch(row: dict[str, float]) -> None:
        began.append(time.process_time())

    result = md.run(md.FedAvg(), fed, rounds, eval_every=rounds, on_round=watch, progress=False)
    return began[-1] - began[0], result.x


def by_hand(fed: md.Federation, module: nn.Module, rounds: int) -> tuple[float, torch.Tensor]:
    """The same with state_dict, an optimizer per client and a mean at the end."""
    world = fed.draw(0)
    x0 = world.problem.initial(streams.generator(0, "init"))
    torch.nn.utils.vector_to_parameters(x0, module.parameters())
    n = [int(k) for k in world.sizes]
    orders = [
        [torch.randperm(n[i], generator=streams.generator(0, i, t + 1, "batches")) for i in range(CLIENTS)]
        for t in range(rounds)
    ]
    data = [world._slice(0, i)[:2] for i in range(CLIENTS)]
    loss = nn.CrossEntropyLoss()
    glob = {k: v.clone() for k, v in module.state_dict().items()}
    began = time.process_time()
    for t in range(rounds):
        acc = {k: torch.zeros_like(v) for k, v in glob.items()}
        for i in range(CLIENTS):
            module.load_state_dict(glob)
            opt = torch.optim.SGD(module.parameters(), lr=LR)
            X, y = data[i]
            for rows in orders[t][i].split(BATCH):
                opt.zero_grad()
                loss(module(X[rows]), y[rows]).backward()
                opt.step()
            for k, v in module.state_dict().items():
                acc[k] += n[i] * v
        glob = {k: v / sum(n) for k, v in acc.items()}
    module.load_state_dict(glob)
    return time.process_time() - began, torch.nn.utils.parameters_to_vector(module.parameters()).detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["softmax", "mlp"], choices=["softmax", "mlp"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{CLIENTS} clients x {args.rounds} rounds, {ROWS} rows, batch {BATCH}; CPU seconds, {args.repeats} repeats")
    for name in args.models:
        make = {
            "softmax": lambda: md.models.softmax(FEATURES, CLASSES),
            "mlp": lambda: md.models.mlp(FEATURES, CLASSES),
        }
        module = make[name]()
        fed = federation(module)
        hand, ours, drift = [], [], 0.0
        for _ in range(args.repeats):
            a, x = by_hand(fed, module, args.rounds)
            b, z = by_medley(fed, args.rounds)
            hand.append(a)
            ours.append(b)
            drift = max(drift, float((x - z).norm() / z.norm()))
        h, m = statistics.median(hand), statistics.median(ours)
        print(
            f"{name:8s} by hand {h:6.2f} s ({min(hand):.2f}-{max(hand):.2f})   medley {m:6.2f} s "
            f"({min(ours):.2f}-{max(ours):.2f})   {h / m:.2f} x as fast   x differs by {drift:.1e}"
        )


if __name__ == "__main__":
    main()
