"""The server's share of a round: FedAvg's, SCAFFOLD's, FedDyn's, FedECADO's and FedNorton's rounds in parts.

    python benchmarks/server.py [--jobs mlp:10 cnn:10] [--repeats 7]

Wall milliseconds a round on one thread, medians; methods take turns. "steps" are local steps, "server" is the server's
step with the sums of replies, "rest" what clients do outside their steps and what exchanges cost. "adds" is what the
server takes beyond FedAvg's, in percent of FedAvg's round, by repeat: the median, the least and the most. "bound" is
what the vectors that FedNorton's step reads and writes once (a cohort's displacements and flows, x and the sum) take at
the speed of a plain copy, in percent of the same.
"""

from __future__ import annotations

import argparse
import os
import statistics
import timeit
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from job import Job, named
from rounds import ByMedley

import medley as md
from medley.runtime.stopwatch import Stopwatch

METHODS = {
    "FedAvg": md.FedAvg(),
    "SCAFFOLD": md.SCAFFOLD(),
    "FedDyn": md.FedDyn(),
    "FedECADO": md.FedECADO(),
    "FedNorton, flows at server": md.FedNorton(flows="server"),
    "FedNorton, flows at clients": md.FedNorton(flows="client"),
}
VECTORS = {"FedNorton, flows at server": (3, 4), "FedNorton, flows at clients": (1, 4)}
"""Per client, and once: d floats each that cross the bus."""


def copying() -> float:
    """Bytes a second that a copy of 64 MiB moves, each read and written: the best of ten."""
    source = torch.ones(2**24)
    target = torch.empty(2**24)
    return 2 * 4 * 2**24 / min(timeit.repeat(lambda: target.copy_(source), number=1, repeat=10))


def parts(method: Any, way: ByMedley, rounds: int) -> dict[str, float]:
    """Milliseconds a round by what was done; evaluation is left out."""
    with Stopwatch() as watch:
        md.run(method, way.fed, rounds, init=way.start, eval_every=rounds, progress=False)
    times = {k: 1e3 * v / rounds for k, v in watch.seconds.items() if k not in ("evaluation", "files")}
    server = times.pop("server", 0.0) + times.pop("aggregation", 0.0)
    steps = times.pop("local steps", 0.0)
    return {
        "server": server,
        "steps": steps,
        "rest": sum(times.values()),
        "round": server + steps + sum(times.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", type=named, default=["mlp:10", "cnn:10"], metavar="MODEL:K")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    speed = copying()
    print(f"a plain copy moves {speed / 1e9:.1f} GB/s; load {os.getloadavg()[0]:.1f}")
    columns = "".join(f"{c:>{w}}" for c, w in zip(("round ms", "steps", "server", "rest"), (9, 8, 8, 8), strict=True))
    print(f"{'job':10}{'method':28}{columns}{'x FedAvg':>10}{'adds':>20}{'bound':>8}")
    for name in args.jobs:
        model, active = name.split(":")
        job = Job.of(model, int(active))
        way = ByMedley(job, "auto")
        rounds = 12 if model == "mlp" else 4
        for method in METHODS.values():
            parts(method, way, 3)
        results: dict[str, list[dict[str, float]]] = {who: [] for who in METHODS}
        for _ in range(args.repeats):
            for who, method in METHODS.items():
                results[who].append(parts(method, way, rounds))
        middle = {who: {k: statistics.median(f[k] for f in all_) for k in all_[0]} for who, all_ in results.items()}
        base = middle["FedAvg"]["round"]
        for who, m in middle.items():
            pairs = zip(results[who], results["FedAvg"], strict=True)
            adds = sorted(100 * (one["server"] - its["server"]) / its["round"] for one, its in pairs)
            each, once = VECTORS.get(who, (0, 0))
            bound = 1e5 * 4 * way.start.numel() * (each * job.active + once) / speed / base
            text = f"{statistics.median(adds):.1f}% ({adds[0]:.1f}-{adds[-1]:.1f})"
            parts_ = "".join(f"{m[k]:8.2f}" for k in ("steps", "server", "rest"))
            more = f"{bound:7.1f}%" if each else ""
            print(f"{name:10}{who:28}{m['round']:9.2f}{parts_}{m['round'] / base:10.2f}{text:>20}{more}")


if __name__ == "__main__":
    main()
