"""FedNorton with constants taken out together, beside the law as it is, on the same seeds.

OMP_NUM_THREADS=1 python papers/league/fewer.py run    # the same command goes on after an interruption
python papers/league/fewer.py page    # the figures of docs/decisions/fednorton.md
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from math import exp, inf
from typing import Any
from unittest.mock import patch

import constants
import numpy as np
from constants import LOST, descent, error
from entrants import Entrant
from ranking import holm, paired
from registry import FEDERATIONS, entry, federation, network
from results import HERE, Line, append, read, used
from run import SEEDS, once

import medley as md
from medley.algorithms import fednorton
from medley.partitions import Labels
from medley.scenarios import Pace

OUT = HERE.parent / "fewer.jsonl"


@entry("constants", 40, "digits, MLP, 24 clients with 2 labels each, a third takes part, momentum .9")
def digits_mlp_momentum() -> md.Federation:
    pace = Pace(lr=0.02, epochs=2, batch=16, momentum=0.9)
    model = network(md.models.mlp(64, 10, (16,)))
    return federation(model, md.datasets.digits(), Labels(24, 2), pace, participation=1 / 3)


@entry("constants", 40, "digits, MLP, 24 clients with 2 labels each, all take part")
def digits_mlp_everyone() -> md.Federation:
    model = network(md.models.mlp(64, 10, (16,)))
    return federation(model, md.datasets.digits(), Labels(24, 2), Pace(lr=0.1, epochs=2, batch=16))


LAWS: dict[str, list[tuple[Any, str, Any]]] = {
    "today": [],
    "seven": [(descent, "GROWTH", (1.0, 1.0))],
    "six": [(descent, "GROWTH", (1.0, 1.0)), (fednorton, "HALF", 1.0)],
}
"""The law, and with constants taken out that have a natural limit.

Seven: a descent is repeated if it grows at all. Six: also β is at most the share of S that lasts, as ρ is the share of
flows that lasts.
"""

PLAN = (
    ("T in ratios to 100", 0.0),
    ("a third 16 times slower", 0.0),
    ("lr h up to 3", 3.0),
    ("breast-logistic-unequal", 3.0),
    ("news-regression-channels", 0.0),
    ("digits-mlp-momentum", 0.0),
    ("clock-digits", 0.0),
    ("digits-mlp-everyone", 0.0),
    ("digits-softmax-dirichlet", 0.0),
    ("breast-logistic-unequal", 0.0),
    ("synthetic-softmax", 0.0),
)
"""Federations, and the learning rate in half decades of the federation's own."""


def one(name: str, k: float, seed: int, law: str) -> Line:
    """A run under a law."""
    with ExitStack() as changed:
        for target in LAWS[law]:
            changed.enter_context(patch.object(*target))
        entrant = Entrant(md.FedNorton(), asynchronous=FEDERATIONS[name].replies is not None)
        line = once(name, entrant, (k, 0), seed, "test")
    return {"key": [name, k, seed, law]} | {c: line.get(c) for c in ("status", "score", "cpu")}


def run() -> None:
    """Make the runs that the file lacks, a line each."""
    os.nice(19)
    done = {tuple(x["key"]) for x in read(OUT)}
    with used(HERE):
        for name, k in PLAN:
            for seed in SEEDS:
                for law in LAWS:
                    if (name, k, seed, law) not in done:
                        append(OUT, one(name, k, seed, law))


def page() -> None:
    """Print, of each law and federation, the error over today's: geometric mean, lost runs, and p by Holm."""
    runs = {tuple(x["key"]): error(x) for x in read(OUT)}
    print("| federation, half decades of its lr | law | error | lost, today's | p |\n" + "|---" * 5 + "|")
    for law in [x for x in LAWS if x != "today"]:
        rows = []
        for name, k in PLAN:
            keys = [(name, k, s) for s in SEEDS if (name, k, s, law) in runs and (name, k, s, "today") in runs]
            if len(keys) < len(SEEDS):
                continue
            new, old = ([runs[*key, which] for key in keys] for which in (law, "today"))
            both = [a - b for a, b in zip(new, old, strict=True) if max(a, b) < LOST]
            _, p = paired(*([-v if v < LOST else -inf for v in side] for side in (new, old)))
            lost = tuple(sum(v == LOST for v in side) for side in (new, old))
            rows.append((f"{name}, {k:g}", float(np.mean(both)) if both else 0.0, lost, p))
        for (text, mean, lost, _), p in zip(rows, holm([r[3] for r in rows]), strict=True):
            print(f"| {text} | {law} | {exp(mean):.3f} | {lost[0]}, {lost[1]} | {p:.2f} |")
        if rows:
            print(f"| geometric mean of {len(rows)} | {law} | {exp(np.mean([r[1] for r in rows])):.4f} | | |")


if __name__ == "__main__":
    assert constants.Q  # its federations are entered
    page() if sys.argv[1:] == ["page"] else run()
