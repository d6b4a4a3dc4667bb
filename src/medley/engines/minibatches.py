"""Mini-batch schedules for engines that train several clients at once.

A group of clients is sorted by number of steps, most first. In step t the first K_t clients have steps left, so a step
works on the contiguous rows X[:K_t] of the group's parameters X [k, d].
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..contract import Client, Descent, Pace
from ..rows.fields import Fields
from ..rows.lazy import Lazy, in_memory
from ..rows.sparse import Sparse
from ..runtime import tricks

ClientVecs = Float[Tensor, "k d"]
"""Parameters or displacements of k clients, one row each."""

Minibatch = tuple[int, Tensor, Tensor, Tensor | float, Tensor]
"""One step of a group: (active, rows, labels, shares, at).

active: the number K of clients with steps left; the arrays below have K rows, one a client.
rows: inputs [K, b, ...], or rows of a table [K, b, w].
labels: [K, b, ...].
shares: each row's share in its batch's mean: the float 1/b, or [K, b] if batches are of unequal size. Smaller batches
    are then padded with rows of share 0.
at: positions [K, b] of the rows in the tensor that they were gathered from.
"""

GATHER_LIMIT = 1 << 18
"""Numbers gathered at a time from a group's data: one step's rows, or as many steps' as stay below this number, 1 MiB
in float32, which fits in a cache."""

tricks.keep_freed_memory()


class Schedule(NamedTuple):
    """The mini-batches of one client in one round, as numbers.

    Attributes:
        size: rows of a batch, n for full batches; the last batch of a pass may be smaller.
        steps: optimizer steps of the round.
        full: whether a batch is all rows.
    """

    me: Client[Any]
    n: int
    size: int
    steps: int
    full: bool

    @classmethod
    def of(cls, me: Client[Any]) -> Schedule:
        """The schedule that the client's pace sets for this round."""
        n = me.problem.n
        full = me.full_batch
        return cls(me, n, n if full else me.pace.batch or 1, me.steps, full)


Group = list[Schedule]
"""Clients that are trained together, most steps first."""


def supports(me: Client[Any], how: Descent) -> bool:
    """Whether these clients can be trained together.

    That requires dense rows of one input in memory, without weights, transforms and rows of another objective; batches
    that use every row; the problem's loss, no correction, and one of Medley's own optimizers; and a gradient for every
    parameter, if there is weight decay, momentum or Adam. If rows are read from
    files, clients are trained one after the other: a group's steps are gathered from all of its clients, and tables of
    rows hold one client's rows at a time.
    """
    if how.loss or how.correct or not isinstance(how.optimizer, str):
        return False
    return all(dense(c.problem) and steady(c, how) for c in me.members)


def dense(f: Any) -> bool:
    """Whether this objective's rows are dense, of one input and in memory, without weights, transform or other rows."""
    X = getattr(f, "X", None)
    plain = type(X) is Tensor or not (isinstance(X, Sparse) or read_from_files(X))
    others = getattr(f, "w", None) is not None or getattr(f, "also", None) is not None
    return plain and not others and not getattr(f, "transform", None)


def steady(c: Client[Any], how: Descent) -> bool:
    """Whether the client's batches use every row, and each parameter that its steps move has a gradient."""
    pace = c.pace
    if pace.drop_last and c.cuts[-1].stop < c.problem.n:
        return False
    # A batched gradient is 0 for a parameter without one; weight decay and moments would move it.
    moving = how.optimizer == "adam" or pace.weight_decay or pace.momentum
    return not (moving and getattr(c.problem, "partial", False))


def read_from_files(X: Any) -> bool:
    """Whether rows have several inputs, or do not lie in memory."""
    return isinstance(X, Fields) or (isinstance(X, Lazy) and X.memory is None)


