"""Descents of a branch that stay passive, and steps by a tolerance."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ...contract.client import Client, LocalUpdate
from ...contract.needs import Need
from ...contract.problem import Problem, State
from ...contract.types import Num, Vec, column, entries, number


class Bounds(NamedTuple):
    """When a descent is made again, and when that helped.

    Attributes:
        growth: the growth beyond which a descent is made again.
        less: a descent with shorter steps counts where it lowers the growth by more than this factor.
    """

    growth: float
    less: float


EXACT, DRAWN = Bounds(1.0, 1.0), Bounds(1.25, 1.9)
"""Of exact gradients, where a passive branch has a growth of 1 at most; of drawn ones, whose noise has some too."""

SHORTER, ATTEMPTS = 4.0, 6
"""The next attempt's steps are so many times shorter; the most descents of a visit."""


def growth(step: Vec, T: Any, first: Vec, lr: Any) -> Tensor:
    """|D/T − f|/|f| with f = D₁/lr, the force of the first step; [1] or [k, 1].

    On a quadratic with curvature h a visit of K steps maps the error of its flow, and the force n − ∇f, by 1 − s with
    s = (1 − (1 − lr h)^K)/(K lr h). The mean force is s times the first one. So this is |1 − s|, the factor by which an
    error of the flow grows from visit to visit. It is below 1 for lr h < 2.
    """
    size = first.norm(dim=-1, keepdim=True)
    return torch.where(size > 0, (step * (lr / T) - first).norm(dim=-1, keepdim=True) / size, torch.zeros_like(size))


def problem(client: Client[Any]) -> Problem | None:
    """The problem whose buffers and random numbers a descent uses; None for private rows, which show none."""
    return getattr(client.problem, "problem", None)


def buffers(client: Client[Any]) -> State | None:
    """The buffers of the client's model; None for a model without."""
    p = problem(client)
    return None if p is None else p.buffers()


def masked(client: Client[Any]) -> bool:
    """Whether the client's model draws random numbers, as dropout does."""
    return Need.NOISE in getattr(problem(client), "gives", ())


def transforming(client: Client[Any]) -> torch.Generator | None:
    """The stream of the client's transform of rows; None for none."""
    return getattr(client.problem, "rng", None)


def bounds(client: Client[Any]) -> Bounds:
    """Gradients are exact where a step takes all rows, and neither the model nor a transform draws."""
    exact = client.full_batch and not masked(client) and transforming(client) is None
    return EXACT if exact else DRAWN


@contextlib.contextmanager
def same_draws(clients: Sequence[Client[Any]], x: Vec) -> Iterator[None]:
    """Leave random streams as they were, so that the next attempt has the same masks and transforms."""
    streams = [rng for c in clients if (rng := transforming(c)) is not None]
    before = [rng.get_state() for rng in streams]
    with torch.random.fork_rng([x.device] if x.is_cuda else [], enabled=any(map(masked, clients))):
        yield
    for rng, state in zip(streams, before, strict=True):
        rng.set_state(state)


def passive(me: Client[Any], x: Vec, net: Vec) -> LocalUpdate:
    """The descents along ``net``; those whose growth is out of `Bounds` are made again, with steps a quarter as long.

    As circuit simulators do with a step whose error is too large. Where shorter steps do not lower the growth enough,
    that is the mini-batches' noise, and the attempt before counts; after `ATTEMPTS` the last one does. Descents that do
    not tell their first step are left as they are.

    Args:
        me: a client, or a stack of k.
        x: where descents begin, [d], or [k, d] for a stack.
        net: net flows n_i, [d] or [k, d].
    """
    before = [buffers(m) for m in me.members]
    with same_draws(me.members, x):
        went = me.descend(x, shift=-net, first=any(m.steps > 1 for m in me.members))
    if went.first is None:
        return went
    alone, grew = went.step.ndim == 1, growth(went.step, went.T, went.first, me.pace.lr)
    known, T = ([float(grew)], [float(went.T)]) if alone else entries(grew, went.T)  # type: ignore[arg-type]
    step, starts, nets, firsts = (v.expand(len(T), -1) for v in (went.step, x, net, went.first))
    again = [i for i, (m, g) in enumerate(zip(me.members, known, strict=True)) if not g <= bounds(m).growth]
    for i in again:
        retry = Retry(me.members[i], starts[i], nets[i], firsts[i], before[i])
        step[i], T[i] = retry.best(step[i], T[i], known[i])
        me.ran |= retry.client.ran
    if not again:
        return went
    return dataclasses.replace(went, T=T[0] if alone else column(T, net))


@dataclasses.dataclass
class Retry:
    """The further attempts of one client.

    Attributes:
        client: the client.
        x, net, first: where it begins, its net flow, its first step at its own pace; vectors [d].
        before: its buffers before the first attempt; None for a model without.
    """

    client: Client[Any]
    x: Vec
    net: Vec
    first: Vec
    before: State | None

    def best(self, step: Vec, T: float, grew: float) -> tuple[Vec, float]:
        """The displacement and the simulated time of the attempt that counts, whose buffers the client has."""
        lr, a, most = self.client.pace.lr, 1.0, bounds(self.client)
        for _ in range(ATTEMPTS - 1):
            a /= SHORTER
            kept = buffers(self.client)
            if self.before is not None:
                self.load(self.before)
            with same_draws([self.client], self.x):
                went = self.client.descend(self.x, scale=a, shift=self.net * -a)
            new = float(growth(went.step, a * float(went.T), self.first, lr))
            if not new * most.less < grew and grew == grew:
                if kept is not None:
                    self.load(kept)
                break
            step, T, grew = went.step, a * float(went.T), new
            if new <= most.growth:
                break
        return step, T

    def load(self, state: State) -> None:
        """Give the client's model these buffers."""
        cast(Problem, problem(self.client)).load_buffers(state)


def rate(me: Client[Any], x: Vec, net: Vec, gamma: float) -> Num:
    """The factor a on a client's lr with which forward Euler's error, relative to a step, is γ = a lr h/2.

    h is |∇²f_i g|/|g|, with g the change of the gradient along the net flow. Stiff directions that are at rest do
    not show in the flow itself.

    Args:
        me: a client, or a stack of k.
        x: where the descent begins [d].
        net: net flow n_i, [d] or [k, d].
        gamma: γ, the tolerance.
    """
    lr, decay, rows = me.pace.lr / (1 - me.pace.momentum), me.pace.weight_decay, me.first_batch
    first = me.problem.grad(x, rows) + decay * x
    way = net - first
    for _ in range(2):
        trial = x + lr * way
        way, last = first - decay * trial - me.problem.grad(trial, rows), way  # lr ∇²f_i times the way
    changed, size = way.norm(dim=-1, keepdim=True), last.norm(dim=-1, keepdim=True)
    a = 2 * gamma * size / changed
    return number(torch.where((size > 0) & (changed > 0), a.clamp(0.1, 10.0), torch.ones_like(a)))
