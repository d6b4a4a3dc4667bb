"""torch.compile on the CPU: a step of SGD of real networks as it is and compiled, and the cost of compiling.

    python benchmarks/compiled.py [--repeats 5] [--batch 20] [--steps 2000] [--only NAME]

CPU seconds on one thread. Both ways take turns in one process; figures are medians over repeats, ratios are formed
within a repeat. The cost is that of the first steps at the batch's size and at the size of a last, smaller batch, the
compilers' processes included, with an empty cache. "whole run" is the ratio over `--steps` steps with this cost in it.
The ResNet has a quarter of the usual width.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch
from gpu import Job
from torch import nn

import medley as md

JOBS = {
    "CNN": Job("cnn", lambda: md.models.cnn((1, 28, 28)), (1, 28, 28)),
    "ResNet-18, width 16": Job("resnet", lambda: md.models.resnet((3, 32, 32), 10, (2, 2, 2, 2), 16), (3, 32, 32)),
    "LSTM": Job("lstm", lambda: md.models.lstm(10_000, 2), (64,), 2, 10_000),
}


def cpu() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def step(model: Callable[..., torch.Tensor], module: nn.Module, X: torch.Tensor, y: torch.Tensor) -> float:
    """CPU seconds of one step."""
    began = time.process_time()
    for p in module.parameters():
        p.grad = None
    nn.functional.cross_entropy(model(X), y).backward()
    with torch.no_grad():
        for p in module.parameters():
            assert p.grad is not None
            p -= 0.01 * p.grad
    return time.process_time() - began


def main() -> None:
    """Print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--only", choices=JOBS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in [args.only] if args.only else JOBS:
        torch.manual_seed(0)
        module = JOBS[name].network()
        ((X, y),) = JOBS[name].clients(1, args.batch)
        compiled = torch.compile(module)
        last = args.batch // 2 + 1
        began = cpu()
        step(compiled, module, X, y)
        step(compiled, module, X[:last], y[:last])
        cost = cpu() - began
        for way in (module, compiled):
            step(way, module, X, y)
        turns = [[statistics.median(step(way, module, X, y) for _ in range(5)) for way in (module, compiled)]
                 for _ in range(args.repeats)]  # fmt: skip
        plain, quick = (statistics.median(turn[k] for turn in turns) for k in (0, 1))
        ratios = sorted(a / b for a, b in turns)
        speedup = args.steps * plain / (args.steps * quick + cost)
        print(
            f"{name:20} plain {1e3 * plain:7.2f} ms  compiled {1e3 * quick:7.2f} ms  x{statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f}-{ratios[-1]:.2f})  cost {cost:.0f} s  whole run x{speedup:.2f}  "
            f"load {os.getloadavg()[0]:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
