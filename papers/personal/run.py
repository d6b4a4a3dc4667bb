"""Methods with models of clients' own, tuned alike, on Fashion-MNIST, FLamby's Heart Disease and digits of 8 scanners.

    python papers/personal/run.py
    python papers/personal/run.py --sets heart --methods FedAvg,Ditto --seeds 3 --out runs/personal.json

Fashion-MNIST: 20 clients with 2 labels each, 6000 training rows and 4000 test rows drawn once. Heart: the 4 hospitals.
Scanners: sklearn's digits at 8 clients, each with a contrast and a brightness of its own, half of them with light and
dark exchanged, and a network with batch normalisation, which FedBN needs.
Each method is tried with the rates in `RATES` on validation rows of seed 100, 10 % of each client's rows; the best mean
over clients is run with seeds 0 to 4. Data are looked for in $MEDLEY_DATA. Every run is added to the file as it ends,
and what is there is not run again; the table (.md) is made from the file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn

import medley as md
from medley.storage.atomic import replacing

HERE = Path(__file__).parent
RATES = (0.02, 0.1, 0.5)
TESTS = (104, 89, 16, 45)
"""FLamby's test patients of each hospital."""

TUNING = 100
"""The seed of the runs that choose a rate."""

T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Quantiles of Student's t for 95 % intervals, by number of seeds."""

METHODS: Mapping[str, Any] = {
    "Local": md.LocalOnly(),
    "FedAvg": md.FedAvg(),
    "FedAvgFT": md.FedAvgFT(epochs=1),
    "FedPer": md.FedPer(),
    "FedRep": md.FedRep(head_epochs=5),
    "Ditto": md.Ditto(mu=1.0),
    "pFedMe": md.pFedMe(mu=5.0),
    "APFL": md.APFL(alpha=0.5, adaptive=True),
    "FedProto": md.FedProto(),
    "FedBN": md.FedBN(),
}


def fashion(lr: float, validation: float, seed: int) -> tuple[md.Federation, int]:
    """Twenty clients with two labels each, dealt by the seed, and the rounds."""
    data = md.datasets.fashion_mnist().take(6000, 4000).flatten()
    problem = md.problems.Network(md.models.mlp(784, 10, (64, 32)))
    simulation = md.Federation(problem, data=data, partition=md.partitions.Labels(20, 2), own_test=True).draw(seed)
    X, y = simulation.tasks[0].held  # type: ignore[misc]
    owner = simulation.tasks[0].owner
    clients = [(*simulation.clients.rows.of(0, i)[:2], X[owner == i], y[owner == i]) for i in range(20)]
    pace = md.scenarios.Pace(lr=lr, epochs=1, batch=32)
    return md.Federation(problem, clients=clients, classes=10, pace=pace, validation=validation), 40


def heart(lr: float, validation: float, seed: int) -> tuple[md.Federation, int]:
    """The four hospitals with FLamby's test patients, and the rounds."""
    del seed
    data = md.datasets.heart_disease()
    assert data.X_test is not None
    assert data.y_test is not None
    of = torch.as_tensor(data.keys["centre"])
    tests = zip(data.X_test.split(TESTS), data.y_test.split(TESTS), strict=True)
    clients = [(data.X[of == i], data.y[of == i], X, y) for i, (X, y) in enumerate(tests)]
    pace = md.scenarios.Pace(lr=lr / 5, epochs=1, batch=8)
    problem = md.problems.Network(md.models.mlp(13, 2, (16,)))
    return md.Federation(problem, clients=clients, pace=pace, validation=validation), 30


