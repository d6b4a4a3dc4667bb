"""Accuracy over ε: privacy of clients on MNIST.

    python papers/privacy/run.py --out papers/privacy/results.jsonl

MNIST is looked for in $MEDLEY_DATA. Every finished run is one line of the file, and is not run again. The table beside
it (.md) and the picture (.svg) are made from the file. --only gives some methods.

1,000 clients hold MNIST at 14×14, with labels by Dirichlet's law (α = 0.5). Each takes part in a round with probability
0.05, for 2 to 10 steps of 10 rows. The model is a softmax regression of 1,970 parameters, and δ is 10⁻⁴.
Each method is tuned at each ε over the same 4 settings of the bound and the rounds; the learning rate is 0.3. Tuning
runs have a seed of their own and are measured on validation rows. Tuning is not accounted for: its ε comes on top.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

import medley as md
from medley.distributions import Integers
from medley.participation import Bernoulli
from medley.partitions import Dirichlet
from medley.report.figures.lines import Line, lines
from medley.scenarios import Pace
from medley.storage.atomic import replacing

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-4
SEEDS = range(5)
TUNING_SEED = 1000
STEPS = 6
"""The mean number of a client's local steps."""

Bounds = float | dict[str, float]


class Setting(NamedTuple):
    """One point of the grid: a client's learning rate, the bound of its displacement, and the rounds."""

    lr: float
    bound: float
    rounds: int


GRID = [Setting(*s) for s in itertools.product((0.3,), (0.3, 1.0), (30, 100))]
PLAIN = [Setting(0.3, 0.0, 100)]


def circuit(s: Setting) -> Bounds:
    """A flow is a displacement over the time T = lr·steps, u one over √T; times and rates get four times the typical.

    Times and rates get four times their typical size. One factor clips all fields. A flow of ten times its bound has a
    square of a hundred times the bound's, so that squares with less room would clip the flow.
    """
    T = s.lr * STEPS
    flow = 1.6 * s.bound / T
    squares = {"changed": 100 * flow**2, "size": 100 * flow**2}
    return {"flow": flow, "u": flow * T**0.5, "T": 4 * T, "rate": 4 / T, **squares}


METHODS: dict[str, tuple[Any, Callable[[Setting], Bounds]]] = {
    "FedAvg": (md.FedAvg(), lambda s: s.bound),
    "SCAFFOLD": (md.SCAFFOLD(), lambda s: {"delta": 1.4 * s.bound, "dc": 1.4 * s.bound / (s.lr * STEPS)}),
    "FedNorton": (md.FedNorton(flows="client"), circuit),
}
"""Each method with its bounds, in units of the bound on a displacement."""


@cache
def data() -> md.datasets.Dataset:
    return md.datasets.mnist().pool(2).flatten()


def accuracy(label: str, epsilon: float | None, s: Setting, seed: int, on: str) -> dict[str, float]:
    method, bounds = METHODS[label]
    fed = md.Federation(
        md.problems.Softmax(mu=1e-4),
        data=data(),
        partition=Dirichlet(1000, 0.5, minimum=10),
        participation=Bernoulli(0.05),
        pace=Pace(lr=s.lr, steps=Integers(2, 10), batch=10),
        weights="uniform",
        validation=0.1,
    )
    if epsilon is not None:
        method = md.Private(method, epsilon=epsilon, delta=DELTA, rounds=s.rounds, clip=bounds(s))
    result = md.run(method, fed, s.rounds, seed=seed, evaluate_on=on, eval_every=s.rounds, throw=False, progress=False)
    if result.status.outcome == "interrupted":
        raise KeyboardInterrupt
    last = result.summary
    finished = result.status.outcome in ("finished", "target")
    return {"accuracy": last["accuracy"] if finished else 0.1, "spent": last.get("epsilon", 0.0)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="methods, with commas; default: all")
    parser.add_argument("--out", type=Path, default=Path("papers/privacy/results.jsonl"))
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(METHODS)
    runs = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    by_key = {(r["method"], r["epsilon"], Setting(*r["setting"]), r["seed"]): r for r in runs}

    def once(label: str, epsilon: float | None, s: Setting, seed: int, on: str) -> float:
        key = label, epsilon, s, seed
        if key not in by_key:
            by_key[key] = {"method": label, "epsilon": epsilon, "setting": s, "seed": seed, "on": on}
            by_key[key] |= accuracy(label, epsilon, s, seed, on)
            with args.out.open("a") as f:
                f.write(json.dumps(by_key[key]) + "\n")
        return float(by_key[key]["accuracy"])

    args.out.parent.mkdir(parents=True, exist_ok=True)
    best: dict[tuple[str, float | None], Setting] = {}
    figures: dict[tuple[str, float | None], list[float]] = {}
    try:
        for label, epsilon in itertools.product(names, (None, *EPSILONS)):
            grid = PLAIN if epsilon is None else GRID
            tried = {s: once(label, epsilon, s, TUNING_SEED, "validation") for s in grid}
            s = best[label, epsilon] = max(tried, key=lambda s: tried[s])
            figures[label, epsilon] = [once(label, epsilon, s, seed, "test") for seed in SEEDS]
    except md.MedleyError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    text = table(best, figures)
    for suffix, written in ((".md", text), (".svg", picture(figures))):
        with replacing(args.out.with_suffix(suffix)) as tmp:
            tmp.write_text(written, encoding="utf-8")
    print(text)
    return 0


def table(best: dict[tuple[str, float | None], Setting], figures: dict[tuple[str, float | None], list[float]]) -> str:
    """Test accuracy in percent, mean ± standard deviation over seeds, with the tuned setting."""
    lines = ["| method | ε | accuracy | lr | bound | rounds |", "|---|---|---|---|---|---|"]
    for (label, epsilon), values in figures.items():
        s = best[label, epsilon]
        cell = f"{100 * fmean(values):.1f} ± {100 * stdev(values):.1f}"
        name, bound = (label, "none") if epsilon is None else (f"DP-{label}", f"{s.bound:g}")
        lines.append(
            f"| {name} | {'none' if epsilon is None else f'{epsilon:g}'} | {cell} | {s.lr:g} | {bound} | {s.rounds} |"
        )
    return "\n".join([*lines, ""])


def picture(figures: dict[tuple[str, float | None], list[float]]) -> str:
    """Accuracy over log₂ ε, mean and least to most of the seeds; plain runs are flat lines."""
    at = np.log2(EPSILONS)
    series = []
    for label in dict.fromkeys(name for name, _ in figures):
        values = 100 * np.array([figures[label, e] for e in EPSILONS])
        series.append(Line(f"DP-{label}", len(series), at, values.mean(1), values.min(1), values.max(1)))
    for label in dict.fromkeys(name for name, _ in figures):
        flat = np.full(len(at), 100 * fmean(figures[label, None]))
        series.append(Line(f"{label}, no DP", len(series), at, flat))
    svg = str(lines(series, title="Accuracy over ε", xlabel="log₂ ε", ylabel="test accuracy, %", x="number"))
    size = " ".join(f'{k}="{svg.split(k + chr(61) + chr(34))[1].split(chr(34))[0]}"' for k in ("width", "height"))
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><rect {size} fill="#fff"/>{svg}</svg>\n'


if __name__ == "__main__":
    sys.exit(main())
