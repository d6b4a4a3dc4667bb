"""A client's E local steps along h′ + (H − h), and what else both of C-FLAG's forms do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ...contract import Client, Objective, RecipeError, Rows, TooFewReplies, Vec
from ...numerics.iag import Table
from ...numerics.sums import bounded
from .head import HeadCorrection
from .messages import Head, Memory, Snapshot

Form = Literal["auto", "iag", "svrg"]


def suited(form: Form, gives: frozenset[str]) -> Form:
    """ "auto" resolved: the table where the problem is convex."""
    return form if form != "auto" else "iag" if "convex" in gives else "svrg"


def together(found: Iterable[Snapshot], t: int) -> int:
    """E, the number of steps for all clients: the mean over clients with rows of the task. TooFewReplies if none."""
    present = [up.steps for up in found if up.n]
    if not present:
        raise TooFewReplies(f"no client with rows of the task answered in round {t}")
    return max(1, round(sum(present) / len(present)))


def counted(
    me: Client[Memory], g: Vec | None, f: Vec | None, head_g: Head | None = None, head_f: Head | None = None
) -> Snapshot:
    """These gradients with the client's counts."""
    m, past = (len(me.replay), me.replay.past) if me.replay else (0, 0)
    return Snapshot(g, f, me.problem.n, m, past, me.steps, head_g, head_f)


@dataclass(frozen=True)
class Walk:
    """E steps of z ← z − β(h′ + H − h) from x, h′ an estimate of Σ share·∇part at z with h′ = h at x.

    Attributes:
        me: the client.
        parts: objectives and their shares, of sum 1; a second one is the memory's.
        x: where it begins [d].
        h, H: the client's gradient and the target there [d]; None for no correction.
        steps: E.
        clip: bound on the correction, as a share of the norm of the corrected vector; None for none.
        head: the correction of the last layer, in the place of H's; None for none.
    """

    me: Client[Memory]
    parts: Sequence[tuple[Objective, float]]
    x: Vec
    h: Vec | None
    H: Vec | None
    steps: int
    clip: float | None
    head: HeadCorrection | None = None
    _last: list[Tensor | None] = field(default_factory=list)
    """The memory's rows of the step at hand."""

    def go(self, form: Form) -> Vec:
        """z_E − x [d]."""
        return self.table() if form == "iag" else self.batches()

    def batches(self) -> Vec:
        """With mini-batches at z and at x, rows of all parts in one pass, and the pace's optimizer."""
        (current, share), me = self.parts[0], self.me
        problem = current
        if len(self.parts) == 2:
            assert me.replay is not None, "the second part is the memory"
            problem = current.beside(me.replay.problem, self.noted(me.replay.batches()), share)
        steered = self.H is not None or self.head is not None
        me = replace(me, problem=problem, pace=replace(me.pace, steps=self.steps))
        return me.descend(self.x, correct=self.near if steered else None).step

    def noted(self, draws: Iterator[Tensor | None]) -> Iterator[Tensor | None]:
        """These draws; the latest is kept for the correction."""
        for rows in draws:
            self._last[:] = [rows]
            yield rows

    def near(self, z: Vec, g: Vec, rows: Rows) -> Vec:
        """The direction of a step on these rows, g being ∇_b(z) of all parts: ∇_b(z) + (H − ∇_b(x))."""
        if self.head is not None:
            assert not isinstance(rows, slice), "a step's rows are numbers"
            return self.head.steered(g, [rows, *self._last])
        assert self.H is not None
        far, share = self.parts[0]
        if self._last:
            far = far.beside(self.parts[1][0], iter(self._last[:]), share)
        return self.steered(g, self.H - far.grad(self.x, rows))

    def table(self) -> Vec:
        """With a table of components' gradients: the first step with all at x, each later after a visit to one (5).

        Full batches visit all. Raises RecipeError for anything but plain SGD.
        """
        me, pace = self.me, self.me.pace
        if pace.optimizer != "sgd" or pace.momentum or pace.weight_decay or pace.clip is not None:
            raise RecipeError(
                "CFLAG's table of gradients (form='iag', the default for convex problems) takes plain SGD steps; give "
                "form='svrg' for Adam, momentum, weight_decay= and clip= of the pace",
                "form",
            )
        rng = me.rng("components")
        components: list[Callable[[Vec], Vec]] = []
        weights: list[float] = []
        for part, share in self.parts:
            for rows in torch.split(torch.randperm(part.n, generator=rng), pace.batch or part.n):
                components.append(partial(part.grad, rows=rows))
                weights.append(share * len(rows) / part.n)
        c = None if self.h is None or self.H is None else self.H - self.h
        table = Table(components, weights, self.x)
        z = self.x - pace.lr * self.steered(table.total, c)
        for j in torch.randint(len(components), (self.steps - 1,), generator=rng).tolist():
            for k in range(len(components)) if me.full_batch else (j,):
                table.visit(k, z)
            z = z - pace.lr * self.steered(table.total, c)
        return z - self.x

    def steered(self, v: Vec, c: Vec | None) -> Vec:
        """v + c, with c no longer than clip·‖v‖."""
        return v if c is None else v + bounded(c, self.clip, v)
