"""Combines a step's rows of two objectives into one weighted batch for one forward and one backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..contract.types import Data, Rows, Vec, Weights
from .lazy import in_memory


class Labelled(NamedTuple):
    """Rows of a step: inputs [b, ...], labels [b], and weights [b] of their losses; None for weights 1."""

    X: Data
    y: Data
    w: Weights


@dataclass(frozen=True)
class Beside:
    """Rows that each gradient of an objective takes in addition to its own.

    Attributes:
        other: the objective from which they are drawn, for the same problem.
        draws: rows of ``other``, one entry per gradient.
        share: the weight of the objective's own mean; the other's is 1 − share. None: every row counts equally.
    """

    other: Any
    draws: Iterator[Rows]
    share: float | None

    def next_rows(self) -> Labelled:
        """The rows of the next gradient."""
        rows = next(self.draws)
        of = self.other
        X, y, w = (of.X, of.y, of.w) if rows is None else (of.X[rows], of.y[rows], None if of.w is None else of.w[rows])
        return Labelled(in_memory(X), in_memory(y), w)

    def own(self, b: int, m: int) -> float:
        """The weight of the mean over the objective's b rows, if m rows of the other join them."""
        return b / (b + m) if self.share is None else self.share

    def united(self, new: Labelled, old: Labelled, like: Vec) -> Labelled:
        """All rows, with weights under which (1/(b + m)) Σ_j w_j l_j is share·mean(new) + (1 − share)·mean(old)."""
        b = len(new.y)
        m = len(old.y)
        X = torch.cat([new.X, old.X])
        y = torch.cat([new.y, old.y])
        if self.share is None and new.w is None and old.w is None:
            return Labelled(X, y, None)
        share = self.own(b, m)
        w = like.new_empty(b + m)
        w[:b] = share * (b + m) / b
        w[b:] = (1 - share) * (b + m) / m
        for part, weights in ((w[:b], new.w), (w[b:], old.w)):
            if weights is not None:
                part.mul_(weights)
        return Labelled(X, y, w)
