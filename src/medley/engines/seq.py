"""The reference engine: one client, one step after the other; it supports every loss, correction and optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..contract import Client, Descent, Engine, LocalUpdate, Objective, Pace, Rows, Vec
from ..contract.pace import Optimizer
from .minibatches import simulated_time
from .torch_optimizer import TorchOptimizer


def one_by_one(engine: Engine, clients: Client[Any], x: Vec, how: Descent) -> LocalUpdate:
    """Train the clients of a stack one after the other; the result is the update [k, d] of the stack."""

    def of(v: Any, i: int) -> Any:
        """Row i of a stacked vector [k, d]; a vector [d], a number or None is the same for all."""
        return v[i] if isinstance(v, Tensor) and v.ndim > 1 else v

    def number(v: Any, i: int) -> Any:
        """Row i of a column [k, 1] as a float; otherwise like `of`."""
        return v[i].item() if isinstance(v, Tensor) and v.ndim > 1 and v.shape[1] == 1 else of(v, i)

    updates = []
    for i, me in enumerate(clients.members):
        pull = None if how.pull is None else (number(how.pull[0], i), of(how.pull[1], i))
        shift = None if how.shift is None else (number(how.shift[0], i), of(how.shift[1], i))
        settings = how._replace(scale=number(how.scale, i), pull=pull, shift=shift)
        updates.append(engine.descend(me, of(x, i), settings))
    columns = x.new_tensor([[w.T, w.steps] for w in updates])
    step = torch.stack([w.step for w in updates])
    firsts = [w.first for w in updates if w.first is not None]
    return LocalUpdate(step, columns[:, :1], columns[:, 1:], updates[0].engine, torch.stack(firsts) if firsts else None)


def pulled(u: Vec, w: Vec, pull: tuple[Any, Any] | None) -> Vec:
    """A direction, with the pull mu·(w − anchor) of ``pull`` = (mu, anchor); None for none."""
    return u if pull is None else u + pull[0] * (w - pull[1])


def bounded(u: Vec, w: Vec, pace: Pace, idle: Tensor | None = None) -> Vec:
    """The gradient u at w with the pace's weight decay, not of coordinates ``idle``, then clipped, in place."""
    if pace.weight_decay:
        u = u.add_(w if idle is None else w.masked_fill(idle, 0.0), alpha=pace.weight_decay)
    if pace.clip is not None:
        norm = float(u.norm())
        if norm > pace.clip:
            u = u.mul_(pace.clip / norm)
    return u


@dataclass(frozen=True)
class Seq:
    """Local descent on one flat vector. ``betas`` (β₁, β₂) and ``eps`` (ε) are Adam's, with torch's defaults."""

    name: str = "seq"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def descend(self, me: Client[Any], x: Vec, how: Descent) -> LocalUpdate:
        """See `medley.contract.client.Client.descend`; the clients of a stack descend one after the other.

        With g = ∇f(w; batch) + weight decay·w, clipped, then corrected, a step of SGD is

            m ← ρ m + scale·g + shift,    w ← w − lr·(m + mu·(w − anchor)),

        and Adam's gradient is scale·g + shift + mu·(w − anchor), which a factory's optimizer gets too. T is the
        `simulated_time`; with a vector mu it is the time without pull. As in torch, a parameter without a gradient is
        not decayed, and it stays where it is unless the method itself moves it by a shift, a pull or a correction.
        """
        if len(me.members) > 1:
            return one_by_one(self, me, x, how)
        scale, pull, shift, loss, correct, optimizer, *_ = how
        pace = me.pace
        lr = me.pace.lr
        rho = pace.momentum if optimizer == "sgd" else 0.0
        mu = pull[0] if pull is not None and isinstance(pull[0], float | int) else 0.0
        # A correction may compute gradients of the problem elsewhere, which use its workspace.
        w = me.problem.workspace(x) if correct is None else x.clone()
        moving: Tensor | None = None
        m = v = torch.zeros_like(w) if optimizer == "adam" else w
        skips, optimizer = self._skipping(me, how)
        factory_optimizer = None if isinstance(optimizer, str) else TorchOptimizer(optimizer, me, w)
        steps = 0
        first: Vec | None = None
        for objective, rows, names in self.batches(me, want_names=correct is not None):
            steps += 1
            u = objective.grad(w, rows, loss, copy=correct is not None)
            idle = getattr(objective, "idle", None)
            u = bounded(u, w, pace, idle)
            if correct is not None:
                u = correct(w, u, names).clone()  # it may belong to the method; from here on it is changed in place
            if scale != 1.0:
                u = u.mul_(scale)
            if shift is not None:
                u = u.add_(shift[1], alpha=float(shift[0]))
            if factory_optimizer is not None:
                factory_optimizer.step(pulled(u, w, pull), idle if skips else None)
                first = u * -lr if how.first and rho and steps == 1 else first
                continue
            if optimizer == "adam":
                u = pulled(u, w, pull)
                b1, b2 = self.betas
                m = m * b1 + u * (1 - b1)
                v = v * b2 + u * u * (1 - b2)
                w.addcdiv_(m, (v / (1 - b2**steps)).sqrt_().add_(self.eps), value=-lr / (1 - b1**steps))
                continue
            if rho:
                # The shift passes through the momentum buffer with the gradient, so that a shift of −∇f does not move.
                moving = u.clone() if moving is None else moving.mul_(rho).add_(u)
                u = moving
            u = pulled(u, w, pull)
            w.add_(u, alpha=-lr)
            if how.first and steps == 1:
                first = u * -lr
        if factory_optimizer is not None and pace.optimizer_state == "kept":
            me.optimizer_state = factory_optimizer.state()
        return LocalUpdate(w - x, simulated_time(pace, steps, mu, how), steps, self.name, first)

    def _skipping(self, me: Client[Any], how: Descent) -> tuple[bool, Optimizer]:
        """Whether steps skip parameters without a gradient, and the optimizer. If they do, it is torch's instead of
        Medley's.
        """
        added = (how.pull, how.shift, how.correct)
        if not getattr(me.problem, "partial", False) or any(v is not None for v in added):
            return False, how.optimizer
        if how.optimizer == "adam":
            return True, partial(torch.optim.Adam, betas=self.betas, eps=self.eps)
        plain = how.optimizer != "sgd" or not me.pace.momentum
        return True, how.optimizer if plain else partial(torch.optim.SGD, momentum=me.pace.momentum)

    def batches(self, me: Client[Any], want_names: bool) -> Iterator[tuple[Objective, Rows, Rows]]:
        """(objective, its rows, the same rows by the client's own numbers) for every step of this round.

        The objective has the rows of a pass in shuffled order, so that a batch is a slice. The third is None for full
        batches, and unless ``want_names``.
        """
        left = me.steps
        if me.full_batch:
            for _ in range(left):
                yield me.problem, None, None
            return
        size = me.pace.batch or 1
        cuts = me.cuts
        for order in me.orders():
            shuffled = me.problem.take(order[: left * size])  # only as many as there are steps for
            for rows in cuts:
                yield shuffled, rows, order[rows] if want_names else None
                left -= 1
                if left == 0:
                    return
