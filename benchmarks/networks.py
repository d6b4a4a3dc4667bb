"""The jobs' networks in torch; nothing of Medley, since other frameworks' environments import this."""

from __future__ import annotations

from job import POOLS, SHAPES
from torch import nn


def module(model: str) -> nn.Module:
    """Layers of these shapes, with ReLU between them."""
    if model == "norm":
        return nn.Sequential(
            nn.Linear(64, 32), nn.LayerNorm(32, elementwise_affine=False), nn.GELU(), nn.Linear(32, 10)
        )
    weights = [s for s in SHAPES[model] if len(s) > 1]
    layers: list[nn.Module] = []
    for k, shape in enumerate(weights):
        if len(shape) == 4:
            layers += [nn.Conv2d(shape[1], shape[0], shape[2]), nn.ReLU()]
            layers += [nn.MaxPool2d(POOLS[model][k])] if POOLS[model][k] > 1 else []
            layers += [nn.Flatten()] if len(weights[k + 1]) == 2 else []
        else:
            layers += [nn.Linear(shape[1], shape[0]), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
