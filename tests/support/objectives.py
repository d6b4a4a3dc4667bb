"""Objectives of seven rows, one of each kind of problem."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import medley as md

PROBLEMS = {
    "least squares": md.problems.LeastSquares(mu=0.1),
    "logistic": md.problems.Logistic(mu=0.1),
    "softmax": md.problems.Softmax(mu=0.1, intercept=True),
    "network": md.problems.Network(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.GroupNorm(1, 5), nn.Linear(5, 3))),
}


def objective(name: str, n: int = 7) -> Any:
    """The objective of ``n`` random rows with three inputs."""
    g = torch.Generator().manual_seed(3)
    X = torch.randn(n, 3, generator=g, dtype=torch.float64)
    y = torch.arange(n) % (3 if name in ("softmax", "network") else 2)
    classes = {"least squares": None, "logistic": 2}.get(name, 3)
    family: Any = PROBLEMS[name]
    labels = y.double() if name == "least squares" else y
    problem = family.ready(X, labels, classes, torch.float64, "cpu")
    return problem.bind(problem.inputs(X), family.targets(labels, classes))
