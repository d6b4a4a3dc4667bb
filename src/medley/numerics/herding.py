"""Herding: orders rows so that the mean of the first ones stays closest to the mean of all."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def herd(features: Float[Tensor, "n f"], size: int, weights: Float[Tensor, " n"] | None = None) -> Int[Tensor, " k"]:
    """The first ``size`` rows of a herding order: each brings the mean of the chosen rows closest to the mean of all.

    Args:
        features: rows [n, f], used as they are; iCaRL gives them unit length first.
        size: number of rows to choose.
        weights: weights of the rows in the mean of all, with sum 1 [n]; None for equal weights. Chosen rows always
            count equally.

    Any prefix of the order is the order of that size. If distances are equal up to rounding, the lowest row is taken.
    Source: Welling, "Herding Dynamical Weights to Learn", ICML 2009.
    """
    mean = features.mean(0) if weights is None else weights @ features
    total = torch.zeros_like(features[0])
    free = torch.ones(len(features), dtype=torch.bool, device=features.device)
    close = torch.finfo(features.dtype).eps ** 0.5  # two rows are equally far from their mean
    chosen: list[int] = []
    for k in range(1, min(size, len(features)) + 1):
        off = (mean - (total + features) / k).square().sum(1)
        off = off.masked_fill(~free, torch.inf)
        best = int((off <= off.min() * (1 + close)).nonzero()[0])
        chosen.append(best)
        free[best] = False
        total = total + features[best]
    return torch.tensor(chosen, dtype=torch.int64, device=features.device)
