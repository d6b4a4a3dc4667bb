"""FedNorton's constants and terms: each made smaller, larger or switched off, on the same seeds as the method itself.

OMP_NUM_THREADS=1 python papers/league/constants.py run     # the same command goes on after an interruption
python papers/league/constants.py page    # the figures of docs/decisions/fednorton.md
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import ExitStack
from math import exp, inf, log
from typing import Any
from unittest.mock import patch

import numpy as np
from entrants import Entrant
from ranking import holm, paired
from registry import FEDERATIONS, Entry
from results import HERE, Line, append, read, used
from run import SEEDS, once
from scipy import stats

import medley as md
from medley.algorithms import fednorton
from medley.algorithms.fednorton import descent, late
from medley.devices import Devices
from medley.distributions import Integers, LogUniform
from medley.scenarios import Pace

OUT = HERE / "constants.jsonl"
LOST = 99.0
Q = md.problems.synthetic_quadratics(clients=12, d=5, seed=1)


def toy(text: str, lr: LogUniform, replies: int | None = None, **how: Any) -> None:
    """Enter twelve quadratics with exact gradients and 1 to 10 steps as a federation."""
    made = md.Federation(Q.problem, clients=Q.clients, pace=Pace(lr=lr, epochs=Integers(1, 10), batch=None), **how)
    FEDERATIONS[text] = Entry("constants", lambda: made, 60, text, "loss", replies=replies)


slow = Devices(speed=[60.0, 1000.0, 1000.0] * 4, down=1e6, up=1e6, latency=0.01)
toy("T in ratios to 100", LogUniform(0.01, 0.1), participation=0.4)
toy("lr h up to 3", LogUniform(0.003, 0.02))
toy("a third 16 times slower", LogUniform(0.02, 0.1), 3, devices=slow)


def edited(name: str, *pieces: tuple[str, str]) -> tuple[str, Any]:
    """The name of a method of FedNorton, and the method with pieces of its text replaced."""
    text = "from __future__ import annotations\nif 1:\n" + inspect.getsource(getattr(md.FedNorton, name))
    made = {}
    for old, new in pieces:
        assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
        text = text.replace(old, new)
    exec(text, vars(fednorton), made)
    return name, made[name]


SHARE = "share = sum(p[i] for i in visits)"
RATE = (SHARE, f"{SHARE}; rate = sum(p[i] / v.T for i, v in visits.items()) / share")
COUNT = "count = len(visits)"
TIMES = (COUNT, f"{COUNT}; mean = sum(clients.p[i] * v.T for i, v in visits.items()) / replies.share")
TERMS = {
    "ρ = 1": edited("round", ("s.late.lasting(clients.p, s.rho)", "(1.0, 1.0)")),
    "T = mean T_i": edited("round", TIMES, ("u, T=1 / rate,", "u, T=mean,")),
    "w_i = T_i": edited("refresh", RATE, ("v.T**0.5", "v.T * rate**0.5")),
    "w_i = T": edited("refresh", RATE, ("v.T**0.5", "rate**-0.5")),
    "no average": ("model", lambda self, s: s.x),
}
SYNC: dict[str, Any] = {"AHEAD": (0, 1, 4), "NESTEROV": (inf, 1.5, 6), "HALF": (0, 0.25, 1), "KEPT, star": (0, 0.75)}
SYNC |= dict.fromkeys(TERMS, (0,))
DESCENT = {"GROWTH": (inf, 0.625, 2.5), "SHORTER": (2, 8)}
LATE: dict[str, Any] = {"MARGIN": (0, 1, 4), "NEAR": (0, 0.5), "KEPT, branches": (0, 0.75)}
PLAN = [
    (("T in ratios to 100", "news-regression-channels", "breast-logistic-unequal"), 1.0, SYNC),
    (("digits-softmax-dirichlet",), 0.0, SYNC),
    (("a third 16 times slower", "clock-digits"), 1.0, LATE),
    (("lr h up to 3",), 3.0, DESCENT),
    (("T in ratios to 100",), 0.0, SYNC),
    (("breast-logistic-unequal",), 3.0, DESCENT),
    (("digits-softmax-dirichlet", "mnist-mlp-two-labels"), -1.0, SYNC),
    (("a third 16 times slower", "clock-digits"), 0.0, LATE),
    (("clock-fashion-hospitals", "clock-mnist-phones"), 1.0, LATE),
]
"""Federations, learning rate in half decades of the federation's own, and what is changed there."""


