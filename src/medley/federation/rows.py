"""Training rows of clients, in the order of tasks, then of clients: a client's rows of a task are a slice."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, Family, Index, Need, Objective, Place, Problem, Unsupported, Weights
from ..contract.place import name_of
from ..partitions.dealing import Parts
from ..problems.network import Network
from ..rows.fields import Fields, tensors
from ..rows.lazy import Held, Lazy, blocks, joined
from ..rows.precision import kept_apart
from ..rows.sparse import largest, not_finite


@runtime_checkable
class RowTable(Protocol):
    """Training rows in memory: X [n, ...], y [n, ...] and weights [n] or None. A `Dataset` is one."""

    @property
    def X(self) -> Tensor:
        """Inputs."""

    @property
    def y(self) -> Tensor:
        """Labels or targets."""

    @property
    def weights(self) -> Tensor | None:
        """Weights of rows."""

    @property
    def keys(self) -> Mapping[str, np.ndarray]:
        """Columns of the rows by name, such as the patient of each row."""


log = logging.getLogger("medley")

LARGE = 1e3
"""From this size on, inputs and targets are named as the likely cause if a run diverges."""

STEEP = 10.0
"""The same for inputs of least squares, whose curvature is their mean square. It does not depend on the targets."""

INDEXED = 1 << 28
"""Up to this size, 256 MiB, a run copies a data set's rows in the order of clients. A copy of this size costs little,
and
batches for small models are read from it faster."""

VIEWS = 1 << 12
"""Clients whose rows' views are kept; those of one take a kilobyte."""

LEAST_WEIGHT = 1e-150
"""Smallest weight of a row, and 1 over the largest; sums and quotients of smaller ones lose digits or overflow."""

Picked = tuple[RowTable, np.ndarray]
"""A table and the numbers of some of its rows."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Positions of clients' rows among all rows in this process.

    Attributes:
        ids: the clients whose rows are here, ascending; a range, which needs no memory, or a tuple
        sizes: int64 [tasks, clients], the rows of each client at each step
        stream: whether there is more than one task, for messages
    """

    ids: Sequence[int]
    sizes: np.ndarray
    stream: bool

    @cached_property
    def starts(self) -> np.ndarray:
        """First row of client ``ids[k]`` at step s among all rows, ``starts[s * clients + k]``; one more at the end."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @cached_property
    def firsts(self) -> np.ndarray:
        """Index of the same row among the client's own rows: ``firsts[s, k]``, [tasks + 1, clients]."""
        return np.cumsum(np.vstack([np.zeros_like(self.sizes[:1]), self.sizes]), axis=0)

    def place(self, s: int, i: int) -> slice:
        """Rows of client i at step s."""
        at = s * len(self.ids) + self.ids.index(i)
        return slice(self.starts.item(at), self.starts.item(at + 1))

    def step(self, s: int) -> slice:
        """Rows of all clients at step s."""
        n = len(self.ids)
        return slice(int(self.starts[s * n]), int(self.starts[(s + 1) * n]))

    def span(self, s: int, i: int) -> tuple[int, int]:
        """The same rows, numbered within the client: the first, and the one after the last."""
        k = self.ids.index(i)
        return self.firsts.item(s, k), self.firsts.item(s + 1, k)

    def find(self, i: int, s: int, rows: Index) -> Index:
        """Positions of client i's rows ``rows``, by its own numbers, of step s or earlier. Raises BadData for later
        rows.
        """
        numbers = rows.cpu().numpy()
        k = self.ids.index(i)
        firsts = self.firsts[:, k]
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < firsts[s + 1]:
            raise BadData(
                f"{name_of(i)} in its task {s}: it has met rows 0..{firsts[s + 1] - 1} so far, not row "
                f"{numbers.min() if numbers.min() < 0 else numbers.max()}",
                client=i,
            )
        step = np.searchsorted(firsts, numbers, side="right") - 1
        return torch.from_numpy(self.starts[step * len(self.ids) + k] + numbers - firsts[step])

    def blamed(self, e: BadData) -> BadData:
        """The same error, naming the client that has the row, if the error names a row."""
        if e.row is None or (e.stands is not None and e.stands[0].whose):
            return e
        at = int(np.searchsorted(self.starts, e.row, side="right")) - 1
        s, k = divmod(at, len(self.ids))
        place = Place.of(self.ids[k], part=f"task {s}" if self.stream else "")
        return e.at(place.at(e.row - int(self.starts[at])))


