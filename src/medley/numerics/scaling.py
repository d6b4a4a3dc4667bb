"""Scales features to mean 0 and deviation 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..rows.coding import Coding
from ..rows.columns import cells


@dataclass(frozen=True, eq=False)
class Scaling:
    """Subtracts a mean and divides by a deviation.

    Attributes:
        mean: Mean of each feature [1, features], or of each channel of images [1, channels, 1, 1], float64.
        deviation: Standard deviation, of the same shape; 1 if a feature is constant.
        shared: Whether they are given numbers rather than computed from the scaled rows; default False.
        coding: How a frame's columns become these features; None if they are already the features.
    """

    mean: Tensor
    deviation: Tensor
    shared: bool = False
    coding: Coding | None = None

    @classmethod
    def of(cls, X: Tensor) -> Scaling:
        """The scaling of rows X [n, features], or of images [n, channels, h, w]; deviations divide by n."""
        over = [0, *range(2, X.ndim)]
        per_mean = X[:, :1].numel()
        mean = total(X, lambda b: b.sum(over, keepdim=True)) / per_mean
        variance = total(X, lambda b: (b - mean).square().sum(over, keepdim=True)) / per_mean
        # A smaller deviation is only rounding, of the rows' dtype or of the mean.
        least = max(torch.finfo(X.dtype).eps if X.is_floating_point() else 0.0, 1e-14)
        constant = variance.sqrt() <= least * mean.abs()
        return cls(mean, torch.where(constant, 1.0, variance.sqrt()))

    def __call__(self, X: Tensor) -> Tensor:
        """Scaled rows, float32."""
        out = torch.empty(X.shape, dtype=torch.float32, device=X.device)
        if len(X):
            for block, scaled in zip(blocks(X), blocks(out), strict=True):
                scaled.copy_((block.double() - self.mean).div_(self.deviation))
        return out

    def of_table(self, table: Any, columns: Mapping[str, Any], call: str) -> Tensor:
        """Features of a table's columns, as its own ``columns_of`` names them, by the coding. Raises BadData."""
        assert self.coding is not None, "a scaling without a coding is of features"
        values = {name: cells(table, columns[name]) for name in self.coding.names if name in columns}
        return self(torch.from_numpy(self.coding(values, call)))

    def after(self, first: Scaling | None) -> Scaling:
        """The scaling that applies ``first``, if given, and then this one."""
        if first is None:
            return self
        mean = first.mean + first.deviation * self.mean
        deviation = first.deviation * self.deviation
        return Scaling(mean, deviation, self.shared and first.shared, first.coding)

    def picked(self, columns: Sequence[int]) -> Scaling:
        """The scaling of these columns."""
        return Scaling(self.mean[:, columns], self.deviation[:, columns], self.shared)

    def same(self, other: Scaling | None) -> bool:
        """Whether another one has the same numbers."""
        if other is None or self.coding != other.coding:
            return False
        return torch.equal(self.mean, other.mean) and torch.equal(self.deviation, other.deviation)

    def plain(self) -> dict[str, Any]:
        """Mean and deviation as lists, whether they are shared, and the coding if there is one, for JSON."""
        coding = {} if self.coding is None else {"coding": self.coding.plain()}
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist(), "shared": self.shared, **coding}

    @classmethod
    def from_plain(cls, table: Mapping[str, Any]) -> Scaling:
        """Inverse of `plain`. Raises KeyError, TypeError or ValueError for any other table."""
        mean, deviation = (torch.tensor(table[k], dtype=torch.float64) for k in ("mean", "deviation"))
        coding = Coding.from_plain(table["coding"]) if "coding" in table else None
        return cls(mean, deviation, table.get("shared") is True, coding)


def blocks(X: Tensor) -> Sequence[Tensor]:
    """X in parts of about 2 MB each in float64."""
    # Larger ones are returned to the system every time, and page faults dominate.
    return torch.split(X, max(1, 2**18 // max(1, X[0].numel())))


def total(X: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum of f over the blocks of X, in float64."""
    return torch.stack([f(block.double()) for block in blocks(X)]).sum(0)
