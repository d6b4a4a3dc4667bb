"""FLamby's two small sets at FLamby's own settings, beside its published results.

    python papers/flamby/run.py
    python papers/flamby/run.py --sets heart --methods FedAvg,FedNorton --seeds 5 --out runs/flamby.json

Data and published results (``flamby/results/*_seed4?.csv``) are looked for in $MEDLEY_DATA. Every run is added to the
file as it ends, and what is there is not run again. The table beside it (.md) has the accuracy on Heart Disease and the
concordance index on TCGA-BRCA, over the clients' own test rows, weighed by their number. The published "Pooled Test" is
of rows that were standardised otherwise, and does not compare.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import medley as md
from medley.storage.atomic import replacing


class Set(NamedTuple):
    """A data set at FLamby's settings: rows of each client's test, features, batch, rounds, and its results' prefix."""

    tests: tuple[int, ...]
    features: int
    batch: int
    rounds: int
    prefix: str


SETS = {
    "heart": Set((104, 89, 16, 45), 13, 4, 15, "heart"),
    "brca": Set((63, 40, 42, 33, 33, 11), 39, 8, 5, "tcga"),
}

ADAM: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "tau": 1e-8}
METHODS: dict[str, dict[str, tuple[Any, float]]] = {
    # Methods with the clients' lr, of FLamby's config_*.json; FedNorton with that of FedAvg, or SCAFFOLD.
    "heart": {
        "FedAvg": (md.FedAvg(), 0.001),
        "FedProx": (md.FedProx(mu=0.01), 0.001),
        "Scaffold": (md.SCAFFOLD(), 0.001),
        "FedAdam": (md.FedAdam(server_lr=0.01, **ADAM), 0.01),
        "FedYogi": (md.FedYogi(server_lr=0.01, **ADAM), 0.003162),
        "FedAdagrad": (md.FedAdagrad(server_lr=0.316228, beta1=0.9, tau=1e-8), 0.003162),
        "FedNorton": (md.FedNorton(), 0.001),
    },
    "brca": {
        "FedAvg": (md.FedAvg(), 0.1),
        "FedProx": (md.FedProx(mu=0.1), 0.1),
        "Scaffold": (md.SCAFFOLD(), 0.01),
        "FedAdam": (md.FedAdam(server_lr=0.1, **ADAM), 0.01),
        "FedYogi": (md.FedYogi(server_lr=0.1, **ADAM), 0.01),
        "FedAdagrad": (md.FedAdagrad(server_lr=1.0, beta1=0.9, tau=1e-8), 0.01),
        "FedNorton": (md.FedNorton(), 0.01),
    },
}


def bce(z: Tensor, y: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(z, y)


@cache
def data(name: str) -> md.datasets.Dataset:
    if name == "brca":
        return md.datasets.tcga_brca()
    raw = md.datasets.heart_disease()
    assert raw.y_test is not None
    return dataclasses.replace(raw, y=raw.y.float()[:, None], y_test=raw.y_test.float()[:, None], classes=None)


def by_client(name: str, x: Tensor) -> float:
    """The figure of the model x over each client's own test rows, weighed by their number."""
    pooled = data(name)
    sizes = SETS[name].tests
    assert pooled.X_test is not None
    assert pooled.y_test is not None
    z = pooled.X_test @ x[: SETS[name].features, None].float() + x[SETS[name].features].float()
    parts = zip(z.split(sizes), pooled.y_test.split(sizes), strict=True)
    figure = md.metrics.concordance if name == "brca" else lambda z, y: float(((z > 0) == (y > 0.5)).double().mean())
    return sum(n * figure(z, y) for n, (z, y) in zip(sizes, parts, strict=True)) / sum(sizes)


def once(name: str, label: str, seed: int) -> dict[str, Any]:
    method, lr = METHODS[name][label]
    how = SETS[name]
    # x0 decides Heart Disease, where 1,500 steps of lr .001 move little: it is FLamby's, drawn from its seeds.
    torch.manual_seed(seed)
    linear = nn.Linear(how.features, 1)
    x0 = torch.cat([linear.weight.detach().flatten(), linear.bias.detach()])
    problem = md.problems.Network(linear, loss=md.problems.cox if name == "brca" else bce)
    pace = md.scenarios.Pace(lr=lr, steps=100, batch=how.batch)
    fed = md.Federation(problem, data=data(name), partition=md.partitions.ByKey("centre"), pace=pace)
    result = md.run(method, fed, how.rounds, seed=seed, init=x0, throw=False, progress=False, eval_every=how.rounds)
    if result.status.outcome == "interrupted":
        raise KeyboardInterrupt
    return {
        "set": name,
        "method": label,
        "seed": seed,
        "status": result.status.outcome,
        "figure": by_client(name, result.x),
        "loss": result.summary["loss"],
    }


def published(name: str, label: str) -> list[float]:
    """FLamby's figure by seed, over the clients' own test rows; empty where the files are not there."""
    folder = Path(os.environ.get("MEDLEY_DATA", ".")) / "flamby" / "results"
    sizes = SETS[name].tests
    out = []
    for path in sorted(folder.glob(f"{SETS[name].prefix}_seed4?.csv")):
        with path.open(newline="") as f:
            rows = [r for r in csv.DictReader(f) if r["Method"].removesuffix("100") == label]
        figures = {r["Test"]: float(r["Metric"]) for r in rows}
        if all(f"client_test_{k}" in figures for k in range(len(sizes))):
            out.append(sum(n * figures[f"client_test_{k}"] for k, n in enumerate(sizes)) / sum(sizes))
    return out


def mean_and_deviation(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else "".join(f"{v:.3f}" for v in values)


def table(runs: Sequence[dict[str, Any]]) -> str:
    lines = ["| set | method | here | published | here − published | seeds here |", "|---|---|---|---|---|---|"]
    for name, methods in METHODS.items():
        for label in methods:
            ours = [r["figure"] for r in runs if (r["set"], r["method"]) == (name, label) and r["status"] == "finished"]
            if not ours:
                continue
            theirs = published(name, label)
            difference = f"{fmean(ours) - fmean(theirs):+.3f}" if theirs else ""
            each = ", ".join(f"{v:.3f}" for v in ours)
            means = f"{mean_and_deviation(ours)} | {mean_and_deviation(theirs)}"
            lines.append(f"| {name} | {label} | {means} | {difference} | {each} |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="heart,brca")
    parser.add_argument("--methods", default="", help="default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/flamby.json"))
    args = parser.parse_args()
    runs = json.loads(args.out.read_text()) if args.out.exists() else []
    done = {(r["set"], r["method"], r["seed"]) for r in runs}
    try:
        for name in args.sets.split(","):
            for label in args.methods.split(",") if args.methods else METHODS[name]:
                for seed in range(42, 42 + args.seeds):
                    if (name, label, seed) in done:
                        continue
                    runs.append(once(name, label, seed))
                    args.out.parent.mkdir(parents=True, exist_ok=True)
                    with replacing(args.out) as tmp:
                        tmp.write_text(json.dumps(runs))
    except md.MedleyError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    with replacing(args.out.with_suffix(".md")) as tmp:
        tmp.write_text(table(runs), encoding="utf-8")
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