@dataclass(frozen=True, eq=False)
class ClientRows:
    """Training rows in the problem's form, on the device of the run.

    Attributes:
        w: weights of rows [n] with mean 1 over each client's rows of a task, or None
        totals: [tasks, clients], the sums of weights before scaling; without weights, the sizes
        labels: labels [n] as the data set stores them; None without classes
        people: the person of each row [n], from 0; None unless the method's rows are private by person
    """

    layout: Layout
    X: Tensor
    y: Tensor
    w: Weights
    totals: np.ndarray
    labels: Tensor | None
    people: Index | None = None
    _views: dict[tuple[int, int], tuple[Tensor, Tensor, Weights]] = field(default_factory=dict, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_views": {}}  # each view would be pickled with all rows

    def at(self, rows: Index | slice) -> tuple[Tensor, Tensor, Weights]:
        """X, y and weights of these rows, by their positions."""
        return self.X[rows], self.y[rows], None if self.w is None else self.w[rows]

    def of(self, s: int, i: int) -> tuple[Tensor, Tensor, Weights]:
        """X, y and weights of client i at step s. Some clients' views are kept, because making them takes a while."""
        views = self._views.get((s, i))
        if views is None:
            views = self.at(self.layout.place(s, i))
            if len(self._views) < VIEWS and type(self.X) is Tensor:
                self._views[s, i] = views
        return views

    def excess(self, advice: str, squares: bool = False) -> str:
        """A sentence about the input or target that is the likely cause of diverging numbers; empty if there is none.

        It is the first whose square overflows the dtype, otherwise the first from `LARGE` on.

        Args:
            advice: what else may help
            squares: whether the problem is least squares, which only inputs make unstable, from `STEEP` on
        """
        extremes = []
        for t, what in (*tensors(self.X, "input"), (self.y, "target")):
            if t.is_floating_point() and t.numel():
                largest_of = []
                for first, part in blocks(t):
                    index, number = largest(part)
                    largest_of.append(([first + index[0], *index[1:]], number))
                extremes.append((what, t.dtype, *max(largest_of, key=lambda place: abs(place[1]))))
        for what, dtype, at, value in extremes:
            if abs(value) > math.sqrt(torch.finfo(dtype).max):
                kind = str(dtype).removeprefix("torch.")
                clause = self._largest(what, at, value)
                return f"{clause}, whose square overflows {kind}: standardise the {what}s, or leave it out"
        for what, _, at, value in extremes:
            if abs(value) >= (STEEP if squares else LARGE) and not (squares and what == "target"):
                return f"{self._largest(what, at, value)}: standardise the {what}s, or {advice}"
        return ""

    def _largest(self, what: str, at: Sequence[int], value: float) -> str:
        """The clause about the largest input or target, at this row and column of all."""
        column = at[1] if what != "target" and len(at) > 1 else None
        where = Place(row=at[0], column=column)
        return str(self.layout.blamed(BadData(f"the largest {what} is {value:g}", place=where)))

    def recall(self, problem: Problem, i: int, s: int, rows: Index) -> Objective:
        """The objective of client i's rows ``rows``, by its own numbers, of step s or earlier."""
        return problem.bind(*self.at(self.layout.find(i, s, rows).to(self.X.device)))


def laid_out(
    picked: Sequence[Picked],
    layout: Layout,
    family: Family,
    classes: int | None,
    dtype: torch.dtype | None,
    device: str,
) -> tuple[Problem, ClientRows]:
    """The problem for these rows, and the rows in the problem's form.

    Args:
        picked: tables and their rows, in the order of ``layout``; an entry may contain rows of several clients

    Raises BadData, naming the client, for rows that the problem does not accept.
    """
    X = gathered([(table.X, rows) for table, rows in picked], INDEXED)
    y = gathered([(table.y, rows) for table, rows in picked])
    problem = ready((X, y), layout, family, classes, dtype, device)
    return problem, bound(picked, layout, (X, y), family, problem, classes, device)


def ready(
    rows: tuple[Tensor, Tensor],
    layout: Layout,
    family: Family,
    classes: int | None,
    dtype: torch.dtype | None,
    device: str,
) -> Problem:
    """The problem for rows X and y. For the other arguments see `laid_out`."""
    try:
        return family.ready(*rows, classes, dtype, device)
    except BadData as e:
        raise layout.blamed(e) from e.__cause__


def bound(
    picked: Sequence[Picked],
    layout: Layout,
    rows: tuple[Tensor, Tensor],
    family: Family,
    problem: Problem,
    classes: int | None,
    device: str,
) -> ClientRows:
    """These rows in the problem's form. For the other arguments see `laid_out`."""
    X, y = rows
    try:
        targets = targets_of(family, problem, y, classes, device)
        refuse_overflow(y, targets, "target")
        inputs = problem.inputs(X)
        if isinstance(inputs, Lazy) and inputs.memory is not None and Need.NETWORK not in problem.gives:
            inputs = inputs.read()  # otherwise each product with all rows would gather them again
        refuse_overflow(X, inputs, "input")
    except BadData as e:
        raise layout.blamed(e) from None
    w, totals = _weights(picked, layout, family, problem, device)
    return ClientRows(layout, inputs, targets, w, totals, y if classes and y.ndim == 1 else None)


def refuse_overflow(original: Tensor, converted: Tensor, what: str) -> None:
    """Raise BadData, with row and column, for a number in ``original`` that overflows the dtype of ``converted``.

    Log a warning if that dtype only merges numbers.
    """
    if isinstance(original, Fields) and isinstance(converted, Fields):
        for (part, name), (cast, _) in zip(tensors(original, what), tensors(converted, what), strict=True):
            refuse_overflow(part, cast, name)
        return
    if isinstance(converted, Lazy) and converted.memory is None:
        return  # do not read files for this
    if not original.is_floating_point() or torch.finfo(original.dtype).max <= torch.finfo(converted.dtype).max:
        return
    for first, part in blocks(converted):
        bad = not_finite(part, missing=True)  # a conversion makes infinities only
        if bad is None:
            continue
        at = [first + bad[0][0], *bad[0][1:]]
        raise BadData(
            f"the {what} is too large for {str(converted.dtype).removeprefix('torch.')}; standardise the {what}s, "
            "or give run(dtype='float64')",
            place=Place(row=at[0], column=at[1] if len(at) > 1 else None),
        )
    if type(original) is Tensor and original.ndim < 3 and kept_apart(original.numpy(force=True)).dtype == np.float64:
        log.warning(
            "the %ss are so close together, and so far from 0, that %s merges some of them: standardise them, subtract "
            "their mean, or pass run(dtype='float64')",
            what,
            str(converted.dtype).removeprefix("torch."),
        )


def counting(family: Family, y: Tensor) -> Tensor | None:
    """Which rows have a target [n]. A sequence or map whose labels are all ignored has none. None if all rows have
    one.
    """
    if not isinstance(family, Network) or family.loss != "cross_entropy" or y.ndim < 2:
        return None
    has_target = (y != family.ignore_index).reshape(len(y), -1).any(1)
    return None if bool(has_target.all()) else has_target


def with_targets(family: Family, y: Tensor, parts: Parts, first: int = 0) -> Parts:
    """The clients' rows that have a target among labels y. Raises BadData, naming the client, if none of its rows has
    one.

    Args:
        first: the id of the first client
    """
    has_target = counting(family, y)
    if has_target is None:
        return parts
    mask = has_target.numpy()[parts.rows]
    before = np.concatenate([[0], np.cumsum(mask)])[parts.starts]  # rows with a target before each client's first row
    idle = np.flatnonzero((np.diff(before) == 0) & (parts.sizes > 0))
    if len(idle):
        client = first + int(idle[0])
        raise BadData("all targets of its rows are ignore_index; leave it out", place=Place.of(client))
    return Parts(parts.rows[mask], before)


def targets_of(family: Family, problem: Problem, y: Tensor, classes: int | None, device: str) -> Tensor:
    """Labels or targets in the loss's form, on the device of the run. Raises BadData with the first bad row."""
    y = family.targets(y, classes)
    return y.to(device=device, dtype=problem.dtype if y.is_floating_point() else y.dtype)


def held_out(
    family: Family, problem: Problem, rows: tuple[Tensor, Tensor], classes: int | None, device: str, part: str
) -> tuple[Tensor, Tensor]:
    """Test or validation rows (X, y) in the problem's form. Raises BadData, naming the set ``part`` and the row."""
    X, y = rows
    try:
        return problem.inputs(X), targets_of(family, problem, y, classes, device)
    except BadData as e:
        raise e.at(Place(f"the {part} set", row=e.row)) from None


def _weights(
    picked: Sequence[Picked], layout: Layout, family: Family, problem: Problem, device: str
) -> tuple[Weights, np.ndarray]:
    """Weights with mean 1 over each client's rows of a task, and their sums before that [tasks, clients]."""
    sizes = layout.sizes
    if picked[0][0].weights is None:
        return None, sizes
    refuse_weights(family, problem)
    spread = torch.cat([torch.as_tensor(table.weights)[torch.from_numpy(rows)].double() for table, rows in picked])
    parts = torch.split(spread, sizes.ravel().tolist())
    totals = np.array([float(w.sum()) for w in parts]).reshape(sizes.shape)
    idle = (totals == 0) & (sizes > 0)
    if idle.any():
        client = layout.ids[int(idle.nonzero()[1][0])]
        raise BadData("all its rows have weight 0; leave it out", place=Place.of(client))
    odd = (spread != 0) & ((spread < LEAST_WEIGHT) | (spread > 1 / LEAST_WEIGHT))
    if odd.any():
        row = int(odd.nonzero()[0, 0])
        raise layout.blamed(
            BadData(
                f"its weight is {float(spread[row]):g}; it must be 0, or from {LEAST_WEIGHT:g} to "
                f"{1 / LEAST_WEIGHT:g}: multiply all rows' weights by one number",
                row=row,
            )
        )
    mean = [w * (len(w) / max(float(w.sum()), sys.float_info.min)) for w in parts]
    return torch.cat(mean).to(device=device, dtype=problem.dtype), totals


def refuse_weights(family: Family, problem: Problem) -> None:
    """Raise Unsupported if the problem does not accept row weights."""
    if Need.WEIGHTS in problem.gives:
        return
    name = type(family).__name__
    raise Unsupported(
        f"{name} cannot weight rows if the loss returns a mean; return the loss of each row, or leave out the weights",
        method=name,
        need="weights",
    )


def gathered(parts: Sequence[tuple[Tensor, np.ndarray]], most: float = math.inf) -> Tensor:
    """These rows of these tensors, concatenated; not a copy if the result is one whole tensor.

    Args:
        most: size in bytes from which most rows of one tensor are not copied, but read on use, as `Lazy` rows; default:
            always copy
    """
    first = parts[0][0]
    if any(t is not first for t, _ in parts):
        return joined([t[torch.from_numpy(rows)] for t, rows in parts])
    rows = parts[0][1] if len(parts) == 1 else np.concatenate([rows for _, rows in parts])
    as_it_is = len(rows) == len(first) and (not len(rows) or (rows[0], rows[-1]) == (0, len(rows) - 1))
    if as_it_is and np.array_equal(rows, np.arange(len(first))):
        return first
    plain = type(first) is Tensor and first.is_floating_point() and first.is_cpu
    # Copy a few rows of many, so that a node does not keep other clients' rows in memory.
    if plain and first.nbytes >= most and 2 * len(rows) > len(first):
        return Lazy([Held(first)], rows)
    return first[torch.from_numpy(rows)]
