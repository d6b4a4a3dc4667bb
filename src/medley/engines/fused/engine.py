"""Local descent with the backward pass written out, for a whole client stack at once.

The engine takes stacks of linear and convolutional layers, losses with a known slope, and updates that are affine in
the gradient. Three things make it fast.

- There is no autograd.
- The step size is a factor of the loss's slope δ. The backward pass then yields the update itself, which is subtracted
    from the weights as it is made: W ← W − δhᵀ.
- Clients share every operation for as long as they have steps left (see `minibatches`).

Large models, and models with convolutions, are trained client by client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from ...contract import Client, Descent, Engine, LocalUpdate, Pace, Problem, Vec, column
from ...problems.linear import LinearProblem
from ..minibatches import ClientVecs, Group, Schedule, groups, minibatches, simulated_times, supports
from ..seq import Seq
from .layers import Back, Conv, Dense, Forward, Layer, Pool, Slope, Update, channels_last
from .parse import layers_of
from .span import Span, cheaper

ALONE = 1 << 17
"""With more parameters than this, a model fills a core's cache by itself."""


class Terms(NamedTuple):
    """One step of each client: x ← x − rate·∇l(x; batch) − fading·x − push·drift.

    With decay = ridge + weight decay, and (mu, anchor) the pull: rate = lr·scale, fading = lr·(mu + scale·decay), and
    push·drift = lr·(shift − mu·anchor).

    Attributes:
        rate: [k, 1].
        fading: [k, 1], or [k, d] if mu or the ridge are vectors; None for 0.
        drift: [k, d]; None for 0.
        push: [k, 1], if the drift is a shift alone, of which no copy is made; None for −1.
    """

    rate: Tensor
    fading: Tensor | None
    drift: ClientVecs | None
    push: Tensor | None

    @classmethod
    def of(cls, paces: Sequence[Pace], ridge: Vec | float, ridged: bool, x: Vec, how: Descent) -> Terms:
        """The terms of a descent. ``ridge`` is the problem's weight decay, a number or [d]; ``ridged``: it is not 0."""
        scale, pull, shift = how[:3]
        lr = x.new_tensor([p.lr for p in paces]).unsqueeze(1)
        mu, anchor = (0.0, x) if pull is None else pull
        fading: Tensor | None = None
        if pull is not None or ridged or any(p.weight_decay for p in paces):
            decay = ridge + x.new_tensor([p.weight_decay for p in paces])[:, None]
            fading = (lr * (mu + scale * decay)).expand(len(paces), -1)
        drift: Tensor | None = None
        push: Tensor | None = None
        if pull is not None:
            drift = lr * mu * anchor if shift is None else lr * (mu * anchor - shift[0] * shift[1])
        elif shift is not None and fading is not None:
            drift = -lr * shift[0] * shift[1]
        elif shift is not None:
            drift = shift[1].expand(len(paces), -1)
            push = lr * shift[0]
        return cls(lr * scale, fading, drift, push)

    def rows(self, some: list[int]) -> Terms:
        """The terms of these clients."""
        return Terms(self.rate[some], *(None if t is None else t[some] for t in self[1:]))


