"""SHED.fast on 10,000 features: 20 agents of 500 rows each, logistic, μ = 1e-4, to f − f* < 1e-8.

Prints rounds, exchanges, CPU seconds on one thread, and by how much memory grew beyond what the loaded data takes (on
Linux only, where the peak can be reset after loading). f − f* is bounded by ‖∇f‖²/(2μ).

Draws: "even" is that of `problems.synthetic_logistic`, all features of one size; "power" gives feature j the size
j^−½, unit at the first, so that Hessians have a long tail.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch

import medley as md

FEATURES = 10_000
AGENTS = 20
ROWS = 500
MU = 1e-4
GAP = 1e-8


def draw(law: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Every agent with a labelling rule and a mean of its own."""
    rng = np.random.default_rng(0)
    size = np.full(FEATURES, FEATURES**-0.5) if law == "even" else np.arange(1, FEATURES + 1) ** -0.5
    common = rng.normal(size=FEATURES)
    out = []
    for _ in range(AGENTS):
        X = rng.normal(size=(ROWS, FEATURES))
        X += 0.5 * rng.normal(size=FEATURES)
        X *= size
        margin = X @ (common + rng.normal(size=FEATURES))
        y = np.where(margin + 0.3 * margin.std() * rng.normal(size=ROWS) > 0, 1.0, -1.0)
        out.append((X, y))
    return out


def memory(key: str) -> float:
    """VmRSS or VmHWM of this process in GiB."""
    line = next(k for k in Path("/proc/self/status").read_text().splitlines() if k.startswith(key))
    return int(line.split()[1]) / 2**20


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--draw", choices=("even", "power"), default="power")
    p.add_argument("--rounds", type=int, default=100)
    p.add_argument("--pairs", type=int, default=4)
    p.add_argument("--free", action="store_true", help="let go of the arrays once the federation has them")
    args = p.parse_args()
    torch.set_num_threads(1)
    clients = draw(args.draw)
    Path("/proc/self/clear_refs").write_text("5")
    loaded = memory("VmRSS")
    began = time.process_time()
    fed = md.Federation(md.problems.Logistic(mu=MU), clients=clients)
    if args.free:
        clients.clear()
    goal = math.sqrt(2 * MU * GAP)
    run = md.run(
        md.SHED.fast(pairs=args.pairs),
        fed,
        args.rounds,
        target={"grad_norm": goal},
        progress=False,
        throw=False,
        on_round=lambda row: print(
            f"round {row['round']:3.0f}  f − f* ≤ {row['grad_norm'] ** 2 / (2 * MU):.1e}  "
            f"{time.process_time() - began:6.1f} s CPU  {memory('VmHWM') - loaded:5.2f} GiB beyond the data",
            flush=True,
        ),
    )
    last = run.history[-1]
    print(
        f"{args.draw}: {run.status.outcome} after {last['round']:.0f} rounds, {last['exchanges']:.0f} exchanges, "
        f"{last['bytes_up'] / 1e6:.1f} MB up; data {8 * AGENTS * ROWS * FEATURES / 2**30:.2f} GiB, "
        f"{memory('VmHWM') - loaded:.2f} GiB beyond it"
    )


if __name__ == "__main__":
    main()
