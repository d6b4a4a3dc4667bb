"""FedNorton's constants and terms: each made smaller, larger or switched off, on the same seeds as the method itself.

python papers/league/constants.py run     # 15 minutes of CPU time; the same command goes on after an interruption
python papers/league/constants.py page    # the figures of docs/decisions/fednorton.md
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
import textwrap
from contextlib import ExitStack
from math import exp, inf, log
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from entrants import Entrant
from ranking import holm
from registry import FEDERATIONS, Entry
from results import HERE, Line, read
from run import SEEDS, once
from scipy import stats

import medley as md
from medley.algorithms import fednorton
from medley.algorithms.fednorton import descent, late
from medley.scenarios import Devices, Integers, LogUniform, Pace

OUT, LOST = HERE / "constants.jsonl", 99.0
Q = md.problems.quadratics(clients=12, d=5, seed=1)


def toy(text: str, lr: LogUniform, replies: int | None = None, **how: Any) -> None:
    """Enter twelve quadratics with exact gradients and 1 to 10 steps as a federation."""
    made = md.Federation(Q.problem, clients=Q.clients, pace=Pace(lr=lr, epochs=Integers(1, 10), batch=None), **how)
    FEDERATIONS[text] = Entry("constants", lambda: made, 60, text, "loss", replies=replies)


SLOW = Devices(speed=[60.0 if i % 3 == 0 else 1000.0 for i in range(12)], down=1e6, up=1e6, latency=0.01)
toy("T in ratios to 100", LogUniform(0.01, 0.1), participation=0.4)
toy("lr h up to 3", LogUniform(0.003, 0.02))
toy("a third 16 times slower", LogUniform(0.02, 0.1), 3, devices=SLOW)


def edited(name: str, old: str, new: str) -> tuple[str, Any]:
    """The name of a method of FedNorton, and the method with a piece of its text replaced."""
    text, made = textwrap.dedent(inspect.getsource(getattr(md.FedNorton, name))), dict[str, Any]()
    assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
    exec("from __future__ import annotations\n" + text.replace(old, new), vars(fednorton), made)
    return name, made[name]


RATE = "sum(p[j] / float(w.T) for j, (*_, w) in got.items()) / share"
TIMES = "sum(clients.p[i] * float(w.T) for i, w in got.items()) / replies.share"
TERMS = {
    "ρ = 1": edited("round", "s.late.lasting(clients.p, s.rho)", "(1.0, 1.0)"),
    "T = mean T_i": edited("round", "u, 1 / rate,", f"u, {TIMES},"),
    "w_i = T_i": edited("refresh", "T**0.5", f"T * ({RATE}) ** 0.5"),
    "w_i = T": edited("refresh", "T**0.5", f"({RATE}) ** -0.5"),
    "no average": ("model", lambda self, s: s.x),
}
"""By label: the method of FedNorton that is replaced."""

Values = dict[str, tuple[float, ...]]
SYNC: Values = {"AHEAD": (0, 1, 4), "NESTEROV": (inf, 1.5, 6), "HALF": (0, 0.25, 1), "KEPT, star": (0, 0.75)}
SYNC |= dict.fromkeys(TERMS, (0,))
DESCENT: Values = {"GROWTH": (inf, 0.625, 2.5), "LESS": (0.95, 3.8), "SHORTER": (2, 8), "ATTEMPTS": (3, 12)}
LATE: Values = {"DECAY": (0.8, 0.95), "FORGET": (0.005, 0.02), "MARGIN": (0, 1, 4), "NEAR": (0, 0.5)}
LATE |= {"GAPS": (1, inf), "KEPT, branches": (0, 0.75)}
PLAN = [
    (("T in ratios to 100", "news-regression-channels", "breast-logistic-unequal"), 1.0, SYNC),
    (("digits-softmax-dirichlet",), 0.0, SYNC),
    (("a third 16 times slower", "clock-digits"), 1.0, LATE),
    (("lr h up to 3",), 3.0, DESCENT),
    (("T in ratios to 100",), 0.0, SYNC),
    (("breast-logistic-unequal",), 3.0, DESCENT),
    (("digits-softmax-dirichlet",), -1.0, SYNC),
    (("mnist-mlp-two-labels",), -1.0, SYNC),
    (("a third 16 times slower", "clock-digits"), 0.0, LATE),
    (("clock-fashion-hospitals", "clock-mnist-phones"), 1.0, LATE),
    (("synthetic-softmax", "mnist-mlp-two-labels"), 0.0, SYNC),
    (("years-mlp-natural",), 1.0, DESCENT),
]
"""Federations, learning rate in half decades of the federation's own, and what is changed there."""


