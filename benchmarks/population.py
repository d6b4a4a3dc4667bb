"""A round's cost, the first round and the memory as the number of clients grows, from a hundred to ten million.

    python benchmarks/population.py [--clients 1e2 1e3 ... 1e7] [--methods FedAvg SCAFFOLD] [--to build/benchmarks]

Two rows of eight numbers a client, softmax regression, IID, a hundred clients a round, the loss from 1,000 rows. Each
case runs in a process of its own on one thread. Printed are CPU seconds from the data to the end of the first round,
the median of CPU milliseconds a round after it, and the process's peak memory, data and torch included; population.svg
draws them. The data alone are 80 bytes a client.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from memory import peak

import medley as md

COHORT = 100
ROUNDS = 11
FIGURES = {"first": "first round, CPU s", "round": "a round, CPU ms", "memory": "peak memory, MiB"}
COLOURS = ("var(--c0,#1f5fa8)", "var(--c1,#c05a1c)", "var(--c2,#3c8a4e)")


class Watched:
    """A share of the clients; looks at the clock, since that begins a round."""

    def __init__(self, share: float) -> None:
        self.rule = md.participation.Fraction(share)
        self.began = list[float]()

    def draw(self, round: int, sizes: np.ndarray, seed: int) -> np.ndarray:
        self.began.append(time.process_time())
        return self.rule.draw(round, sizes, seed)


def measure(method: str, clients: int) -> dict[str, float]:
    """Figures of one case, measured here."""
    torch.set_num_threads(1)
    g = np.random.default_rng(0)
    data = g.standard_normal((2 * clients, 8), dtype=np.float32), g.integers(0, 10, 2 * clients)
    began = time.process_time()
    who = Watched(COHORT / clients)
    fed = md.Federation(
        md.problems.Softmax(),
        data=data,
        classes=10,
        partition=md.partitions.IID(clients),
        pace=md.scenarios.Pace(lr=0.05, steps=2, batch=2),
        participation=who,
    )
    md.run(getattr(md, method)(), fed, ROUNDS, eval_rows=1000, eval_every=10**6, progress=False)
    rounds = [b - a for a, b in itertools.pairwise(who.began[1:])]
    return {"first": who.began[1] - began, "round": 1e3 * statistics.median(rounds), "memory": peak()}


def picture(cases_by_size: dict[str, dict[int, dict[str, float]]]) -> str:
    """The three figures over the number of clients, both on logarithmic axes."""
    parts = []
    for k, (key, title) in enumerate(FIGURES.items()):
        values = [case[key] for cases in cases_by_size.values() for case in cases.values()]
        low = math.log10(min(values))
        high = math.log10(max(values))
        bottom = math.floor(low)
        top = max(math.ceil(high), math.floor(low) + 1)
        x = lambda n, k=k: 60 + 290 * k + 220 * (math.log10(n) - 2) / 5
        y = lambda v, a=bottom, b=top: 230 - 180 * (math.log10(v) - a) / (b - a)
        parts.append(f'<text x="{60 + 290 * k}" y="34" font-size="13">{title}</text>')
        for e in range(bottom, top + 1):
            parts.append(
                f'<path d="M{x(1e2):.0f} {y(10**e):.0f}H{x(1e7):.0f}" stroke="currentColor" stroke-opacity=".15"/>'
                f'<text x="{x(1e2) - 6:.0f}" y="{y(10**e) + 4:.0f}" text-anchor="end">{10**e:g}</text>'
            )
        for e in (2, 3, 4, 5, 6, 7):
            parts.append(f'<text x="{x(10**e):.0f}" y="248" text-anchor="middle">10{"²³⁴⁵⁶⁷"[e - 2]}</text>')
        for radius, colour, cases in zip((6, 4, 2), COLOURS, cases_by_size.values(), strict=False):
            points = " ".join(f"{x(n):.1f},{y(case[key]):.1f}" for n, case in sorted(cases.items()))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
            parts += [
                f'<circle cx="{x(n):.1f}" cy="{y(case[key]):.1f}" r="{radius}" fill="{colour}"/>'
                for n, case in cases.items()
            ]
    for k, (colour, method) in enumerate(zip(COLOURS, cases_by_size, strict=False)):
        parts.append(f'<text x="{60 + 120 * k}" y="276" fill="{colour}">{method}</text>')
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 290" width="900" height="290" '
        'role="img" font-family="system-ui,sans-serif" font-size="12" fill="currentColor">'
        f"<title>CPU time and memory over the number of clients</title>{''.join(parts)}</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", type=lambda v: int(float(v)), default=[10**k for k in range(2, 8)])
    parser.add_argument("--methods", nargs="+", default=["FedAvg", "SCAFFOLD", "FedNorton"])
    parser.add_argument("--to", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--one", action="store_true", help="measure the one case here, and print it as JSON")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.methods[0], args.clients[0])))
        return
    cases_by_size: dict[str, dict[int, Any]] = {}
    print(f"{'method':12}{'clients':>12}" + "".join(f"{title:>24}" for title in FIGURES.values()))
    for method in args.methods:
        for n in args.clients:
            command = [sys.executable, __file__, "--one", "--methods", method, "--clients", str(n)]
            case = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            cases_by_size.setdefault(method, {})[n] = case
            print(f"{method:12}{n:12,}" + "".join(f"{case[key]:24.3g}" for key in FIGURES), flush=True)
    args.to.mkdir(parents=True, exist_ok=True)
    (args.to / "population.svg").write_text(picture(cases_by_size), encoding="utf-8")
    print(f"written to {args.to}: population.svg")


if __name__ == "__main__":
    main()
