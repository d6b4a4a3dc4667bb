"""Rows dealt to clients: the types of a partition, and the arithmetic that its rules share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from ..contract import BadData, Place, RecipeError
from ..contract.place import name_of
from ..distributions import Number, is_number

Rows = Int64[np.ndarray, "_"]
"""Row indices, ascending."""


class Parts(Sequence[Rows]):
    """The rows of each client, by the client's id: slices of one array, so that ten million clients are two arrays.

    Attributes:
        rows: int64 [n], client after client
        starts: int64 [clients + 1], the place of each client's first row, and the number of rows
    """

    def __init__(self, rows: Rows, starts: Rows) -> None:
        self.rows = rows
        self.starts = starts

    @classmethod
    def of(cls, parts: Iterable[Rows], n: int | None = None) -> Parts:
        """The same rows, from one array per client.

        Args:
            n: the number of rows in the data, for a partition that a user may have made; it is then checked

        Raises BadData, naming the client, if its array does not hold row numbers, and with ``n`` also for a row that
        does not exist or that another client has too.
        """
        if isinstance(parts, Parts):
            return parts
        each = [np.asarray(rows) for rows in parts]
        for i, rows in enumerate(each):
            if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
                raise BadData(
                    f"the partition gives {name_of(i)} {rows.dtype} {list(rows.shape)}; give the numbers of its rows; "
                    "np.flatnonzero(mask) makes them from a mask",
                    client=i,
                )
        starts = np.cumsum([0, *map(len, each)], dtype=np.int64)
        out = cls(np.concatenate([*(rows.astype(np.int64) for rows in each), np.empty(0, np.int64)]), starts)
        if n is not None:
            out._check(n)
        return out

    def _check(self, n: int) -> None:
        """Raise BadData unless there are clients, each row is one of n, and no row occurs twice."""
        if not len(self):
            raise BadData("the partition has no clients; give it at least one")
        invalid = (self.rows < 0) | (self.rows >= n)
        reason = f"but rows go from 0 to {n - 1}"
        if not invalid.any():
            invalid = np.ones(len(self.rows), dtype=bool)
            reason = "but a client has it already: each row may occur once"
            invalid[np.unique(self.rows, return_index=True)[1]] = False
        if invalid.any():
            at = int(invalid.argmax())
            i = int(np.searchsorted(self.starts, at, side="right")) - 1
            raise BadData(f"the partition gives it row {self.rows[at]}, {reason}", place=Place.of(i))

    @property
    def sizes(self) -> Rows:
        """The number of rows of each client [clients]."""
        return np.diff(self.starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, i: int) -> Rows: ...

    @overload
    def __getitem__(self, i: slice) -> list[Rows]: ...

    def __getitem__(self, i: int | slice) -> Rows | list[Rows]:
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        k = range(len(self))[i]
        return self.rows[self.starts[k] : self.starts[k + 1]]

    def __iter__(self) -> Iterator[Rows]:
        return iter(np.split(self.rows, self.starts[1:-1]))


Column = Shaped[np.ndarray, "..."]
"""One entry per row: labels, or a key such as a writer's name."""


def parts(owner: Int64[np.ndarray, " n"], clients: int) -> Parts:
    """The rows of each client, given the client of each row [n]; rows with client -1 are left out."""
    rows = by_key(owner)[np.count_nonzero(owner < 0) :]
    sizes = np.bincount(owner[rows], minlength=clients)
    return Parts(rows, np.concatenate([[0], np.cumsum(sizes)]))


