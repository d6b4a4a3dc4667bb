"""Figures over clients: measured on their own test rows, or estimated from their mixes of labels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..storage.result import Row


def measured(name: str, values: Tensor, owner: Tensor, low_is_worse: bool) -> Row:
    """Mean, worst tenth and spread of a figure over the clients that have test rows of their own.

    Args:
        owner: the client of each row [n], int64; −1 for nobody's
        low_is_worse: whether a small figure is a bad one

    The worst tenth is one client at least. The spread is the standard deviation over the clients. All three count
    every client alike.
    """
    mine = owner >= 0
    if not bool(mine.any()):
        return {}
    ids, place = torch.unique(owner[mine], return_inverse=True)
    zeros = torch.zeros(len(ids), dtype=torch.float64)
    sums = zeros.index_add(0, place, values[mine.to(values.device)].double().cpu())
    by_client = np.sort((sums / torch.bincount(place)).numpy())
    worst = by_client if low_is_worse else by_client[::-1]
    mean, spread = float(by_client.mean()), float(by_client.std())
    return {f"client_{name}_mean": mean, f"client_{name}_worst": _tenth(worst), f"client_{name}_spread": spread}


def estimated(hits: Tensor, y: Tensor, accuracy: float, histograms: np.ndarray) -> Row:
    """Mean and worst tenth of the clients' accuracies, estimated from test rows that all share.

    A client's accuracy is taken to be Σ_c share_i(c) · accuracy(c). That is right only where rows of one label are
    alike at all clients.

    Args:
        hits: whether the model labels each test row rightly [n]
        accuracy: the mean of ``hits``, for labels without a test row
        histograms: training rows of each client and label [clients, classes]
    """
    label = (y > 0).long() if y.is_floating_point() else y
    C = histograms.shape[1]
    seen = torch.bincount(label, minlength=C).cpu().numpy()
    right = torch.bincount(label, weights=hits.double(), minlength=C).cpu().numpy()
    by_class = np.where(seen > 0, right / np.maximum(seen, 1), accuracy)
    mixes = histograms[histograms.sum(1) > 0]
    by_client = np.sort(mixes @ by_class / mixes.sum(1))
    mean = float(by_client.mean())
    return {"client_accuracy_mean_estimate": mean, "client_accuracy_worst_estimate": _tenth(by_client)}


def _tenth(ordered: np.ndarray) -> float:
    """The mean over the first tenth, one value at least."""
    return float(ordered[: max(1, round(len(ordered) / 10))].mean())
