"""A client's E local steps along h′ + (H − h), and the rest that both forms of C-FLAG share."""

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
    """The form; "auto" is the table if the problem is convex, else mini-batches."""
    return form if form != "auto" else "iag" if "convex" in gives else "svrg"


def common_steps(snapshots: Iterable[Snapshot], t: int) -> int:
    """E, the number of steps for all clients: the mean over clients with rows of the task.

    Raises TooFewReplies if there are none.
    """
    present = [up.steps for up in snapshots if up.n]
    if not present:
        raise TooFewReplies(f"no client with rows of the task answered in round {t}")
    return max(1, round(sum(present) / len(present)))


def counted(
    me: Client[Memory], g: Vec | None, f: Vec | None, head_g: Head | None = None, head_f: Head | None = None
) -> Snapshot:
    """A snapshot of these gradients and the client's counts."""
    m, past = (len(me.replay), me.replay.past) if me.replay else (0, 0)
    return Snapshot(g=g, f=f, n=me.problem.n, m=m, past=past, steps=me.steps, head_g=head_g, head_f=head_f)


@dataclass(frozen=True)
class Walk:
    """E steps of z ← z − β(h′ + H − h) from x, where h′ estimates Σ share·∇part at z, and is h at x.

    Attributes:
        me: the client.
        parts: objectives and their shares, which sum to 1; if there are two, the second is the memory's.
        x: the point where it begins [d].
        h, H: the client's gradient and the target there [d]; None if there is no correction.
        steps: E.
        clip: bound on the correction, as a share of the norm of the vector that it corrects; None for no bound.
        head: a correction of the last layer alone, to use instead of H; None if there is none.
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
    """The memory's rows in the current step."""

    def go(self, form: Form) -> Vec:
        """z_E − x [d]."""
        return self.table() if form == "iag" else self.batches()

    def batches(self) -> Vec:
        """z_E − x [d] by the pace's optimizer, with mini-batches at z and at x. Rows of all parts share a pass."""
        current, share = self.parts[0]
        me = self.me
        problem = current
        if len(self.parts) == 2:
            assert me.replay is not None, "the second part is the memory"
            problem = current.beside(me.replay.problem, self.noted(me.replay.batches()), share)
        steered = self.H is not None or self.head is not None
        me = replace(me, problem=problem, pace=replace(me.pace, steps=self.steps))
        return me.descend(self.x, correct=self.near if steered else None).step

    def noted(self, draws: Iterator[Tensor | None]) -> Iterator[Tensor | None]:
        """The same draws; the walk keeps the latest for the correction."""
        for rows in draws:
            self._last[:] = [rows]
            yield rows

    def near(self, z: Vec, g: Vec, rows: Rows) -> Vec:
        """The direction of a step on these rows, ∇_b(z) + (H − ∇_b(x)), where g is ∇_b(z) of all parts."""
        if self.head is not None:
            assert not isinstance(rows, slice), "a step's rows are numbers"
            return self.head.steered(g, [rows, *self._last])
        assert self.H is not None
        far, share = self.parts[0]
        if self._last:
            far = far.beside(self.parts[1][0], iter(self._last[:]), share)
        return self.steered(g, self.H - far.grad(self.x, rows))

    def table(self) -> Vec:
        """z_E − x [d] by a table of components' gradients (5). The client computes all of them at x, and then renews
        one before each later step.

        With full batches each later step renews all. Raises RecipeError if the pace is not plain SGD.
        """
        me = self.me
        pace = self.me.pace
        if pace.optimizer != "sgd" or pace.momentum or pace.weight_decay or pace.clip is not None:
            raise RecipeError(
                "CFLAG's table of gradients (form='iag', the default for convex problems) takes plain SGD steps; "
                "give form='svrg' if the pace has Adam, momentum=, weight_decay= or clip=",
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
        """v + c, after c is shortened to at most clip·‖v‖."""
        return v if c is None else v + bounded(c, self.clip, v)
