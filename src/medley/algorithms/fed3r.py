r"""Fed3R: ridge regression on fixed features, exactly, from one reply of each client, however its rows are divided.

.. math::

   A &= \textstyle\sum_i p_i A_i, \quad A_i = \tfrac{1}{n_i} \sum_j \varphi_j \varphi_j^T
   && \text{second moments of the features} \quad (1) \\
   b &= \textstyle\sum_i p_i b_i, \quad b_i = \tfrac{1}{n_i} \sum_j \varphi_j y_j^T
   && \text{y is one-hot, or the row's targets} \quad (2) \\
   W &= (A + \lambda I)^{-1} b
   && \text{the last layer} \quad (3)

The features φ are the inputs of the model's last linear layer: the columns of a linear model, random Fourier features
(Fed3R-RF: `medley.models.fourier`), or the body of any network, which stays as it is. The result is a model as any
other: ``run(..., init=result)`` fine-tunes all of it (Fed3R+FT).

**Reference**: Fanì, Camoriano, Caputo & Ciccone, "Accelerating Heterogeneous Federated Learning with Closed-form
Classifiers", ICML 2024.

**Status**: published with corrections

**Needs**: a last linear layer that reads a vector for each row, and labels in classes or values to fit by squares.

**One round sends** (floats per client, in float64; f: the features, with an intercept; c: the outputs):

- moments (first time): d down, f(f + 1)/2 + fc + 2 up; a client that was counted is not asked again

**Departures**: A and b are weighted means instead of sums, so λ is the paper's divided by the number of rows. λ leaves
out the intercept, and replaces a linear problem's mu. By default λ is chosen by generalised cross-validation from the
same sums; the paper tunes it. The authors' code divides each class's weights by their norm, which ``normalise=True``
does.

**Checked against**: the authors' code.

**Missing replies**: a client whose reply is lost is asked again in the next round in which it takes part. Until then
the model is that of the rows counted so far, and ``counted`` in the history says how many clients these are. A client
that leaves stays counted. In a secure run, which hides a client among others, a client that alone is new waits for the
next new one; the server then asks both.

**Example**

>>> import medley as md
>>> fed = md.Federation(
...     md.problems.Network(md.models.fourier(64, 10, width=300)), data=md.datasets.digits().flatten(),
...     partition=md.partitions.Dirichlet(clients=20, alpha=0.1),
... )
>>> run = md.run(md.Fed3R(), fed, rounds=1, progress=False)
>>> run.history[-1]["accuracy"] > 0.96
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ..contract import (
    Algorithm,
    Client,
    Cohort,
    Data,
    Diverged,
    Message,
    Model,
    Need,
    Readout,
    TooFewReplies,
    Unsupported,
    Vec,
    Weights,
    at_least,
    on_client,
)
from ..numerics.dense import Triangle, symmetric, triangle
from ..numerics.ridge import Singular, cross_validated, decomposed, weights

BLOCK = 1 << 24
"""Numbers of features that a client converts to float64 at once: 128 MiB."""

LEAST = 1e-12
"""The least Σ p_i²/n_i: a coarse secure sum may round it to 0."""

ROUNDED = 1e-12
"""The least noise of sums, as a share of their largest eigenvalue, that float64 does not explain."""


class Moments(Message):
    """Up, as means over the client's rows: φφᵀ, its upper triangle [f(f + 1)/2]; φyᵀ [f, c]; ‖y‖². And p_i/n_i."""

    A: Triangle
    b: Float[Tensor, "f c"]
    square: float
    share: float


@dataclass
class Server:
    """The model, the sums so far in float64 with Σ p_i over them, and p_i of each client counted in this task."""

    x: Vec
    A: Triangle | None = None
    b: Float[Tensor, "f c"] | None = None
    square: float = 0.0
    share: float = 0.0
    total: float = 0.0
    task: int = 0
    p: dict[int, float] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    """Clients that took part, but were too few to be asked in a secure sum."""


