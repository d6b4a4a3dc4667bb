"""The order in which Medley takes a job's rows, for those who cannot ask it; and the job itself.

python benchmarks/peers/orders.py --model mlp --active 10 --rounds 6 orders.npz
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from job import SHAPES, Job

from medley.runtime import streams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to")
    parser.add_argument("--model", choices=SHAPES, default="mlp")
    parser.add_argument("--active", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    job = Job.of(args.model, args.active)
    orders = np.zeros((args.rounds, job.clients, job.epochs * job.samples), np.int16)
    for t in range(args.rounds):
        for i in job.cohort(t + 1):
            g = streams.generator(0, i, t + 1, "batches")
            orders[t, i] = torch.cat([torch.randperm(job.samples, generator=g) for _ in range(job.epochs)])
    np.savez_compressed(args.to, model=job.model, active=job.active, orders=orders)


if __name__ == "__main__":
    main()
