"""Comparisons of results and states to the bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..storage.history import Row
from ..storage.result import Result


def expect(ok: object, otherwise: str) -> None:
    """Raise AssertionError(otherwise) unless ``ok`` is true."""
    # Not an assert statement: python -O removes those.
    if not ok:
        raise AssertionError(otherwise)


def expect_same(a: Result, b: Result, what: str) -> None:
    """Raise AssertionError unless x, history, task accuracies and ledger agree; ``what`` names the pair.

    Wall time and a transport's own overhead may differ.
    """
    distance = float((a.x - b.x).abs().max())
    expect(torch.equal(a.x, b.x), f"{what}: x differs by up to {distance:.2g}; it must be the same to the bit")
    for row, other in zip(a.history, b.history, strict=True):
        differ = [k for k in row.keys() | other.keys() if k != "wall" and figure(row, k) != figure(other, k)]
        expect(not differ, f"{what}: the histories differ in {differ}, round {row['round']}")
    expect(equal(a.summary.get("matrix"), b.summary.get("matrix")), f"{what}: accuracies on the tasks differ")
    for one_sent, other_sent in zip(a.ledger, b.ledger, strict=True):
        one_sent, other_sent = (e._replace(overhead=0) for e in (one_sent, other_sent))  # a transport's own
        expect(one_sent == other_sent, f"{what}: the ledgers differ: {one_sent} and {other_sent}")


def figure(row: Row, name: str) -> str:
    """A figure of a row as text."""
    # As text, so that nan is nan.
    return repr(row.get(name))


def equal(a: Any, b: Any) -> bool:
    """True if two pytrees are the same to the bit."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, nn.Module):
        return type(a) is type(b) and equal(a.state_dict(), b.state_dict())
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return type(a) is type(b) and equal(vars(a), vars(b))
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(equal(v, b[k]) for k, v in a.items())
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)
