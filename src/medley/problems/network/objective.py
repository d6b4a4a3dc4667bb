"""f_i of one client's rows under a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from ...contract import Data, LocalLoss, Objective, Rows, Unsupported, Vec, Weights
from ...numerics.sums import shortening
from ...rows.fields import Inputs, inputs_of, several
from ...rows.joint import Beside, Labelled
from ...rows.lazy import in_memory
from ...runtime.forwarded import forwarded
from ...runtime.meter import Meter
from ..labels import count
from .adapters import SomeObjective
from .model import NetworkModel
from .spec import Transform

EVALUATED_AT_ONCE = 1 << 18
"""How many input numbers one forward pass of an evaluation takes: 1 MB in float32, so that layers stay in a cache."""

ROW_GRADIENTS = 1 << 24
"""How many numbers of row gradients `NetworkObjective.squares` holds at once: 64 MiB in float32."""


FEW_ROWS = 64
"""How many rows an evaluation takes at once, at least, unless they have very many outputs; of a model that `is_wide`
not more, because its layers may be wide, too."""


def rows_at_once(X: Data, of: NetworkModel | None = None) -> int:
    """Rows per forward pass of an evaluation, at least 1, from how many inputs and outputs a row has."""
    inputs = max(1, X.shape[1:].numel())
    most = FEW_ROWS if of is not None and is_wide(of) else max(FEW_ROWS, EVALUATED_AT_ONCE // inputs)
    return max(1, min(most, (1 << 24) // max(1, 1 if of is None else of.numbers)))


def is_wide(model: NetworkModel) -> bool:
    """Whether a pass over all rows could take more memory than the model, which has 64 MiB or more, on a CPU."""
    return model.flat.is_cpu and model.flat.nbytes >= 1 << 26


@dataclass
class NetworkObjective:
    """f_i of one client's rows, as `medley.contract.problem.Objective` describes it.

    Attributes:
        problem: the model, which all clients of a process share.
        X, y: the rows, as `NetworkProblem.inputs` and the family's `targets` give them.
        meter: counts work; shared with all views of the client's rows.
        order: the client's own row numbers, if the rows were taken in another order; else None.
        w: weights of the rows' losses [n]; None for 1 each.
        rng: the random stream for the transform of training batches; None if nothing is drawn.
        also: further rows in each gradient, see `beside`; None if there are none.
    """

    problem: NetworkModel
    X: Data
    y: Data
    meter: Meter
    order: Int[Tensor, " n"] | None = None
    w: Weights = None
    rng: torch.Generator | None = None
    also: Beside | None = None
    n: int = field(init=False)
    d: int = field(init=False)
    (work,) = forwarded("meter", "rows")
    shapes, adapters, partial, idle = forwarded("problem", "shapes", "adapters", "partial", "idle")

    def __post_init__(self) -> None:
        self.n = self.X.shape[0]
        self.d = self.problem.d

    @property
    def transform(self) -> Transform | None:
        """The transform of training batches; None if there is none."""
        return self.problem.family.transform

    def _rows(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Inputs and labels of these rows."""
        X, y = (self.X, self.y) if rows is None else (self.X[rows], self.y[rows])
        return in_memory(X), in_memory(y)

    def _weights(self, rows: Rows) -> Weights:
        return self.w if rows is None or self.w is None else self.w[rows]

    def loss(self, x: Vec, rows: Rows = None) -> float:
        """f_i(x) on these rows, in evaluation mode.

        A user's own loss and a large model get as many rows at a time as an evaluation takes, and means are averaged.
        """
        X, y = (self.X, self.y) if rows is None else (self.X[rows], self.y[rows])  # lazy rows are read in batches
        w = self._weights(rows)
        p = self.problem
        self.meter.rows += len(y) / 3
        most = rows_at_once(X, p)
        if len(y) <= most or not (callable(p.family.loss) or is_wide(p)):
            return float(p.mean_loss(p.outputs(x, X), y, w))
        parts = [slice(at, at + most) for at in range(0, len(y), most)]
        totals = [float(p.mean_loss(p.outputs(x, X[s]), y[s], None if w is None else w[s])) * len(y[s]) for s in parts]
        return sum(totals) / len(y)

    def losses_along(self, x: Vec, p: Vec, etas: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        """f_i(x − ηp) for every η, with one forward pass each."""
        return x.new_tensor([self.loss(x - float(eta) * p) for eta in etas])

    def convexity(self) -> float:
        """0, because no lower bound on the curvature is known."""
        return 0.0

    def smoothness(self) -> float:
        """Infinity, because no upper bound on the curvature is known."""
        return math.inf

    def grad(self, x: Vec, rows: Rows = None, loss: LocalLoss | None = None, *, copy: bool = True) -> Vec:
        """∇f_i(x) on these rows, in training mode.

        With ``copy=False`` it is the model's own gradient buffer, which the next call overwrites. A batch of one row
        has no variance: BatchNorm then takes its running statistics, as in evaluation.
        """
        p = self.problem
        X, y = self._rows(rows)
        p.load(x)
        p.mode(True)
        p.gradient.zero_()
        p.reached.clear()
        if self.transform is not None and self.rng is not None:
            X = several(self.transform(inputs_of(X.clone()), self.rng))  # it may work in place
        current = Labelled(X, y, self._weights(rows))
        if self.also is None:
            self._backward(x, current, rows, loss)
            return p.gradient.clone() if copy else p.gradient
        old = self.also.next_rows()
        if loss is None and p.by_rows and not p.mixes_rows:
            self._backward(x, self.also.united(current, old, x))
        else:
            share = self.also.own(len(current.y), len(old.y))
            self._backward(x, current, rows, loss, share)
            self._backward(x, old, share=1 - share)
        return p.gradient.clone() if copy else p.gradient

    def _backward(
        self, x: Vec, of: Labelled, rows: Rows = None, loss: LocalLoss | None = None, share: float = 1.0
    ) -> None:
        """Add the gradient of share·(mean loss of these rows) to the model's gradient buffer."""
        p = self.problem
        X, y, w = of
        self.meter.rows += len(y)

        def total() -> Tensor:
            return p.mean_loss(p.apply(X), y, w) if loss is None else loss(NetworkBatch(self, x, X, y, rows))

        try:
            value = total()
        except ValueError as e:
            if len(y) > 1 or "more than 1 value per channel" not in str(e):
                raise
            if not p.running():
                raise ValueError(
                    "BatchNorm without running statistics cannot train on one row, but a batch of this "
                    f"client's {self.n} rows has only one; use GroupNorm or LayerNorm, another batch size, or "
                    "drop_last=True"
                ) from e
            with p.running_statistics():
                value = total()
        (value if share == 1.0 else share * value).backward()  # type: ignore[no-untyped-call]

    def _pure(self, x: Vec, rows: Rows) -> Callable[[Vec], Tensor]:
        """f_i on these rows as a function of x, in evaluation mode."""
        p = self.problem
        X, y = self._rows(rows)
        w = self._weights(rows)
        p.mode(False)  # so that a Hessian is that of the function that is evaluated

        inputs = inputs_of(X)
        return lambda v: p.mean_loss(p.call(v, inputs), y, w)

    def hvp(self, x: Vec, v: Vec, rows: Rows = None) -> Vec:
        """∇²f_i(x) v on these rows by double backward, in evaluation mode."""
        self.meter.rows += 2 * len(self.y if rows is None else self.y[rows])
        leaf = x.detach().clone().requires_grad_()
        (g,) = torch.autograd.grad(self._pure(x, rows)(leaf), leaf, create_graph=True)
        (h,) = torch.autograd.grad(g @ v, leaf)
        return h

    def hessian(self, x: Vec, rows: Rows = None) -> Float[Tensor, "d d"]:
        """∇²f_i(x) on these rows, dense [d, d], by d products."""
        eye = torch.eye(self.d, dtype=self.problem.dtype, device=x.device)
        return torch.stack([self.hvp(x, e, rows) for e in eye], 1)

    def factor(self, x: Vec) -> tuple[Float[Tensor, "m d"], float]:
        """Raises Unsupported: a network's Hessian need not be positive."""
        raise Unsupported("a network's Hessian has no factor A with AᵀA + δI", method="factor", need="factor")

    def outputs(self, x: Vec, rows: Rows = None) -> Tensor:
        """The network's outputs for these rows, in evaluation mode."""
        X, _ = self._rows(rows)
        self.meter.rows += len(X) / 3
        return self.problem.outputs(x, X)

    def features(self, x: Vec, rows: Rows = None) -> Tensor:
        """The inputs of the last linear layer [n, f] for these rows, in evaluation mode."""
        batch = NetworkBatch(self, x, *self._rows(rows), rows)
        self.problem.load(x)
        self.problem.mode(False)
        with torch.no_grad():
            return batch.features

    def _of_row(self, x: Vec, row: Inputs, y: Tensor) -> Tensor:
        """The loss of one row, differentiable with respect to x."""
        batch: Inputs = tree_map(lambda t: t[None], row)
        return self.problem.mean_loss(self.problem.call(x, batch), y[None])

    def row_gradients(self, x: Vec, X: Data, y: Data) -> Float[Tensor, "n d"]:
        """∂l_j/∂x for each of these rows, in the module's current mode."""
        by_row: Callable[..., Tensor] = grad(self._of_row)
        rows = inputs_of(X)
        if self.problem.maps:
            try:
                return vmap(by_row, (None, 0, 0))(x, rows, y)
            except Exception:  # such as of control flow that depends on a mask's numbers; other errors come again
                self.problem.maps = False
        return torch.stack([by_row(x, tree_map(lambda t: t[j], rows), y[j]) for j in range(len(y))])  # noqa: B023

    def squares(self, x: Vec, rows: Rows = None) -> Vec:
        """(1/n) Σ_j (∂l_j/∂x)², square by coordinate, in evaluation mode, a block of rows at a time."""
        p = self.problem
        X, y = self._rows(rows)
        self.meter.rows += len(y)
        p.mode(False)

        block = max(1, ROW_GRADIENTS // self.d)
        total = torch.zeros_like(x)
        weights = self._weights(rows)
        for k, (a, b) in enumerate(zip(torch.split(X, block), torch.split(y, block), strict=True)):
            squared = self.row_gradients(x, a, b).square()
            some = None if weights is None else weights[k * block : (k + 1) * block]
            total += squared.sum(0) if some is None else some @ squared
        return total / len(y)

    def clipped(self, x: Vec, rows: Rows, bound: float) -> tuple[Vec, Vec | float]:
        """Σ_j g_j min(1, bound/‖g_j‖) in training mode, a block of rows at a time; no regulariser.

        Finite for every x: a gradient that is not finite adds nothing, so that no x makes the sum reveal more of a row.
        """
        p = self.problem
        total = torch.zeros_like(x)
        X, y = self._rows(rows)
        weights = self._weights(rows)
        self.meter.rows += len(y)
        p.mode(True)
        block = max(1, ROW_GRADIENTS // self.d)
        for at in range(0, len(y), block):
            g = self.row_gradients(x, X[at : at + block], y[at : at + block])
            if weights is not None:
                g *= weights[at : at + block, None]
            g.masked_fill_(~g.isfinite().all(1, keepdim=True), 0.0)
            total += shortening(g.norm(dim=1), bound) @ g
        return total, 0.0

    def among(self, x: Vec, free: Bool[Tensor, " d"]) -> SomeObjective:
        """f_i as a function of the coordinates ``free``, which are a block of each matrix; the others stay at x."""
        p = self.problem
        masks = self.problem.split(free)
        shapes = [
            m.shape if m.all() else torch.Size([int(m.any(1).sum()), int(m.any(0).sum())]) for m in masks if m.any()
        ]
        fixed = [p.module.get_parameter(path) for path, i in p.places if not masks[i].any()]
        return SomeObjective(self, x, free, shapes, fixed)

    def counts(self) -> Int[Tensor, " c"]:
        """The number of rows of each class."""
        return count(self.y, self.problem.classes or 0)

    def workspace(self, x: Vec) -> Vec:
        """The model's own parameter buffer, set to x."""
        self.problem.load(x)
        return self.problem.flat

    def last(self) -> tuple[int, int | None]:
        """Positions in x of the last linear layer's weights and biases. Raises Unsupported if it is not trained."""
        at = self.problem.last()
        if at is None:
            raise Unsupported("the network's last layer is not linear, or it is frozen", method="last", need="features")
        return at

    def like(self, X: Data, y: Data) -> NetworkObjective:
        """The same objective on other rows; its work counts as this one's."""
        return NetworkObjective(self.problem, X, y, self.meter)

    def beside(self, other: Objective, draws: Iterator[Rows], share: float | None = None) -> NetworkObjective:
        """The same objective with rows of ``other`` in each gradient."""
        return replace(self, also=Beside(other, draws, share))

    def slopes(self, x: Vec) -> tuple[Float[Tensor, "n o"], Float[Tensor, "n f"]]:
        """∂l_j/∂z_j [n, o] and the last layer's inputs [n, f], computed some rows at a time."""
        p = self.problem
        weight, bias = self.last()
        self.meter.rows += self.n / 3
        p.load(x)
        p.mode(False)
        blocks = []
        most = rows_at_once(self.X, p)
        for at in range(0, self.n, most):
            rows = slice(at, at + most)
            batch = NetworkBatch(self, x, *self._rows(rows), rows)
            with torch.no_grad():
                z = batch.outputs
                phi = batch.features
                is_linear = z.ndim == phi.ndim == 2
                if is_linear:
                    W = x[weight:][: z.shape[1] * phi.shape[1]].view(z.shape[1], -1)
                    product = phi @ W.T + (0.0 if bias is None else x[bias:][: len(W)])
                    is_linear = torch.allclose(product, z, rtol=1e-3, atol=1e-4)
            if not is_linear:
                raise Unsupported(
                    "the network's outputs are not those of its last linear layer, a vector for each row",
                    method="slopes",
                    need="features",
                )
            leaf = z.requires_grad_()
            (R,) = torch.autograd.grad(p.mean_loss(leaf, batch.y, self._weights(rows)), leaf)
            blocks.append((R * len(batch.y), phi))
        Rs, phis = zip(*blocks, strict=True)
        return torch.cat(Rs), torch.cat(phis)

    def take(self, order: Int[Tensor, " n"]) -> NetworkObjective:
        """The same objective with its rows in this order."""
        order = order.to(self.X.device)
        w = None if self.w is None else self.w[order]
        X = self.X[order]
        y = self.y[order]
        return NetworkObjective(self.problem, X, y, self.meter, order=order, w=w, rng=self.rng, also=self.also)


class NetworkBatch:
    """One forward pass, for a method's own loss; see `medley.contract.problem.Batch`.

    Args:
        of: the objective.
        x: the parameters [d]; the batch loads them into the model.
        X, y: inputs and labels of the batch.
        rows: their indices in the objective, None for all.
    """

    def __init__(self, of: NetworkObjective, x: Vec, X: Data, y: Data, rows: Rows) -> None:
        self.of = of
        self.x = x
        self.X = X
        self.y = y
        self._rows = rows

    @cached_property
    def _pass(self) -> tuple[Tensor, Tensor | None]:
        """The outputs, and the inputs of the last linear layer; None instead if there is no such layer."""
        p = self.of.problem
        inputs = []
        head = p.head
        hook = None if head is None else head.register_forward_pre_hook(lambda m, args: inputs.append(args[0]))
        try:
            out = p.apply(self.X)
        finally:
            if hook is not None:
                hook.remove()
        return out, inputs[-1] if inputs else None

    @property
    def outputs(self) -> Tensor:
        """Logits or predictions of the batch."""
        return self._pass[0]

    @property
    def features(self) -> Tensor:
        """The last linear layer's inputs [b, f]."""
        z = self._pass[1]
        assert z is not None, "a run refuses methods that need features where there is no linear layer"
        return z

    @property
    def bias(self) -> Tensor | None:
        """The last linear layer's bias [o]; None if it has none."""
        head = self.of.problem.head
        return None if head is None else head.bias

    @property
    def rows(self) -> Rows:
        """The client's own row numbers; None for all."""
        return self._rows if self.of.order is None or self._rows is None else self.of.order[self._rows]

    def loss(self, outputs: Tensor | None = None) -> Tensor:
        """The mean loss of the batch, or of the outputs that you pass."""
        out = self.outputs if outputs is None else outputs
        return self.of.problem.mean_loss(out, self.y, self.of._weights(self._rows))