def one(name: str, k: float, seed: int, label: str, value: float) -> Line:
    """A run with one change, or with none where the label is empty."""
    attribute, _, of = label.partition(", ")
    where = {"star": (fednorton,), "branches": (late,)}.get(of, (fednorton, late, descent))
    given: Any = (value, value) if attribute == "GROWTH" else value  # of exact gradients, and of drawn ones
    targets = [(m, attribute, given) for m in where if hasattr(m, attribute)]
    with ExitStack() as changed:
        for target in [(md.FedNorton, *TERMS[label])] if label in TERMS else targets:
            changed.enter_context(patch.object(*target))
        entrant = Entrant(md.FedNorton(), asynchronous=FEDERATIONS[name].replies is not None)
        line = once(name, entrant, (k, 0), seed, "test")
    return {"key": [name, k, seed, label, str(value)]} | {c: line.get(c) for c in ("status", "score", "cpu")}


def run() -> None:
    """Make the runs that the file lacks, a line each."""
    os.nice(10)
    done = {tuple(x["key"]) for x in read(OUT)}
    cells = [(name, k, seed, group) for names, k, group in PLAN for seed in SEEDS for name in names]
    with used(OUT.parent):
        for key in [(*cell, x, v) for *cell, group in cells for x, vs in ({"": (0,)} | group).items() for v in vs]:
            if (*key[:4], str(key[4])) not in done:
                append(OUT, one(*key))


def error(line: Line) -> float:
    """The logarithm of a run's error, or of its seconds to the target; `LOST` if it diverged or did not arrive."""
    of = FEDERATIONS[line["key"][0]]
    score = line["score"]
    if line["status"] != ("finished" if of.target is None else "target") or score is None:
        return LOST
    plain = 1 - score if of.target is None and of.metric == "accuracy" else score
    return log(plain if of.metric != "loss" else max(score - Q.f_star, 1e-12))


def row(runs: dict[Any, float], label: str, value: str) -> tuple[str, float]:
    """Of a change: error ratios, geometric means by federation and rate, median and range; lost runs with it and
    without; federations and rates that are worse and better beyond chance, as in the league; Wilcoxon's p of all pairs.
    """
    cells: dict[Any, list[tuple[float, float]]] = {}
    for k in [k for k in runs if k[3:] == (label, value)]:
        cells.setdefault(k[:2], []).append((runs[k], runs[(*k[:3], "", "0")]))
    pairs = [pair for cell in cells.values() for pair in cell]
    fine = {k: [a - b for a, b in cell if max(a, b) < LOST] for k, cell in cells.items()}
    by = [np.mean(v) for v in fine.values() if v] or [np.nan]
    lost = ", ".join(str(sum(pair[i] == LOST for pair in pairs)) for i in (0, 1))
    sides = [[[-v if v < LOST else -inf for v in side] for side in zip(*cell, strict=True)] for cell in cells.values()]
    tests = [paired(*side) for side in sides if len(side[0]) > 1]
    beyond = [d for (d, _), p in zip(tests, holm([p for _, p in tests]), strict=True) if p < 0.05]
    text = f"{exp(np.median(by)):.2f} | {exp(min(by)):.2f} to {exp(max(by)):.2f} | {lost} of {len(pairs)}"
    text += f" | {sum(d < 0 for d in beyond)}, {sum(d > 0 for d in beyond)} of {len(tests)}"
    return text, float(stats.wilcoxon(d).pvalue) if any(d := [a - b for a, b in pairs]) else 1.0


def page() -> None:
    """Print the table; p is corrected by Holm within rounds that wait, descents, and late replies."""
    runs = {tuple(x["key"]): error(x) for x in read(OUT)}
    print("| changed | to | error | by federation and rate | lost, before | worse, better | p |\n" + "|---" * 7 + "|")
    for group in (SYNC, DESCENT, LATE):
        keys = [(label, str(v)) for label, values in group.items() for v in values]
        cells = [row(runs, *key) for key in keys]
        for (a, b), (text, _), p in zip(keys, cells, holm([p for _, p in cells]), strict=True):
            print(f"| {a} | {b} | {text} | {'< .001' if p < 0.001 else f'{p:.3f}'} |")


if __name__ == "__main__":
    page() if sys.argv[1:] == ["page"] else run()
