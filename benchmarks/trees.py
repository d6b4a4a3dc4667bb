"""Two versions of Medley on the same jobs, in turns: is a round slower than it was?

    python benchmarks/trees.py --old ../other/src [--new src] [--jobs linear8:100 mlp:10 cnn:10] [--repeats 7]

Each version runs in a process of its own with one thread; the two take turns, and a ratio is formed within a turn. CPU
milliseconds a round, without evaluation; the median ratio with the least and the most.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

HERE = Path(__file__).parent
JOBS = ("linear8:10", "linear8:100", "softmax:10", "mlp:10", "cnn:10")
ROUNDS = {"linear8": 60, "softmax": 30, "mlp": 12, "cnn": 6}


def worker(jobs: list[str]) -> None:
    """Reads the name of a job a line, writes the CPU seconds of its rounds."""
    import torch
    from job import Job
    from networks import module

    import medley as md

    torch.set_num_threads(1)

    class Cohorts:
        def __init__(self, job: Job) -> None:
            self.job = job
            self.began = list[float]()

        def draw(self, round: int, sizes: Any, seed: int) -> Any:
            self.began.append(time.process_time())
            import numpy as np

            return np.array(self.job.cohort(round))

    feds = {}
    for text in jobs:
        model, active = text.split(":")
        job = Job.of(model, int(active))
        who = Cohorts(job)
        clients = [job.data(i) for i in range(job.clients)]
        pace = md.scenarios.Pace(lr=job.lr, epochs=1, batch=job.batch)
        fed = md.Federation(md.problems.Network(module(model)), clients=clients, pace=pace, participation=who)
        feds[text] = fed, who, ROUNDS[model]
    print("ready", flush=True)
    for line in sys.stdin:
        fed, who, rounds = feds[line.strip()]
        who.began.clear()
        md.run(md.FedAvg(), fed, rounds, eval_every=rounds + 1, progress=False)
        spent = [b - a for a, b in zip(who.began, who.began[1:], strict=False)][1:]
        print(json.dumps(statistics.median(spent)), flush=True)


def begin(source: str, jobs: list[str]) -> subprocess.Popen[str]:
    """A worker with this version, ready."""
    path = os.pathsep.join([str(Path(source).resolve()), str(HERE)])
    command = [sys.executable, __file__, "--worker", "--jobs", *jobs]
    env = {**os.environ, "PYTHONPATH": path}
    p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    assert p.stdout is not None
    if p.stdout.readline().strip() != "ready":
        raise SystemExit(f"the worker with {source} did not start")
    return p


def spent(p: subprocess.Popen[str], job: str) -> float:
    """CPU seconds of a round."""
    assert p.stdin is not None
    assert p.stdout is not None
    p.stdin.write(job + "\n")
    p.stdin.flush()
    return float(json.loads(p.stdout.readline()))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", default="")
    parser.add_argument("--new", default=str(HERE.parent / "src"))
    parser.add_argument("--jobs", nargs="+", default=list(JOBS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--worker", action="store_true")
    args = parser.parse_args()
    if args.worker:
        return worker(args.jobs)
    if not args.old:
        parser.error("--old: give the src folder of the other version")
    old = begin(args.old, args.jobs)
    new = begin(args.new, args.jobs)
    for job in args.jobs:
        pairs = [(spent(old, job), spent(new, job)) for _ in range(args.repeats)]
        ratios = sorted(b / a for a, b in pairs)
        a, b = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
        middle = statistics.median(ratios)
        print(f"{job:12} old {a:7.2f} ms  new {b:7.2f} ms  new/old {middle:.3f} ({ratios[0]:.2f}-{ratios[-1]:.2f})")
    for p in (old, new):
        p.kill()


if __name__ == "__main__":
    main()