def by_key(key: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Positions in the order of ``key`` [n], equal keys in their own order: a stable argsort of keys ≥ −1.

    Packing key and position into one number each and sorting those is four times as fast as `numpy.argsort`.
    """
    n = max(1, len(key))
    if int(key.max(initial=0)) >= 2**62 // n:
        return np.argsort(key, kind="stable")
    placed: np.ndarray = np.sort(key * n + np.arange(len(key))) % n
    return placed


def shuffled_by(label: Int64[np.ndarray, " n"], g: np.random.Generator) -> Int64[np.ndarray, " n"]:
    """All rows ordered by label, and at random within a label."""
    rows = g.permutation(len(label))
    ordered: np.ndarray = rows[by_key(label[rows])]
    return ordered


def dirichlet(alpha: Number, k: int, g: np.random.Generator) -> Float64[np.ndarray, " k"]:
    """A draw p [k] from Dir(alpha, ..., alpha).

    A gamma variate G(a) with small a underflows, so we draw its logarithm: log G(a) = log G(a + 1) + log(U) / a with a
    uniform U.
    """
    log_g = np.log(g.standard_gamma(alpha + 1.0, k)) - g.standard_exponential(k) / alpha
    p = np.exp(log_g - log_g.max())
    return np.asarray(p / p.sum())


def apportion(p: Float64[np.ndarray, " k"], m: int, g: np.random.Generator) -> Int64[np.ndarray, " k"]:
    """Whole numbers [k] that sum to ``m``, each within one of ``p * m`` and equal to it in expectation.

    We draw one offset for the whole row (systematic rounding). Otherwise rounding would favour the same clients for
    every label.

    Args:
        p: Proportions [k], at least 0, of sum 1.
    """
    edges = np.minimum(np.floor(np.cumsum(p) * m + g.random()), m)
    edges[-1] = m
    return np.diff(edges, prepend=0.0).astype(np.int64)


def top_up(
    owner: Int64[np.ndarray, " n"], clients: int, minimum: int, g: np.random.Generator
) -> Int64[np.ndarray, " n"]:
    """Give every client ``minimum`` rows, moving as few rows as possible.

    The rows come from the largest clients, which are cut to a common level.

    Args:
        owner: The client of each row [n].
        clients: The number of clients; ``minimum`` times it is at most n.
    """
    sizes = np.bincount(owner, minlength=clients)
    missing = np.maximum(minimum - sizes, 0)
    short = int(missing.sum())
    if not short:
        return owner
    # By bisection: the highest level with enough rows above it.
    low = minimum
    high = int(sizes.max())
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= short else (low, level - 1)
    take = np.maximum(sizes - low, 0)
    take[np.flatnonzero(take)[: take.sum() - short]] -= 1
    rows = shuffled_by(owner, g)
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # In the order of donors: a client topped up from one donor inherits its skew, as befits a small alpha.
    moved = rows[rank < take[owner[rows]]]
    owner = owner.copy()
    owner[moved] = np.repeat(np.arange(clients), missing)
    return owner


def dealt_alike(training: Parts, y: Column | None, y_test: Column | None, m: int, g: np.random.Generator) -> Parts:
    """Test rows dealt in the proportions of the training rows, label by label, to within one row.

    So a client's test rows have its own mix of labels. Rows of a label that no client trains on are left out.

    Args:
        y: Labels of the training rows [n]; None if there are none; all rows then count as alike.
    """
    label = np.zeros(m, dtype=np.int64) if y_test is None else np.asarray(y_test)
    rows = shuffled_by(label, g)
    owner = np.full(m, -1, dtype=np.int64)
    for c in np.unique(label):
        counts = np.array([len(p) if y is None else np.count_nonzero(np.asarray(y)[p] == c) for p in training])
        if counts.sum():
            members = rows[label[rows] == c]
            owner[members] = np.repeat(np.arange(len(training)), apportion(counts / counts.sum(), len(members), g))
    return parts(owner, len(training))


def check_alpha(rule: object, alpha: object) -> None:
    """Raise RecipeError unless ``alpha``, the concentration of a Dirichlet distribution, is above 0 and finite."""
    if not is_number(alpha) or alpha <= 0:  # type: ignore[operator]
        raise RecipeError(
            f"{type(rule).__name__}(alpha={alpha!r}): alpha must be above 0 and finite; for equal clients, use IID.",
            "alpha",
        )


def check_room(rule: object, n: int, clients: int, each: int) -> None:
    """Raise RecipeError unless the data has at least ``each`` rows per client."""
    if clients * each > n:
        raise RecipeError(
            f"{rule!r}: {clients} clients of at least {each} rows need {clients * each} rows, but the data has {n}: "
            f"use at most {n // each} clients.",
            "clients",
        )


def check_length(rule: object, what: str, column: Column, n: int) -> None:
    """Raise BadData unless ``column`` has one entry per row."""
    if column.shape != (n,):
        raise BadData(f"{rule!r}: {what} has the shape {column.shape}, but {n} rows need ({n},).")


def labels(rule: object, y: Column | None, n: int) -> Int64[np.ndarray, " n"]:
    """The label of each row [n], as an index among the labels present, in ascending order.

    Raises RecipeError if there are no labels or the targets are real numbers, BadData if ``y`` has another length.
    """
    if y is None:
        reason = "there are none"
    else:
        y = np.asarray(y)
        check_length(rule, "y", y, n)
        if y.dtype.kind != "f" or np.array_equal(y, np.round(y)):
            return np.unique(y, return_inverse=True)[1].astype(np.int64)
        reason = "these targets are real numbers"
    raise RecipeError(
        f"{rule!r} deals rows by label, and {reason}: use Quantity(clients, alpha) or IID(clients).", "partition"
    )
