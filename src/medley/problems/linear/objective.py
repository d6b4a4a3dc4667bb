"""f_i of one client's rows under a linear model, with hand-written derivatives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from ...contract import Data, LocalLoss, Objective, Rows, Vec, Weights
from ...numerics.sums import shortening
from ...rows.joint import Beside, Labelled
from ...rows.sparse import Sparse
from ...runtime.forwarded import forwarded
from ...runtime.meter import Meter
from ..labels import count
from .model import LinearModel


def weighed(t: Float[Tensor, "n ..."], w: Weights) -> Float[Tensor, "n ..."]:
    """Rows t, each multiplied by its weight in w [n]; None means that all weights are 1."""
    return t if w is None else t * w.view(-1, *[1] * (t.ndim - 1))


class LinearObjective:
    """f_i of one client's rows, as `medley.contract.problem.Objective` describes it.

    Args:
        problem: the model; it holds the ridge and the masks.
        X, y: the rows, as `LinearProblem.inputs` and the family's `targets` give them.
        meter: counts work; shared with all views of the client's rows.
        order: the client's own row numbers, if `take` put the rows in another order; else None.
        w: weights of the rows [n]; None for 1.
        also: rows of another objective that each gradient also uses, see `beside`; None for none.
    """

    (work,) = forwarded("meter", "rows")

    def __init__(
        self,
        problem: LinearModel,
        X: Data,
        y: Data,
        meter: Meter,
        order: Int[Tensor, " n"] | None = None,
        w: Weights = None,
        also: Beside | None = None,
    ) -> None:
        self.problem = problem
        self.X = X
        self.y = y
        self.meter = meter
        self.order = order
        self.w = w
        self.also = also
        self.n = len(X)
        self.d = problem.d
        self._margins: tuple[Vec, int, Tensor] | None = None

    def _z(self, x: Vec, X: Data, rows: Rows = None) -> Tensor:
        """Outputs of these rows. Keeps those of all rows, because gradient, Hessian and products are often at one x."""
        if rows is not None or x.requires_grad:
            return self.problem.z(x, X)
        if self._margins is None or self._margins[0] is not x or self._margins[1] != x._version:
            self._margins = x, x._version, self.problem.z(x, X)
        return self._margins[2]

    def _rows(self, rows: Rows) -> tuple[Tensor, Tensor, Weights]:
        """Inputs, labels and weights of these rows."""
        if rows is None:
            return self.X, self.y, self.w
        return self.X[rows], self.y[rows], None if self.w is None else self.w[rows]

    def loss(self, x: Vec, rows: Rows = None) -> float:
        """f_i(x) on these rows."""
        X, y, w = self._rows(rows)
        self.meter.rows += len(y) / 3
        return float(weighed(self.problem.losses(self._z(x, X, rows), y), w).mean()) + self.problem.penalty(x)

    def losses_along(self, x: Vec, p: Vec, etas: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        """f_i(x − ηp) for every η. Two products with X are enough, because z(x − ηp) = Xx − ηXp."""
        self.meter.rows += 2 * self.n / 3
        of = self.problem
        z = of.compared(self._z(x, self.X), self.y)
        u = of.z(p, self.X)
        shape = (-1, *(1,) * z.ndim)
        y = self.y.repeat(len(etas), *(1,) * (self.y.ndim - 1))
        all_rows = of.losses((z - etas.view(shape) * u).flatten(0, 1), y).view(len(etas), -1)
        at = x - etas[:, None] * p
        return weighed(all_rows.T, self.w).mean(0) + (of.decay * at * at).sum(1) / 2

    def convexity(self) -> float:
        """μ, or 0 with an intercept, because the ridge leaves it out."""
        return 0.0 if self.problem.family.intercept else self.problem.family.mu

    def smoothness(self) -> float:
        """K = λ_max(Xᵀdiag(w)X)/n · max ∂²l/∂z² + μ."""
        self.meter.rows += min(self.n, self.d) * self.n
        family = self.problem.family
        X = self.X if self.w is None else weighed(self.X, self.w.sqrt())
        gram = X.T @ X if self.n > self.problem.features else X @ X.T
        return family.steepest * float(torch.linalg.eigvalsh(gram)[-1]) / self.n + family.mu

    def grad(self, x: Vec, rows: Rows = None, loss: LocalLoss | None = None, *, copy: bool = True) -> Vec:
        """∇f_i(x) = Xᵀ(w·∂l/∂z)/n + μx on these rows; always a new vector."""
        X, y, w = self._rows(rows)
        p = self.problem
        if self.also is not None:
            return self._with_others(x, Labelled(X, y, w), rows, loss)
        self.meter.rows += len(y)
        if loss is None:
            r = weighed(p.family.slope(p.compared(self._z(x, X, rows), y), y), w)
            g = p.back(X, r).div_(len(y))
        else:
            leaf = x.detach().clone().requires_grad_()
            with torch.enable_grad():
                (g,) = torch.autograd.grad(loss(LinearBatch(self, leaf, X, y, rows=rows, w=w)), leaf)
        return g.add_(p.decay * x) if p.family.mu else g

    def _with_others(self, x: Vec, current: Labelled, rows: Rows, loss: LocalLoss | None) -> Vec:
        """The gradient on these rows and on rows drawn by ``also``. Both parts have the ridge; the shares sum to 1."""
        assert self.also is not None
        old = self.also.next_rows()
        if loss is None:
            X, y, w = self.also.united(current, old, x)
            return LinearObjective(self.problem, X, y, self.meter, w=w).grad(x)
        share = self.also.own(len(current.y), len(old.y))
        plain = LinearObjective(self.problem, self.X, self.y, self.meter, order=self.order, w=self.w)
        others = LinearObjective(self.problem, old.X, old.y, self.meter, w=old.w)
        return share * plain.grad(x, rows, loss) + (1 - share) * others.grad(x)

    def hvp(self, x: Vec, v: Vec, rows: Rows = None) -> Vec:
        """∇²f_i(x) v = Xᵀ(w·(∂²l/∂z²) Xv)/n + μv on these rows."""
        X, y, w = self._rows(rows)
        self.meter.rows += 2 * len(y)
        p = self.problem
        r = weighed(p.family.bend(p.compared(self._z(x, X, rows), y), p.z(v, X)), w)
        return p.back(X, r).div_(len(y)) + p.decay * v

    def hessian(self, x: Vec, rows: Rows = None) -> Float[Tensor, "d d"]:
        """∇²f_i(x), dense [d, d]; of several outputs one block [features, features] for each pair of them."""
        X, y, w = self._rows(rows)
        self.meter.rows += self.d * len(y)
        p = self.problem
        z = p.compared(self._z(x, X, rows), y)
        if p.scalar:
            H = weighed(X, weighed(p.family.bend(z, torch.ones_like(z)), w)).T @ X / len(y)
        else:
            H = X.new_empty(p.width, p.features, p.width, p.features)
            for c in range(p.width):
                column = weighed(p.family.bend(z, F.one_hot(torch.tensor(c), p.width).to(z).expand_as(z)), w)
                for k in range(p.width):
                    H[k, :, c] = weighed(X, column[:, k]).T @ X / len(y)
            H = H.reshape(self.d, self.d)
        H.diagonal().add_(p.decay)
        return H

    def factor(self, x: Vec) -> tuple[Float[Tensor, "m d"], float]:
        """A [m, d] and δ with ∇²f_i(x) = AᵀA + δI.

        A has a scaled row for each row of X and each output. δ = μ. With an intercept δ = 0, and A has extra rows for
        the ridge.
        """
        self.meter.rows += self.n
        p = self.problem
        z = p.compared(self._z(x, self.X), self.y)
        if p.scalar:
            A = weighed(self.X, (weighed(p.family.bend(z, torch.ones_like(z)), self.w) / self.n).sqrt())
        else:
            B = p.family.root(z) / math.sqrt(self.n)
            B = B if self.w is None else weighed(B, self.w.sqrt())
            rows = self.X[torch.arange(self.n, device=z.device).repeat_interleave(p.width)]
            A = torch.cat([weighed(rows, column.reshape(-1)) for column in B.unbind(2)], 1)
        if not isinstance(p.decay, Tensor):
            return A, p.decay
        root = p.decay.sqrt()
        ridge = Sparse.diagonal_matrix(root) if isinstance(A, Sparse) else torch.diag(root)
        return torch.cat([A, ridge[p.decay > 0]]), 0.0

    def outputs(self, x: Vec, rows: Rows = None) -> Tensor:
        """Margins, predictions or logits of these rows."""
        X, _, _ = self._rows(rows)
        self.meter.rows += len(X) / 3
        return self.problem.z(x, X)

    def features(self, x: Vec, rows: Rows = None) -> Tensor:
        """The inputs of these rows, which the last linear layer reads."""
        return self._rows(rows)[0]

    def squares(self, x: Vec, rows: Rows = None) -> Vec:
        """(1/n) Σ_j w_j (∂l_j/∂z)² x_j², with x_j² taken by coordinate."""
        X, y, w = self._rows(rows)
        self.meter.rows += len(y)
        p = self.problem
        return p.back(X.square(), weighed(p.family.slope(p.compared(p.z(x, X), y), y).square(), w)) / len(y)

    def clipped(self, x: Vec, rows: Rows, bound: float) -> tuple[Vec, Vec | float]:
        """Σ_j w_j (∂l_j/∂z) x_jᵀ. A row's part, of norm |w_j ∂l_j/∂z| |x_j|, is scaled down to at most ``bound``.

        The sum is finite for every x, because a part that is not finite counts as 0. So no x makes the sum reveal more
        about a row.
        """
        X, y, w = self._rows(rows)
        self.meter.rows += len(y)
        p = self.problem
        r = weighed(p.family.slope(p.compared(p.z(x, X), y), y), w)
        r = r.masked_fill(~(r.isfinite() if p.scalar else r.isfinite().all(1, keepdim=True)), 0.0)
        lengths = (X.square() @ x.new_ones(p.features)).sqrt() * (r.abs() if p.scalar else r.norm(dim=1))
        return p.back(X, weighed(r, shortening(lengths, bound))), p.decay

    @cached_property
    def _counts(self) -> Int[Tensor, " c"]:
        p = self.problem
        y = (self.y > 0).long() if p.scalar else self.y
        return count(y, 2 if p.scalar else p.width)

    def counts(self) -> Int[Tensor, " c"]:
        """The number of rows of each class."""
        return self._counts

    def workspace(self, x: Vec) -> Vec:
        """A copy of x."""
        return x.clone()

    def last(self) -> tuple[int, int | None]:
        """0 and None: all of x is the last layer's weights, with the intercepts among them."""
        return 0, None

    def like(self, X: Data, y: Data) -> LinearObjective:
        """The same objective on other rows; its work counts as this one's."""
        return LinearObjective(self.problem, X, y, self.meter)

    def take(self, order: Int[Tensor, " n"]) -> LinearObjective:
        """The same objective with its rows in this order."""
        order = order.to(self.X.device)
        X, y, w = self._rows(order)
        return LinearObjective(self.problem, X, y, self.meter, order=order, w=w, also=self.also)

    def beside(self, other: Objective, draws: Iterator[Rows], share: float | None = None) -> LinearObjective:
        """The same objective, whose gradients also use rows of ``other``."""
        also = Beside(other, draws, share)
        return LinearObjective(self.problem, self.X, self.y, self.meter, order=self.order, w=self.w, also=also)

    def slopes(self, x: Vec) -> tuple[Float[Tensor, "n o"], Float[Tensor, "n f"]]:
        """w_j ∂l_j/∂z_j [n, o] without the ridge, and X, because the whole model is the last layer."""
        self.meter.rows += self.n / 3
        p = self.problem
        R = weighed(p.family.slope(p.compared(p.z(x, self.X), self.y), self.y), self.w)
        return (R[:, None] if p.scalar else R), self.X


