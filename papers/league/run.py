"""The league: every method on every federation, tuned with one budget, then five fresh seeds.

    python papers/league/run.py development --jobs 2
    python papers/league/run.py test --jobs 2
    python papers/league/run.py clock --jobs 2
    python papers/league/run.py development --methods FedNova --set lr_aware=True --label "FedNova lr_aware"

A finished run is written at once; the same command goes on after Ctrl-C, a kill or a crash, and several commands may
work on one folder. Data sets are looked for in $MEDLEY_DATA. `page.py` makes the page.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import logging
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from entrants import ENTRANTS, Entrant, Point, at_edge, grid, search
from federations import FEDERATIONS, Entry
from results import HERE, Cell, Line, file_of, locked, read, used

import medley as md
from medley.storage.identity import PREFIX

TUNING_SEED = 1000
SEEDS = (0, 1, 2, 3, 4)
TAIL = 5
"""A run's score is the mean of its last evaluations, so many of them; there are 20 or more in a run."""


@lru_cache(1)
def federation(name: str) -> md.Federation:
    return FEDERATIONS[name].build()


def identity(name: str, entrant: Entrant) -> str:
    """A digest of all that decides a method's runs on a federation, but for the library's code and defaults."""
    entry = FEDERATIONS[name]
    method = entrant.method
    usual = {f.name: f.default for f in dataclasses.fields(method)}
    parts = [
        federation(name).identity()[f"{PREFIX}data"],
        inspect.getsource(entry.build),
        [rounds_of(name, entrant), entry.metric, entry.target, entry.replies],
        [method.name, sorted((k, repr(v)) for k, v in method.settings().items() if v != usual.get(k))],
        [entrant.knob, tuple(entrant.ladder), entrant.start, entrant.asynchronous],
    ]
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def rounds_of(name: str, entrant: Entrant) -> int:
    """The rounds of a run. An asynchronous one has as many replies as the others: its rounds are shorter, and more."""
    entry = FEDERATIONS[name]
    if not entrant.asynchronous or entry.replies is None:
        return entry.rounds
    return entry.rounds * len(federation(name).draw(TUNING_SEED).tasks[0].sizes) // entry.replies


