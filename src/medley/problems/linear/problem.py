"""A generalised linear model, ready for rows of a known length."""

from __future__ import annotations

import copy as copying

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ...contract import Data, Need, Readout, RecipeError, State, Vec, Weights
from ...runtime.meter import Meter
from .layer import Linear
from .loss import LinearLoss
from .model import LinearModel
from .objective import LinearObjective


class LinearProblem(LinearModel):
    """The problem contract (`medley.contract.problem.Problem`) of a linear model."""

    def __init__(self, family: LinearLoss, features: int, width: int, dtype: torch.dtype, device: str) -> None:
        super().__init__(family, features, width, dtype, device)
        convex = {Need.CONVEX, Need.HESSIAN, Need.FACTOR, Need.FEATURES, Need.WEIGHTS, Need.ROWS, Need.TARGETS}
        self.gives = frozenset(convex | {Need.CLASSES if family.classification else Need.QUADRATIC})

    @property
    def readout(self) -> Readout:
        """All of x is the last layer's weights; the last feature is the intercept's."""
        return Readout(0, None, self.family.intercept)

    def inputs(self, X: Data) -> Data:
        """Rows in the run's dtype, with a column of ones for the intercept."""
        X = X.to(device=self.device, dtype=self.dtype)
        return torch.cat([X, X.new_ones(len(X), 1)], 1) if self.family.intercept else X

    def bind(self, X: Data, y: Data, w: Weights = None) -> LinearObjective:
        """f_i of these rows; their weights ``w`` [n] are 1 by default."""
        return LinearObjective(self, X, y, Meter(), w=w)

    def initial(self, generator: torch.Generator) -> Vec:
        """Zeros: the usual start of a convex problem."""
        return torch.zeros(self.d, dtype=self.dtype, device=self.device)

    def outputs(self, x: Vec, X: Data) -> Tensor:
        """Margins, predictions or logits."""
        return self.z(x, X)

    def hits(self, outputs: Tensor, y: Data) -> Float[Tensor, " n"] | None:
        """1 for each row whose class the model predicts, else 0; None where there are no classes."""
        return self.family.hits(self.compared(outputs, y), y)

    def module(self, x: Vec) -> nn.Module:
        """The model as an nn.Linear that takes rows of any dtype.

        Its output is one number for each row; several for Softmax and for several targets.
        """
        weights = x.detach().cpu().view(self.width, self.features)
        features = self.features - self.family.intercept
        linear = Linear(features, self.width, bias=self.family.intercept, dtype=x.dtype)
        with torch.no_grad():
            linear.weight.copy_(weights[:, :features])
            if self.family.intercept:
                linear.bias.copy_(weights[:, -1])
        return (nn.Sequential(linear, nn.Flatten(0)) if self.scalar else linear).eval()

    def restricted(self, allowed: Bool[Tensor, "c c"] | None) -> LinearProblem:
        """The same model, in which a row with label y is compared only with classes ``allowed[y]``; None for all.

        Raises RecipeError if classes are given and this is not `Softmax`.
        """
        if allowed is not None and not (self.family.classification and self.width > 1):
            kind = type(self.family).__name__
            raise RecipeError(f"a stream of classes needs Softmax or a Network, not {kind}", "stream")
        out = copying.copy(self)
        out.allowed = allowed
        return out

    def buffers(self) -> State | None:
        """None: all state is in x."""
        return None

    def load_buffers(self, state: State) -> None:
        """Does nothing: there are no buffers."""
