"""Descents of a branch that stay passive."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...contract.client import Client, LocalUpdate
from ...contract.types import Vec, column, entries

OVERSHOOT = 2.0
"""The mean force of a descent over that of its first step, beyond which it is made again.

A passive branch has 1 at most; the rest is for the noise of mini-batches."""

SHORTER = 4.0
"""The next attempt's steps are so many times shorter."""

ATTEMPTS = 6
"""The most descents of a visit."""


def shortened(me: Client[Any], x: Vec, net: Vec, went: LocalUpdate) -> LocalUpdate:
    """The descent along ``net``, of each client with steps that are short enough for it.

    The force of a step is n_i − ∇f_i. On a quadratic with curvature h step k has the share (1 − lr h)^k of the first
    one's, and so the mean force |D_i|/T_i is at most the first, for as long as lr h ≤ 2. Where it is more than
    `OVERSHOOT` times that, the descent runs away from its start, and the mean gradient that it met is no flow of a
    passive branch. As circuit simulators do, the step is rejected: the descent is made again with steps a quarter as
    long. Where that does not lower the mean force by as much, mini-batches make it large, and the first attempt counts.

    Args:
        me: a client, or a stack of k.
        x: where descents begin, [d], or [k, d] for a stack.
        net: net flows n_i, [d] or [k, d].
        went: the descents at the clients' pace, with the norms of their first steps.
    """
    sizes, alone = went.step.norm(dim=-1, keepdim=True), went.step.ndim == 1
    if alone:
        moved, first, T = [float(sizes)], [float(went.first)], [float(went.T)]  # type: ignore[arg-type]
    else:
        moved, first, T = entries(sizes, went.first, went.T)  # type: ignore[arg-type]
    step, starts, nets = (v.expand(len(T), -1) for v in (went.step, x, net))
    rejected = False
    for i, client in enumerate(me.members):
        limit, force, a = OVERSHOOT * first[i] / client.pace.lr, moved[i] / T[i], 1.0
        for _ in range(ATTEMPTS - 1):
            if force <= limit or limit == 0:
                break
            a /= SHORTER
            again = client.descend(starts[i], scale=a, shift=nets[i] * -a)
            less = float(again.step.norm()) / (a * float(again.T))
            if less * OVERSHOOT >= force:
                break
            step[i], T[i], force, rejected = again.step, a * float(again.T), less, True
    if not rejected:
        return went
    return dataclasses.replace(went, T=T[0] if alone else column(T, net))