def one(name: str, k: float, seed: int, label: str, value: float) -> Line:
    """A run with one change, or with none where the label is empty."""
    attribute, _, of = label.partition(", ")
    where = {"star": (fednorton,), "branches": (late,)}.get(of, (fednorton, late, descent))
    targets = [(m, attribute, value) for m in where if hasattr(m, attribute)]
    with ExitStack() as changed:
        for target in [(md.FedNorton, *TERMS[label])] if label in TERMS else targets:
            changed.enter_context(patch.object(*target))
        entrant = Entrant(md.FedNorton(), asynchronous=FEDERATIONS[name].replies is not None)
        line = once(name, entrant, (k, 0), seed, "test")
    return {"key": [name, k, seed, label, str(value)]} | {c: line.get(c) for c in ("status", "score", "cpu")}


def run() -> None:
    """Make the runs that the file lacks, a line each."""
    os.nice(10)
    torch.set_num_threads(1)
    logging.getLogger("medley").setLevel(logging.ERROR)
    done = {tuple(x["key"]) for x in read(OUT)}
    cells = [(name, k, seed, group) for names, k, group in PLAN for seed in SEEDS for name in names]
    for key in [(*cell, x, v) for *cell, group in cells for x, vs in ({"": (0,)} | group).items() for v in vs]:
        if (*key[:4], str(key[4])) not in done:
            with OUT.open("a", encoding="utf-8") as f:
                f.write(json.dumps(one(*key)) + "\n")


def error(line: Line) -> float:
    """The logarithm of a run's error, or of its seconds to the target; `LOST` if it diverged or did not arrive."""
    of, score = FEDERATIONS[line["key"][0]], line["score"]
    if line["status"] != ("finished" if of.target is None else "target") or score is None:
        return LOST
    plain = 1 - score if of.target is None and of.metric == "accuracy" else score
    return log(plain if of.metric != "loss" else max(score - Q.f_star, 1e-12))


def row(runs: dict[Any, float], label: str, value: str) -> tuple[str, float]:
    """The geometric mean of a change's error ratios, their range over federations, lost runs; and Wilcoxon's p."""
    pairs = {k[:3]: (e, runs[(*k[:3], "", "0")]) for k, e in runs.items() if k[3:] == (label, value)}
    names = dict.fromkeys(k[0] for k in pairs)
    of = {n: [a - b for k, (a, b) in pairs.items() if k[0] == n and max(a, b) < LOST] for n in names}
    by = [float(np.mean(v)) for v in of.values() if v] or [np.nan]
    d = [a - b for a, b in pairs.values()]
    lost, before = (sum(v[i] == LOST for v in pairs.values()) for i in (0, 1))
    text = f"{exp(np.mean(by)):.3f} | {exp(min(by)):.2f} to {exp(max(by)):.2f} | {lost}, {before} of {len(pairs)}"
    return text, float(stats.wilcoxon(d).pvalue) if any(d) else 1.0


def page() -> str:
    """The table; p is corrected by Holm within rounds that wait, descents, and late replies."""
    runs, lines = {tuple(x["key"]): error(x) for x in read(OUT)}, []
    for group in (SYNC, DESCENT, LATE):
        keys = [(label, str(v)) for label, values in group.items() for v in values]
        found = [row(runs, *key) for key in keys]
        for (a, b), (text, _), p in zip(keys, found, holm([p for _, p in found]), strict=True):
            lines.append(f"| {a} | {b} | {text} | {'< .001' if p < 0.001 else f'{p:.3f}'} |")
    head = ["| changed | to | error | by federation | lost, and before | p |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *lines])


if __name__ == "__main__":
    print(page()) if sys.argv[1:] == ["page"] else run()