def scanners(lr: float, validation: float, seed: int) -> tuple[md.Federation, int]:
    """Digits dealt at random to eight clients, which differ in contrast, brightness and sign, and the rounds."""
    data = md.datasets.digits()
    g = torch.Generator().manual_seed(seed)
    assert data.X_test is not None
    assert data.y_test is not None
    problem = md.problems.Network(nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)))
    clients = []
    parts = [torch.randperm(len(y), generator=g).chunk(8) for y in (data.y, data.y_test)]
    for i, (rows, tests) in enumerate(zip(*parts, strict=True)):
        contrast = 0.3 + 1.4 * i / 7
        brightness = float(torch.randn((), generator=g))
        shifted = [(contrast * (-1) ** i) * X + brightness for X in (data.X[rows], data.X_test[tests])]
        clients.append((shifted[0], data.y[rows], shifted[1], data.y_test[tests]))
    pace = md.scenarios.Pace(lr=lr, epochs=1, batch=16)
    return md.Federation(problem, clients=clients, classes=10, pace=pace, validation=validation), 30


SETS: Mapping[str, Callable[[float, float, int], tuple[md.Federation, int]]] = {
    "fashion": fashion,
    "heart": heart,
    "scanners": scanners,
}
ONLY: Mapping[str, tuple[str, ...]] = {
    "fashion": tuple(m for m in METHODS if m != "FedBN"),
    "heart": tuple(m for m in METHODS if m != "FedBN"),
    "scanners": ("FedAvg", "FedPer", "FedBN"),
}
"""The methods of each set. FedBN needs layers of normalisation, and others' own models have the server's statistics."""


def measured(name: str, method: str, lr: float, seed: int) -> dict[str, Any]:
    """Figures of one run: mean and worst tenth over clients, and each client's accuracy."""
    tuning = seed == TUNING
    fed, rounds = SETS[name](lr, 0.1 if tuning else 0.0, seed)
    on = "validation" if tuning else "test"
    r = md.run(METHODS[method], fed, rounds, seed=seed, evaluate_on=on, eval_every=rounds, throw=False, progress=False)
    if r.status.outcome == "interrupted":
        raise KeyboardInterrupt
    accuracies = [row["accuracy"] for row in r.clients if "accuracy" in row]
    worst = fmean(sorted(accuracies)[: max(1, round(len(accuracies) / 10))])
    return {
        "mean": fmean(accuracies),
        "worst": worst,
        "clients": [round(a, 4) for a in accuracies],
        "status": r.status.outcome,
    }


def main() -> None:
    """Tune, run, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=",".join(METHODS), help="those of a set that are not named are left out")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    args = parser.parse_args()
    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}

    def once(name: str, method: str, lr: float, seed: int) -> dict[str, Any]:
        key = f"{name} {method} lr={lr:g} seed={seed}"
        if key not in done:
            done[key] = measured(name, method, lr, seed)
            print(key, f"{done[key]['mean']:.3f}", flush=True)
            with replacing(args.out) as tmp:
                tmp.write_text(json.dumps(done, indent=0))
        return done[key]  # type: ignore[no-any-return]

    lines = []
    for name in args.sets.split(","):
        lines += [
            f"\n{name}\n",
            "| method | rate | mean over clients | worst tenth | clients, means over seeds |",
            "|" + "---|" * 5,
        ]
        for method in (m for m in args.methods.split(",") if m in ONLY[name]):
            lr = max(RATES, key=lambda lr, m=method, n=name: once(n, m, lr, TUNING)["mean"])
            runs = [once(name, method, lr, seed) for seed in range(args.seeds)]
            lines.append(row(method, lr, runs))
            args.out.with_suffix(".md").write_text("\n".join(lines) + "\n")


def row(method: str, lr: float, runs: list[dict[str, Any]]) -> str:
    """A line of the table: means over seeds with half-widths of 95 % intervals."""
    n = len(runs)

    def interval(key: str) -> str:
        values = [100 * r[key] for r in runs]
        half = T.get(n, 2.0) * stdev(values) / n**0.5 if n > 1 else 0.0
        return f"{fmean(values):.1f} ± {half:.1f}"

    each = [fmean(r["clients"][k] for r in runs) for k in range(len(runs[0]["clients"]))]
    span = (
        f"{100 * min(each):.0f} to {100 * max(each):.0f}"
        if len(each) > 6
        else ", ".join(f"{100 * a:.0f}" for a in each)
    )
    return f"| {method} | {lr:g} | {interval('mean')} | {interval('worst')} | {span} |"


if __name__ == "__main__":
    main()
