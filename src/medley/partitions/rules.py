"""Rules that deal training rows to clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from ..contract import BadData, Checked, RecipeError, at_least
from ..distributions import Number
from ..runtime.streams import rng
from .dealing import (
    Column,
    Parts,
    Rows,
    apportion,
    check_alpha,
    check_length,
    check_room,
    dirichlet,
    labels,
    parts,
    shuffled_by,
    top_up,
)

log = logging.getLogger("medley")


@runtime_checkable
class Partition(Protocol):
    """A rule that deals rows to clients."""

    @property
    def clients(self) -> int | None:
        """The number of clients; None if it depends on the data."""

    def split(self, y: Column | None, n: int, seed: int, keys: Mapping[str, Column] | None = None) -> Sequence[Rows]:
        """Deal the rows 0..n-1; no row goes to two clients.

        Args:
            y: Labels or targets [n]; None if there are none.
            n: Number of rows in the data.
            seed: Seed of the run; the stream is (seed, "partition").
            keys: Columns [n] by name, such as the writer of each row; default none.

        Raises RecipeError if the rule does not suit the data, and BadData if the data itself is at fault.
        """


def deal_rows(
    partition: Partition, y: Column | None, n: int, seed: int, keys: Mapping[str, Column] | None = None
) -> Parts:
    """The rows that any rule deals, a user's own too. Raises BadData for another number of clients; see `Parts.of`."""
    out = Parts.of(partition.split(y, n, seed, keys), n)
    if partition.clients not in (None, len(out)):
        raise BadData(
            f"{type(partition).__name__}.split() deals rows to {len(out)} clients, but its clients is "
            f"{partition.clients}; return that many arrays of rows"
        )
    return out


@dataclass(frozen=True)
class IID(Checked):
    """Rows dealt at random, in sizes that differ by at most one."""

    clients: Annotated[int, at_least(1)]

    def split(self, y: Column | None, n: int, seed: int, keys: Mapping[str, Column] | None = None) -> Parts:
        """Deal the rows; see `Partition.split`."""
        check_room(self, n, self.clients, 1)
        owner = np.empty(n, dtype=np.int64)
        owner[rng(seed, "partition").permutation(n)] = np.arange(n) % self.clients
        return parts(owner, self.clients)


@dataclass(frozen=True)
class Dirichlet(Checked):
    """Label skew: the rows of each label go to clients in proportions drawn from Dir(``alpha``, ..., ``alpha``).

    Sizes are not controlled (Yurochkin et al., ICML 2019). With ``balanced`` they differ by at most one, and each
    client's own label proportions are drawn from Dir(alpha) as far as rows last, clients in random order (after Hsu, Qi
    and Brown, 2019). Clients short of ``minimum`` rows get rows from the largest clients, whose sizes are cut to a
    common level. Nothing is drawn twice, so this ends for every alpha.

    Attributes:
        clients: The number of clients.
        alpha: The concentration, above 0: small values give each label to few clients, large ones come close to IID.
        minimum: The smallest number of rows of a client; default 1.
        balanced: Whether sizes should be equal; default False.
    """

    clients: Annotated[int, at_least(1)]
    alpha: Number
    minimum: Annotated[int, at_least(1)] = 1
    balanced: bool = False

    def __post_init__(self) -> None:
        check_alpha(self, self.alpha)
        super().__post_init__()

    def split(self, y: Column | None, n: int, seed: int, keys: Mapping[str, Column] | None = None) -> Parts:
        """Deal the rows; see `Partition.split`."""
        label = labels(self, y, n)
        check_room(self, n, self.clients, self.minimum)
        g = rng(seed, "partition")
        rows = shuffled_by(label, g)
        counts = (self._balanced if self.balanced else self._natural)(np.bincount(label), g)  # [labels, clients]
        owner = np.empty(n, dtype=np.int64)
        owner[rows] = np.repeat(np.tile(np.arange(self.clients), len(counts)), counts.ravel())
        return parts(top_up(owner, self.clients, self.minimum, g), self.clients)

    def _natural(self, totals: Int64[np.ndarray, " c"], g: np.random.Generator) -> Int64[np.ndarray, "c clients"]:
        return np.stack([apportion(dirichlet(self.alpha, self.clients, g), int(m), g) for m in totals])

    def _balanced(self, totals: Int64[np.ndarray, " c"], g: np.random.Generator) -> Int64[np.ndarray, "c clients"]:
        counts = np.zeros((self.clients, len(totals)), dtype=np.int64)
        left = totals.copy()
        for turn, client in enumerate(g.permutation(self.clients)):
            want = totals.sum() // self.clients + (turn < totals.sum() % self.clients)
            q = dirichlet(self.alpha, len(totals), g)
            while want:  # each pass but the last uses up a label
                p = np.where(left > 0, q, 0.0)
                p = p / p.sum() if p.sum() > 0 else left / left.sum()
                take = np.minimum(apportion(p, int(want), g), left)
                counts[client] += take
                left -= take
                want -= take.sum()
        return counts.T