@dataclass(frozen=True)
class Fused:
    """The engine of one problem.

    Attributes:
        layers, slope: the problem as layers and the slope of its loss, as `parse.layers_of` finds them.
        ridge: the problem's own weight decay; a number, or a vector [d] if an intercept has none.
        rest: the engine for updates that are not affine in the gradient (momentum, clipping, Adam, a method's own loss
            or correction), for sparse rows and for weighted rows.
    """

    problem: Problem
    layers: tuple[Layer, ...]
    slope: Slope
    ridge: Vec | float = 0.0
    rest: Engine = field(default_factory=Seq)
    name: str = "fused"

    @cached_property
    def ridged(self) -> bool:
        """Whether the problem has a weight decay of its own."""
        return bool(self.ridge.any()) if isinstance(self.ridge, Tensor) else self.ridge != 0

    @cached_property
    def maps(self) -> bool:
        """Whether there are convolutions or pooling."""
        return any(isinstance(layer, Conv | Pool) for layer in self.layers)

    def one_by_one(self, x: Vec) -> bool:
        """Whether the model's clients are trained one by one, unless in the span of their rows."""
        return self.maps or (x.is_cpu and self.problem.d > ALONE)

    def takes(self, me: Client[Any], how: Descent) -> bool:
        """Whether it trains these clients itself, not by ``rest``."""
        affine = how.optimizer == "sgd" and not any(c.pace.momentum or c.pace.clip is not None for c in me.members)
        return affine and supports(me, how)

    def descend(self, me: Client[Any], x: Vec, how: Descent) -> LocalUpdate:
        """See `medley.contract.client.Client.descend`."""
        schedules = [Schedule.of(c) for c in me.members]
        paces = [c.pace for c in me.members]
        if not self.takes(me, how):
            return self.rest.descend(me, x, how)
        k = len(schedules)
        terms = Terms.of(paces, self.ridge, self.ridged, x, how)
        spans = self.spans(schedules, x, terms)
        one_by_one = self.one_by_one(x)
        kinds = [s.n.bit_length() if spans[i] else -i if one_by_one else 0 for i, s in enumerate(schedules)]
        starts = x.expand(k, -1)
        step = x.new_empty(k, x.shape[-1])
        first = torch.empty_like(step) if how.first else None
        for some in groups(schedules, kinds):
            group = [schedules[i] for i in some]
            spanned = spans[some[0]]
            if some == [*range(k)]:
                self.train(group, starts, step, spanned, terms, first)
                continue
            part = x.new_empty(len(some), x.shape[-1])
            begun = None if first is None else torch.empty_like(part)
            x0 = starts[some] if x.ndim == 2 else starts[: len(some)]
            self.train(group, x0, part, spanned, terms.rows(some), begun)
            step[some] = part
            if first is not None and begun is not None:
                first[some] = begun
        T = simulated_times(schedules, how)
        steps = [s.steps for s in schedules]
        if k == 1:
            return LocalUpdate(step[0], T[0], steps[0], self.name, None if first is None else first[0])
        return LocalUpdate(step, column(T, x), column(steps, x), self.name, first)

    def spans(self, schedules: list[Schedule], x: Vec, terms: Terms) -> list[bool]:
        """Which clients' first layer is trained in the span of their rows.

        Not for a linear model in float32: over all rows its slopes may cancel, and so do the products of rows that are
        all far off on one side, but their rounding errors do not. Fading by coordinate has no such form.
        """
        first = self.layers[0]
        fading = terms.fading is not None
        drift = terms.drift is not None
        plain = x.is_cpu and (terms.fading is None or terms.fading.shape[1] == 1)
        if not plain or not isinstance(first, Dense) or (len(self.layers) == 1 and x.dtype == torch.float32):
            return [False] * len(schedules)
        return [cheaper(first, s, x.dtype, fading, drift) for s in schedules]

    def _as_layers_take(self, h: Tensor, y: Tensor, at: Tensor, by_row: bool) -> tuple[Tensor, Tensor]:
        """A batch [k, b, ...] and its labels, in the form that the layers compute with."""
        if self.maps:
            return channels_last(h[0]), y[0]
        if by_row:
            return h.reshape(at.numel(), -1), y.flatten(0, 1)
        return h.flatten(2), y

    @torch.inference_mode()  # a view takes less time, and nothing here is differentiated
    def train(
        self, group: Group, x: ClientVecs, X: ClientVecs, spanned: bool, terms: Terms, first: Tensor | None = None
    ) -> None:
        """All steps of a group of k clients.

        Args:
            group: the clients' schedules, most steps first.
            x: starting points [k, d].
            X: receives the displacements [k, d].
            spanned: whether the first layer is trained in the span of the rows.
            first: receives the first steps [k, d]; default None.
        """
        rate, fading, drift, push = terms
        layers = self.layers
        span = None
        table = None
        done = 0
        drifting = drift
        if spanned:  # the first layer has weights, and these are the first numbers of x
            span = Span.of(cast(Dense, layers[0]), group, x, drift, push)
            layers = (span, *layers[1:])
            table = span.table
            done = span.layer.inputs * span.layer.outputs
            drifting = None if drift is None else drift[:, done:]
        if drifting is not None and push is not None:
            drifting = drifting * -push
        # Parameters that are stored directly: all, or all except the spanned layer's.
        stored, begun = (X[:, done:], x[:, done:]) if done else (X, x)
        stored.copy_(begun)
        by_row = spanned or self.one_by_one(X)
        last = 0
        weight = None
        objective: Any = group[0].me.problem  # bound by the problem of its task; this engine's allows all outputs
        allowed: Tensor | None = objective.problem.allowed
        for active, h, y, share, at in minibatches(group, X, table):
            if active != last:
                forwards = [layer(X[:active]) for layer in layers]
                last = active
                fades, drifts = (None if t is None else t[:active] for t in (fading, drifting))
                moving = stored[:active]
            if weight is None or isinstance(share, Tensor):  # lr·scale·share, the factor of every row's slope
                weight = (share * rate[:active]).expand(at.shape)
                weight = weight.reshape(-1, 1) if by_row else weight[:, None]
            h, y = self._as_layers_take(h, y, at, by_row)
            if span is not None:
                span.at = at
            h, backs = passed(forwards, h)
            if allowed is not None:
                mask(h, y, allowed, by_row)
            updates = backward(backs, self.slope(h, y).mul_(weight))
            if span is not None:
                span.fade(active, fades)
            if fades is not None or drifts is not None:
                fade(moving, fades, drifts)
            for update in updates:
                update()
            if first is not None:
                displace(first, X, x, done, span, drift)
                first = None
        displace(X, X, x, done, span, drift)