class LinearBatch:
    """One forward pass of a linear model, for a method's own loss; see `medley.contract.problem.Batch`.

    Args:
        x: the parameters [d], through which gradients flow.
        rows: the rows' indices in the objective; None for all.
        w: the rows' weights; None for 1.
    """

    def __init__(self, of: LinearObjective, x: Vec, X: Data, y: Data, rows: Rows, w: Weights) -> None:
        self.of = of
        self.x = x
        self.X = X
        self.y = y
        self._rows = rows
        self.w = w

    @cached_property
    def outputs(self) -> Tensor:
        """Margins, predictions or logits of the batch."""
        return self.of.problem.z(self.x, self.X)

    @property
    def features(self) -> Tensor:
        """The inputs of the batch."""
        return self.X

    @property
    def bias(self) -> Tensor | None:
        """The intercepts [width]; None without them."""
        p = self.of.problem
        return self.x.view(p.width, p.features)[:, -1] if p.family.intercept else None

    @property
    def rows(self) -> Rows:
        """The client's own numbers of the rows; None for all."""
        return self._rows if self.of.order is None or self._rows is None else self.of.order[self._rows]

    def loss(self, outputs: Tensor | None = None) -> Tensor:
        """The mean loss of the batch without the regulariser; of ``outputs`` instead of the model's, if given."""
        return weighed(self.of.problem.losses(self.outputs if outputs is None else outputs, self.y), self.w).mean()
