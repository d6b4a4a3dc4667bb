"""The generalised linear models that you can choose: `Logistic`, `Softmax`, `LeastSquares`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ...contract import BadData, Data, Place, RecipeError, real, take
from ...rows.fields import Fields, described
from ..cross_entropy import class_labels, cross_entropies
from ..labels import is_one_hot, refuse_classes
from .loss import LinearLoss
from .problem import LinearProblem


@dataclass(frozen=True)
class Linear(LinearLoss):
    """A generalised linear model before it has seen data; use `Logistic`, `Softmax` or `LeastSquares`.

    Raises RecipeError for a negative or infinite mu.
    """

    def __post_init__(self) -> None:
        take(self, real, "mu")
        super().__post_init__()
        if self.mu >= 2**63:  # torch takes no such int
            object.__setattr__(self, "mu", float(self.mu))

    def ready(self, X: Data, y: Data, classes: int | None, dtype: torch.dtype | None, device: str) -> LinearProblem:
        """The problem for X's features, in float64 by default.

        Raises BadData unless X is [rows, features] and y is [rows].
        """
        if isinstance(X, Fields):
            raise BadData(
                f"{type(self).__name__} needs X as [rows, features], but this X has several inputs per row "
                f"({described(X)}); join them to one table, or use a Network whose module takes them"
            )
        if X.ndim != 2:
            raise BadData(
                f"{type(self).__name__} needs X as [rows, features], but this X is {list(X.shape)}; flatten it first "
                "(Dataset.flatten())"
            )
        several = self.several and y.ndim == 2 and y.shape[1] > 1 and not is_one_hot(y)
        if y.ndim != 1 and not several:
            model = "Logistic" if isinstance(self, Logistic) and y.shape[-1] == 2 else "Softmax"
            to = "" if model == type(self).__name__ else f", to {model}"
            hot = f"it is one-hot, so give the labels, y.argmax(1){to}"
            column = "flatten it first, y.reshape(-1)" if y.shape[1:].numel() == 1 else "give one target for each row"
            remedy = hot if is_one_hot(y) else column
            raise BadData(f"{type(self).__name__} needs y as [rows], but this y is {list(y.shape)}; {remedy}")
        width = y.shape[1] if several else self.width(classes)
        return LinearProblem(self, X.shape[1] + self.intercept, width, dtype or torch.float64, device)

    def width(self, classes: int | None) -> int:
        """The number of outputs of a row."""
        del classes
        return 1

    def canonical(self, y: Data, classes: int | None) -> Data:
        """Labels in the form that data sets have."""
        return self.targets(y, classes)

    @abstractmethod
    def targets(self, y: Data, classes: int | None) -> Data:
        """Labels in the form that the loss takes. Raises BadData with the first row whose label it cannot take."""

    def settings(self) -> dict[str, Any]:
        """The model's name, mu and intercept, for the record."""
        return {"problem": type(self).__name__, "mu": self.mu, "intercept": self.intercept}


@dataclass(frozen=True)
class Logistic(Linear):
    """Binary logistic regression, l = log(1 + exp(−y z)). Labels are {0, 1} or {−1, +1}.

    It has no intercept by default: ``intercept=True`` lets it learn that one label is more frequent than the other.
    """

    steepest: ClassVar[float] = 0.25

    def canonical(self, y: Data, classes: int | None) -> Data:
        """int64 {0, 1}."""
        return (self.targets(y, classes) > 0).long()

    def targets(self, y: Data, classes: int | None) -> Data:
        """±1 as floats. Raises BadData with the first row that has another label."""
        y = y.to(torch.float64)
        zero_one = not (y == -1).any()
        bad = ~((y == 1) | (y == (0 if zero_one else -1)))
        if bad.any():
            row = int(bad.nonzero()[0])
            raise BadData(
                f"Logistic needs labels 0 and 1, or -1 and 1, but this label is {y[row].item():g}", place=Place(row=row)
            )
        return 2 * y - 1 if zero_one else y

    def losses(self, z: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        """log(1 + exp(−y z)), finite for any finite z."""
        return torch.logaddexp(torch.zeros((), dtype=z.dtype, device=z.device), -y * z)

    def slope(self, z: Tensor, y: Tensor) -> Tensor:
        """−y σ(−y z)."""
        return -y * torch.sigmoid(-y * z)

    def bend(self, z: Tensor, u: Tensor) -> Tensor:
        """σ(z)(1 − σ(z)) u."""
        s = torch.sigmoid(z)
        return s * (1 - s) * u

    def hits(self, z: Tensor, y: Tensor) -> Float[Tensor, " n"] | None:
        """1 for each row with z > 0 and y = 1, or with z ≤ 0 and y = −1, else 0."""
        return ((z > 0) == (y > 0)).to(z.dtype)


@dataclass(frozen=True)
class LeastSquares(Linear):
    """Linear regression, l = ½‖z − y‖². Targets are [rows], or [rows, k] for a model with k outputs."""

    classification: ClassVar[bool] = False
    several: ClassVar[bool] = True

    def targets(self, y: Data, classes: int | None) -> Data:
        """Floats as they are, integers as float64. Raises BadData for integers that look like classes."""
        refuse_classes(y, "LeastSquares")
        return y.to(torch.float64) if not y.is_floating_point() else y

    def losses(self, z: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        """½‖z − y‖²."""
        return (z - y).square().reshape(len(z), -1).sum(1) / 2

    def slope(self, z: Tensor, y: Tensor) -> Tensor:
        """z − y."""
        return z - y

    def bend(self, z: Tensor, u: Tensor) -> Tensor:
        """u."""
        return u

    def hits(self, z: Tensor, y: Tensor) -> Float[Tensor, " n"] | None:
        """None: there are no classes."""
        return None


@dataclass(frozen=True)
class Softmax(Linear):
    """Multinomial logistic regression, l = −log softmax(z)_y. Labels are 0..C−1."""

    scalar: ClassVar[bool] = False
    steepest: ClassVar[float] = 0.5

    def width(self, classes: int | None) -> int:
        """The number of classes: each has one output. Raises RecipeError if it is not known."""
        if not classes:
            raise RecipeError("Softmax needs to know how many classes there are; give labels as integers 0..C-1")
        return classes

    def targets(self, y: Data, classes: int | None) -> Data:
        """int64 in 0..C−1. Raises BadData with the first row that has another label."""
        return class_labels(y, classes, "Softmax")

    def losses(self, z: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        """−log softmax(z)_y."""
        return cross_entropies(z, y)

    def slope(self, z: Tensor, y: Tensor) -> Tensor:
        """softmax(z) − e_y."""
        p = torch.softmax(z, 1)
        p[torch.arange(len(y), device=y.device), y] -= 1
        return p

    def bend(self, z: Tensor, u: Tensor) -> Tensor:
        """(diag(p) − ppᵀ) u, with p = softmax(z)."""
        p = torch.softmax(z, 1)
        pu = p * u
        return pu - p * pu.sum(1, keepdim=True)

    def root(self, z: Tensor) -> Float[Tensor, "n k k"]:
        """B = diag(√p) − √p pᵀ, because diag(p) − ppᵀ = BᵀB if Σp = 1."""
        p = torch.softmax(z, 1)
        return torch.diag_embed(p.sqrt()) - p.sqrt()[:, :, None] * p[:, None, :]

    def hits(self, z: Tensor, y: Tensor) -> Float[Tensor, " n"] | None:
        """1 for each row in which class y has the largest output, else 0."""
        return (z.argmax(1) == y).to(z.dtype)
