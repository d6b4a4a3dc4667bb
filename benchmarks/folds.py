"""The time of a round with each robust fold, beside the plain mean's, and that of each fold alone.

    python benchmarks/folds.py

100 clients of 600 rows [784] train a network of 235,146 parameters for one epoch in batches of 32, on one thread. Every
figure is CPU time, the median of several rounds, taken in turns. Rows are random; their values play no part.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import medley as md
from medley.robust.rule import Context

R = md.robust
LIARS = 0.2
FOLDS = (
    R.TrimmedMean(LIARS),
    R.Median(),
    R.GeometricMedian(),
    R.Krum(LIARS),
    R.MultiKrum(LIARS),
    R.CentredClipping(),
    R.FLTrust(0),
    R.Mixed(R.TrimmedMean(LIARS), LIARS),
)


def federation(clients: int, rows: int) -> md.Federation:
    """Clients with random rows and labels."""
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(rows, 784, generator=g), torch.arange(rows) % 10) for _ in range(clients)]
    net = md.models.mlp(784, 10, (256, 128))
    pace = md.scenarios.Pace(lr=0.05, epochs=1, batch=32)
    return md.Federation(md.problems.Network(net), clients=data, classes=10, pace=pace, weights="uniform")


def seconds_a_round(method: object, fed: md.Federation, rounds: int) -> float:
    """The CPU time of a round, with one evaluation after the last."""
    ends = [time.process_time()]
    md.run(
        method, fed, rounds, eval_every=rounds, progress=False, on_round=lambda row: ends.append(time.process_time())
    )
    return (ends[-1] - ends[1]) / rounds


def fold_seconds(fold: R.Rule, rows: torch.Tensor) -> float:
    """The median CPU time of three folds of these rows."""
    context = Context(root=0 if fold.root_client is not None else None)
    out = []
    for _ in range(3):
        began = time.process_time()
        fold(rows, context)
        out.append(time.process_time() - began)
    return statistics.median(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rows", type=int, default=600, help="rows of a client")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of a run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each fold")
    args = parser.parse_args()
    torch.set_num_threads(1)
    fed = federation(args.clients, args.rows)
    methods = {"mean": md.FedAvg(), **{fold.name: md.Robust(md.FedAvg(), rule=fold) for fold in FOLDS}}
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(args.repeats):
        for name, method in methods.items():
            times[name].append(seconds_a_round(method, fed, args.rounds))
    plain = statistics.median(times["mean"])
    d = fed.draw(0).problem.d
    replies = 0.01 * torch.randn(args.clients, d, generator=torch.Generator().manual_seed(1))
    single = {"mean": 0.0, **{fold.name: fold_seconds(fold, replies) for fold in FOLDS}}
    print(f"{args.clients} clients of {args.rows} rows, d = {d:,}; CPU seconds")
    print(f"{'fold':>16}  {'round':>7}  {'of mean':>7}  {'alone':>7}")
    for name, seconds in times.items():
        mid = statistics.median(seconds)
        print(f"{name:>16}  {mid:7.2f}  {mid / plain:7.2f}  {single[name]:7.2f}")


if __name__ == "__main__":
    main()
