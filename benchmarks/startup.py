"""The cost of a beginning: importing, and the first round on digits.

python benchmarks/startup.py [--repeats 7]

Every repeat is two fresh processes, one of which imports torch alone. CPU seconds and wall seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

TIMED = """
import json, time
c, w = [time.process_time()], [time.perf_counter()]
def tick(): c.append(time.process_time()); w.append(time.perf_counter())
"""
TORCH = "import torch; tick()\n"
MEDLEY = """
import medley as md; tick()
md.run; tick()  # what is imported when it is needed
fed = md.Federation(
    md.problems.Network(md.models.mlp(64, 10)), data=md.datasets.digits(), partition=md.partitions.IID(10)
)
md.run(md.FedAvg(), fed, rounds=1, progress=False); tick()
"""
SAID = "print(json.dumps([[b - a for a, b in zip(t, t[1:])] for t in (c, w)]))"
PARTS = ("import torch", "import medley", "md.run, torch included", "first round of md.run on digits")


def once() -> list[list[float]]:
    """CPU and wall seconds of all parts."""
    out: list[list[float]] = [[], []]
    for script in (TORCH, MEDLEY):
        command = [sys.executable, "-c", TIMED + script + SAID]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env).stdout
        for into, seconds in zip(out, json.loads(output), strict=True):
            into += seconds
    return out


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Medians and extremes of CPU seconds, and the median of wall seconds, by part."""
    once()  # compiles what is not yet
    runs = [once() for _ in range(repeats)]
    out = {}
    for k, part in enumerate(PARTS):
        cpu = [f[0][k] for f in runs]
        wall = statistics.median(f[1][k] for f in runs)
        out[part] = {"cpu": statistics.median(cpu), "least": min(cpu), "most": max(cpu), "wall": wall}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    results = measure(parser.parse_args().repeats)
    print(f"{'':34}{'CPU s':>8}{'least':>8}{'most':>8}{'wall s':>8}")
    for part, s in results.items():
        print(f"{part:34}{s['cpu']:8.2f}{s['least']:8.2f}{s['most']:8.2f}{s['wall']:8.2f}")


if __name__ == "__main__":
    main()