@dataclass(frozen=True)
class Shards(Checked):
    """Rows sorted by label, cut into clients * ``per_client`` equal shards, dealt at random.

    A shard no longer than the rows of any label holds at most two labels (McMahan et al., AISTATS 2017).
    """

    clients: Annotated[int, at_least(1)]
    per_client: Annotated[int, at_least(1)] = 2

    def split(self, y: Column | None, n: int, seed: int, keys: Mapping[str, Column] | None = None) -> Parts:
        """Deal the rows; see `Partition.split`."""
        label = labels(self, y, n)
        check_room(self, n, self.clients, self.per_client)
        g = rng(seed, "partition")
        shards = self.clients * self.per_client
        holder = g.permutation(shards) // self.per_client
        owner = np.empty(n, dtype=np.int64)
        owner[shuffled_by(label, g)] = holder[np.arange(n) * shards // n]
        return parts(owner, self.clients)


@dataclass(frozen=True)
class Labels(Checked):
    """Each client sees exactly ``per_client`` labels; the rows of a label are dealt evenly among its clients.

    Each client takes the labels taken least so far, at random among equals. So label counts differ by at most one, and
    all labels are covered if clients * per_client is at least their number. Rows of a label that no client takes are
    left out, and the log says how many.
    """

    clients: Annotated[int, at_least(1)]
    per_client: Annotated[int, at_least(1)]

    def split(self, y: Column | None, n: int, seed: int, keys: Mapping[str, Column] | None = None) -> Parts:
        """Deal the rows; see `Partition.split`."""
        label = labels(self, y, n)
        totals = np.bincount(label)
        if self.per_client > len(totals):
            raise RecipeError(
                f"{self!r}: the data has {len(totals)} labels, so per_client can be at most that.", "per_client"
            )
        g = rng(seed, "partition")
        holders: list[list[int]] = [[] for _ in totals]
        taken = np.zeros(len(totals))
        for client in range(self.clients):
            chosen = np.argsort(taken + g.random(len(totals)))[: self.per_client]
            taken[chosen] += 1
            for c in chosen:
                holders[c].append(client)
        owner = np.full(n, -1, dtype=np.int64)
        for c, rows in enumerate(np.split(shuffled_by(label, g), np.cumsum(totals)[:-1])):
            if len(rows) < len(holders[c]):
                name = np.unique(np.asarray(y))[c]
                raise RecipeError(
                    f"{self!r}: {len(holders[c])} clients must see label {name}, which has only {len(rows)} rows: "
                    "use fewer clients or a smaller per_client.",
                    "clients",
                )
            if holders[c]:
                owner[rows] = np.resize(holders[c], len(rows))
        out = int((owner < 0).sum())
        if out:
            why = "no client takes their labels; use more clients or a larger per_client"
            log.warning("%r leaves out %d of the %d rows: %s", self, out, n, why)
        return parts(owner, self.clients)


@dataclass(frozen=True)
class Quantity(Checked):
    """Size skew: rows dealt at random, regardless of labels, in sizes drawn from Dir(``alpha``, ..., ``alpha``).

    Attributes:
        clients: The number of clients.
        alpha: The concentration, above 0: the smaller it is, the more unequal are the sizes.
        minimum: The smallest number of rows of a client; default 1. Clients with fewer get rows from the largest
            clients, as in `Dirichlet`.
    """

    clients: Annotated[int, at_least(1)]
    alpha: Number
    minimum: Annotated[int, at_least(1)] = 1

    def __post_init__(self) -> None:
        check_alpha(self, self.alpha)
        super().__post_init__()

    def split(self, y: Column | None, n: int, seed: int, keys: Mapping[str, Column] | None = None) -> Parts:
        """Deal the rows; see `Partition.split`."""
        check_room(self, n, self.clients, self.minimum)
        g = rng(seed, "partition")
        owner = np.empty(n, dtype=np.int64)
        sizes = apportion(dirichlet(self.alpha, self.clients, g), n, g)
        owner[g.permutation(n)] = np.repeat(np.arange(self.clients), sizes)
        return parts(top_up(owner, self.clients, self.minimum, g), self.clients)


@dataclass(frozen=True)
class ByKey(Checked):
    """Natural clients: rows with the same value in the column ``key`` form one client; ids follow the order of the
    keys.

    Clients with fewer than ``minimum`` rows (default 1) are left out, with their rows.
    """

    key: str
    minimum: Annotated[int, at_least(1)] = 1

    @property
    def clients(self) -> None:
        """None: the number depends on the data."""
        return None

    def split(self, y: Column | None, n: int, seed: int, keys: Mapping[str, Column] | None = None) -> Parts:
        """Deal the rows; ``y`` and ``seed`` are ignored.

        Raises RecipeError if the data lacks the key or no client has ``minimum`` rows, BadData for a key of another
        length, with NaN, or with values that cannot be ordered.
        """
        if not keys:
            raise RecipeError(
                f"ByKey({self.key!r}): the data has only inputs and labels; name the client's column when you read it, "
                f"client={self.key!r}, or give Dataset(..., keys={{{self.key!r}: names}})",
                "key",
            )
        if self.key not in keys:
            raise RecipeError.unknown(self.key, keys, "ByKey: the data")
        column = np.asarray(keys[self.key])
        check_length(self, f"key {self.key!r}", column, n)
        values, owner, sizes = self._values(column)
        if values.dtype.kind == "f" and np.isnan(values).any():
            row = int(np.flatnonzero(np.isnan(column))[0])
            raise BadData(f"{self!r}: row {row} has no key (NaN): fill it in, or leave the row out.", row=row)
        is_client = sizes >= self.minimum
        if not is_client.any():
            raise RecipeError(
                f"{self!r}: no client has {self.minimum} rows; the largest has {sizes.max(initial=0)}.", "minimum"
            )
        return parts(np.where(is_client, np.cumsum(is_client) - 1, -1)[owner], int(is_client.sum()))

    def split_test(self, keys: Mapping[str, Column], test_keys: Mapping[str, Column]) -> Parts:
        """The test rows of each client of `split`; rows whose key has no client are left out.

        Args:
            keys: Columns of the training rows by name.
            test_keys: Columns of the test rows by name; it has ``key``.
        """
        # As texts: a file of numbers holds only numbers, another file may have "2A" among them.
        places = {name: k for k, name in enumerate(self.names(keys))}
        owner = [places.get(str(v), -1) for v in np.asarray(test_keys[self.key])]
        return parts(np.array(owner, np.int64), len(places))

    def names(self, keys: Mapping[str, Column]) -> tuple[str, ...]:
        """The clients' names in the order of their ids: their values of the key.

        Args:
            keys: Columns of the training rows by name; it has ``key``.
        """
        values, _, sizes = self._values(keys[self.key])
        return tuple(map(str, values[sizes >= self.minimum]))

    def _values(self, column: Column) -> tuple[Column, Column, Column]:
        """The key's different values in order, the place of each row's value, and the number of rows of each value."""
        try:
            values, owner, sizes = np.unique(np.asarray(column), return_inverse=True, return_counts=True)
        except TypeError as error:
            empty = [v is None or v != v for v in np.asarray(column).tolist()]
            if any(empty):
                row = empty.index(True)
                raise BadData(f"{self!r}: row {row} has no key: fill it in, or leave the row out.", row=row) from None
            kinds = {type(v).__name__: v for v in np.asarray(column).tolist()}
            examples = " and ".join(f"{v!r:.40} is {k}" for k, v in [*kinds.items()][:2])
            raise BadData(
                f"{self!r}: the values of a key must be of one kind, and {examples}; for names give text, "
                f"frame[{self.key!r}].astype(str)"
            ) from error
        return values, owner, sizes
