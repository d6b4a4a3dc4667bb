"""The cost of a round: Medley's engines beside the loop that one would write by hand, on one job.

    python benchmarks/rounds.py [--jobs linear8:100 mlp:10 ...] [--epochs 1] [--repeats 7] [--out rounds.json]

Every job runs in a process of its own with one thread; in it all ways take turns, and every one of them goes through
the same batches: the loop gets its rows in the order that Medley draws, and is not charged for that. ‖x_end − x_0‖ must
agree. CPU time is what counts, since it does not mind company; evaluation is left out of everybody's. "of GEMM" counts
the operations of plain steps, and may pass 100 % where an engine needs fewer. --engines and --rounds say which and how
many.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from job import Job, named
from networks import module
from torch import nn

import medley as md
from medley.experiments.profile import Limits
from medley.runtime import streams

JOBS = ("linear8:10", "linear8:100", "softmax:10", "softmax:100", "mlp:10", "mlp:100", "cnn:10")
Round = tuple[float, float]
"""CPU and wall seconds."""


class Cohorts:
    """The job's own cohorts; looks at the clock whenever one is drawn, which is when a round begins."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.began = list[Round]()

    def draw(self, round: int, sizes: np.ndarray, seed: int) -> np.ndarray:
        self.began.append((time.process_time(), time.perf_counter()))
        return np.array(self.job.cohort(round))


class ByMedley:
    """`md.run`, as anybody calls it."""

    def __init__(self, job: Job, engine: str, **options: Any) -> None:
        self.job = job
        self.options = {"engine": engine, "dtype": job.dtype, **options}
        self.cohorts = Cohorts(job)
        self.fed = md.Federation(
            md.problems.Network(module(job.model)),
            clients=[job.data(i) for i in range(job.clients)],
            pace=md.scenarios.Pace(lr=job.lr, epochs=job.epochs, batch=job.batch),
            participation=self.cohorts,
        )
        self.start = torch.cat([torch.from_numpy(p).reshape(-1) for p in job.start()])

    def __call__(self, rounds: int) -> tuple[list[Round], list[np.ndarray]]:
        self.cohorts.began = []
        # A round more than asked for, whose beginning is the last one's end: an evaluation follows it.
        result = md.run(
            md.FedAvg(), self.fed, rounds + 1, init=self.start, eval_every=rounds + 1, progress=False, **self.options
        )
        began = self.cohorts.began
        assert result.model is not None
        times = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(began)]
        return times, [p.detach().numpy().copy() for p in result.model.parameters()]


class ByHand:
    """One model, an optimizer a client, ``state_dict`` in and out."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.model = module(job.model)
        self.loss = nn.CrossEntropyLoss()
        self.data = [tuple(map(torch.from_numpy, job.data(i))) for i in range(job.clients)]

    def __call__(self, rounds: int) -> tuple[list[Round], list[np.ndarray]]:
        job = self.job
        model = self.model
        with torch.no_grad():
            for p, v in zip(model.parameters(), job.start(), strict=True):
                p.copy_(torch.from_numpy(v))
        glob = {k: v.clone() for k, v in model.state_dict().items()}
        times = []
        for t in range(1, rounds + 2):  # as many as Medley's, the last one uncharged
            rows = {i: self._ordered(i, t) for i in job.cohort(t)}
            cpu = time.process_time()
            wall = time.perf_counter()
            acc = {k: torch.zeros_like(v) for k, v in glob.items()}
            total = 0
            for i in job.cohort(t):
                x, y = rows[i]
                model.load_state_dict(glob)
                opt = torch.optim.SGD(model.parameters(), lr=job.lr)
                for at in range(0, len(x), job.batch):
                    opt.zero_grad()
                    self.loss(model(x[at : at + job.batch]), y[at : at + job.batch]).backward()
                    opt.step()
                total += job.samples
                for k, v in model.state_dict().items():
                    acc[k] += job.samples * v
            glob = {k: v / total for k, v in acc.items()}
            times.append((time.process_time() - cpu, time.perf_counter() - wall))
        return times[:rounds], [v.numpy() for v in glob.values()]

    def _ordered(self, i: int, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.data[i]
        g = streams.generator(0, i, t, "batches")
        order = torch.cat([torch.randperm(len(x), generator=g) for _ in range(self.job.epochs)])
        return x[order], y[order]


def measure(job: Job, repeats: int, engines: list[str], rounds: int = 0) -> dict[str, Any]:
    torch.set_num_threads(1)
    ways: dict[str, Callable[[int], tuple[list[Round], list[np.ndarray]]]] = {"loop": ByHand(job)}
    ways |= {engine: ByMedley(job, engine) for engine in engines}
    (cpu, _), *_ = ways["loop"](2)[0][1:]
    # A last one is done and not charged.
    rounds = rounds - 1 if rounds else max(1, min(20, round(0.6 / cpu)))
    times: dict[str, list[Round]] = {name: [] for name in ways}
    sums: dict[str, float] = {}
    for way in ways.values():
        way(1)
    for _ in range(repeats):
        for name, way in ways.items():
            each, parameters = way(rounds)
            times[name].append(tuple(statistics.median(column) for column in zip(*each, strict=True)))
            sums[name] = job.checksum(parameters)
    best = Limits.measure(torch.float32).gemm
    out: dict[str, Any] = {"job": str(job), "rounds": rounds, "gemm": best, "load": os.getloadavg()[0], "ways": {}}
    for name, rows in times.items():
        cpu = [c for c, _ in rows]
        out["ways"][name] = {
            "cpu": statistics.median(cpu),
            "least": min(cpu),
            "most": max(cpu),
            "wall": statistics.median(w for _, w in rows),
            # by repeat, since a repeat's ways shared the machine's mood
            "times": statistics.median(h / c for (h, _), c in zip(times["loop"], cpu, strict=True)),
            "gemm": job.flops * job.active / statistics.median(cpu) / 1e9 / best,
            "checksum": sums[name],
        }
    return out


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        f"{'job':16}{'way':10}{'CPU ms':>10}{'least':>10}{'most':>10}{'wall ms':>10}{'x loop':>8}{'of GEMM':>9}"
        f"{'checksum':>12}{'load':>6}"
    ]
    for job in results:
        for name, way in job["ways"].items():
            ms = "".join(f"{1e3 * way[k]:10.2f}" for k in ("cpu", "least", "most", "wall"))
            lines.append(
                f"{job['job']:16}{name:10}{ms}{way['times']:8.2f}{way['gemm']:9.0%}{way['checksum']:12.6f}"
                f"{job['load']:6.1f}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", type=named, default=list(JOBS), metavar="MODEL:K")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--engines", nargs="+", default=["seq", "fused"])
    parser.add_argument("--epochs", type=int, default=0, help="passes of a client in a round; by default the job's")
    parser.add_argument("--rounds", type=int, default=0, help="how many; by default as many as take 0.6 s")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        model, active = args.one.split(":")
        job = Job.of(model, int(active))
        job = replace(job, epochs=args.epochs or job.epochs)
        print(json.dumps(measure(job, args.repeats, args.engines, args.rounds)))
        return
    results = []
    for name in args.jobs:
        command = [
            sys.executable,
            __file__,
            "--one",
            name,
            "--repeats",
            str(args.repeats),
            "--rounds",
            str(args.rounds),
            "--epochs",
            str(args.epochs),
            "--engines",
            *args.engines,
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(done.returncode)
        results.append(json.loads(done.stdout))
        print(table(results[-1:]), flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
