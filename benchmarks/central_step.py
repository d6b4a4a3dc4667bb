"""The cost of FedECADO's central step, next to the weighted mean that every method pays.

    python benchmarks/central_step.py [--d 1000000 10000000] [--clients 10] [--repeats 9]

All cases of one length run in the same process, interleaved, on one thread; the ratios are medians of the ratios within
a repeat. "moved" is what must cross the memory bus once, "of copy" the speed at which it did against a plain copy's.
Replies come stacked, [a, d], or as a list of a vectors, as a federation hands them over. A window of `medley.FedECADO`
allocates the changes of the flows, [a, d], and two vectors [d]. The peak is the process's, each case in a process of
its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from medley.numerics.chunks import Stack, spans
from medley.numerics.circuit.step import Window, integrate

MEAN = "weighted mean, stacked"
COPY = "copy"


def cases(a: int, d: int, only: str | None = None) -> dict[str, tuple[Callable[[], object], int]]:
    """Name -> (what to time, vectors of d numbers that must move)."""
    rng = torch.Generator().manual_seed(0)
    p = torch.full((a,), 1 / (10 * a))
    T = (torch.rand(a, generator=rng) + 0.1).tolist()
    vector = lambda: torch.randn(d, generator=rng)
    x = vector()
    S = vector()
    out = vector()
    rows = [vector() for _ in range(a)]
    weights = p.tolist()

    def mean(D: Stack) -> None:
        if isinstance(D, torch.Tensor):
            for c in spans(d, x.device):
                x[c].addmv_(D[:, c].T, p)
            return
        for c in spans(d, x.device):
            for row, w in zip(D, weights, strict=True):
                x[c].add_(row[c], alpha=w)

    def window(D: Stack, delta: float) -> None:
        x.add_(integrate(Window(S, D, T, [1.0] * a, [1 / max(T)] * a, max(T) ** 2), delta).u)

    stacked = torch.stack(rows) if only is None or "stacked" in only else torch.empty(0)
    table = {
        COPY: (lambda: out.copy_(x), 2),
        MEAN: (lambda: mean(stacked), a + 2),
        "weighted mean, list": (lambda: mean(rows), a + 2),
        "one backward-Euler step, list": (lambda: window(rows, 1e9), 3 * a + 6),
        "Algorithm 1, delta = 0.5, list": (lambda: window(rows, 0.5), 3 * a + 6),
    }
    return table if only is None else {only: table[only]}


def peak(name: str, a: int, d: int) -> float:
    """MiB that one case adds to the process's peak, measured in a process of its own."""
    command = [sys.executable, __file__, "--peak", name, "--clients", str(a), "--d", str(d)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_peak(name: str, a: int, d: int) -> None:
    run = cases(a, d, name)[name][0]
    cases(2, 10)[name][0]()  # code and libraries are not the case's
    before = resident("VmHWM")
    run()
    print((resident("VmHWM") - before) / 1024)


def resident(key: str) -> int:
    """KiB. Not getrusage, whose peak a child inherits from its parent."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(key))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.peak:
        measure_peak(args.peak, args.clients, args.d[0])
        return
    for d in args.d:
        table = cases(args.clients, d)
        times: dict[str, list[float]] = {name: [] for name in table}
        for k in range(args.repeats + 1):
            for name, (run, _) in table.items():
                start = time.perf_counter()
                run()
                if k:  # the first round warms up
                    times[name].append(time.perf_counter() - start)
        gbs = {name: 4 * d * moved / statistics.median(times[name]) / 1e9 for name, (_, moved) in table.items()}
        print(f"\na = {args.clients}, d = {d:,}, float32, 1 thread, {args.repeats} repeats")
        print(f"{'':42}{'ms':>8}{'min':>8}{'x mean':>8}{'GB/s':>8}{'of copy':>9}{'peak MiB':>10}")
        for name in table:
            ms = [1e3 * t for t in times[name]]
            ratio = statistics.median(t / m for t, m in zip(times[name], times[MEAN], strict=True))
            print(
                f"{name:42}{statistics.median(ms):8.2f}{min(ms):8.2f}{ratio:8.2f}"
                f"{gbs[name]:8.1f}{gbs[name] / gbs[COPY]:8.0%} {peak(name, args.clients, d):9.0f}"
            )
        del table


if __name__ == "__main__":
    main()
