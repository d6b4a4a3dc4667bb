"""Rows that are read when they are used, for a plan: it needs the number of all rows, and the numbers of few."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..rows.lazy import Lazy, in_memory

_on_use = ContextVar("on_use", default=False)

SAMPLED = 200
"""Rows read on use from which a data set's scaling is estimated."""


@contextmanager
def read_on_use() -> Iterator[None]:
    """Within this block image sets read their pixels when they are used, where they can."""
    token = _on_use.set(True)
    try:
        yield
    finally:
        _on_use.reset(token)


class OnUse:
    """Rows that a function reads, as a source of `Lazy` rows.

    Args:
        n: the number of rows
        read: row numbers [k] -> rows [k, ...], in memory
        raw: bytes of what it reads from, which is in memory

    ``whole`` is the most bytes that reading and changing all of them at once would take.
    """

    cheap = True

    def __init__(self, n: int, read: Callable[[np.ndarray], Tensor], raw: int) -> None:
        first = read(np.arange(1))
        self.shape = (n, *first.shape[1:])
        self.dtype = first.dtype
        self.read = read
        self.raw = raw
        self.whole = n * first.nbytes


def rows(n: int, read: Callable[[Any], Tensor], raw: int) -> Tensor:
    """All n rows, read now, or within `read_on_use` when they are used; ``read`` takes a slice or row numbers."""
    return Lazy([OnUse(n, read, raw)]) if _on_use.get() and n else read(slice(None))


def deferred(X: object) -> bool:
    """Whether rows are read on use."""
    return isinstance(X, Lazy) and all(isinstance(s, OnUse) for s in X.sources)


def by_row(X: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """f(X), for an f that changes each row alone; of rows that are read on use when they are used."""
    if not isinstance(X, Lazy) or not deferred(X) or not len(X):
        return f(X)
    held = X.numel() * X.dtype.itemsize  # while f makes the changed rows
    sources = list[OnUse]()
    for s in X.sources:
        assert isinstance(s, OnUse)
        sources.append(OnUse(s.shape[0], partial(_changed, f, s.read), s.raw))
        changed = len(X) * sources[-1].dtype.itemsize * math.prod(sources[-1].shape[1:])
        sources[-1].whole = max(s.whole, held + changed)
    return Lazy(sources, X.rows)


class Unread(NamedTuple):
    """Bytes of rows that are read on use: of these in memory, of what they are read from, and the most on the way."""

    read: int = 0
    raw: int = 0
    whole: int = 0

    @classmethod
    def of(cls, *parts: object) -> Unread:
        """The sums over these rows; other rows count nothing."""
        lazies = [X for X in parts if isinstance(X, Lazy) and deferred(X)]
        sources = {id(s): s for X in lazies for s in X.sources if isinstance(s, OnUse)}.values()
        read = sum(X.numel() * X.dtype.itemsize for X in lazies)
        return cls(read, sum(s.raw for s in sources), sum(s.whole for s in sources))


def sampled(X: Tensor) -> Tensor:
    """Rows whose mean and deviation stand for those of X: `SAMPLED` of rows that are read on use, else all."""
    if not deferred(X):
        return X
    return in_memory(X[torch.linspace(0, len(X) - 1, min(len(X), SAMPLED)).long()])


def _changed(f: Callable[[Tensor], Tensor], read: Callable[[np.ndarray], Tensor], numbers: np.ndarray) -> Tensor:
    return f(read(numbers))