def groups(schedules: Sequence[Schedule], kinds: Sequence[Any] | None = None) -> Iterator[list[int]]:
    """Indices of the clients of each group, most steps first.

    A group's clients share their entry of ``kinds`` (None: all do), whether batches are full, and the batch size to
    within a factor of two, which bounds the padding.
    """
    alike: dict[Any, list[int]] = {}
    for i, s in enumerate(schedules):
        alike.setdefault((kinds[i] if kinds else None, s.full, s.size.bit_length()), []).append(i)
    for some in alike.values():
        yield sorted(some, key=lambda i: -schedules[i].steps)


def minibatches(group: Group, X: ClientVecs, table: Float[Tensor, "k n w"] | None = None) -> Iterator[Minibatch]:
    """The steps of a group, as `Minibatch` describes them; counts the clients' work.

    Args:
        X: any tensor with the run's dtype and device; shares are made like it.
        table: a row of w numbers for each client's row, gathered instead of its inputs; None for the inputs.
    """
    k = len(group)
    most = group[0].steps
    full = group[0].full
    for s in group:
        passes, rest = divmod(s.steps, -(-s.n // s.size))
        s.me.problem.work += passes * s.n + rest * s.size
    b = max(s.size for s in group)
    alike = len({s[1:] for s in group}) == 1
    equal = alike and group[0].n % b == 0
    index, shares = _equal_batches(group) if equal else _padded_batches(group, b, X)
    objectives: list[Any] = [s.me.problem for s in group]
    places = None
    if table is None:
        rows, at_rows, places = _source_of_rows([f.X for f in objectives])
    else:
        rows = table.flatten(0, 1)
        at_rows = [*range(0, k * table.shape[1], table.shape[1])]
    labels, at_labels = _one_source([f.y for f in objectives])
    begins = torch.tensor(at_rows).view(k, 1, 1)
    index = (index + begins).to(rows.device)
    misaligned = at_rows != at_labels
    lagging = (torch.tensor(at_labels).view(k, 1, 1) - begins).to(rows.device) if misaligned else begins
    row = rows.shape[1:]
    kind = rows.dtype if places is None else objectives[0].X.dtype
    # Steps gathered at a time. A table is in the cache already.
    count = 1 if full or table is not None else max(1, min(most, GATHER_LIMIT // (k * b * row.numel())))
    positions = index.unbind(1)
    hs: Sequence[Tensor] = ()
    ys: Sequence[Tensor] = ()
    for t in range(most):
        active = k if alike else sum(s.steps > t for s in group)
        at = 0 if full else t % count
        if at == 0 and (t == 0 or not full):
            some = index[:active, t : t + count]
            places_of = some if places is None else places[some]
            hs = rows.index_select(0, places_of.reshape(-1)).to(kind).view(*some.shape, *row).unbind(1)
            some = some + lagging[:active] if misaligned else some
            ys = labels.index_select(0, some.reshape(-1)).view(*some.shape, *labels.shape[1:]).unbind(1)
        step = 0 if full else t
        share = 1 / b if shares is None else shares[:active, step]
        now = hs[at], ys[at], positions[step]
        h, y, p = now if active == k else (v[:active] for v in now)
        yield active, h, y, share, p


def simulated_times(schedules: Sequence[Schedule], how: Descent) -> list[float]:
    """The `simulated_time` of each client. With a pull by a vector mu it is the time without pull."""
    if how.pull is None and not any(s.me.pace.momentum for s in schedules):
        return [s.me.pace.lr * s.steps for s in schedules]
    k = len(schedules)
    mu = how.pull[0] if how.pull is not None else 0.0
    if not isinstance(mu, Tensor):
        pulls = [float(mu)] * k
    else:
        pulls = mu[:, 0].tolist() if mu.shape == (k, 1) and k > 1 else [0.0] * k
    return [simulated_time(s.me.pace, s.steps, m, how) for s, m in zip(schedules, pulls, strict=True)]


def simulated_time(pace: Pace, steps: int, mu: float, how: Descent) -> float:
    """T = lr·S after these steps of c ← ρc + 1, S ← (1 − lr·mu)S + c, from c = S = 0; ρ is the pace's momentum.

    S is the displacement, divided by −lr, under a gradient that is constantly 1: FedNova's ‖a‖₁ with momentum and
    proximal steps. Adam and a factory's optimizer have no such weights: S is then the number of steps.
    """
    rho, pull = (pace.momentum, pace.lr * mu) if how.optimizer == "sgd" else (0.0, 0.0)
    if not rho and not pull:
        return pace.lr * steps
    c = S = 0.0
    for _ in range(steps):
        c = rho * c + 1
        S = (1 - pull) * S + c
    return pace.lr * S


def _equal_batches(group: Group) -> tuple[Tensor, None]:
    """Row numbers [k, steps, b] if all batches are of size b and all clients take the same number of steps."""
    _, n, b, steps, full = group[0]
    if full:
        return torch.arange(b).expand(len(group), 1, b).clone(), None
    passes = -(-steps * b // n)
    rng = torch.Generator()  # each client's stream in turn
    orders = [torch.randperm(n, generator=g) for s in group for g in [s.me.rng("batches", rng)] * passes]
    return torch.stack(orders).view(len(group), -1, b)[:, :steps], None


def _padded_batches(group: Group, b: int, X: ClientVecs) -> tuple[Tensor, Tensor]:
    """Row numbers [k, steps, b] of batches padded to size b with row 0, and each row's share in its batch's mean."""
    per_pass = [-(-s.n // s.size) for s in group]
    passes = [1 if s.full else -(-s.steps // each) for s, each in zip(group, per_pass, strict=True)]
    steps = max(p * each for p, each in zip(passes, per_pass, strict=True))
    index = torch.zeros(len(group), steps, b, dtype=torch.int64)
    shares = torch.zeros(index.shape, dtype=X.dtype)
    for i, (me, n, size, _, full) in enumerate(group):
        full_batches, rest = divmod(n, size)
        mine, weights = (v[i, : passes[i] * per_pass[i]].view(passes[i], per_pass[i], b) for v in (index, shares))
        orders = iter([torch.arange(n)]) if full else me.orders()
        for pass_, order in zip(mine, orders, strict=False):
            if size == b:
                pass_.view(-1)[:n] = order
            else:
                pass_[:full_batches, :size] = order[: full_batches * size].view(full_batches, size)
                pass_[full_batches:, :rest] = order[full_batches * size :]
        weights[:, :full_batches, :size] = 1 / size
        if rest:
            weights[:, full_batches, :rest] = 1 / rest
    return index, shares.to(X.device)


def _source_of_rows(parts: list[Tensor]) -> tuple[Tensor, list[int], Tensor | None]:
    """Like `_one_source`, plus the places in the tensor if ``parts`` name rows of one tensor by number; else None."""
    lazies = [part for part in parts if isinstance(part, Lazy)]
    if not lazies:
        return *_one_source(parts), None
    source = lazies[0].memory
    if source is None or len(lazies) < len(parts) or any(part.memory is not source for part in lazies):
        return *_one_source([in_memory(part) for part in parts]), None
    begins = [*itertools.accumulate(map(len, parts[:-1]), initial=0)]
    return source, begins, torch.from_numpy(np.concatenate([part.rows for part in lazies]))


def _one_source(parts: list[Tensor]) -> tuple[Tensor, list[int]]:
    """One tensor in memory that holds the rows of all ``parts``, and the position of each part's first row in it.

    If the parts are slices of one tensor, that tensor is returned, without a copy. One gather then serves a whole
    group.
    """
    first = parts[0]
    base = parts[0]._base
    if (
        len(parts) > 1
        and type(base) is Tensor  # views of any other class do not share storage
        and base is not None
        and base.is_contiguous()
        and base.shape[1:] == first.shape[1:]
        # Not every second row, nor a transposed matrix.
        and all(part._base is base and part.stride() == base.stride() for part in parts)
    ):
        size = base.shape[1:].numel()
        begin = base.storage_offset()
        return base, [(part.storage_offset() - begin) // size for part in parts]
    return in_memory(torch.cat(parts) if len(parts) > 1 else first), [
        *itertools.accumulate(map(len, parts[:-1]), initial=0)
    ]
