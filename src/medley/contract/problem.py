"""A method's view of a client's data: a differentiable objective on a flat vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .needs import Need
from .types import Data, Rows, Vec, Weights


@runtime_checkable
class Batch(Protocol):
    """One forward pass on b rows, for a method's own local loss. Gradients flow from every tensor to x."""

    @property
    def x(self) -> Vec:
        """The parameters [d]."""

    @property
    def y(self) -> Data:
        """Labels or targets [b]."""

    @property
    def outputs(self) -> Float[Tensor, "b ..."]:
        """The model's outputs: logits, margins or predictions."""

    @property
    def features(self) -> Float[Tensor, "b f"]:
        """The inputs of the last linear layer [b, f]."""

    @property
    def bias(self) -> Float[Tensor, " o"] | None:
        """The last linear layer's bias [o], which is part of the outputs; None without one."""

    @property
    def rows(self) -> Rows:
        """The client's rows in this pass."""

    def loss(self, outputs: Tensor | None = None) -> Float[Tensor, ""]:
        """The problem's mean loss on these rows, without the regulariser; for other outputs if given."""


State = tuple[Float[Tensor, " f"], Int[Tensor, " i"]]
"""A model's buffers: all floating-point ones in one vector [f], all integer ones in another [i]."""


class Readout(NamedTuple):
    """Where x has the last linear layer: the first of its weights [c, f], and of its biases [c], None without them.

    ``ones`` tells that the last of its f inputs is always 1, so that its weights are intercepts.
    """

    weight: int
    bias: int | None = None
    ones: bool = False


LocalLoss = Callable[[Batch], Tensor]
"""A method's own local loss, a 0-d tensor. It replaces the problem's loss; the regulariser stays."""

Correction = Callable[[Vec, Vec, Rows], Vec]
"""(x, gradient, rows) -> the direction to use instead of the gradient."""


