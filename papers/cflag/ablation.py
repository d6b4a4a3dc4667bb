"""C-FLAG's corrections at one rate, on validation rows of four seeds: none, the last layer's, and that of all layers.

    python papers/cflag/ablation.py

A finished run is a line of results/ablation.jsonl; the same command goes on where it was stopped, and writes
results/ablation.md from the lines. The lines of "proportional draws" are of an option that was deleted: README.md.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lines
import run

VARIANTS: dict[str, dict[str, Any]] = {
    "no correction": {"correct": False},
    "last layer": {"correct": "head"},
    "full": {"correct": True},
}
TABLES = ("ci_dir", "ci_iid")
SEEDS = (100, 101, 102, 103)
LR = 0.2
"""One rate for all, between those that tuning chose for CFLAG.joint and for its control."""


def make(key: lines.Line) -> lines.Line:
    return key | run.once(key["table"], "CFLAG.joint", VARIANTS[key["method"]], LR, key["seed"], "validation")


def markdown(stored: Sequence[lines.Line]) -> str:
    """By table and variant: Acc, Fgt and Learn, and the difference to the control."""
    text = []
    for table in TABLES:
        runs: dict[str, list[lines.Line]] = {}
        for name in sorted({x["method"] for x in stored}, key=[x["method"] for x in stored].index):
            runs[name] = [x for x in stored if (x["table"], x["method"]) == (table, name)]
        text += [f"### {table}", "", *run.heading("no correction")]
        text += [run.row(name, its, [runs["no correction"]]) for name, its in runs.items()] + [""]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=lines.HERE, help=f"default {lines.HERE}")
    parser.add_argument("--jobs", type=int, default=1, help="processes; default 1")
    parser.add_argument("--nice", type=int, default=15, help="added to the priority; default 15")
    args = parser.parse_args()

    def work() -> None:
        path = args.out / "ablation.jsonl"
        keys = [
            {"table": table, "method": name, "point": {"lr": LR}, "seed": seed}
            for seed, table, name in itertools.product(SEEDS, TABLES, VARIANTS)
        ]
        lines.fill(path, keys, make, args.jobs)
        (args.out / "ablation.md").write_text(markdown(lines.read(path)), encoding="utf-8")

    lines.nicely(work, args.nice)


if __name__ == "__main__":
    main()
