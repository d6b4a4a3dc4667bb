"""Privacy of rows on FLamby's Heart Disease, beside FLamby's published accuracy.

    python papers/privacy/heart.py --out papers/privacy/heart.jsonl

FLamby's files are looked for in $MEDLEY_DATA/flamby. Every finished run is one line of the file, and is not run again.
The table beside it (.md) is made from the file.

The settings are FLamby's: FedAvg, 15 rounds of 100 local steps, batch 4, lr 0.001, δ = 10⁻³, x₀ by `nn.Linear` with
FLamby's seeds. The published file does not name the bound of a row's gradient; it is 1.1 here. FLamby's figure is the
mean over centres of the accuracy on the centre's own test rows.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn

import medley as md
from medley.storage.atomic import replacing

_spec = importlib.util.spec_from_file_location("flamby", Path(__file__).parents[1] / "flamby" / "run.py")
assert _spec is not None
assert _spec.loader is not None
flamby = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(flamby)

DELTA = 1e-3
BOUND = 1.1
EPSILONS = (None, 10.0, 5.0, 1.0, 0.5, 0.1)


def accuracy(x: torch.Tensor) -> float:
    """The mean over centres of the accuracy on the centre's own test rows."""
    pooled = flamby.data("heart")
    how = flamby.SETS["heart"]
    z = pooled.X_test @ x[: how.features, None].float() + x[how.features].float()
    parts = zip(z.split(how.tests), pooled.y_test.split(how.tests), strict=True)
    return fmean(float(((z > 0) == (y > 0.5)).double().mean()) for z, y in parts)


def once(epsilon: float | None, seed: int) -> dict[str, Any]:
    how = flamby.SETS["heart"]
    torch.manual_seed(seed)
    linear = nn.Linear(how.features, 1)
    x0 = torch.cat([linear.weight.detach().flatten(), linear.bias.detach()])
    pace = md.scenarios.Pace(lr=0.001, steps=100, batch=how.batch)
    problem = md.problems.Network(linear, loss=flamby.bce)
    fed = md.Federation(problem, data=flamby.data("heart"), partition=md.partitions.ByKey("centre"), pace=pace)
    method: Any = md.FedAvg()
    if epsilon is not None:
        method = md.Private(method, unit="row", epsilon=epsilon, delta=DELTA, rounds=how.rounds, clip=BOUND)
    last = how.rounds
    result = md.run(method, fed, last, seed=seed, init=x0, progress=False, eval_every=last, clients_every=last)
    spent = {int(row["client"]): row["epsilon"] for row in result.clients if "epsilon" in row}
    return {"epsilon": epsilon, "seed": seed, "accuracy": accuracy(result.x), "spent": spent or None}


def published() -> dict[float | None, list[float]]:
    """FLamby's accuracy by ε at this δ, None for no privacy; empty where the file is not there."""
    path = Path(os.environ.get("MEDLEY_DATA", ".")) / "flamby" / "results" / "dp_heart_disease.csv"
    out: dict[float | None, list[float]] = {}
    if path.exists():
        with path.open(newline="") as f:
            for row in csv.DictReader(f):
                if not row["e"] or float(row["d"]) == DELTA:
                    out.setdefault(float(row["e"]) if row["e"] else None, []).append(float(row["perf"]))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("papers/privacy/heart.jsonl"))
    args = parser.parse_args()
    runs = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(r["epsilon"], r["seed"]) for r in runs}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        for epsilon in EPSILONS:
            for seed in range(42, 47):
                if (epsilon, seed) not in done:
                    runs.append(once(epsilon, seed))
                    with args.out.open("a") as f:
                        f.write(json.dumps(runs[-1]) + "\n")
    except md.MedleyError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    theirs = published()
    lines = ["| ε | here | published | here − published |", "|---|---|---|---|"]
    for epsilon in EPSILONS:
        ours = [r["accuracy"] for r in runs if r["epsilon"] == epsilon]
        other = theirs.get(epsilon, [])
        cells = [f"{fmean(v):.3f} ± {stdev(v):.3f}" if v else "" for v in (ours, other)]
        difference = f"{fmean(ours) - fmean(other):+.3f}" if other else ""
        lines.append(f"| {'none' if epsilon is None else f'{epsilon:g}'} | {cells[0]} | {cells[1]} | {difference} |")
    text = "\n".join([*lines, ""])
    with replacing(args.out.with_suffix(".md")) as tmp:
        tmp.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
