"""`medley plan` beside runs: seconds and memory of a few recipes of papers/, predicted and measured.

Usage: python benchmarks/planned.py [--repeats 3] [--only NAME] [--save planned.json]

Each figure is from a process of its own, which reads the data too. The estimate knows neither the run's seconds nor its
memory. Both are in CPU seconds on one thread, since a shared machine's wall seconds follow its load: the clock of both
is `time.process_time`. A repeat is one estimate and one run after it. Figures are medians over repeats, with the least
and the most. Recipes are smaller than they stand in papers/, by the settings below. ``MEDLEY_DATA`` names the data's
folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PAPERS = Path(__file__).parents[1] / "papers"

CASES: dict[str, tuple[str, str, int, list[str]]] = {
    "VGG-11, Table 2": ("fedecado/table2.toml", "FedNorton", 2, ["data.train=2000", "data.test=500"]),
    "LSTM, Table 5": ("fedecado/table5.toml", "FedNorton", 4, ["participation.fraction=0.3"]),
    "CNN, Fashion-MNIST": ("fedecado/fashion_cnn.toml", "FedAvg", 12, []),
    "MLP, Split-MNIST": ("cflag/split_mnist.toml", "CFLAG.joint", 3, ["run.rounds=3"]),
    "iCaRL, Split-MNIST": ("cflag/split_mnist.toml", "ICaRL", 3, ["run.rounds=3"]),
    "ResNet, Split-CIFAR-10": ("cflag/split_cifar10.toml", "CFLAG.joint", 3, ["data.train=5000", "run.rounds=3"]),
}
"""Recipe, method, rounds that are run (of each task), and settings."""


def one(what: str, name: str) -> dict[str, float]:
    """The figures of one process: seconds of a round, seconds of an evaluation, bytes at the peak."""
    time.perf_counter = time.process_time
    import torch

    from medley import recipe
    from medley.experiments.estimate import estimates
    from medley.federation.run import run
    from medley.runtime import memory
    from medley.runtime.stopwatch import Stopwatch

    torch.set_num_threads(1)
    file, kind, rounds, settings = CASES[name]
    r = recipe.load(PAPERS / file).with_settings(settings).only(kind)
    (method,) = r.methods()
    options = r.options() | {"eval_every": rounds}
    fed = r.federation(on_use=what == "planned")
    if what == "planned":
        (e,) = estimates({kind: method}, fed, rounds, **options)
        return {"seconds": e.seconds, "evaluation": e.evaluation, "memory": float(e.memory)}
    with Stopwatch() as watch:
        began = time.perf_counter()
        result = run(method, fed, rounds, throw=False, progress=False, **options)
        spent = time.perf_counter() - began
    number = int(result.history[-1]["round"])
    evaluation = watch.seconds["evaluation"]
    others = spent - sum(watch.seconds.values())  # drawing clients: once
    return {
        "seconds": (spent - evaluation - others) / number,
        "evaluation": evaluation / len(result.history),
        "memory": float(memory.peak()),
    }


def child(what: str, name: str) -> dict[str, float]:
    """`one` in a process of its own."""
    command = [sys.executable, __file__, "--child", what, "--only", name]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    return json.loads(out.splitlines()[-1])


def compared(name: str, repeats: int) -> dict[str, Any]:
    """Medians, the least and the most of both, and the ratio of predicted to measured by repeat."""
    pairs = [(child("planned", name), child("measured", name)) for _ in range(repeats)]
    out: dict[str, Any] = {"recipe": CASES[name][0], "method": CASES[name][1], "settings": CASES[name][3]}
    for key in ("seconds", "evaluation", "memory"):
        for k, what in enumerate(("planned", "measured")):
            out[f"{key} {what}"] = statistics.median(p[k][key] for p in pairs)
        ratios = [planned[key] / measured[key] for planned, measured in pairs]
        out[f"{key} ratio"] = [statistics.median(ratios), min(ratios), max(ratios)]
    return out


def main() -> None:
    """Print the table; with ``--save`` keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--child", choices=("planned", "measured"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(one(args.child, args.only)))
        return
    rows = {}
    for name in [args.only] if args.only else CASES:
        rows[name] = row = compared(name, args.repeats)
        print(
            f"{name:24} s a round {row['seconds planned']:8.3f} {row['seconds measured']:8.3f}  ratio "
            f"{row['seconds ratio'][0]:.2f} ({row['seconds ratio'][1]:.2f}-{row['seconds ratio'][2]:.2f})   MiB "
            f"{row['memory planned'] / 2**20:6.0f} {row['memory measured'] / 2**20:6.0f}  ratio "
            f"{row['memory ratio'][0]:.2f}   evaluation's ratio {row['evaluation ratio'][0]:.2f}",
            flush=True,
        )
    if args.save:
        where = {"machine": platform.processor() or platform.machine(), "load": os.getloadavg()[0]}
        args.save.write_text(json.dumps({**where, "repeats": args.repeats, "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