@runtime_checkable
class Objective(Protocol):
    """f_i: the mean loss over one client's ``n`` rows plus the problem's regulariser, on a flat x of length ``d``.

    ``work`` counts row gradients since it was last set to 0: n for a gradient, n/3 for a loss, 2n for a Hessian-vector
    product, d·n for a Hessian.
    """

    n: int
    d: int
    work: float
    y: Data

    def last(self) -> tuple[int, int | None]:
        """Indices in x: the first of the last linear layer's weights [c, f], and the first of its bias [c] or None."""

    def loss(self, x: Vec, rows: Rows = None) -> float:
        """f_i(x) on these rows."""

    def losses_along(self, x: Vec, p: Vec, etas: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        """f_i(x − ηp) on all rows, for each η of ``etas`` [k]."""

    def convexity(self) -> float:
        """μ with ∇²f_i(x) ⪰ μI for all x; 0 if unknown."""

    def smoothness(self) -> float:
        """K with ∇²f_i(x) ⪯ KI for all x; inf if unknown."""

    def grad(self, x: Vec, rows: Rows = None, loss: LocalLoss | None = None, *, copy: bool = True) -> Vec:
        """∇f_i(x) [d] on these rows.

        Args:
            x: parameters [d]
            rows: default None: all
            loss: replaces the problem's loss; default None: the problem's
            copy: False allows the next call to overwrite the returned vector; default True
        """

    def hvp(self, x: Vec, v: Vec, rows: Rows = None) -> Vec:
        """∇²f_i(x)·v [d] on these rows."""

    def hessian(self, x: Vec, rows: Rows = None) -> Float[Tensor, "d d"]:
        """∇²f_i(x) on these rows, dense [d, d]."""

    def factor(self, x: Vec) -> tuple[Float[Tensor, "m d"], float]:
        """A [m, d] and δ ≥ 0 with ∇²f_i(x) = AᵀA + δI; only for problems that give "factor"."""

    def outputs(self, x: Vec, rows: Rows = None) -> Tensor:
        """The model's outputs on these rows, without gradients."""

    def features(self, x: Vec, rows: Rows = None) -> Tensor:
        """The inputs of the last linear layer [n, f], without gradients."""

    def squares(self, x: Vec, rows: Rows = None) -> Vec:
        """The mean over these rows j of (∂l_j/∂x)² [d], squared coordinate by coordinate, without the regulariser."""

    def clipped(self, x: Vec, rows: Rows, bound: float) -> tuple[Vec, Vec | float]:
        """A sum of row gradients, each scaled down to a norm of at most ``bound``, without the regulariser.

        Args:
            x: parameters [d]
            rows: indices of rows, possibly none; None: all
            bound: the largest norm of a row's gradient

        Returns the sum [d] as a new vector, and λ, with which the regulariser's gradient is λx; λ is a number or a
        vector [d].
        """

    def counts(self) -> Int[Tensor, " c"]:
        """The number of rows of each class [c]."""

    def workspace(self, x: Vec) -> Vec:
        """A copy of x that a descent may overwrite; valid until the next call for any client of this problem."""

    def take(self, order: Tensor) -> Objective:
        """The same objective with its rows in this order, so that mini-batches are slices and need no gather."""

    def like(self, X: Data, y: Data) -> Objective:
        """The same objective on other rows; its ``work`` is added to this one's."""

    def beside(self, other: Objective, draws: Iterator[Rows], share: float | None = None) -> Objective:
        """The same objective, mixed with rows of another objective in each `grad`: share·f_i(rows) + (1 −
        share)·other(draw).

        Both kinds of rows share one forward and one backward pass. Under BatchNorm, under a user's loss that returns
        only a mean, and for a method's local loss, which sees the objective's own rows, they take two passes.

        Args:
            other: an objective of the same problem
            draws: rows of ``other``, one entry for each `grad`; None means all
            share: the weight of this objective's mean; default None: all rows have equal weight
        """

    def slopes(self, x: Vec) -> tuple[Float[Tensor, "n o"], Float[Tensor, "n f"]]:
        """R_j = ∂l_j/∂z_j and φ_j of each row j, with the last layer's outputs z_j = Wφ_j + b, in evaluation mode.

        So R_j φ_jᵀ is ∂l_j/∂W, and R_j is ∂l_j/∂b. Raises Unsupported if the outputs do not come from a linear layer.
        """


@runtime_checkable
class Problem(Protocol):
    """A model and its loss, for data of a known shape. `bind` makes the objective of one client's rows.

    Attributes:
        d: number of parameters
        dtype: of x and of floating-point data
        gives: abilities beyond losses and gradients, which meet the needs of methods
    """

    d: int
    dtype: torch.dtype
    gives: frozenset[Need]

    @property
    def readout(self) -> Readout | None:
        """Where x has the last linear layer; None unless that layer is in x."""

    def inputs(self, X: Data) -> Data:
        """Rows in the form that `bind` and `outputs` need: dtype, device, and a column for the intercept."""

    def bind(self, X: Data, y: Data, w: Weights = None) -> Objective:
        """The objective f_i of one client's rows.

        Args:
            X: inputs [n, ...]
            y: labels or targets [n]
            w: weights of the rows' losses [n]; default None: 1 each. Only for problems that give "weights"
        """

    def initial(self, generator: torch.Generator) -> Vec:
        """x₀ [d]."""

    def outputs(self, x: Vec, X: Data) -> Tensor:
        """The outputs on these rows of the model with parameters x, in evaluation mode."""

    def losses(self, outputs: Tensor, y: Data) -> Float[Tensor, " n"] | None:
        """Loss of each row [n]; None if the user's loss returns only a mean."""

    def hits(self, outputs: Tensor, y: Data) -> Float[Tensor, " n"] | None:
        """1 for a row that the model classifies correctly, otherwise 0 [n]; None without classes."""

    def penalty(self, x: Vec) -> float:
        """The regulariser's value at x."""

    def restricted(self, allowed: Bool[Tensor, "c c"] | None) -> Problem:
        """The same problem, but a row of label y is compared only with the outputs of classes ``allowed[y]``; None
        allows all.

        This affects losses and hits, and objectives from `bind`; `outputs` do not change. Parameters and
        buffers are shared with this problem. Raises RecipeError unless there is one output for each class.
        """

    def buffers(self) -> State | None:
        """Model state that is not part of x, such as BatchNorm statistics; None if there is none."""

    def load_buffers(self, state: State) -> None:
        """Set the buffers for the following forward passes."""


@runtime_checkable
class Family(Protocol):
    """A model and a loss as the user defines them, before the data's shape is known."""

    def ready(self, X: Data, y: Data, classes: int | None, dtype: torch.dtype | None, device: str) -> Problem:
        """The problem for data of this shape.

        Args:
            X: inputs [n, ...]
            y: labels or targets [n]
            classes: number of classes, or None
            dtype: of x; None for the family's own
            device: torch's name of it
        """

    def canonical(self, y: Data, classes: int | None) -> Data:
        """A user's labels in the form that data sets use: int64 0..C−1, or floats. Raises BadData with the first bad
        row.
        """

    def targets(self, y: Data, classes: int | None) -> Data:
        """Labels in the form that the loss needs. Raises BadData with the first row that has no valid label."""

    def settings(self) -> dict[str, Any]:
        """Settings as plain values, for the record."""
