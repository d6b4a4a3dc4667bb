"""Memory formats and bfloat16 on the CPU: a step of SGD of real networks in NCHW, in channels-last, and in autocast.

Usage: python benchmarks/formats.py [--repeats 4] [--batch 32] [--only NAME]

CPU seconds on one thread. The ways take turns in one process; the first turn is not counted. Figures are medians over
repeats, ratios are formed within a repeat: above 1 the other way is faster than NCHW in float32.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from medley.models import resnet18, vgg11

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18, GroupNorm": lambda: resnet18(norm="group"),
    "ResNet-18, BatchNorm": lambda: resnet18(norm="batch"),
    "VGG-11": vgg11,
}

WAYS = {
    "NCHW": (torch.contiguous_format, False),
    "channels-last": (torch.channels_last, False),
    "bfloat16, NCHW": (torch.contiguous_format, True),
    "bfloat16, channels-last": (torch.channels_last, True),
}
"""Memory format, and whether the forward pass runs in autocast."""


def step(model: nn.Module, X: torch.Tensor, y: torch.Tensor, low: bool, optimizer: torch.optim.Optimizer) -> float:
    """CPU seconds of one step."""
    began = time.process_time()
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16) if low else contextlib.nullcontext():
        loss = nn.functional.cross_entropy(model(X), y)
    loss.backward()
    optimizer.step()
    return time.process_time() - began


def main() -> None:
    """Print a line for each network and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--only", choices=NETWORKS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    y = torch.arange(args.batch) % 10
    for name in [args.only] if args.only else NETWORKS:
        X = torch.randn(args.batch, 3, 32, 32)
        models = {}
        for way, (layout, low) in WAYS.items():
            torch.manual_seed(0)
            model = NETWORKS[name]().to(memory_format=layout)  # type: ignore[call-overload]
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            models[way] = (model, X.contiguous(memory_format=layout), y, low, optimizer)
        turns = [{way: step(*arguments) for way, arguments in models.items()} for _ in range(1 + args.repeats)][1:]
        for way in WAYS:
            ratios = sorted(turn["NCHW"] / turn[way] for turn in turns)
            print(
                f"{name:22} {way:24} {statistics.median(t[way] for t in turns):7.3f} s  "
                f"x{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})  load {os.getloadavg()[0]:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
