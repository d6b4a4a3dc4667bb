"""Figures over clients: measured on their own test rows, or estimated from their label distributions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..storage.history import Row


def measured(name: str, values: Tensor, owner: Tensor, low_is_worse: bool) -> Row:
    """Mean, worst tenth and spread of a figure over the clients with their own test rows.

    Args:
        owner: the client of each row [n], int64; −1 for shared rows
        low_is_worse: whether smaller figures are worse

    The worst tenth is at least one client. The spread is the standard deviation over the clients. All three weight the
    clients equally.
    """
    mine = owner >= 0
    if not bool(mine.any()):
        return {}
    ids, place = torch.unique(owner[mine], return_inverse=True)
    zeros = torch.zeros(len(ids), dtype=torch.float64)
    sums = zeros.index_add(0, place, values[mine.to(values.device)].double().cpu())
    return over_clients(name, (sums / torch.bincount(place)).numpy(), low_is_worse)


def over_clients(name: str, values: np.ndarray, low_is_worse: bool) -> Row:
    """The same as `measured`, from each client's figure [clients]."""
    by_client = np.sort(values)
    worst = by_client if low_is_worse else by_client[::-1]
    mean = float(by_client.mean())
    spread = float(by_client.std())
    return {f"client_{name}_mean": mean, f"client_{name}_worst": _tenth(worst), f"client_{name}_spread": spread}


@dataclass(frozen=True, eq=False)
class Mixes:
    """The labels that each client trains on.

    Attributes:
        labels: the labels of all training rows [n], client by client
        sizes: the number of rows of each client [clients]
        classes: the number of classes
        ids: the clients to include; None for all
    """

    labels: Tensor
    sizes: np.ndarray
    classes: int
    ids: list[int] | None = None

    def means(self, by_class: np.ndarray) -> np.ndarray:
        """Σ_c share_i(c) by_class(c) for each client that has rows, in one pass over the rows."""
        has_rows = self.sizes > 0
        starts = (np.cumsum(self.sizes) - self.sizes)[has_rows]
        sums = np.zeros(len(self.sizes))
        sums[has_rows] = np.add.reduceat(by_class[self.labels.numpy(force=True).astype(np.int64)], starts)
        ids = np.flatnonzero(has_rows) if self.ids is None else np.array([i for i in self.ids if has_rows[i]])
        means: np.ndarray = sums[ids] / self.sizes[ids]
        return means


def estimated(hits: Tensor, y: Tensor, accuracy: float, mixes: Mixes) -> Row:
    """Mean and worst tenth of the clients' accuracies, estimated from shared test rows.

    The estimate of a client's accuracy is Σ_c share_i(c) · accuracy(c). It is right only if rows with one label have
    the same distribution at all clients.

    Args:
        hits: whether the model labels each test row correctly [n]
        accuracy: the mean of ``hits``, for labels without a test row
        mixes: the clients' training labels
    """
    label = (y > 0).long() if y.is_floating_point() else y
    counts = torch.bincount(label, minlength=mixes.classes).cpu().numpy()
    right = torch.bincount(label, weights=hits.double(), minlength=mixes.classes).cpu().numpy()
    by_class = np.where(counts > 0, right / np.maximum(counts, 1), accuracy)
    by_client = np.sort(mixes.means(by_class))
    mean = float(by_client.mean())
    return {"client_accuracy_mean_estimate": mean, "client_accuracy_worst_estimate": _tenth(by_client)}


def _tenth(ordered: np.ndarray) -> float:
    """The mean over the first tenth, at least one value."""
    return float(ordered[: max(1, round(len(ordered) / 10))].mean())
