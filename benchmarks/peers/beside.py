"""Medley and the peers on the same jobs, taking turns: CPU milliseconds a round and how many times Medley's they are.

    python benchmarks/peers/beside.py --with fedjax=ENV/bin/python --with pfl=ENV/bin/python [--jobs mlp:10 ...]

``--with NAME=PYTHON`` runs NAME_peer.py by an environment's own interpreter. Ratios are formed within a repeat; medians
with the least and the most of them.

Before anything is timed, each peer does the job once in float64, and the script ends if checksums differ from Medley's.
In float32, in which they are timed, rounding can grow: once it has turned a ReLU, or chosen another maximum of a pool,
a checksum may be another one, though the work is the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SAME = 1e-5
"""How far apart checksums of equal work may be, as a share."""


def answered(python: str, script: str, orders: str, **how: str) -> dict[str, Any]:
    """A peer's report of one run."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent), "PYTHONWARNINGS": "ignore", **how}
    done = subprocess.run([python, str(HERE / script), orders], capture_output=True, text=True, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{python} {script} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def refuse_unequal(job: str, checksums: dict[str, float]) -> None:
    """Exit, naming the peer, unless all checksums are Medley's to five digits."""
    for who, checksum in checksums.items():
        if not abs(checksum / checksums["medley"] - 1) < SAME:
            raise SystemExit(f"{job}: {who} ends at {checksum:.7g} and Medley at {checksums['medley']:.7g}: other work")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with", dest="peers", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--jobs", nargs="+", default=["linear8:10", "mlp:10", "cnn:10"], metavar="MODEL:K")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    pythons = {"medley": sys.executable, **dict(p.split("=", 1) for p in args.peers)}
    print(
        f"{'job':14}{'who':34}{'CPU ms':>9}{'wall ms':>9}{'/ medley':>10}{'least':>8}{'most':>8}"
        f"{'checksum':>11}{'load':>6}"
    )
    for name in args.jobs:
        model, active = name.split(":")
        with tempfile.TemporaryDirectory() as folder:
            orders = f"{folder}/orders.npz"
            size = ["--model", model, "--active", active, "--rounds", str(args.rounds), orders]
            subprocess.run([sys.executable, str(HERE / "orders.py"), *size], check=True)
            exact = {who: answered(py, f"{who}_peer.py", orders, JOB_DTYPE="float64") for who, py in pythons.items()}
            refuse_unequal(name, {who: result["checksum"] for who, result in exact.items()})
            turns = [
                {who: answered(py, f"{who}_peer.py", orders) for who, py in pythons.items()}
                for _ in range(args.repeats)
            ]
        for who in pythons:
            middle = {key: statistics.median(turn[who][key] for turn in turns) for key in ("cpu", "wall", "checksum")}
            times = [turn[who]["cpu"] / turn["medley"]["cpu"] for turn in turns]
            named = f"{turns[0][who]['job']:14}{turns[0][who]['who']:34}"
            print(
                f"{named}{1e3 * middle['cpu']:9.2f}{1e3 * middle['wall']:9.2f}"
                f"{statistics.median(times):10.2f}{min(times):8.2f}{max(times):8.2f}{middle['checksum']:11.6f}"
                f"{os.getloadavg()[0]:6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
