"""FedNorton and SCAFFOLD with one reply a round, on drawn federations of least squares with exact gradients.

Three to eight clients of 8 to 240 rows, learning rates of .05 to .5 over the largest curvature, 1 to 10 epochs. Prints,
of each method, how many runs ended farther from the minimum than they began, and the median distance, relative to the
minimum's norm.

    python benchmarks/one_reply.py run            # one line a federation in one_reply.jsonl; begins where it stopped
    python benchmarks/one_reply.py page
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np

import medley as md

OUT = Path(__file__).with_suffix(".jsonl")
METHODS = (md.FedNorton(), md.SCAFFOLD())


def draw(seed: int) -> tuple[md.Federation, np.ndarray]:
    """A federation of the seed, and its minimum [d]."""
    rng = np.random.default_rng(seed)
    d = 3
    clients = []
    for _ in range(rng.integers(3, 9)):
        rows = int(np.exp(rng.uniform(np.log(8), np.log(240))))
        turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
        X = rng.normal(size=(rows, d)) * np.exp(rng.uniform(-1.15, 0, d)) @ turn
        clients.append((X, X @ rng.normal(size=d)))
    curvature = np.array([np.linalg.eigvalsh(X.T @ X / len(X)).max() for X, _ in clients])
    lr = rng.uniform(0.05, 0.5, len(clients)) / curvature
    epochs = rng.integers(1, 11, len(clients))
    minimum = np.linalg.solve(sum(X.T @ X for X, _ in clients), sum(X.T @ y for X, y in clients))
    pace = md.scenarios.Pace(lr=lr.tolist(), epochs=epochs.tolist(), batch=None)
    problem = md.problems.LeastSquares(mu=0.0)
    return md.Federation(problem, clients=clients, pace=pace, participation=1 / len(clients)), minimum


def distance(method: md.Algorithm, seed: int, rounds: int) -> float:
    """‖x − x*‖/‖x*‖ at the end; infinite if the run diverged."""
    federation, minimum = draw(seed)
    result = md.run(method, federation, rounds, progress=False, throw=False, eval_every=rounds)
    if not result.status.ok:
        return math.inf
    return float(np.linalg.norm(result.x.numpy() - minimum) / np.linalg.norm(minimum))


def run(count: int, rounds: int) -> None:
    """Make the runs that the file lacks."""
    lines = OUT.read_text().splitlines() if OUT.exists() else []
    done = {json.loads(line)["seed"] for line in lines}
    for seed in range(count):
        if seed not in done:
            line = {"seed": seed, "rounds": rounds} | {m.name: distance(m, seed, rounds) for m in METHODS}
            with OUT.open("a") as file:
                file.write(json.dumps(line) + "\n")


def page() -> None:
    """Print the figures."""
    lines = [json.loads(line) for line in OUT.read_text().splitlines()]
    for method in METHODS:
        ends = [line[method.name] for line in lines]
        print(f"{method.name}: {sum(e >= 1 for e in ends)} of {len(ends)} diverged; median {np.median(ends):.1e}")
    worse = sum(a >= 1 > b for a, b in ((line["FedNorton"], line["SCAFFOLD"]) for line in lines))
    nearer = sum(line["FedNorton"] < line["SCAFFOLD"] for line in lines)
    print(f"FedNorton diverged where SCAFFOLD did not: {worse}; it was nearer in {nearer}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=300)
    args = parser.parse_args()
    if args.what == "run":
        run(args.count, args.rounds)
    else:
        page()
