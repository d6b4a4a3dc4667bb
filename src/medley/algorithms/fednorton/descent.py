"""A branch's descent, repeated with shorter steps if it overshoots."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...contract import Client, LocalUpdate, Need, Problem, State, Vec, column, entries
from ...numerics.blocks import blocks

GROWTH = (1.0, 1.25)
"""The growth beyond which a descent is repeated, for exact gradients, where it is at most 1 if lr h < 2, and for drawn
ones."""

SHORTER = 4.0
"""How many times shorter the next attempt's steps are. A growth by the length of the steps falls by this factor, one by
chance does not fall: with drawn gradients an attempt counts if it fell by √SHORTER, the geometric mean of both."""


def growth(step: Vec, T: Any, first: Vec, lr: Any) -> Tensor:
    """|D/T − f|/|f| with f = D₁/lr, the force of the first step; [1] or [k, 1].

    On a quadratic of curvature h the mean force is s = (1 − (1 − lr h)^K)/(K lr h) times the first one, and an error of
    the flow grows by |1 − s| from visit to visit.
    """
    parts = []
    share = torch.as_tensor(lr / T, dtype=step.dtype, device=step.device)
    for at in blocks(step):
        begin = first[..., at]
        error = torch.addcmul(begin, step[..., at], share, value=-1)
        parts.append(torch.stack([error.norm(dim=-1), begin.norm(dim=-1)]))
    error, size = parts[0] if len(parts) == 1 else torch.stack(parts).norm(dim=0)
    return torch.where(size > 0, error / size, torch.zeros_like(size))[..., None]


def buffers(client: Client[Any], state: State | None = None) -> State | None:
    """The buffers of the client's model, set to ``state`` first if you pass one. None if rows are private."""
    problem: Problem | None = getattr(client.problem, "problem", None)
    if problem is not None and state is not None:
        problem.load_buffers(state)
    return None if problem is None else problem.buffers()


def randomness(client: Client[Any]) -> tuple[bool, bool]:
    """Whether the client's gradients are random: by mini-batches, row transforms or the model; whether by the model."""
    masked = Need.NOISE in getattr(getattr(client.problem, "problem", None), "gives", ())
    return masked or not client.full_batch or getattr(client.problem, "rng", None) is not None, masked


@contextlib.contextmanager
def same_draws(clients: Sequence[Client[Any]], x: Vec) -> Iterator[None]:
    """Reset the random streams afterwards, so that the next attempt draws the same masks and transforms."""
    generators = [getattr(c.problem, "rng", None) for c in clients]
    streams = [rng for rng in generators if rng is not None]
    before = [rng.get_state() for rng in streams]
    with torch.random.fork_rng([x.device] if x.is_cuda else [], enabled=any(randomness(c)[1] for c in clients)):
        yield
    for rng, state in zip(streams, before, strict=True):
        rng.set_state(state)


def passive(me: Client[Any], x: Vec, net: Vec) -> LocalUpdate:
    """Descents of a client, or a stack of k, from ``x`` along net flows ``net``, [d] or [k, d].

    A descent whose growth exceeds `GROWTH` is repeated with steps a quarter as long, as circuit simulators repeat a
    step whose error is too large. The new flow J⁺ is a mean gradient, whatever the length of the steps.
    """
    before = [buffers(m) for m in me.members]
    with same_draws(me.members, x):
        update = me.descend(x, shift=(-1.0, net), first=any(m.steps > 1 for m in me.members))
    if update.first is None:
        return update
    single = update.step.ndim == 1
    grew = growth(update.step, update.T, update.first, me.pace.lr)
    growths, T = ([float(grew)], [float(update.T)]) if single else entries(grew, update.T)  # type: ignore[arg-type]
    step, starts, nets, firsts = (v.expand(len(T), -1) for v in (update.step, x, net, update.first))
    again = [i for i, (m, g) in enumerate(zip(me.members, growths, strict=True)) if not g <= GROWTH[randomness(m)[0]]]
    for i in again:
        one = me.members[i]
        last = (step[i], T[i], growths[i])
        step[i], T[i] = shorter(one, starts[i], nets[i], first=firsts[i], before=before[i], last=last)
        me.ran |= one.ran
    return dataclasses.replace(update, T=T[0] if single else column(T, net)) if again else update


def shorter(
    me: Client[Any], x: Vec, net: Vec, first: Vec, before: State | None, last: tuple[Vec, float, float]
) -> tuple[Vec, float]:
    """Displacement and time of the attempt that counts, whose buffers the client keeps.

    ``last`` has the first attempt's displacement, time and growth; ``first`` is its first step, and ``before`` are the
    buffers before it.
    """
    step, T, grew = last
    a = 1.0
    is_random, _ = randomness(me)
    most = GROWTH[is_random]
    less = SHORTER**0.5 if is_random else 1.0
    while a > torch.finfo(x.dtype).eps:
        a = a / SHORTER
        saved = buffers(me)
        buffers(me, before)
        with same_draws([me], x):
            update = me.descend(x, scale=a, shift=(-a, net))
        new = float(growth(update.step, a * float(update.T), first, me.pace.lr))
        if not new * less < grew and grew == grew:
            buffers(me, saved)
            break
        step = update.step
        T = a * float(update.T)
        grew = new
        if new <= most:
            break
    return step, T