@dataclass(frozen=True)
class Fed3R(Algorithm[Server]):
    """Federated recursive ridge regression.

    Attributes:
        penalty: λ; "auto" (default) takes the one with the least error of rows that are left out, by generalised
            cross-validation
        normalise: whether each output's weights are divided by their norm, as the authors do against classes of unequal
            size; only for classes. Default False: the ridge regression itself
    """

    penalty: Annotated[float, at_least(0)] | Literal["auto"] = "auto"
    normalise: bool = False

    needs = frozenset({Need.FEATURES, Need.TARGETS})
    asks_once = True
    solves_sums = True

    def requires(self) -> frozenset[str]:
        """Classes, to divide their weights by their norms."""
        return self.needs | ({Need.CLASSES} if self.normalise else set())

    def start(self, x: Vec) -> Server:
        """x₀, and nobody counted."""
        return Server(x)

    def readmit(self, s: Server, clients: Cohort, who: Sequence[int]) -> None:
        """Scale the sums to the new p_i, of which all change by one factor if rows are what weighs."""
        if s.A is None or s.b is None:
            return
        stay = [i for i in s.p if clients.p.get(i)]
        if not stay or s.total - sum(s.p.values()) > 1e-9:
            raise Unsupported(
                "Fed3R cannot go on with other clients, because it does not know the weight of the rows counted so far "
                "beside theirs: all clients that it counted have left, or there was a task before; start a new run",
                method=self.name,
                need="fixed",
            )
        factor = clients.p[stay[0]] / s.p[stay[0]]
        s.A = s.A * factor
        s.b = s.b * factor
        s.square = s.square * factor
        s.share = s.share * factor**2
        s.p = {i: p * factor for i, p in s.p.items()}
        s.total = sum(s.p.values())

    def round(self, s: Server, clients: Cohort) -> None:
        """Add the sums (1) and (2) of the clients that are not counted yet, and solve (3)."""
        if clients.task.index != s.task:  # its rows are others, so all are asked again; each task has the same weight
            s.task = clients.task.index
            s.p = {}
            s.waiting = []
        new = self.pooled(s, clients)
        at = clients.readout
        if at is None:
            raise Unsupported(
                "Fed3R fits the last linear layer, which this network does not train, or does not share; unfreeze it",
                method=self.name,
                need="features",
            )
        if new:
            replies = clients.ask(self.moments, Model(s.x), ids=new)
            try:
                up = replies.sum()
            except TooFewReplies:
                if s.A is None:
                    raise
                return  # the model of the clients counted so far stands
            s.A = up.A if s.A is None else s.A + up.A
            s.b = up.b if s.b is None else s.b + up.b
            s.square = s.square + up.square
            s.share = s.share + up.share
            s.p = s.p | {i: clients.p[i] for i in replies.ids}
            s.total = s.total + replies.share
            self.solve(s, at, clients)

    def pooled(self, s: Server, clients: Cohort) -> tuple[int, ...]:
        """The new clients to ask: in a secure run as many as hide each other, and never all but too few of the rest."""
        new = tuple(i for i in clients.ids if i not in s.p)
        least = clients.least
        if least == 1:
            return new
        ready = [*s.waiting, *(i for i in new if i not in s.waiting)]
        number = min(len(ready), max(2 * least - 1, len(clients.ids)))  # as many as a threshold lets open
        left = sum(i not in s.p for i in clients.p) - number
        if 0 < left < least:  # these could never be asked without others
            number -= least - left
        if number < least:
            number = 0
        s.waiting = ready[number:]
        return tuple(sorted(ready[:number]))

    def solve(self, s: Server, at: Readout, clients: Cohort) -> None:
        """(3), put in the place of the last layer."""
        assert s.A is not None
        assert s.b is not None
        total = s.total
        A = symmetric(s.A, len(s.b)).double() / total
        squares = decomposed(A, s.b.double() / total, s.square / total, ones=at.ones or at.bias is not None)
        # n for equal weights of rows, and Kish's effective number for others.
        best, error = cross_validated(squares, total**2 / max(s.share, LEAST))
        penalty = best if self.penalty == "auto" else self.penalty
        try:
            W = weights(squares, penalty)
        except Singular as e:
            raise Diverged(
                "Fed3R(penalty=0): the ridge regression has no unique solution, because the rows of "
                f"{len(s.p)} clients show only {e.rank} independent directions of {e.features} features, as with more "
                "features than rows; give a penalty above 0, or leave penalty= out"
            ) from None
        if penalty < squares.noise and squares.noise > ROUNDED * float(squares.values[-1]):
            given = "no penalty is" if self.penalty == "auto" else f"penalty={penalty:g} is not"
            smaller = "" if self.penalty == "auto" else f" a penalty of at least {2 * squares.noise:.1g}, or"
            raise Diverged(
                f"Fed3R: {given} above the {squares.noise:.2g} to which a codec or a secure sum rounds the sums; "
                f"give{smaller} more digits: leave codec= out, or codecs.Cast('float32'); SecureSum(bits=64)"
            )
        clients.note(penalty=penalty, counted=len(s.p))
        if self.penalty == "auto" and math.isfinite(error):
            clients.note(validation_error=error)
        s.x = placed(s.x, W, at, self.normalise)

    @on_client
    def moments(self, me: Client, request: Model) -> Moments:
        """A_i and b_i of the client's rows."""
        of: Any = me.problem
        slopes, features = of.slopes(request.x)
        y = targets(of.y, slopes.shape[1])
        w = row_weights(getattr(of, "joint", of))
        f = features.shape[1] + (of.last()[1] is not None)
        A = y.new_zeros(f, f)
        b = y.new_zeros(f, y.shape[1])
        step = max(1, BLOCK // f)
        for at in range(0, of.n, step):
            phi = features[at : at + step].double()
            phi = torch.cat([phi, phi.new_ones(len(phi), 1)], 1) if f > phi.shape[1] else phi
            left = phi if w is None else phi * w[at : at + step, None]
            A += left.T @ phi
            b += left.T @ y[at : at + step]
        of.work += of.n * f / 3
        square = y.square().sum(1)
        mean_square = float(square.mean() if w is None else (w * square).mean())
        return Moments(
            triangle(A / of.n),
            b / of.n,
            mean_square,
            me.p / of.n * (1.0 if w is None else float(w.square().mean() / w.mean() ** 2)),
        )


def targets(y: Data, outputs: int) -> Float[Tensor, "n c"]:
    """Values as they are, classes one-hot, in float64."""
    if y.is_floating_point():
        return y.double().reshape(len(y), -1)
    return F.one_hot(y, outputs).double()


def row_weights(of: Any) -> Weights:
    """The weights of the rows times those of their classes, in float64; None if all are 1."""
    factors = getattr(of.problem, "factors", None)
    w: Weights = of.w
    if factors is not None:
        w = factors[of.y] if w is None else w * factors[of.y]
    return None if w is None else w.double()


def placed(x: Vec, W: Float[Tensor, "f c"], at: Readout, normalise: bool) -> Vec:
    """x with W as its last layer; if ``normalise``, each output's weights are divided by their norm."""
    intercept = at.ones or at.bias is not None
    if normalise:
        norms = (W[:-1] if intercept else W).norm(dim=0)
        W = W / norms.where(norms > 0, 1.0)
    out = x.clone()
    rows = W if at.bias is None else W[:-1]
    out[at.weight : at.weight + rows.numel()] = rows.T.reshape(-1).to(x)
    if at.bias is not None:
        out[at.bias : at.bias + W.shape[1]] = W[-1].to(x)
    return out
