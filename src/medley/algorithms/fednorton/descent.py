"""A branch's descent, repeated with shorter steps if it overshoots."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...contract import Client, LocalUpdate, Need, Problem, State, Vec, column, entries

GROWTH = (1.0, 1.25)
LESS = (1.0, 1.9)
"""The growth beyond which a descent is repeated (for exact gradients it is at most 1 if lr h < 2), and the factor by
which shorter steps have to lower it to count; each for exact gradients and for drawn ones."""

SHORTER = 4.0
ATTEMPTS = 6
"""How many times shorter the next attempt's steps are; and the most descents of a visit, enough for lr h = 2,000."""


def growth(step: Vec, T: Any, first: Vec, lr: Any) -> Tensor:
    """|D/T − f|/|f| with f = D₁/lr, the force of the first step; [1] or [k, 1].

    On a quadratic of curvature h the mean force is s = (1 − (1 − lr h)^K)/(K lr h) times the first one, and an error of
    the flow grows by |1 − s| from visit to visit.
    """
    size = first.norm(dim=-1, keepdim=True)
    return torch.where(size > 0, (step * (lr / T) - first).norm(dim=-1, keepdim=True) / size, torch.zeros_like(size))


def buffers(client: Client[Any], state: State | None = None) -> State | None:
    """The buffers of the client's model, set to ``state`` first if you pass one. None if rows are private."""
    problem: Problem | None = getattr(client.problem, "problem", None)
    if problem is not None and state is not None:
        problem.load_buffers(state)
    return None if problem is None else problem.buffers()


def drawn(client: Client[Any]) -> tuple[bool, bool]:
    """Whether the client's gradients are random: by mini-batches, row transforms or the model; whether by the model."""
    masked = Need.NOISE in getattr(getattr(client.problem, "problem", None), "gives", ())
    return masked or not client.full_batch or getattr(client.problem, "rng", None) is not None, masked


@contextlib.contextmanager
def same_draws(clients: Sequence[Client[Any]], x: Vec) -> Iterator[None]:
    """Leave random streams as they were, so that the next attempt has the same masks and transforms."""
    streams = [rng for c in clients if (rng := getattr(c.problem, "rng", None)) is not None]
    before = [rng.get_state() for rng in streams]
    with torch.random.fork_rng([x.device] if x.is_cuda else [], enabled=any(drawn(c)[1] for c in clients)):
        yield
    for rng, state in zip(streams, before, strict=True):
        rng.set_state(state)


def passive(me: Client[Any], x: Vec, net: Vec) -> LocalUpdate:
    """Descents of a client, or a stack of k, from ``x`` along net flows ``net``, [d] or [k, d].

    A descent whose growth exceeds `GROWTH` is repeated with steps a quarter as long, as circuit simulators repeat a
    step whose error is too large. J⁺ is a mean gradient whatever the steps were.
    """
    before = [buffers(m) for m in me.members]
    with same_draws(me.members, x):
        went = me.descend(x, shift=-net, first=any(m.steps > 1 for m in me.members))
    if went.first is None:
        return went
    alone = went.step.ndim == 1
    grew = growth(went.step, went.T, went.first, me.pace.lr)
    known, T = ([float(grew)], [float(went.T)]) if alone else entries(grew, went.T)  # type: ignore[arg-type]
    step, starts, nets, firsts = (v.expand(len(T), -1) for v in (went.step, x, net, went.first))
    again = [i for i, (m, g) in enumerate(zip(me.members, known, strict=True)) if not g <= GROWTH[drawn(m)[0]]]
    for i in again:
        one = me.members[i]
        last = (step[i], T[i], known[i])
        step[i], T[i] = shorter(one, starts[i], nets[i], firsts[i], before[i], last)
        me.ran |= one.ran
    return dataclasses.replace(went, T=T[0] if alone else column(T, net)) if again else went


def shorter(
    me: Client[Any], x: Vec, net: Vec, first: Vec, before: State | None, last: tuple[Vec, float, float]
) -> tuple[Vec, float]:
    """Displacement and time of the attempt that counts, whose buffers the client keeps.

    ``last`` has the first attempt's displacement, time and growth; ``first`` is its first step, and ``before`` are the
    buffers before it.
    """
    (step, T, grew), a, most, less = last, 1.0, *(bound[drawn(me)[0]] for bound in (GROWTH, LESS))
    for _ in range(ATTEMPTS - 1):
        a = a / SHORTER
        kept = buffers(me)
        buffers(me, before)
        with same_draws([me], x):
            went = me.descend(x, scale=a, shift=net * -a)
        new = float(growth(went.step, a * float(went.T), first, me.pace.lr))
        if not new * less < grew and grew == grew:
            buffers(me, kept)
            break
        step = went.step
        T = a * float(went.T)
        grew = new
        if new <= most:
            break
    return step, T
