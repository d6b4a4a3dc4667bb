"""The papers' tables: every method tuned over the same learning rates, FedECADO also over L and δ, then three seeds.

    python papers/tables/run.py fedecado-1 fedecado-2 --jobs 2
    python papers/tables/run.py --list
    timeout -s INT 480 python papers/tables/run.py gpu-fedecado-1    # FedECADO's Table 1 at its own size, on a GPU

A finished run is a line of results/; the same command goes on after Ctrl-C, a kill or a crash. Data sets are looked for
in $MEDLEY_DATA. `page.py` makes the tables.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import multiprocessing
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from filelock import FileLock, Timeout

import medley as md
from experiments import BEYOND, EXPERIMENTS, KNOBS, LRS, SEEDS, TUNING_SEED

sys.path.append(str(Path(__file__).parents[1]))
import packed
from packed import Line

HERE = Path(__file__).parent / "results"
TAIL = 3
EVERY = 5
"""A run's accuracy is the mean of its last three evaluations, one in five rounds; with tasks it is the last."""

Settings = dict[str, float]


def once(name: str, method: str, lr: float, settings: Settings, seed: int, on: str) -> Line:
    """One run, as a line of its file. An error of the method is a failed run."""
    e = EXPERIMENTS[name]
    began = time.process_time()
    wall = time.perf_counter()
    line: Line = {"kind": "tuning" if on == "validation" else "final", "lr": lr, "seed": seed}
    line |= {"settings": settings} if settings else {}
    fed = e.build()  # type: ignore[arg-type]
    set_ = dataclasses.replace(e.methods[method], **settings)
    more: dict[str, Any] = {}
    folder: Path | None = None
    if e.device != "cpu":
        folder = HERE / "cut" / re.sub(r"[^\w.]+", "-", f"{name} {method} {words(lr, settings)} {seed} {on}")
        more = {"device": e.device, "checkpoint_every": 5}
        more["resume" if folder.exists() else "checkpoint"] = folder
    try:
        result = md.run(
            md.Tuned(set_, lr),
            fed,
            e.rounds,
            seed=seed,
            evaluate_on=on,
            eval_every=e.rounds if e.tasks else min(EVERY, max(1, e.rounds // 4)),
            eval_rows=1000,
            transport=md.transports.InProcess(),
            throw=False,
            progress=False,
            **more,
        )
    except md.MedleyError as error:
        line |= {"status": "failed", "message": str(error)}
    else:
        score = result.summary["acc"] if e.tasks else fmean(row["accuracy"] for row in result.history[-TAIL:])
        line |= {
            "status": result.status.outcome,
            "score": score if math.isfinite(score) else None,
            "fgt": result.summary["fgt"] if e.tasks else None,
            "loss": result.history[-1]["loss"],
            "rounds": result.history[-1]["round"],
            "bytes_up": result.ledger.up,
            "bytes_down": result.ledger.down,
        }
    if folder and line["status"] != "interrupted":
        shutil.rmtree(folder, ignore_errors=True)
    return line | {"cpu": round(time.process_time() - began, 2), "wall": round(time.perf_counter() - wall, 2)}


def merit(line: Line) -> float:
    """The figure that tuning maximises; a run that diverged is behind all others."""
    return -1.0 if line["status"] != "finished" or line["score"] is None else float(line["score"])


def read(path: Path) -> list[Line]:
    """Finished runs, each once; a line that a killed process left unfinished is left out."""
    return list({(x["kind"], *point(x), x["seed"]): x for x in packed.read(path)}.values())


def point(line: Line) -> tuple[float, str]:
    """The part of a run that tuning chooses: the factor of the rate, and the settings that are not the defaults."""
    return line["lr"], json.dumps(line.get("settings", {}), sort_keys=True)


def fill(work: tuple[Path, str, str]) -> str:
    """Make the runs that a method lacks: tuning, then the seeds of the table."""
    out, name, method = work
    torch.set_num_threads(1)
    logging.getLogger("medley").setLevel(logging.ERROR)
    path = file_of(out, name, method)
    lines = read(path)
    count = 0

    def line(lr: float, settings: Settings, seed: int, on: str) -> Line:
        nonlocal count
        kind = "tuning" if on == "validation" else "final"
        usual = EXPERIMENTS[name].methods[method]
        settings = {k: v for k, v in settings.items() if v != getattr(usual, k)}
        key = kind, *point({"lr": lr, "settings": settings}), seed
        run = next((x for x in lines if (x["kind"], *point(x), x["seed"]) == key), None)
        if run is None:
            if os.getppid() == 1:
                raise KeyboardInterrupt
            run = once(name, method, lr, settings, seed, on)
            count = count + 1
            lines.append(run)
            packed.append(path, run)
        return run

    best = tuned(lambda lr: merit(line(lr, {}, TUNING_SEED, "validation")))
    settings: Settings = {}
    for knob, ladder in KNOBS.get(method, {}).items():
        tried = [settings, *(settings | {knob: v} for v in ladder)]  # of equal ones the first stays
        settings = max(tried, key=lambda s: merit(line(best, s, TUNING_SEED, "validation")))
    scores = [merit(line(best, settings, seed, "test")) for seed in SEEDS]
    return f"{name} {method}: lr × {words(best, settings)}, {fmean(scores):.4f}, {count} runs"


def words(lr: float, settings: Settings) -> str:
    """A factor and settings in words."""
    return ", ".join([f"{lr:g}", *(f"{k} {v:g}" for k, v in settings.items())])


def tuned(score: Any) -> float:
    """The best factor of LRS by ``score``, and beyond its ends for as long as that is better."""
    scores = {lr: score(lr) for lr in LRS}
    while True:
        best = max(scores, key=lambda lr: scores[lr])
        ladder = sorted({*LRS, *BEYOND})
        at = ladder.index(best)
        neighbours = [lr for lr in ladder[max(0, at - 1) : at + 2] if lr not in scores]
        if not neighbours:
            return best
        scores |= {lr: score(lr) for lr in neighbours}


def file_of(out: Path, name: str, method: str) -> Path:
    """The file of a method's runs."""
    return out / name / f"{method.replace(',', '').replace(' ', '_')}.jsonl"


def requested(experiments: Sequence[str], methods: str) -> list[tuple[str, str]]:
    """Names of experiments and methods. Raises ValueError where one is unknown."""
    groups = [[n for n in EXPERIMENTS if n == start or n.startswith(f"{start}-")] for start in experiments]
    names = list(dict.fromkeys(n for group in groups for n in group))
    only = methods.split(";") if methods else None
    available = {m for n in names for m in EXPERIMENTS[n].methods}
    unknown = [start for start, group in zip(experiments, groups, strict=True) if not group]
    unknown += [m for m in only or () if m not in available]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}; --list has the experiments, experiments.py the methods")
    return [(n, m) for n in names for m in EXPERIMENTS[n].methods if only is None or m in only]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", help="their names, or the beginnings of names")
    parser.add_argument("--methods", default="", help="separated by ;, default all")
    parser.add_argument("--jobs", type=int, default=1, help="processes; default 1")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--list", action="store_true", help="the experiments, and how many runs each has")
    args = parser.parse_args()
    if args.list or not args.experiments:
        for name, e in EXPERIMENTS.items():
            done = sum(len(read(file_of(args.out, name, m))) for m in e.methods)
            print(f"{name}: {e.title}. {len(e.methods)} methods, {done} runs so far")
        return 0 if args.list else 2
    try:
        work = [(args.out, *names) for names in requested(args.experiments, args.methods)]
    except ValueError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        with (
            FileLock(args.out / ".lock", timeout=0),
            multiprocessing.get_context("spawn").Pool(args.jobs, maxtasksperchild=4) as pool,
        ):
            for line in pool.imap_unordered(fill, work):
                print(line, flush=True)
    except Timeout:
        print(f"{args.out} is in use by another process", file=sys.stderr)
        return 2
    except md.MedleyError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped by Ctrl-C; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
