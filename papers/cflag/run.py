"""Tune every method on validation rows, run it on fresh seeds, and write the tables; what is there is not made again.

    python papers/cflag/run.py --jobs 2
    python papers/cflag/run.py --tables ci_dir --methods "CFLAG.joint;ERring" --seeds 10

A finished run is a line of OUT/TABLE.jsonl, OUT being results/ beside this file: the accuracy matrix, the figures, the
point. The same command goes on after Ctrl-C, a kill or a crash. OUT/tables.md is written from the lines.
"""

from __future__ import annotations

import argparse
import itertools
import math
import operator
import statistics
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import lines
import settings

import medley as md

KEPT = ("acc", "fgt", "fgt_max", "learn", "matrix")


@lru_cache(1)
def federation(table: str, changed: tuple[tuple[str, Any], ...] = ()) -> md.Federation:
    return settings.federation(table, **dict(changed))


def once(
    table: str, kind: str, chosen: dict[str, Any], lr: float, seed: int, on: str, changed: Sequence[Any] = ()
) -> lines.Line:
    """A run, in plain values.

    Args:
        table: of the settings.
        kind: the method's class.
        chosen: its settings.
        lr: the clients' rate.
        seed: of the run.
        on: "validation" or "test".
        changed: pairs of a setting of the federation and its value, see `settings.federation`.
    """
    fed = federation(table, tuple((k, v) for k, v in changed))
    method = operator.attrgetter(kind)(md)(**chosen)
    began = time.process_time()
    r = md.run(
        md.Tuned(method, lr),
        fed,
        settings.ROUNDS,
        seed=seed,
        eval_every=10,
        evaluate_on=on,
        throw=False,
        progress=False,
    )
    return {
        "status": r.status.outcome,
        "figures": {k: v for k, v in r.summary.items() if k in KEPT},
        "megabytes": round((r.ledger.up + r.ledger.down) / 1e6, 3),
        "cpu_seconds": round(time.process_time() - began, 3),
        "gamma": [[row["round"], row["gamma"]] for row in r.history if "gamma" in row],
    }


def make(key: lines.Line) -> lines.Line:
    """The line of a run of the tables."""
    fixed = settings.METHODS[key["method"]][0]
    point = {k: v for k, v in key["point"].items() if k != "lr"}
    on = "validation" if key["kind"] == "tuning" else "test"
    kind = key["method"].split()[0]
    return key | once(key["table"], kind, fixed | point, key["point"]["lr"], key["seed"], on, key.get("changed", ()))


def points(name: str) -> list[dict[str, Any]]:
    """The points over which a method is tuned: six of them."""
    grid = settings.METHODS[name][1]
    rates = settings.LRS if grid else settings.LRS_ALONE
    return [{"lr": lr, **dict(zip(grid, at, strict=True))} for lr, *at in itertools.product(rates, *grid.values())]


def keys_of(kind: str, table: str, name: str, at: Sequence[dict[str, Any]], seeds: Sequence[int]) -> list[lines.Line]:
    return [
        {"kind": kind, "table": table, "method": name, "point": point, "seed": seed} for point in at for seed in seeds
    ]


def chosen(tuning: Sequence[lines.Line]) -> dict[str, Any]:
    """The point of the best final accuracy on validation rows; a run that diverged has none."""
    best: dict[str, Any] = max(tuning, key=lambda line: merit([line]))["point"]
    return best


def merit(runs: Sequence[lines.Line]) -> float:
    """The mean final accuracy; a run that diverged has 0."""
    return statistics.mean(x["figures"].get("acc", 0.0) if x["status"] == "finished" else 0.0 for x in runs)


def fill(out: Path, table: str, names: Sequence[str], seeds: Sequence[int], jobs: int) -> None:
    """Tune all methods of a table, then run each at its point."""
    path = out / f"{table}.jsonl"
    grid = {name: keys_of("tuning", table, name, points(name), [settings.TUNED_ON]) for name in names}
    tuning = lines.fill(path, [key for keys in grid.values() for key in keys], make, jobs)
    finals = []
    for name in names:
        finals += keys_of("final", table, name, [chosen([x for x in tuning if x["method"] == name])], seeds)
    lines.fill(path, finals, make, jobs)