def once(name: str, entrant: Entrant, point: Point, seed: int, on: str) -> Line:
    """One run, as a line of its file. An error of the method is a failed run."""
    entry = FEDERATIONS[name]
    began = time.process_time()
    wall = time.perf_counter()
    clock = entry.target is not None
    policy = md.ReplyPolicy(replies=entry.replies) if entrant.asynchronous else None
    line: Line = {"kind": "tuning" if on == "validation" else "final", "seed": seed, "point": list(point)}
    line["settings"] = {
        "lr": 10 ** (point[0] / 2),
        **({entrant.knob: entrant.value(point[1])} if entrant.knob else {}),
    }
    try:
        result = md.run(
            entrant.at(point),
            federation(name),
            rounds_of(name, entrant),
            seed=seed,
            evaluate_on=on,
            eval_every=1 if clock else max(1, entry.rounds // 20),
            target={"accuracy": entry.target} if clock else None,
            reply_policy=policy,
            throw=False,
            progress=False,
        )
    except md.MedleyError as error:
        line |= {"status": "failed", "message": str(error)}
    else:
        line |= {"status": result.status.outcome, "message": result.status.message} | measured(entry, result)
    return line | {"cpu": round(time.process_time() - began, 3), "wall": round(time.perf_counter() - wall, 3)}


def measured(entry: Entry, result: md.Result) -> Line:
    """A run's score, its start, and its cost."""
    rows = [row[entry.metric] for row in result.history]
    last = result.history[-1]
    score = last["seconds"] if entry.target is not None else fmean(rows[-TAIL:])
    return {
        "score": score if math.isfinite(score) else None,
        "start": rows[0],
        "end": rows[-1],
        "loss": last["loss"],
        "rounds": last["round"],
        "seconds": last["seconds"],
        "bytes_up": last["bytes_up"],
        "bytes_down": last["bytes_down"],
    }


def merit(entry: Entry, line: Line) -> tuple[float, ...]:
    """The order of runs, a larger one better. A run that diverged is behind all that did not.

    Of the clock groups: the sooner at the target the better; of those that do not reach it, the more accurate.
    """
    if line["status"] not in ("finished", "target") or line.get("score") is None:
        return (-1.0, 0.0)
    if entry.target is not None:
        return (1.0, -line["score"]) if line["status"] == "target" else (0.0, line["end"])
    return (0.0, line["score"] if entry.metric == "accuracy" else -line["score"])


def fill(name: str, entrant: Entrant, cell: Cell, digest: str, full_grid: bool = False) -> None:
    """Make the runs that a cell lacks: tuning by a search or a ``full_grid``, then fresh seeds at the best point."""
    entry = FEDERATIONS[name]

    def line(point: Point, seed: int, on: str) -> Line:
        kind = "tuning" if on == "validation" else "final"
        run = cell.find(kind=kind, point=list(point), seed=seed)
        if run is None:
            if os.getppid() == 1 and ORPHAN:
                raise KeyboardInterrupt
            run = once(name, entrant, point, seed, on) | {"identity": digest}
            cell.add(run)
        return run

    chosen = grid if full_grid else search
    best = chosen(entrant, lambda point: merit(entry, line(point, TUNING_SEED, "validation")))
    for seed in SEEDS:
        line(best, seed, "test")


ORPHAN = False
"""Whether the loss of the parent process ends this one."""


def work(cells: Sequence[tuple[str, str, Entrant]], out: Path, full_grid: bool, orphan: bool) -> None:
    """Fill all cells that no other process has."""
    global ORPHAN
    ORPHAN = orphan
    torch.set_num_threads(1)
    logging.getLogger("medley").setLevel(logging.ERROR)
    for name, label, entrant in cells:
        path = file_of(out, name, label)
        digest = identity(name, entrant)
        if (lines := read(path)) and lines[0]["identity"] != digest:
            raise SystemExit(
                f"{path} has runs of other settings: move it away (`packed.py unfold` makes files of the table), or "
                "give --label or --out"
            )
        if sum(x["kind"] == "final" for x in lines) == len(SEEDS):
            continue
        with locked(path) as cell:
            if cell is None:
                continue
            began = time.process_time()
            before = len(cell.lines)
            fill(name, entrant, cell, digest, full_grid)
            finals = [x.get("score") for x in cell.lines if x["kind"] == "final"]
            lines = [s for s in finals if s is not None]
            tried = [tuple(x["point"]) for x in cell.lines if x["kind"] == "tuning"]
            edge = at_edge(entrant, tuple(cell.lines[-1]["point"]), tried)
            score = f"{fmean(lines):.4f}" if lines else "no score"
            print(
                f"{name} {label}: {score}, {len(cell.lines) - before} runs, {time.process_time() - began:.0f} s"
                f"{', at the edge of ' + ' and '.join(edge) if edge else ''}",
                flush=True,
            )


def entrants_of(group: str, names: str, label: str, settings: Mapping[str, Any]) -> dict[str, Entrant]:
    """The entrants of a group by label. Raises RecipeError for an unknown method."""
    kind = "clock" if group.startswith("clock") else "rounds"
    chosen = names.split(",") if names else [n for n, e in ENTRANTS.items() if kind in e.groups]
    for name in chosen:
        if name not in ENTRANTS:
            raise md.RecipeError.unknown(name, ENTRANTS, "papers/league/run.py --methods")
    if (label or settings) and len(chosen) != 1:
        raise md.RecipeError("papers/league/run.py: --label and --set want one method in --methods", "label")
    if settings and not label:
        raise md.RecipeError("papers/league/run.py: --set wants a --label of its own", "label")
    out = {}
    for name in chosen:
        method: Any = ENTRANTS[name].method
        out[label or name] = dataclasses.replace(ENTRANTS[name], method=dataclasses.replace(method, **settings))
    return out


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=sorted({e.group for e in FEDERATIONS.values()}))
    parser.add_argument("--methods", default="", help=f"of {', '.join(ENTRANTS)}; default: all of the group")
    parser.add_argument("--federations", default="", help="default: all of the group")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the one method")
    parser.add_argument("--label", default="", help="the name of a candidate in files and page; default: the method's")
    parser.add_argument("--jobs", type=int, default=1, help="processes; default 1")
    parser.add_argument("--nice", type=int, default=19, help="added to the priority, 19 the lowest (default)")
    parser.add_argument("--grid", action="store_true", help="tune on every lr and knob of a grid; wants --out")
    parser.add_argument("--out", type=Path, default=HERE, help=f"default {HERE}")
    return parser.parse_args()


def value_of(text: str) -> Any:
    """A setting's value: a Python literal, or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def main() -> int:
    args = parsed()
    os.nice(args.nice)
    if args.grid and args.out == HERE:
        print("Error: --grid: give --out: a folder of its own, since the table's runs are of a search", file=sys.stderr)
        return 2
    try:
        settings = {k: value_of(v) for k, _, v in (pair.partition("=") for pair in args.set)}
        entrants = entrants_of(args.group, args.methods, args.label, settings)
        names = [n for n, e in FEDERATIONS.items() if e.group == args.group]
        for name in args.federations.split(",") if args.federations else []:
            if name not in names:
                raise md.RecipeError.unknown(name, names, "papers/league/run.py --federations")
    except md.MedleyError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    selected = args.federations.split(",") if args.federations else names
    cells = [(name, label, entrant) for name in selected for label, entrant in entrants.items()]
    try:
        with used(args.out):
            return filled(cells, args.out, args.grid, args.jobs)
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130


def filled(cells: Sequence[tuple[str, str, Entrant]], out: Path, full_grid: bool, jobs: int) -> int:
    """Fill all cells in so many processes. Returns the exit code."""
    if jobs == 1:
        work(cells, out, full_grid, orphan=False)
        return 0
    processes = [
        multiprocessing.get_context("fork").Process(target=work, args=(cells, out, full_grid, True), daemon=True)
        for _ in range(jobs)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(process.exitcode or 0 for process in processes)


if __name__ == "__main__":
    sys.exit(main())
