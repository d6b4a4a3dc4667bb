"""Figures 2 to 5 and 7 and Table 8: over tasks, heterogeneity, clients and memory, and Γ(t).

    python papers/cflag/sweeps.py --jobs 2

after run.py, whose chosen points and whose runs it takes; a finished run is a line of OUT/sweeps.jsonl and not made
again. Writes OUT/sweeps.md and OUT/sweeps.svg.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

import lines
import numpy as np
import run
import settings

import medley as md
from medley.report import figures
from medley.storage import atomic as files

TABLE = "ci_dir"
GAMMA = "CFLAG as published, average"
USUAL = {"alpha": 0.1, "clients": 5, "sample": settings.CAPACITY // 2, "capacity": settings.CAPACITY}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=lines.HERE, help=f"default {lines.HERE}")
    parser.add_argument("--jobs", type=int, default=1, help="processes; default 1")
    parser.add_argument("--nice", type=int, default=19, help="added to the priority; default 19, the lowest")
    args = parser.parse_args()
    lines.nicely(lambda: work(args.out, args.jobs), args.nice)


def work(out: Path, jobs: int) -> None:
    """Make the runs that are missing, and the table and the figures of all."""
    lines.fill(out / "sweeps.jsonl", [key for keys in missing(out).values() for key in keys], run.make, jobs)
    text = ["| | | method | Acc | Fgt | Learn | seeds |", "|---|---|---|---|---|---|---|"]
    panels = [over_tasks(out, "ci_iid"), over_tasks(out, TABLE)]
    for aspect, values in settings.SWEEPS.items():
        by_method = {name: [runs_at(out, aspect, value, name) for value in values] for name in settings.SWEPT}
        for name, at in by_method.items():
            for value, runs in zip(values, at, strict=True):
                cells = " | ".join(
                    run.mean_and_deviation([100 * r["figures"][k] for r in runs]) for k in ("acc", "fgt", "learn")
                )
                text.append(f"| {aspect} | {value:g} | {name} | {cells} | {len(runs)} |")
        for key, label in (("acc", "accuracy"), ("fgt", "forgetting")):
            series = [
                curve(slot, name, range(len(values)), at, key) for slot, (name, at) in enumerate(by_method.items())
            ]
            title = f"{aspect}: {', '.join(f'{v:g}' for v in values)}"
            panels.append(
                figures.lines(series, title=f"{label} over {aspect}", xlabel=title, ylabel=label, y="percent")
            )
    gammas = [(alpha, runs_at(out, "alpha", alpha, GAMMA)) for alpha in settings.SWEEPS["alpha"]]
    series = [
        figures.Line(f"alpha {alpha:g}", slot, *(np.array(v, float) for v in zip(*runs[0]["gamma"], strict=True)))
        for slot, (alpha, runs) in enumerate(gammas)
        if runs
    ]
    panels.append(figures.lines(series, title="Γ(t)", ylabel=f"Γ(t) of {GAMMA}"))
    for name, content in (("sweeps.md", "\n".join([*text, ""])), ("sweeps.svg", tiled(panels))):
        with files.replacing(out / name) as tmp:
            tmp.write_text(content, encoding="utf-8")


def missing(out: Path) -> dict[tuple[str, Any, str], list[lines.Line]]:
    """By aspect, value and method: the runs with one thing changed, at the point that was chosen without."""
    keys = {}
    for aspect, values in settings.SWEEPS.items():
        for name in (*settings.SWEPT, *([GAMMA] if aspect == "alpha" else [])):
            usual = run.finals(out, TABLE, name)
            if not usual:
                raise SystemExit(
                    f"papers/cflag/sweeps.py: {out} has no runs of {name!r} in {TABLE}; start run.py first"
                )
            seeds = settings.SWEEP_SEEDS if name != GAMMA else (0,)
            for value in values:
                at = run.keys_of("final", TABLE, name, [usual[0]["point"]], seeds) if value != USUAL[aspect] else []
                keys[aspect, value, name] = [key | {"changed": [[aspect, value]]} for key in at]
    return keys


def runs_at(out: Path, aspect: str, value: Any, name: str) -> list[lines.Line]:
    """The finished runs of a method at this value; at the usual one, those of the table."""
    if value == USUAL[aspect]:
        runs = [x for x in run.finals(out, TABLE, name) if x["seed"] in settings.SWEEP_SEEDS]
    else:
        keys = missing(out)[aspect, value, name]
        stored = lines.read(out / "sweeps.jsonl")
        runs = [line for key in keys if (line := lines.find(stored, key)) is not None]
    return [x for x in runs if x["status"] == "finished"]


def curve(slot: int, name: str, x: range, at: list[list[Any]], key: str) -> figures.Line:
    """A figure's mean over seeds, and the lowest and the highest."""
    y = [[r["figures"][key] for r in runs] for runs in at]
    low, mean, high = (np.array([of(v) for v in y], float) for of in (min, fmean, max))
    return figures.Line(name, slot, np.array(x, float), mean, low, high)


def over_tasks(out: Path, table: str) -> md.report.figures.Markup:
    """Figure 2: after every task, the mean accuracy of the tasks seen."""
    series = []
    for name in ("CFLAG.joint", "ERring", "NCCL", "LwF", "AGEM", "FineTune"):
        runs = run.finals(out, table, name)
        matrices = [np.array(r["figures"]["matrix"]) for r in runs if r["status"] == "finished"]
        if matrices:
            accuracies = np.array([[row[: s + 1].mean() for s, row in enumerate(m)] for m in matrices])
            tasks = np.arange(1.0, accuracies.shape[1] + 1)
            series.append(
                figures.Line(name, len(series), tasks, accuracies.mean(0), accuracies.min(0), accuracies.max(0))
            )
    return figures.lines(series, title=f"{table}: accuracy over tasks", xlabel="task", ylabel=table, y="percent")


def tiled(panels: list[figures.Markup], columns: int = 3, wide: int = 380) -> str:
    """The panels side by side, rows as tall as their tallest."""
    high = max(int(p.split('height="')[1].split('"')[0]) for p in panels)
    size = f'width="{columns * wide}" height="{high * -(-len(panels) // columns)}"'
    body = "".join(
        f'<g transform="translate({k % columns * wide},{k // columns * high})">{p}</g>' for k, p in enumerate(panels)
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><rect {size} fill="#fff"/>{body}</svg>\n'


if __name__ == "__main__":
    main()