def finals(out: Path, table: str, name: str) -> list[lines.Line]:
    """A method's runs of a table at the chosen point."""
    mine = [x for x in lines.read(out / f"{table}.jsonl") if x["method"] == name]
    tuning = [x for x in mine if x["kind"] == "tuning"]
    point = chosen(tuning) if tuning else None
    return [x for x in mine if x["kind"] == "final" and x["point"] == point and "changed" not in x]


def heading(*rivals: str) -> list[str]:
    """The first two lines of a table, with differences to these methods."""
    columns = ["method", "Acc", "Fgt", "Learn", *(f"{k} − {name}" for name in rivals for k in ("Acc", "Fgt"))]
    columns += ["seeds", "MB", "ms a round", "chosen"]
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def row(name: str, runs: Sequence[lines.Line], rivals: Sequence[Sequence[lines.Line]]) -> str:
    """Acc, Fgt and Learn in percent, mean (standard deviation); differences to rivals, seed by seed; the cost."""
    good = [r for r in runs if r["status"] == "finished"]
    cells = [name, *(mean_and_deviation([100 * r["figures"][k] for r in good]) for k in ("acc", "fgt", "learn"))]
    cells += [against(good, rival, k) if runs is not rival else "" for rival in rivals for k in ("acc", "fgt")]
    cells += [f"{len(good)}, {len(runs) - len(good)} diverged" if len(good) < len(runs) else str(len(good))]
    cells += [f"{statistics.mean(r['megabytes'] for r in runs):.0f}"]
    cells += [f"{1000 * min(r['cpu_seconds'] for r in good or runs) / (settings.ROUNDS * settings.TASKS):.0f}"]
    cells += [", ".join(f"{k} {v:g}" for k, v in runs[0]["point"].items())]
    return f"| {' | '.join(cells)} |"


def markdown(out: Path) -> str:
    """The tables, with each method's differences to CFLAG.joint's control and to the best method that isn't C-FLAG."""
    text: list[str] = []
    for table in settings.TABLES:
        by_method = {name: runs for name in settings.METHODS if (runs := finals(out, table, name))}
        others = [name for name in by_method if not name.startswith("CFLAG")]
        rivals = [
            name
            for name in (settings.CONTROL, max(others, key=lambda n: merit(by_method[n]), default=""))
            if name in by_method
        ]
        if by_method:
            text += [f"### {table}", "", *heading(*rivals)]
            text += [row(name, runs, [by_method[rival] for rival in rivals]) for name, runs in by_method.items()] + [""]
    return "\n".join(text)


def against(ours: Sequence[lines.Line], theirs: Sequence[lines.Line], key: str) -> str:
    """The mean of the paired differences ± its standard error, in percent."""
    it = {r["seed"]: r["figures"][key] for r in theirs if r["status"] == "finished"}
    off = [100 * (r["figures"][key] - it[r["seed"]]) for r in ours if r["seed"] in it]
    if len(off) < 2:
        return "–"
    return f"{statistics.mean(off):+.1f} ± {statistics.stdev(off) / math.sqrt(len(off)):.1f}"


def mean_and_deviation(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.mean(values):.1f} ({statistics.stdev(values) if len(values) > 1 else 0:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=lines.HERE, help=f"default {lines.HERE}")
    parser.add_argument("--tables", default=",".join(settings.TABLES))
    parser.add_argument("--methods", default=";".join(settings.METHODS), help="names, separated by ;")
    parser.add_argument("--seeds", type=int, default=len(settings.SEEDS), help="how many, from 0 on")
    parser.add_argument("--jobs", type=int, default=1, help="processes; default 1")
    parser.add_argument("--nice", type=int, default=19, help="added to the priority; default 19, the lowest")
    args = parser.parse_args()
    for table in args.tables.split(","):
        if table not in settings.TABLES:
            raise SystemExit(str(md.RecipeError.unknown(table, settings.TABLES, "papers/cflag/run.py --tables")))
    for name in args.methods.split(";"):
        if name not in settings.METHODS:
            raise SystemExit(str(md.RecipeError.unknown(name, settings.METHODS, "papers/cflag/run.py --methods")))

    def work() -> None:
        for table in args.tables.split(","):
            names = [n for n in args.methods.split(";") if n not in settings.CLASS_ONLY or table.startswith("ci")]
            fill(args.out, table, names, range(args.seeds), args.jobs)
            (args.out / "tables.md").write_text(markdown(args.out), encoding="utf-8")

    lines.nicely(work, args.nice)


if __name__ == "__main__":
    main()
