"""The server's knowledge of clients' data: numbers, shapes, labels and names; rows never leave a client."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..contract.errors import BadData, WireError
from ..datasets import Dataset
from ..recipe.limits import ClientLimits
from .checked_json import Words

log = logging.getLogger("medley")

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
"""Types that rows, targets and weights may have."""


class RowKind(NamedTuple):
    """Shape and dtype of one row; sparse rows are of the same kind as dense ones."""

    shape: list[int]
    dtype: str

    @classmethod
    def of(cls, t: Tensor) -> RowKind:
        """The kind of the rows of t [n, ...]."""
        return cls(list(t.shape[1:]), str(t.dtype).removeprefix("torch."))

    @classmethod
    def read(cls, words: Words, key: str, limits: ClientLimits) -> RowKind:
        """The kind under ``key``. Raises WireError for a shape or a type that rows cannot have."""
        wanted = f"[shape, type], a shape of at most {limits.row} numbers"
        shape, dtype = words.entries(key, 2, 2)
        if not isinstance(shape, list) or len(shape) > 8 or not all(type(k) is int and k >= 0 for k in shape):
            words.refuse(key, wanted)
        if math.prod(shape) > limits.row or not isinstance(dtype, str) or dtype not in DTYPES:
            words.refuse(key, wanted)
        return cls(shape, dtype)

    def example(self) -> Tensor:
        """Two rows of zeros of this kind. They show a model the shape of its input, and belong to no client."""
        return torch.zeros(2, *self.shape, dtype=getattr(torch, self.dtype))

    def __str__(self) -> str:
        return f"of shape and type {[*self]}"


@dataclass(frozen=True)
class Names:
    """The meaning of a client's columns, labels and numbers.

    Attributes:
        features: the names of the columns, in their order; empty where they have none
        labels: the names of the classes, in their order, as Python writes them; empty where they have none
        scaling: a digest of the mean and the deviation that all clients' rows are scaled by; empty without
    """

    features: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    scaling: str = ""

    @classmethod
    def of(cls, d: Dataset) -> Names:
        """The names of a data set."""
        scaling = "" if d.scaling is None else json.dumps({**d.scaling.plain(), "shared": True})
        digest = blake2b(scaling.encode(), digest_size=8).hexdigest() if scaling else ""
        return cls([*d.features], [repr(v) for v in d.labels], digest)

    @classmethod
    def read(cls, words: Words, classes: int | None, limits: ClientLimits) -> Names:
        """The names in an account. Raises WireError for those outside of the limits."""
        words.only("features", "labels", "scaling")
        features, labels = words.texts("features", limits.row), words.texts("labels", classes or 0)
        return cls(features, labels, words.text("scaling"))

    def differs(self, other: Names) -> tuple[str, str] | None:
        """The first thing in which two clients differ, in the words of each; None where they agree."""
        for what, mine, theirs in (("column", self.features, other.features), ("label", self.labels, other.labels)):
            if bool(mine) != bool(theirs):
                a, b = (
                    f"the {what}s {', '.join(names)[:200]}" if names else f"{what}s without names"
                    for names in (mine, theirs)
                )
                return a, b
            for k, (a, b) in enumerate(zip_longest(mine, theirs, fillvalue="nothing")):
                if a != b:
                    return f"as {what} {k} {a}", b
        if self.scaling != other.scaling:
            a, b = (
                f"rows scaled by the numbers {s}" if s else "rows that are not scaled"
                for s in (self.scaling, other.scaling)
            )
            return a, b
        return None


@dataclass(frozen=True)
class TaskReport:
    """One client's rows of one task in numbers.

    Attributes:
        rows: training rows, possibly none
        weight: the sum of their weights; ``rows`` where rows have no weights
    """

    rows: int
    weight: float
    test: int
    labels: list[int]

    @classmethod
    def read(cls, words: Words, classes: int | None, weighted: bool, limits: ClientLimits) -> TaskReport:
        """The numbers of one task. Raises WireError for those outside of the limits."""
        words.only("rows", "weight", "test", "labels")
        rows, test = words.whole("rows", 0, limits.rows), words.whole("test", 0, limits.rows)
        weight = words.number("weight", 0.0, limits.weight)
        if not weighted and weight != rows:
            words.refuse("weight", f"{rows}, the number of rows, since rows have no weights")
        if weighted and (weight > 0) != (rows > 0):
            words.refuse("weight", "above 0 where there are rows, else 0")
        labels = words.entries("labels", 0, classes or 0)
        if not all(type(k) is int and 0 <= k < (classes or 0) for k in labels) or len(set(labels)) < len(labels):
            words.refuse("labels", f"different whole numbers below {classes}")
        return cls(rows, weight, test, labels)


@dataclass(frozen=True)
class ClientReport:
    """One client's account of its data.

    Attributes:
        classes: the number of classes, None for regression
        tasks: its rows of each task; one entry without a stream
        X, y, weights: the kinds of its inputs, targets and weights of rows; None without weights
    """

    client: int
    classes: int | None
    tasks: list[TaskReport]
    X: RowKind
    y: RowKind
    weights: RowKind | None
    names: Names = field(default_factory=Names)

    def plain(self) -> dict[str, Any]:
        """Plain values, for `read`."""
        kinds = {"X": [*self.X], "y": [*self.y], "weights": self.weights and [*self.weights]}
        return asdict(self) | kinds

    @classmethod
    def read(cls, account: Mapping[str, Any], limits: ClientLimits | None = None) -> ClientReport:
        """Inverse of `plain`. Raises WireError, naming client and field, for values outside of the limits."""
        limits = limits or ClientLimits()
        words = Words(f"client {account.get('client')}'s account of its data", dict(account))
        words.only("client", "classes", "tasks", "X", "y", "weights", "names")
        client = words.whole("client", 0, 1 << 30)
        classes = None if words.said["classes"] is None else words.whole("classes", 1, limits.classes)
        X, y = (RowKind.read(words, key, limits) for key in "Xy")
        weights = None if words.said["weights"] is None else RowKind.read(words, "weights", limits)
        tasks = [
            TaskReport.read(Words(f"{words.who}, task {k}", task), classes, weights is not None, limits)
            for k, task in enumerate(words.entries("tasks", 1, limits.tasks))
        ]
        names = Names.read(Words(f"{words.who}, its names", words.said["names"]), classes, limits)
        return cls(client, classes, tasks, X, y, weights, names)

    @property
    def kind(self) -> tuple[Any, ...]:
        """The properties that all clients have in common, with their names."""
        return (
            ("rows", _shown(self.X)),
            ("targets", _shown(self.y)),
            ("weights of rows", _shown(self.weights)),
            ("labels", "in classes" if self.classes is not None else "without classes"),
            ("tasks", f"{len(self.tasks)} in number"),
        )

    def differs(self, other: ClientReport) -> str:
        """The sentence on the first thing in which this client differs from another one; empty where they agree."""
        for (what, mine), (_, theirs) in zip(self.kind, other.kind, strict=True):
            if mine != theirs:
                return f"client {self.client} has {what} {mine}, client {other.client} {theirs}"
        if said := self.names.differs(other.names):
            return (
                f"client {self.client} has {said[0]}, client {other.client} {said[1]}: give all clients the same, or "
                "state them once, for all, in the recipe's [clients] features = [...], labels = [...]"
            )
        return ""

    def emptied(self, client: int) -> ClientReport:
        """The report of a client without rows, of the same kind."""
        return replace(self, client=client, tasks=[TaskReport(0, 0.0, 0, []) for _ in self.tasks])


@dataclass(frozen=True)
class Known:
    """The values that the server tells every client: the number of classes, and the labels of every task."""

    classes: int | None
    labels: list[list[int]]

    @classmethod
    def read(cls, said: Any) -> Known:
        """The values in a request. Raises WireError for others."""
        try:
            known = cls(said["classes"], said["labels"])
            fit = all(type(k) is int and 0 <= k < (known.classes or 0) for labels in known.labels for k in labels)
        except (KeyError, TypeError):
            fit = False
        if not fit:
            raise WireError(
                f"the server says of the tasks {said!r:.200}, which is none of ours: does it run the same app?"
            )
        return known


@dataclass(frozen=True, eq=False)
class Census:
    """The reports of all clients. One that is refused, for the reason given, has no rows in its report."""

    reports: Sequence[ClientReport]
    known: Known
    refused: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, accounts: Mapping[int, Mapping[str, Any]], limits: ClientLimits | None = None, tolerant: bool = False
    ) -> Census:
        """From the clients' accounts by id.

        Args:
            limits: the largest values that a client may report; by default those of `ClientLimits`
            tolerant: False raises for a client that does not fit; True leaves it out, with a warning

        Raises BadData where rows or tasks differ in kind, or ids have gaps, and WireError for an account that is none.
        """
        if list(accounts) != list(range(len(accounts))):
            raise BadData(
                f"{len(accounts)} clients must have partition-id 0..{len(accounts) - 1}, but have {list(accounts)}"
            )
        read, refused = dict[int, ClientReport](), dict[int, str]()
        for i, account in accounts.items():
            try:
                if account.get("absent"):
                    continue
                if why := account.get("refused"):
                    raise WireError(str(why))
                read[i] = ClientReport.read(account, limits)
            except WireError as e:
                if not tolerant:
                    raise
                refused[i] = str(e)
        if not read:
            raise WireError(f"no client can take part: {'; '.join(refused.values())}")
        first = _usual(read.values()) if tolerant else next(iter(read.values()))
        for i, r in read.items():
            if said := r.differs(first) or agreed(r, limits or ClientLimits()):
                refused.setdefault(i, said)
            if i in refused and not tolerant:
                raise BadData(refused[i], client=i)
        for why in refused.values():
            log.warning("the run goes on without a client: %s", why)
        reports = [read[i] if i in read and i not in refused else first.emptied(i) for i in accounts]
        classes = None if first.classes is None else max(r.classes or 0 for i, r in read.items() if i not in refused)
        if len(counts := {r.classes for i, r in read.items() if i not in refused}) > 1:
            log.warning("clients have labels of %s classes: the model gets %s", sorted(map(str, counts)), classes)
        labels = [
            sorted({k for task in tasks for k in task.labels})
            for tasks in zip(*(r.tasks for r in reports), strict=True)
        ]
        return cls(reports, Known(classes, labels), refused)

    def __len__(self) -> int:
        return len(self.reports)

    @property
    def rows(self) -> np.ndarray:
        """Training rows, int64 [clients, tasks]."""
        return np.array([[task.rows for task in r.tasks] for r in self.reports], dtype=np.int64)

    @property
    def weights(self) -> np.ndarray:
        """Sums of the training rows' weights [clients, tasks]."""
        return np.array([[task.weight for task in r.tasks] for r in self.reports])

    @property
    def tests(self) -> np.ndarray:
        """Test rows, int64 [clients, tasks]."""
        return np.array([[task.test for task in r.tasks] for r in self.reports], dtype=np.int64)

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return self.reports[0].weights is not None

    def settings(self) -> list[Any]:
        """The record of the data: the rows of each client in each task, and the shape of a row."""
        return [[[task.rows for task in r.tasks], *r.X.shape] for r in self.reports]


def agreed(r: ClientReport, limits: ClientLimits) -> str:
    """The sentence on where a client differs from what the recipe states for all; empty where it does not."""
    wanted = Names(
        [*limits.features] or r.names.features, [*map(repr, limits.labels)] or r.names.labels, r.names.scaling
    )
    said = r.names.differs(wanted)
    return f"client {r.client} has {said[0]}, the recipe's [clients] {said[1]}" if said else ""


def _usual(reports: Iterable[ClientReport]) -> ClientReport:
    """The first report of the kind, and with the names, that most clients have."""
    each = list(reports)
    kinds = [(r.kind, repr(r.names)) for r in each]
    kind, _ = Counter(kinds).most_common(1)[0]
    return each[kinds.index(kind)]


def _shown(kind: RowKind | None) -> str:
    return "not at all" if kind is None else str(kind)
