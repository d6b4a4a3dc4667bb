"""The league's data sets.

Every set is read once in a process, and is the same for every seed; partitions are drawn anew for each.
"""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import torch

import medley as md
from medley.datasets import Dataset
from medley.runtime import streams


@cache
def mnist(rows: int) -> Dataset:
    return _images(md.datasets.mnist(), rows)


@cache
def fashion(rows: int) -> Dataset:
    return _images(md.datasets.fashion_mnist(), rows)


@cache
def cifar(rows: int) -> Dataset:
    return _images(md.datasets.cifar10(), rows).standardise()


@cache
def cifar100(rows: int) -> Dataset:
    return _images(md.datasets.cifar100(), rows).standardise()


def _images(data: Dataset, rows: int) -> Dataset:
    """Images of half the height and width: ``rows`` for training, 1,000 for validation, 2,000 for the test."""
    return data.take(rows + 1000, 2000).pool(2).split(0, 1000 / (rows + 1000))


@cache
def tweets(features: int) -> Dataset:
    """Tweets as tf-idf vectors; the keys are the user and the day."""
    return _tweets(md.datasets.sentiment140(features))


@cache
def tokens(vocabulary: int, length: int) -> Dataset:
    """Tweets as token ids; the keys are the user and the day."""
    return _tweets(md.datasets.sentiment140_tokens(vocabulary, length))


def _tweets(data: Dataset) -> Dataset:
    """Tweets with 2,000 for validation and 2,000 for the test, in place of those that were labelled by hand."""
    keys = {"user": data.keys["user"], "day": data.keys["second"] // 86_400}
    whole = dataclasses.replace(data, X_test=None, y_test=None, keys=keys)
    return whole.split(2000 / len(data.X)).split(0, 2000 / (len(data.X) - 2000))


@cache
def news() -> Dataset:
    return scaled(md.datasets.online_news().split(0.2).standardise())


@cache
def years() -> Dataset:
    """Million Song timbres; y is the year from 1998 on, in decades."""
    data = md.datasets.msd_years().split(0.2).standardise()
    assert data.y_test is not None
    return dataclasses.replace(data, y=(data.y - 1998) / 10, y_test=(data.y_test - 1998) / 10)


@cache
def adults(rows: int) -> Dataset:
    """a9a; the key is the age bracket, the first five columns, one-hot."""
    data = md.datasets.a9a().take(rows, 2000)
    return dataclasses.replace(data, keys={"age": data.X[:, :5].argmax(1).numpy()})


@cache
def synthetic(alpha: float, beta: float, clients: int) -> Dataset:
    """Synthetic(α, β): 60 features, 10 classes; a client's model and features differ (Li et al., MLSys 2020, 5.1).

    Client k draws u_k ~ N(0, α) and B_k ~ N(0, β), W_k and b_k ~ N(u_k, 1), v_k ~ N(B_k, 1), rows ~ N(v_k, Σ) with
    Σ_jj = j^−1.2, and labels argmax(W_k x + b_k). Sizes are 20 and a log-normal more, at most 200. A fifth of each
    client's rows is for the test.
    """
    g = streams.rng(0, "synthetic", f"{alpha:g} {beta:g} {clients}")
    deviation = np.arange(1, 61) ** -0.6
    X, y, owner = [], [], []
    for k in range(clients):
        n = min(200, 20 + int(g.lognormal(3, 1)))
        u, centre = g.normal(0, alpha**0.5), g.normal(0, beta**0.5)
        W, b, v = g.normal(u, 1, (60, 10)), g.normal(u, 1, 10), g.normal(centre, 1, 60)
        rows = v + deviation * g.normal(size=(n, 60))
        X.append(rows)
        y.append((rows @ W + b).argmax(1))
        owner.append(np.full(n, k))
    keys = {"client": np.concatenate(owner)}
    whole = Dataset(
        torch.from_numpy(np.concatenate(X)).float(),
        torch.from_numpy(np.concatenate(y)),
        classes=10,
        keys=keys,
        name=f"synthetic({alpha:g}, {beta:g})",
    )
    return whole.split(0.2)


def scaled(data: Dataset) -> Dataset:
    """Targets with mean 0 and deviation 1 over the training rows."""
    assert data.y_test is not None
    mean, sd = data.y.mean(), data.y.std()
    return dataclasses.replace(data, y=(data.y - mean) / sd, y_test=(data.y_test - mean) / sd)
