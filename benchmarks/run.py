"""The benchmarks that need no other framework, one after the other: a table and a picture.

    python benchmarks/run.py [--repeats 7] [--to build/benchmarks]

Each runs in a process of its own with one thread. Writes rounds.json, table.txt and rounds.svg, adds the ratios to
benchmarks/history.jsonl, draws them over commits in history.svg, and says which fell by a fifth.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

import history
from job import named

HERE = Path(__file__).parent
JOBS = ("linear8:10", "linear8:100", "linear8:1000", "softmax:10", "softmax:100", "mlp:10", "mlp:100", "cnn:10")
COLOURS = {"loop": "#9a9a9a", "seq": "#7fa7d6", "fused": "#1f5fa8"}


def script(name: str, *arguments: str) -> str:
    """A script's output."""
    print(f"{name} {' '.join(arguments)}", file=sys.stderr, flush=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / name), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout


def picture(jobs: list[dict[str, Any]]) -> str:
    """The loop's time over each way's, a bar a way; whiskers span the repeats."""
    lines = []
    y = 30
    unit = 28
    best = max(way["times"] for job in jobs for way in job["ways"].values())
    wide = lambda times: 560 * times / best
    for job in jobs:
        y += 8
        for name, way in job["ways"].items():
            low, high = (wide(way["times"] * way["cpu"] / way[k]) for k in ("most", "least"))
            label = f"{way['times']:.1f} × · {1e3 * way['cpu']:.3g} ms · {name}"
            lines.append(
                f'<text x="128" y="{y + 13}" text-anchor="end">{escape(job["job"]) if name == "loop" else ""}</text>'
                f'<rect x="136" y="{y + 2}" width="{wide(way["times"]):.1f}" height="14" fill="{COLOURS[name]}"/>'
                f'<path d="M{136 + low:.1f} {y + 9}H{136 + high:.1f}" stroke="#222"/>'
                f'<text x="{144 + max(high, wide(way["times"])):.1f}" y="{y + 13}">{label}</text>'
            )
            y += 18
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {y + unit}" font-family="sans-serif" font-size="12">'
        f'<rect width="880" height="{y + unit}" fill="#fff"/>'
        '<text x="8" y="20" font-size="14">A round’s CPU time: times as fast as a hand-written loop</text>'
        f"{''.join(lines)}</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--jobs", nargs="+", type=named, default=list(JOBS), metavar="MODEL:K")
    parser.add_argument("--to", type=Path, default=Path("build/benchmarks"))
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    repeats = ("--repeats", str(args.repeats))
    at = args.to / "rounds.json"
    parts = [
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f} at the start",
        script("rounds.py", *repeats, "--jobs", *args.jobs, "--out", str(at)),
        script("central_step.py", "--d", "10000000", *repeats),
        script("scaling.py", *repeats),
        script("startup.py", *repeats),
        script("memory.py", "--scale", "0.1"),
    ]
    (args.to / "table.txt").write_text("\n\n".join(parts))
    (args.to / "rounds.svg").write_text(picture(json.loads(at.read_text())))
    history.append(history.entry(json.loads(at.read_text()), args.repeats))
    entries = history.read()
    (args.to / "history.svg").write_text(history.picture(entries), encoding="utf-8")
    print("\n\n".join(parts))
    for line in history.fell(entries):
        print(f"\nFELL {line}")
    print(
        f"\nwritten to {args.to}: table.txt, rounds.svg, rounds.json, history.svg; a line added to {history.FILE.name}"
    )


if __name__ == "__main__":
    main()
