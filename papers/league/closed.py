"""The league's federations by Fed3R in one exchange, and by SGD on all rows in one place: a table beside the league.

    export MEDLEY_DATA=...
    python papers/league/closed.py run     # a line of closed.jsonl for each run; the same command goes on
    python papers/league/closed.py page    # the table

**Fed3R** has at most eight tuning runs on a federation, judged on the league's validation rows as the league's methods
are: the federation's own model as it is drawn (the columns of a linear model, the body of a network), 500 random
Fourier features of five scales, and a thousand of the best scale. **The central run** is the federation's model trained
on all rows by one client that does an epoch in a round, for as many rounds as the federation has; it is tuned over its
learning rate by the league's search. Both then have the league's five fresh seeds, on test rows. Fed3R fits squares, so
that federations which are compared by log-loss have its accuracy, and the central run's, instead.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from entrants import Entrant, search
from federations import FEDERATIONS, Entry
from page import gathered
from results import HERE, Line, append, read, used
from run import SEEDS, TAIL, TUNING_SEED

import medley as md

OUT = Path(__file__).with_suffix(".jsonl")
SCALES = (0.3, 0.6, 1.0, 2.0, 4.0)
WIDTH = 500
LAST = ("tweets-lstm-days", "tweets-logistic-days")
"""Federations whose central runs take minutes each."""


def names() -> list[str]:
    """The federations of the groups that count rounds; the slowest at the end."""
    chosen = [n for n, e in FEDERATIONS.items() if e.group in ("development", "networks", "test")]
    return sorted(chosen, key=lambda n: n in LAST)


def figure_of(fed: md.Federation, entry: Entry) -> str:
    """What both are compared by: accuracy if there are classes, else the federation's own figure."""
    return "accuracy" if fed.data.classes else entry.metric


def with_features(fed: md.Federation, features: str) -> tuple[md.Federation, float]:
    """The federation with these features, and the factor from its test loss to that of the federation's own loss."""
    if features == "own":
        everybody = md.Federation(fed.problem, data=fed.data, partition=fed.partition, validation=fed.validation)
        return everybody, 1.0
    width, scale = features.split(" of scale ")
    data = fed.data.flatten()
    model = md.models.fourier(data.X.shape[1], data.classes or 1, width=int(width), scale=float(scale))
    problem = md.problems.Network(model, loss="cross_entropy" if data.classes else "mse")
    if not data.classes:
        names = ("y", "y_test", "y_validation")
        columns = {n: getattr(data, n)[:, None] for n in names if getattr(data, n) is not None}
        data = replace(data, **columns)
    changed = md.Federation(problem, data=data, partition=fed.partition, validation=fed.validation)
    return changed, 0.5 if isinstance(fed.problem, md.problems.LeastSquares) else 1.0


def fed3r(name: str, features: str, seed: int, on: Any) -> Line:
    """A run of one exchange."""
    entry = FEDERATIONS[name]
    own = entry.build()
    fed, factor = with_features(own, features)
    result = md.run(md.Fed3R(), fed, 1, seed=seed, evaluate_on=on, progress=False)
    figure = figure_of(own, entry)
    score = result.history[-1][figure] * (1.0 if figure == "accuracy" else factor)
    return {"score": score, "up": result.ledger.up, "down": result.ledger.down}


