"""The experiments: four tables of Split-Fashion-MNIST, the methods, and the points that each is tuned over."""

from __future__ import annotations

from typing import Any

import medley as md


def net() -> Any:
    """An MLP 196-64-64-10."""
    return md.models.mlp(196, 10, (64, 64))


TABLES = {
    "ci_dir": ("class", md.partitions.Dirichlet(clients=5, alpha=0.1)),
    "ci_iid": ("class", md.partitions.IID(clients=5)),
    "ti_dir": ("task", md.partitions.Dirichlet(clients=5, alpha=0.1)),
    "ti_iid": ("task", md.partitions.IID(clients=5)),
}
"""Task- and class-incremental, equal clients and label skew within every task."""

ROUNDS = 20
TASKS = 5
TUNED_ON = 100
SEEDS = (0, 1, 2, 3, 4)
"""The seed of tuning, on validation rows; and the seeds of the tables, on test rows."""

CAPACITY = 80
"""Rows held a task and client: 16 % of a client's rows of a task, the paper's share; half of them a step, as there."""

LRS = (0.03, 0.1, 0.3)
LRS_ALONE = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
"""The lr of SGD, for methods with a strength of their own, of which they get two values; and for those without one.

So that every method is tuned over six points.
"""

METHODS: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "CFLAG.joint": ({}, {"clip": (0.25, 0.5)}),
    "CFLAG.joint last layer": ({"correct": "head"}, {"clip": (0.25, 0.5)}),
    "CFLAG.joint without correction": ({"correct": False}, {}),
    "ERring": ({}, {}),
    "NCCL": ({}, {"L": (1.0, 5.0)}),
    "FineTune": ({}, {}),
    "LwF": ({}, {"lam": (1.0, 3.0)}),
    "EWC": ({}, {"lam": (10.0, 1000.0)}),
    "AGEM": ({}, {}),
    "FedTrack": ({}, {}),
    "ICaRL": ({}, {}),
    "CFLAG as published": ({}, {}),
    "CFLAG as published, average": ({"adaptive": "average", "alpha": 0.02}, {}),
    "CFLAG as published, worst": ({"adaptive": "worst", "alpha": 0.02}, {}),
    "TARGET": ({"network": net(), "generator": md.models.generator((196,))}, {}),
}
"""Constructor arguments, and settings tried beside lr."""

CONTROL = "CFLAG.joint without correction"
"""CFLAG.joint's weights, rows and steps without its correction."""

CLASS_ONLY = ("ICaRL", "TARGET")
"""Methods of class-incremental learning, which are not in the other tables."""


SWEEPS: dict[str, tuple[Any, ...]] = {
    "alpha": (0.1, 0.3, 1.0, 100.0),
    "clients": (5, 10, 20),
    "sample": (10, 20, 40, 80),
    "capacity": (20, 40, 80, 160),
}
"""Settings that Figures 3, 5 and 7 and Table 8 vary, one at a time, in table ci_dir; half a capacity is sampled."""

SWEPT = ("CFLAG.joint", "CFLAG.joint without correction", "ERring")
SWEEP_SEEDS = (0, 1, 2)


def federation(table: str, **changed: Any) -> md.Federation:
    """Fashion-MNIST mean-pooled to 14×14, 2,500 rows a task, a tenth of them for validation; an MLP 196-64-64-10.

    ``changed`` is a value of one of SWEEPS.
    """
    mode, partition = TABLES[table]
    if {"alpha", "clients"} & changed.keys():
        partition = md.partitions.Dirichlet(clients=changed.get("clients", 5), alpha=changed.get("alpha", 0.1))
    capacity = changed.get("capacity", CAPACITY)
    sample = changed.get("sample", capacity // 2)
    data = md.datasets.fashion_mnist().take(n_train=12_500, n_test=2_500).pool(2).standardise().flatten()
    return md.Federation(
        md.problems.Network(net()),
        data=data,
        partition=partition,
        pace=md.scenarios.Pace(lr=1.0, epochs=2, batch=64),
        stream=md.tasks.Split(tasks=TASKS, mode=mode),
        replay=md.replay.Ring(capacity=capacity, sample=sample),
        validation=0.1,
    )
