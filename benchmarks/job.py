"""One job for everybody: FedAvg on drawn images, with batches in an order that is given.

Every client passes over its rows by plain SGD. ‖x_end − x_0‖ is the ``checksum``: whoever does the same work gets it to
five digits. Only numpy is needed here, so that any framework's environment can import it.

Three jobs have the sizes of other frameworks' own benchmarks. ``flute`` is FLUTE's logistic regression on MNIST: 1,000
clients, 10 a round, batches of 10. ``pfl`` is pfl-research's CIFAR-10: its CNN, 50 clients of 50 rows a round, batches
of 10. ``blazefl`` is BlazeFL's CIFAR-10: the CNN of PyTorch's tutorial, all of 100 clients a round, 5 epochs, batches
of 50. Images are drawn, since the cost is the same, and dropout is left out, since its draws differ.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

CLASSES = 10
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "linear8": [(10, 8), (10,)],
    "norm": [(32, 64), (32,), (10, 32), (10,)],
    "softmax": [(10, 784), (10,)],
    "mlp": [(256, 784), (256,), (128, 256), (128,), (10, 128), (10,)],
    "cnn": [(16, 1, 5, 5), (16,), (32, 16, 5, 5), (32,), (128, 512), (128,), (10, 128), (10,)],
    "flute": [(10, 784), (10,)],
    "pfl": [(32, 3, 3, 3), (32,), (64, 32, 3, 3), (64,), (128, 12544), (128,), (10, 128), (10,)],
    "blazefl": [(6, 3, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,), (10, 84), (10,)],
}
POOLS = {"cnn": (2, 2), "pfl": (1, 2), "blazefl": (2, 2)}
"""Max-pooling behind each convolution."""
ROWS = {"linear8": (8,), "norm": (64,), "cnn": (1, 28, 28), "pfl": (3, 32, 32), "blazefl": (3, 32, 32)}
"""The shapes of rows that are no 784 numbers."""
OWN = {
    "flute": {"clients": 1000, "samples": 60, "batch": 10, "lr": 0.03},
    "pfl": {"clients": 1000, "samples": 50, "batch": 10, "lr": 0.1},
    "blazefl": {"samples": 500, "batch": 50, "lr": 0.01, "epochs": 5},
}
"""What the jobs of other frameworks have otherwise than `Job`."""


def named(text: str) -> str:
    """The same, a MODEL:K of an argument. Raises ValueError for others."""
    model, active = text.split(":")
    if model not in SHAPES or int(active) < 1:
        raise ValueError(text)
    return text


named.__name__ = "MODEL:K of " + ", ".join(SHAPES)  # what argparse says


@dataclass(frozen=True)
class Job:
    """``active`` of ``clients`` clients a round."""

    model: str = "mlp"
    active: int = 10
    clients: int = 100
    samples: int = 100
    batch: int = 20
    lr: float = 0.05
    epochs: int = 1
    dtype: str = os.environ.get("JOB_DTYPE", "float32")

    @classmethod
    def of(cls, model: str, active: int) -> Job:
        """The job of this name, with at least ``active`` clients."""
        job = cls(model, active, **OWN.get(model, {}))
        return replace(job, clients=max(job.clients, active))

    def __str__(self) -> str:
        return f"{self.model} K={self.active}"

    @cached_property
    def row(self) -> tuple[int, ...]:
        """The shape of one row."""
        return ROWS.get(self.model, (784,))

    @cached_property
    def prototypes(self) -> np.ndarray:
        """One image a class."""
        return np.random.default_rng(7).normal(0, 1, (CLASSES, int(np.prod(self.row)))).astype(np.float32)

    def data(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """A client's rows, float32 or what `JOB_DTYPE` says [samples, *row], and labels, int64."""
        g = np.random.default_rng([11, client])
        y = g.choice(CLASSES, self.samples, p=g.dirichlet(np.full(CLASSES, 0.5))).astype(np.int64)
        noise = g.standard_normal((self.samples, self.prototypes.shape[1]), dtype=np.float32)
        return (0.15 * self.prototypes[y] + noise).reshape(-1, *self.row).astype(self.dtype), y

    def cohort(self, round: int) -> list[int]:
        """The clients that take part in this round (1, 2, ...), ascending."""
        if self.active >= self.clients:
            return list(range(self.clients))
        ids = np.random.default_rng([13, round]).choice(self.clients, self.active, replace=False)
        return sorted(ids.tolist())

    def start(self) -> list[np.ndarray]:
        """The parameters at first, layer by layer."""
        g = np.random.default_rng(3)
        fan = lambda s: np.sqrt(np.prod(s[1:]))
        return [
            (np.zeros(s) if len(s) == 1 else g.normal(0, 1, s) / fan(s)).astype(np.float32).astype(self.dtype)
            for s in SHAPES[self.model]
        ]

    def checksum(self, parameters: list[Any]) -> float:
        """‖x_end − x_0‖ of the parameters layer by layer, in the order and the shapes of `start`."""
        squares = (((np.asarray(a, np.float64) - b) ** 2).sum() for a, b in zip(parameters, self.start(), strict=True))
        return float(sum(squares) ** 0.5)

    @cached_property
    def macs(self) -> list[int]:
        """Multiplications of one row's forward pass in each product of matrices and each convolution."""
        side = self.row[-1]
        counts = []
        for k, shape in enumerate(s for s in SHAPES[self.model] if len(s) > 1):
            places = 1
            if len(shape) == 4:
                side -= shape[-1] - 1
                places = side * side
                side = side // POOLS[self.model][k]
            counts.append(int(np.prod(shape)) * places)
        return counts

    @cached_property
    def flops(self) -> int:
        """Of one client's round, taken step by step: forward, slope by weights, slope by inputs (which the first layer
        does without).
        """
        return 2 * self.epochs * self.samples * (3 * sum(self.macs) - self.macs[0])
