"""Helpers of every peer's script; numpy only, but for `torch_model`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from job import Job


class Task:
    """A job with its orders: every client's rows in every round, ready made, and a clock."""

    def __init__(self, path: str) -> None:
        arrays = np.load(path)
        self.job = Job.of(str(arrays["model"]), int(arrays["active"]))
        self.orders = arrays["orders"]
        self.rounds = len(self.orders)
        self.data = [self.job.data(i) for i in range(self.job.clients)]
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def rows(self, round: int, client: int) -> tuple[np.ndarray, np.ndarray]:
        """In the order of round 1, 2, ..., a pass over them after the other; not to be charged."""
        order = self.orders[round - 1, client]
        X, y = self.data[client]
        return X[order], y[order]

    def begin(self, cpu: float | None = None) -> None:
        self._began = time.process_time() if cpu is None else cpu, time.perf_counter()

    def end(self, cpu: float | None = None) -> None:
        self.cpu.append((time.process_time() if cpu is None else cpu) - self._began[0])
        self.wall.append(time.perf_counter() - self._began[1])

    def tell(self, who: str, parameters: Iterable[Any]) -> None:
        """Print the result; the first two rounds compile and warm up."""
        warm = slice(2, None) if self.rounds > 3 else slice(1, None)
        result = {"who": who, "job": str(self.job), "cpu": float(np.median(self.cpu[warm]))}
        result |= {"wall": float(np.median(self.wall[warm])), "first": self.wall[0]}
        print(json.dumps(result | {"checksum": self.job.checksum([np.asarray(p) for p in parameters])}))


def torch_model(job: Job) -> Any:
    """The job's network with its first parameters."""
    import torch
    from networks import module

    model = module(job.model).to(getattr(torch, job.dtype))
    with torch.no_grad():
        for p, v in zip(model.parameters(), job.start(), strict=True):
            p.copy_(torch.from_numpy(v))
    return model