def central(name: str, k: float, seed: int, on: Any) -> Line:
    """A run on all rows in one place, at a learning rate in half decades of the federation's own."""
    entry = FEDERATIONS[name]
    fed = entry.build()
    lr: Any = fed.pace.lr
    middle = lr if isinstance(lr, float) else math.sqrt(lr.low * lr.high)
    alone = md.Federation(
        fed.problem,
        data=fed.data,
        partition=md.partitions.IID(1),
        validation=fed.validation,
        pace=md.scenarios.Pace(lr=middle * 10 ** (k / 2), batch=fed.pace.batch),
    )
    every = max(1, entry.rounds // 20)
    result = md.run(
        md.FedAvg(), alone, entry.rounds, seed=seed, evaluate_on=on, eval_every=every, throw=False, progress=False
    )
    rows = [row[figure_of(fed, entry)] for row in result.history]
    score = fmean(rows[-TAIL:]) if result.status.outcome == "finished" else math.nan
    return {"score": score if math.isfinite(score) else None}


def fill(name: str, lines: list[Line]) -> None:
    """Make the runs that a federation lacks."""
    entry = FEDERATIONS[name]
    fed = entry.build()
    sign = 1 if figure_of(fed, entry) == "accuracy" else -1

    def line(kind: str, setting: Any, seed: int, on: str, how: Callable[..., Line]) -> Line:
        key = {"federation": name, "kind": kind, "setting": setting, "seed": seed, "on": on}
        done = next((x for x in lines if key.items() <= x.items()), None)
        if done is None:
            done = key | how(name, setting, seed, on)
            lines.append(done)
            append(OUT, done)
        return done

    def merit(x: Line) -> float:
        return -math.inf if x["score"] is None else sign * x["score"]

    if fed.problem.__class__ is not md.problems.Network or fed.problem.loss is not md.problems.cox:
        choices = [] if name == "years-mlp-natural" else ["own"]  # its outputs are flattened: no linear layer
        if fed.data.X.is_floating_point():
            choices += [f"{WIDTH} of scale {s}" for s in SCALES]
        tried = {c: merit(line("Fed3R", c, TUNING_SEED, "validation", fed3r)) for c in choices}
        if fed.data.X.is_floating_point():
            best_scale = max(choices[-len(SCALES) :], key=lambda c: tried[c]).partition(" of scale ")[2]
            wide = f"{2 * WIDTH} of scale {best_scale}"
            tried[wide] = merit(line("Fed3R", wide, TUNING_SEED, "validation", fed3r))
        best = max(tried, key=lambda c: tried[c])
        for seed in SEEDS:
            line("Fed3R", best, seed, "test", fed3r)
    judge = lambda point: (merit(line("central", point[0], TUNING_SEED, "validation", central)),)
    k, _ = search(Entrant(md.FedAvg()), judge)
    for seed in SEEDS:
        line("central", k, seed, "test", central)


def shown(values: list[float | None], accuracy: bool) -> str:
    """The mean of five seeds."""
    fine = [v for v in values if v is not None]
    if len(values) < len(SEEDS):
        return "not run"
    if len(fine) < len(values):
        return f"{len(fine)} of {len(values)} seeds"
    return f"{fmean(fine):.3f}" if accuracy else f"{fmean(fine):.4f}"


def page() -> str:
    """The table: accuracies, or test losses where there are no classes. The last columns are of the league's runs."""
    lines = read(OUT)
    groups = {g: gathered(HERE, g).finals for g in ("development", "networks", "test")}
    heads = (
        "federation",
        "figure",
        "Fed3R",
        "its features",
        "central run",
        "FedNorton",
        "FedAvg",
        "the best of the rest",
    )
    table = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in [n for g in groups for n in names() if FEDERATIONS[n].group == g]:
        entry = FEDERATIONS[name]
        fed = entry.build()
        accuracy = figure_of(fed, entry) == "accuracy"
        mine = [x for x in lines if x["federation"] == name and x["on"] == "test"]
        closed = [x for x in mine if x["kind"] == "Fed3R"]
        scores = {k: [x["score"] for x in mine if x["kind"] == k] for k in ("Fed3R", "central")}
        league = groups[entry.group].get(name, {}) if accuracy == (entry.metric == "accuracy") else {}
        means = {m: abs(fmean(v)) for m, v in league.items() if all(map(math.isfinite, v))}
        rest = {m: v for m, v in means.items() if m not in ("FedNorton", "FedAvg")}
        best = (max if accuracy else min)(rest, key=lambda m: rest[m]) if rest else ""
        digits = 3 if accuracy else 4
        cells = [
            name,
            "accuracy" if accuracy else "test loss",
            shown(scores["Fed3R"], accuracy) if closed else "no linear layer to fit",
            closed[0]["setting"] if closed else "",
            shown(scores["central"], accuracy),
            *(f"{means[m]:.{digits}f}" if m in means else "" for m in ("FedNorton", "FedAvg")),
            f"{best} {rest[best]:.{digits}f}" if best else "",
        ]
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table)


def main() -> None:
    """Make what is lacking, or print the table."""
    torch.set_num_threads(1)
    logging.getLogger("medley").setLevel(logging.ERROR)
    if sys.argv[1:] == ["page"]:
        print(page())
        return
    lines = read(OUT)
    with used(OUT.parent):
        for name in names():
            fill(name, lines)
            print(f"{name}: done", flush=True)


if __name__ == "__main__":
    main()
