"""C-FLAG in one loop over memory and current rows, the algorithm that the proof of Lemma 3 analyses."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Literal

from ...contract.client import Client
from ...contract.cohort import Cohort
from ...contract.errors import WireError
from ...contract.messages import Step
from ...numerics.sums import weighted
from .head import HeadCorrection, block
from .messages import Head, Memory, Server, Share, Snapshot, Target
from .walk import Form, Walk


def advance(
    s: Server,
    clients: Cohort,
    found: Mapping[int, Snapshot],
    E: int,
    correct: Literal["full", "head"] | None,
    descend: Callable[[Client[Memory], Target, Share], Step],
) -> None:
    """x ← x + Σ w_i (z_E^i − x), w_i = λ_g p_i + λ_f q_i.

    Args:
        found: the clients' snapshots at x.
        E: steps of every client.
        correct: send H, or its block of the last layer; None for neither.
        descend: the client method.
    """
    P = sum(up.past for up in found.values())
    C, M = sum(up.n for up in found.values()), sum(up.m for up in found.values())
    share = sum(clients.p[i] for i in found)
    lf = P / (P + C) if M else 0.0  # (3)
    new = {i: (1 - lf) * clients.p[i] / share for i in found}
    old = {i: lf * up.m / M if M else 0.0 for i, up in found.items()}
    w = {i: new[i] + old[i] for i in found if new[i] + old[i] > 0}
    H = weighted([(new[i], found[i].g) for i in w] + [(old[i], found[i].f) for i in w]) if correct == "full" else None
    top = head_of(found, new, old) if correct == "head" else None
    replies = clients.ask(descend, Target(H, E, top), {i: Share(new[i] / w[i]) for i in w}, ids=tuple(w))
    step = replies.sum(w).delta
    s.x = s.x + step / sum(w[i] for i in replies.ids)
    clients.note(memory_weight=lf)


def head_of(found: Mapping[int, Snapshot], new: Mapping[int, float], old: Mapping[int, float]) -> Head:
    """The last layer's block of H [k]. Raises WireError for a client whose block has another length."""
    terms = [(i, a, v) for i, up in found.items() for a, v in ((new[i], up.head_g), (old[i], up.head_f))]
    lengths = {i: len(v) for i, _, v in terms if v is not None}
    usual = statistics.mode(lengths.values())
    if (odd := next((i for i, k in lengths.items() if k != usual), None)) is not None:
        raise WireError(
            f"CFLAG(correct='head'): client {odd} sent {lengths[odd]} entries of the last layer, and others {usual}; "
            "give all clients the same network"
        )
    return weighted([(a, v) for _, a, v in terms])


def descend(me: Client[Memory], got: Target, own: Share, form: Form, clip: float | None) -> Step:
    """E steps of z ← z − β(h′_i + H − h_i), h_i of this task's rows and the memory's together."""
    kept = me.memory
    x = kept.x
    assert x is not None
    parts, tables = [], []
    if own.current > 0:
        parts.append((me.problem, own.current))
        tables.append((kept.now, own.current))
    if me.replay and own.current < 1:
        parts.append((me.replay.problem, 1 - own.current))
        tables.append((kept.held, 1 - own.current))
    me.memory = Memory()
    slopes = [(s, share) for s, share in tables if s is not None]
    if got.head is not None:
        head = HeadCorrection(block(me.problem, slopes[0][0]), got.head, slopes, clip)
        return Step(Walk(me, parts, x, None, None, got.steps, None, head).go(form))
    h = None if got.H is None else weighted([(own.current, kept.g), (1 - own.current, kept.f)])
    return Step(Walk(me, parts, x, h, got.H, got.steps, clip).go(form))
