"""The cost of faults and slow clients, in the tables of docs/faults.md.

python benchmarks/faults.py loss     # a fifth of all replies lost, against the run without
python benchmarks/faults.py tuned    # the regression without losses, each method's settings chosen from a grid
python benchmarks/faults.py clock    # seconds of the virtual clock to a target, waiting for the slow or not
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import torch

import medley as md
from medley.transports import InProcess, Lossy

SEEDS = range(5)


def shown(values: Sequence[float], digits: int = 0) -> str:
    """Mean ± standard deviation over seeds."""
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def regression(lr: float) -> md.Federation:
    """Logistic regression over ten clients, five full-batch steps a round."""
    toy = md.problems.synthetic_logistic(clients=10, d=20, mu=1e-3)
    pace = md.scenarios.Pace(lr=lr, epochs=5, batch=None)
    return md.Federation(toy.problem, clients=toy.clients, f_star=toy.f_star, pace=pace)


def tuned(rounds: int) -> None:
    """The fewest rounds to a gap of 1e-6 over a grid of each method's settings, and how many runs the grid has."""
    rates = (0.3, 1.0, 3.0, 10.0, 30.0)
    grids: dict[str, dict[str, md.Algorithm]] = {
        "SCAFFOLD": {f"server_lr {step:g}, ": md.SCAFFOLD(server_lr=step) for step in (1.0, 2.0, 4.0, 8.0)},
        "FedDyn": {f"alpha {alpha:g}, ": md.FedDyn(alpha=alpha) for alpha in (0.003, 0.01, 0.03, 0.1)},
        "SCAFFOLD, lr only": {"": md.SCAFFOLD()},
        "FedNorton": {"": md.FedNorton()},
        "SHED.fast, not tuned": {"": md.SHED.fast(pairs=2)},
    }
    print("| method | runs of tuning | rounds to a gap of 1e-6 | at |\n|---|---|---|---|")
    for name, methods in grids.items():
        lrs = (1.0,) if "not tuned" in name else rates
        reached: list[tuple[int, str]] = []
        for words, method in methods.items():
            for lr in lrs:
                result = run(method, regression(lr), rounds, 0, target={"gap": 1e-6})
                if result.status.outcome == "target":
                    reached.append((result.summary["round"], f"{words}lr {lr:g}"))
        runs = len(methods) * len(lrs)
        fewest, settings = min(reached, default=(0, f"none within {rounds} rounds"))
        print(f"| {name} | {runs if runs > 1 else 0} | {fewest} | {settings if runs > 1 else ''} |", flush=True)


def loss(share: float, rounds: int) -> None:
    """Rounds to a gap of 1e-6 on logistic regression; for CFLAG.joint the accuracy at the end of a stream."""
    fed = regression(lr=1.0)
    stream = md.Federation(
        md.problems.Softmax(mu=1e-3),
        data=md.datasets.digits(),
        partition=md.partitions.Dirichlet(clients=10, alpha=0.5),
        pace=md.scenarios.Pace(lr=0.3, steps=5),
        stream=md.tasks.Split(tasks=5, mode="class"),
        replay=md.replay.Ring(capacity=40, sample=20),
    )
    print(f"| method | figure | no loss | {share:.0%} lost |\n|---|---|---|---|")
    methods = [md.SCAFFOLD(), md.FedDyn(alpha=0.1), md.FedNorton(), md.SHED(pairs=2), md.SHED.fast(pairs=2)]
    for method in methods:
        cells = []
        for transport in (InProcess(), Lossy(loss=share)):
            runs = [run(method, fed, rounds, seed, transport=transport, target={"gap": 1e-6}) for seed in SEEDS]
            reached = [r.summary["round"] for r in runs if r.status.outcome == "target"]
            worst = max(r.summary["gap"] for r in runs)
            missed = f"{len(reached)} of {len(runs)} within {rounds}, worst gap {worst:.1e}"
            cells.append(shown(reached) if len(reached) == len(runs) else missed)
        print(f"| {method.name} | rounds to a gap of 1e-6 | {' | '.join(cells)} |", flush=True)
    figures: dict[str, list[str]] = {"acc": [], "fgt": []}
    for transport in (InProcess(), Lossy(loss=share)):
        runs = [run(md.CFLAG.joint(), stream, 10, seed, transport=transport, eval_every=10) for seed in SEEDS]
        for name, cells in figures.items():
            cells.append(shown([100 * r.summary[name] for r in runs], 1))
    for name, words in (("acc", "accuracy over all tasks at the end, %"), ("fgt", "forgotten, points")):
        print(f"| CFLAG.joint, digits | {words} | {' | '.join(figures[name])} |", flush=True)


def clock(target: float, rounds: int) -> None:
    """Digits on 20 phones, a hundred times apart in speed, with unequal labels: seconds to an accuracy."""
    fed = md.Federation(
        md.problems.Network(md.models.mlp(64, 10, (32,))),
        data=md.datasets.digits(),
        partition=md.partitions.Dirichlet(clients=20, alpha=0.5),
        pace=md.scenarios.Pace(lr=0.1, epochs=2, batch=16),
        devices=md.devices.phones(),
    )
    ways = {
        "FedAvg, waits for all": (md.FedAvg(), md.ReplyPolicy()),
        "FedAvg, deadline of 1 s": (md.FedAvg(), md.ReplyPolicy(deadline=1.0)),
        "FedNorton, waits for all": (md.FedNorton(), md.ReplyPolicy()),
        "FedBuff, rounds of 5 replies": (md.FedBuff(), md.ReplyPolicy(replies=5)),
        "FedAsync, rounds of 1 reply": (md.FedAsync(), md.ReplyPolicy(replies=1)),
        "FedNorton, rounds of 5 replies": (md.FedNorton(), md.ReplyPolicy(replies=5)),
    }
    print(f"| | reached {target:.0%} | virtual seconds | rounds | best accuracy, % |\n|---|---|---|---|---|")
    for name, (method, policy) in ways.items():
        runs = [run(method, fed, rounds, seed, reply_policy=policy, target={"accuracy": target}) for seed in SEEDS]
        reached = [r for r in runs if r.status.outcome == "target"]
        figures = [
            shown([r.summary[k] for r in reached], d) if len(reached) > 1 else ""
            for k, d in (("seconds", 1), ("round", 0))
        ]
        best = shown([100 * max(r["accuracy"]) for r in runs], 1)
        print(f"| {name} | {len(reached)} of {len(runs)} | {' | '.join(figures)} | {best} |", flush=True)


def run(method: Any, fed: md.Federation, rounds: int, seed: int, **options: Any) -> md.Result:
    return md.run(method, fed, rounds, seed=seed, throw=False, progress=False, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["loss", "tuned", "clock"])
    parser.add_argument("--share", type=float, default=0.2, help="of replies lost")
    parser.add_argument("--target", type=float, default=0.9, help="test accuracy")
    parser.add_argument("--rounds", type=int, default=600, help="at most")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "loss":
        loss(args.share, args.rounds)
    elif args.what == "tuned":
        tuned(args.rounds)
    else:
        clock(args.target, args.rounds)


if __name__ == "__main__":
    main()
