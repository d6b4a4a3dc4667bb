"""SHED under a budget of bits: allotted by eigenvalue, against 8 bits for each eigenvector and whole numbers.

    python papers/shed/budget.py            # what is not yet in budget.jsonl, with MEDLEY_DATA set
    python papers/shed/budget.py --table    # the table of docs/second-order.md

All go to f − f* < 1e-8. "8 bits a vector" differs from "allotted" in the allotment alone: one new eigenvector a report,
all of its bits at once. Partitions are those of settings.py; breast cancer has one.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import settings

import medley as md
from medley.algorithms.shed.allotted import Allotted
from medley.algorithms.shed.messages import Memory
from medley.algorithms.shed.paper import Exact

GOAL = 1e-8
ROUNDS = 1000
OUT = Path(__file__).with_name("budget.jsonl")
PROBLEMS = (("breast", 1e-5), ("digits", 1e-5), ("news-iid", 1e-5), ("msd-iid", 1e-5), ("fm", 1e-6), ("fmB", 1e-6))
SEEDS = range(5)


class Equal(Allotted):
    """All bits of a report go to one new eigenvector."""

    def allotment(self, m: Memory, q: int):
        depth = super().allotment(m, q) * 0
        depth[: m.sent + 1] = self.budget
        return depth


@dataclass(frozen=True)
class Plain(md.SHED):
    """The control of ``budget``: the same wire, and no allotment."""

    @property
    def wire(self) -> Exact:
        return Equal(self.budget or 8)


METHODS = {
    "whole numbers": md.SHED(),
    "8 bits a vector": Plain(budget=8),
    "8 allotted": md.SHED(budget=8),
    "16 allotted": md.SHED(budget=16),
}
FIGURES = ("round", "exchanges", "hessians", "bytes_up", "bytes_down", "gap")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", default=",".join(p for p, _ in PROBLEMS), help="default all")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    args = parser.parse_args()
    done = lines()
    there = {(r["problem"], r["mu"], r["method"], r["seed"]) for r in done}
    cells = [(p, mu, method, seed) for p, mu in PROBLEMS for seed in SEEDS for method in METHODS]
    for problem, mu, method, seed in [] if args.table else cells:
        if problem not in args.problems.split(",") or (problem == "breast" and seed):
            continue
        if (problem, mu, method, seed) in there:
            continue
        fed = settings.federation(problem, mu, seed)
        result = md.run(METHODS[method], fed, ROUNDS, target={"gap": GOAL}, progress=False)
        last = {k: result.history[-1][k] for k in FIGURES}
        key = {"problem": problem, "mu": mu, "method": method, "seed": seed, "status": result.status.outcome}
        with OUT.open("a", encoding="utf-8") as f:
            f.write(json.dumps(key | last) + "\n")
    print(table(lines()))
    return 0


def lines() -> list[dict]:
    """The finished runs."""
    return [json.loads(line) for line in OUT.read_text(encoding="utf-8").splitlines()] if OUT.exists() else []


def table(runs: list[dict]) -> str:
    """Exchanges and MB both ways, medians over partitions (least–most); "–" if a run did not arrive."""
    rows = ["| problem, μ | partitions | | " + " | ".join(METHODS) + " |", "|---|---|---|" + "---|" * len(METHODS)]
    for problem, mu in PROBLEMS:
        by = {m: [r for r in runs if (r["problem"], r["mu"], r["method"]) == (problem, mu, m)] for m in METHODS}
        for name, digits, of in (
            ("exchanges", 0, lambda r: r["exchanges"]),
            ("MB up", 2, lambda r: r["bytes_up"] / 1e6),
            ("MB both ways", 2, lambda r: (r["bytes_up"] + r["bytes_down"]) / 1e6),
        ):
            cells = [spread([of(r) if r["status"] == "target" else None for r in by[m]], digits) for m in METHODS]
            head = f"{problem}, {mu:g} | {max(map(len, by.values()))}" if name == "exchanges" else " | "
            rows.append(f"| {head} | {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def spread(values: list[float | None], digits: int) -> str:
    """The median, with the range if there are several."""
    arrived = [v for v in values if v is not None]
    if len(arrived) < len(values) or not arrived:
        return "–"
    most = f" ({min(arrived):.{digits}f}–{max(arrived):.{digits}f})" if min(arrived) < max(arrived) else ""
    return f"{median(arrived):.{digits}f}{most}"


if __name__ == "__main__":
    sys.exit(main())
