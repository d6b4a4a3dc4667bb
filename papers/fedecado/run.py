"""Tune every method of a recipe on the validation rows, then compare them on fresh seeds.

    python papers/fedecado/run.py papers/fedecado/fashion_softmax.toml --out runs/fashion_softmax

Everything lands in the folder: runs as they finish (start again after Ctrl-C and only the missing ones are made),
recipe.toml with the settings that were found, table.md and report.html.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from rich.console import Console

import medley as md
from medley import recipe
from medley.experiments.compare import names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything")
    parser.add_argument("--algorithms", help="some of the methods only, e.g. fedavg,fedecado")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the recipe"
    )
    parser.add_argument("--base", default="FedAvg", help="the method that differences are to")
    parser.add_argument("--jobs", type=int, help="runs at a time; by default one a core")
    args = parser.parse_args()
    try:
        return reproduce(args)
    except md.MedleyError as e:
        print(f"Error: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as e:
        print(str(e) or "stopped by Ctrl-C; the same command goes on", file=sys.stderr)
        return 130


def reproduce(args: argparse.Namespace) -> int:
    r = recipe.load(args.recipe).with_settings(args.set)
    methods = r.methods(args.algorithms.split(",") if args.algorithms else None)
    grids = [r.grid(m) for m in methods]
    options = r.options()
    fed = r.federation()
    called = names(methods)
    tuned = []
    for name, method, grid in zip(called, methods, grids, strict=True):
        if grid:
            # Two variants of one method would meet in one folder.
            folder = args.out / "tune" if name == method.name else args.out / "tune" / name
            method = md.tune(method, fed, grid, jobs=args.jobs, save=folder, **r.tuning())
            print(f"{name}: {described(grid, chosen(method))}", file=sys.stderr, flush=True)
        tuned.append(method if isinstance(method, md.Tuned) else md.Tuned(method))
    recipe.tuned(r, tuned).save(args.out / "recipe.toml")
    base = args.base if args.base in called else None
    board = md.compare(
        dict(zip(called, tuned, strict=True)),
        fed,
        r.rounds,
        r.seeds,
        jobs=args.jobs,
        save=args.out / "board",
        base=base,
        **options,
    )
    if not board.results:
        raise KeyboardInterrupt(str(board.status))
    board.command = shlex.join(["python", *sys.argv])
    board.save(args.out / "report.html")
    (args.out / "table.md").write_text(table(board, dict(zip(called, tuned, strict=True)), grids), encoding="utf-8")
    Console().print(board)
    print(f"{args.out / 'table.md'}, {args.out / 'report.html'}")
    return 0 if board.status.ok else 130


def chosen(method: md.Tuned) -> dict:
    return next(row for row in method.record if row["chosen"])


def described(grid: dict, row: dict) -> str:
    settings = ", ".join(f"{k} = {row[k]:g}" if isinstance(row[k], float) else f"{k} = {row[k]}" for k in grid)
    return f"{settings}, score {row['score']:.4f}" + (f" ({row['note']})" if "note" in row else "")


def table(board: md.Board, tuned: dict[str, md.Tuned], grids: list[dict]) -> str:
    lines = [board.markdown(), "## What tuning chose", "", "Scores are means over the validation rows.", ""]
    for (name, method), grid in zip(tuned.items(), grids, strict=True):
        if method.record:
            tried = "; ".join(described(grid, {k: v for k, v in row.items() if k != "note"}) for row in method.record)
            lines += [f"- **{name}**: {described(grid, chosen(method))}. Tried: {tried}."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