def passed(forwards: list[Forward], h: Tensor) -> tuple[Tensor, list[Back]]:
    """A batch's outputs, and every layer's pass back."""
    backs: list[Back] = []
    for forward in forwards:
        h, back = forward(h)
        backs.append(back)
    return h, backs


def displace(
    into: ClientVecs, X: ClientVecs, x: ClientVecs, done: int, span: Span | None, drift: ClientVecs | None
) -> None:
    """Write the displacement from x to X [k, d] to ``into``; the first ``done`` numbers are in the span of the rows."""
    if span is None:
        torch.sub(X, x, out=into)
    else:
        torch.sub(X[:, done:], x[:, done:], out=into[:, done:])
        span.displacement(into[:, :done], x[:, :done], None if drift is None else drift[:, :done])


def backward(backs: list[Back], slope: Tensor) -> list[Update]:
    """Run the backward passes, last layer first, from δ of the outputs; returns the updates of layers with weights."""
    updates = []
    while backs:
        slope, update = backs.pop()(slope, bool(backs))
        if update is not None:
            updates.append(update)
    return updates


def fade(X: ClientVecs, fading: Tensor | None, drift: ClientVecs | None) -> None:
    """X ← X − fading·X + drift, in place."""
    # A weak pull is small next to the weights: subtract its two parts first, or rounding loses their difference.
    if fading is not None and drift is not None:
        X.add_(torch.addcmul(drift, X, fading, value=-1))
    elif fading is not None:
        X.addcmul_(X, fading, value=-1)
    elif drift is not None:
        X.add_(drift)


def mask(z: Tensor, y: Tensor, allowed: Bool[Tensor, "c c"], by_row: bool) -> None:
    """z ← −∞, in place, for outputs beyond the c classes, and for classes with which a row's label is not compared.

    Args:
        z: outputs [rows, o] with ``by_row``, else [k, o, b].
        y: labels, [rows] or [k, b].
        allowed: row y marks the classes with which a row of label y is compared.
    """
    z[:, len(allowed) :] = -torch.inf
    never = ~allowed[y]
    z[:, : len(allowed)].masked_fill_(never if by_row else never.mT, -torch.inf)


def fused(problem: Problem) -> Fused | None:
    """The engine for this problem, or None if it has none."""
    parsed = layers_of(problem)
    if parsed is None:
        return None
    ridge = problem.decay if isinstance(problem, LinearProblem) else 0.0
    return Fused(problem, tuple(parsed[0]), parsed[1], ridge if isinstance(ridge, Tensor) else float(ridge))
