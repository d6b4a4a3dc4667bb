"""What the server knows of clients' data: numbers, shapes, labels and names. Rows never leave a client."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...contract import Problem
from ...contract.errors import BadData, WireError
from ...contract.place import name_of
from ...datasets import Dataset
from ...numerics.scaling import Scaling
from ...problems.network import NetworkProblem, SharedNetwork
from ...recipe.limits import ClientLimits
from ...rows.fields import Fields
from ...storage.base import digest, frozen
from .checked_json import Words

log = logging.getLogger("medley")

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
"""Types that rows, targets and weights may have."""

MOST_INPUTS = 1000
"""The most inputs that a row may have."""


class RowKind(NamedTuple):
    """Shape and dtype of one row; sparse rows are of the same kind as dense ones.

    Attributes:
        parts: name or position, shape and dtype of each input, if a row has several; positions are "0", "1", ...
    """

    shape: list[int]
    dtype: str
    parts: list[list[Any]] = []  # noqa: RUF012  a tuple's default, which nobody changes

    @classmethod
    def of(cls, t: Tensor) -> RowKind:
        """The kind of the rows of t [n, ...]."""
        kind = cls(list(t.shape[1:]), str(t.dtype).removeprefix("torch."))
        if not isinstance(t, Fields):
            return kind
        names = t.names or [str(k) for k in range(len(t.parts))]
        return kind._replace(parts=[[name, *cls.of(part)[:2]] for name, part in zip(names, t.parts, strict=True)])

    @classmethod
    def read(cls, words: Words, key: str, limits: ClientLimits) -> RowKind:
        """The kind under ``key``. Raises WireError for a shape or a type that rows cannot have."""

        def is_known(shape: Any, dtype: Any) -> bool:
            sizes = isinstance(shape, list) and len(shape) <= 8
            sizes = sizes and all(type(k) is int and 0 <= k <= limits.row for k in shape)
            return sizes and math.prod(shape) <= limits.row and isinstance(dtype, str) and dtype in DTYPES

        shape, dtype, *more = words.entries(key, 2, 3)
        parts = more[0] if more else []
        fit = is_known(shape, dtype) and isinstance(parts, list) and len(parts) <= MOST_INPUTS
        fit = fit and all(isinstance(p, list) and len(p) == 3 and is_known(*p[1:]) for p in parts)
        fit = fit and all(isinstance(p[0], str) and len(p[0]) <= 200 and p[0].isprintable() for p in parts)
        fit = fit and sum(math.prod(p[1]) for p in parts) <= limits.row
        if not fit or len({p[0] for p in parts}) < len(parts):
            words.refuse(key, f"[shape, type], a shape of at most {limits.row} numbers, or with a row's inputs behind")
        return cls(shape, dtype, parts)

    def plain(self) -> list[Any]:
        """Plain values, for `read`."""
        return [*self] if self.parts else [*self[:2]]

    def example(self) -> Tensor:
        """Two rows of zeros of this kind. They show a model the shape of its input; they are not any client's data."""
        each = [torch.zeros(2, *shape, dtype=getattr(torch, dtype)) for _, shape, dtype in self.parts]
        names = [name for name, *_ in self.parts]
        if each:
            return Fields(each, None if names == [str(k) for k in range(len(names))] else names)
        return torch.zeros(2, *self.shape, dtype=getattr(torch, self.dtype))


@dataclass(frozen=True)
class Names:
    """The meaning of a client's columns, labels and numbers.

    Attributes:
        features: the names of the columns, in their order; empty if they have none
        labels: the names of the classes, in their order, as Python writes them; empty if they have none
        scaling: a digest of the mean and the standard deviation that scale all clients' rows; empty without scaling
    """

    features: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    scaling: str = ""

    @classmethod
    def of(cls, d: Dataset) -> Names:
        """The names of a data set."""
        return cls([*d.features], [repr(v) for v in d.labels], _digest(d.scaling))

    @classmethod
    def read(cls, words: Words, classes: int | None, limits: ClientLimits) -> Names:
        """The names in an account. Raises WireError for names that exceed the limits."""
        words.only("features", "labels", "scaling")
        features = words.texts("features", limits.row)
        labels = words.texts("labels", classes or 0)
        return cls(features, labels, words.text("scaling"))

    def facts(self) -> dict[str, str]:
        """The facts that two clients have to agree on, in words."""
        out = {"rows": f"scaled by the numbers {self.scaling}" if self.scaling else "that are not scaled"}
        for what, names in (("column", self.features), ("label", self.labels)):
            out[f"{what}s"] = ", ".join(names)[:200] or UNNAMED
            out |= {f"as {what} {k}": name for k, name in enumerate(names)}
        return out

    def differs(self, other: Names) -> tuple[str, str] | None:
        """The first fact on which two clients differ, as each states it; None if they agree."""
        return differing(self.facts(), other.facts())


UNNAMED = "without names"

REMEDIES = {
    "column": ": give all clients the same columns, in one order",
    "label": ": write classes alike, and name all under [clients] labels = [...] in the server's and nodes' recipe",
}


def _remedy(fact: str) -> str:
    return REMEDIES.get(fact.removeprefix("as ").split()[0].removesuffix("s"), "")


def differing(mine: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, str] | None:
    """The first fact that is not the same on both sides, as each states it."""
    for what in {**mine, **theirs}:
        a = mine.get(what, "nothing")
        b = theirs.get(what, "nothing")
        if a != b and (what not in ("columns", "labels") or UNNAMED in (a, b)):  # else a name says more
            return f"{what} {a}", b
    return None


@dataclass(frozen=True)
class TaskReport:
    """The numbers of one client's rows of one task.

    Attributes:
        rows: training rows, possibly none
        weight: the sum of their weights; ``rows`` if rows have no weights
        support: pairs of a class and its number of training rows; empty without classes, for private rows and for
            secure sums
    """

    rows: int
    weight: float
    test: int
    labels: list[int]
    support: list[list[int]] = field(default_factory=list)

    @classmethod
    def read(cls, words: Words, classes: int | None, weighted: bool, limits: ClientLimits) -> TaskReport:
        """The numbers of one task. Raises WireError for numbers outside the limits."""
        words.only(*cls.__annotations__)
        rows = words.whole("rows", 0, limits.rows)
        test = words.whole("test", 0, limits.rows)
        weight = words.number("weight", 0.0, limits.weight)
        if not weighted and weight != rows:
            words.refuse("weight", f"{rows}, the number of rows, because rows have no weights")
        if weighted and (weight > 0) != (rows > 0):
            words.refuse("weight", "above 0 if there are rows, otherwise 0")
        n = classes or 0
        labels = words.wholes("labels", n, n)
        support = words.entries("support", 0, n)
        pairs = all(isinstance(p, list) and len(p) == 2 and all(type(k) is int and k >= 0 for k in p) for p in support)
        if not pairs or any(k >= n for k, _ in support) or sum(count for _, count in support) > rows:
            words.refuse("support", f"pairs of a class below {n} and its rows, {rows} in all at most")
        return cls(rows, weight, test, labels, support)


@dataclass(frozen=True)
class ClientReport:
    """One client's account of its data.

    Attributes:
        classes: the number of classes, None for regression
        tasks: its rows of each task; one entry without a stream
        X, y, weights: the kinds of its inputs, its targets and the weights of its rows; None without weights
        name: the client's readable name, such as "Bern"; empty if it has none
    """

    client: int
    classes: int | None
    tasks: list[TaskReport]
    X: RowKind
    y: RowKind
    weights: RowKind | None
    names: Names = field(default_factory=Names)
    name: str = ""

    def plain(self) -> dict[str, Any]:
        """Plain values, for `read`."""
        kinds = {"X": self.X.plain(), "y": self.y.plain(), "weights": self.weights and self.weights.plain()}
        return asdict(self) | kinds

    @classmethod
    def read(cls, account: Mapping[str, Any], limits: ClientLimits | None = None) -> ClientReport:
        """Inverse of `plain`. Raises WireError, naming client and field, for values outside the limits."""
        limits = limits or ClientLimits()
        words = Words(f"{name_of(account.get('client'))}'s account of its data", dict(account))
        words.only(*cls.__annotations__)
        client = words.whole("client", 0, 1 << 30)
        classes = None if words.said["classes"] is None else words.whole("classes", 1, limits.classes)
        X, y = (RowKind.read(words, key, limits) for key in "Xy")
        weights = None if words.said["weights"] is None else RowKind.read(words, "weights", limits)
        tasks = [
            TaskReport.read(Words(f"{words.who}, task {k}", task), classes, weights is not None, limits)
            for k, task in enumerate(words.entries("tasks", 1, limits.tasks))
        ]
        names = Names.read(Words(f"{words.who}, its names", words.said["names"]), classes, limits)
        return cls(client, classes, tasks, X, y, weights, names, words.text("name"))

    @property
    def facts(self) -> dict[str, str]:
        """The facts that all clients have in common, in words."""
        return {
            "rows of shape and type": str(self.X.plain()),
            "targets of shape and type": str(self.y.plain()),
            "weights of rows": "not at all" if self.weights is None else f"of shape and type {self.weights.plain()}",
            "targets": "without classes" if self.classes is None else "in classes",
            "tasks": f"{len(self.tasks)} in number",
            **self.names.facts(),
        }

    def differs(self, other: ClientReport) -> str:
        """A sentence on the first fact on which this client differs from another one; empty if they agree."""
        difference = differing(self.facts, other.facts)
        if difference is None:
            return ""
        return (
            f"{name_of(self.client)} has {difference[0]}, {name_of(other.client)} {difference[1]}"
            f"{_remedy(difference[0])}"
        )

    def namesake(self, others: Iterable[ClientReport], clients: int) -> str:
        """A sentence if another client has this one's name, or its name is another's number; empty otherwise."""
        other = next((r for r in others if self.name and r.name == self.name and r.client != self.client), None)
        if other:
            reason = f"clients {other.client} and {self.client} are both called {self.name!r}"
        elif self.name in map(str, range(clients)) and self.name != str(self.client):
            reason = f"client {self.client} is called {self.name!r}, another client's number"
        else:
            return ""
        return f"{reason}: give each node its own --name"

    def emptied(self, client: int) -> ClientReport:
        """The same report without rows."""
        return replace(self, client=client, name="", tasks=[TaskReport(0, 0.0, 0, []) for _ in self.tasks])


@dataclass(frozen=True)
class Known:
    """The values that the server tells every client: the number of classes, and the labels of every task."""

    classes: int | None
    labels: list[list[int]]
    first: dict[str, list[float]] | None = None
    """The initial personal part of clients' models; None if the seed draws it."""
    base: str | None = None
    """The digest of the network's frozen part, see `base_of`."""

    @classmethod
    def read(cls, raw: Any) -> Known:
        """The values in a request. Raises WireError for others."""
        try:
            facts = cls(raw["classes"], raw["labels"], raw.get("first"), raw.get("base"))
            fit = all(type(k) is int and 0 <= k < (facts.classes or 0) for labels in facts.labels for k in labels)
            parts = facts.first or {}
            fit = fit and parts.keys() <= {"x", "floats", "ints"}
            fit = fit and all(type(v) in (int, float) for values in parts.values() for v in values)
            fit = fit and isinstance(facts.base, str | None)
        except (KeyError, TypeError, AttributeError):
            fit = False
        if not fit:
            raise WireError(
                f"the server describes the tasks as {raw!r:.200}, which this client does not understand: does "
                "it run the same app?"
            )
        return facts


def base_of(problem: Problem) -> str | None:
    """The digest of a network's frozen part, or None. No message carries this part: nodes must have the server's."""
    joint = problem.joint if isinstance(problem, SharedNetwork) else problem
    return digest(joint.module, ())[:32] if isinstance(joint, NetworkProblem) and frozen(joint.module) else None


@dataclass(frozen=True, eq=False)
class Census:
    """The reports of all clients. The report of a refused client has no rows; ``refused`` gives the reason."""

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

        Raises BadData if rows or tasks differ in kind or ids have gaps, and WireError for an invalid account.
        """
        if list(accounts) != list(range(n := len(accounts))):
            raise BadData(f"{n} clients must have partition-id 0..{n - 1}, but have {list(accounts)}")
        read = dict[int, ClientReport]()
        refused = dict[int, str]()
        for i, account in accounts.items():
            try:
                if account.get("absent"):
                    continue
                why = account.get("refused")
                if why:
                    raise WireError(str(why))
                read[i] = ClientReport.read(account, limits)
            except WireError as e:
                if not tolerant:
                    raise
                refused[i] = str(e)
        if not read:
            raise WireError(f"no client can take part: {'; '.join(refused.values())}")
        kinds = [json.dumps(r.facts) for r in read.values()]
        usual = kinds.index(Counter(kinds).most_common(1)[0][0]) if tolerant else 0
        first = [*read.values()][usual]
        for i, r in read.items():
            reason = r.differs(first) or agreed(r, limits or ClientLimits())
            if reason:
                refused[i] = reason
                if not tolerant:
                    raise BadData(reason, client=i)
            reason = r.namesake([read[k] for k in read if k < i and k not in refused], len(accounts))
            if reason:
                refused[i] = reason
                if not tolerant:
                    raise BadData(reason, client=i)
        for why in refused.values():
            log.warning("the run continues without a client: %s", why)
        accepted = {i: r for i, r in read.items() if i not in refused}
        reports = [accepted.get(i) or first.emptied(i) for i in accounts]
        classes = None if first.classes is None else max(r.classes or 0 for r in accepted.values())
        counts = {r.classes for r in accepted.values()}
        if len(counts) > 1:
            log.warning("clients have labels of %s classes: the model gets %s", sorted(map(str, counts)), classes)
        each = zip(*(r.tasks for r in reports), strict=True)
        return cls(reports, Known(classes, [sorted({k for t in tasks for k in t.labels}) for tasks in each]), refused)

    def __len__(self) -> int:
        return len(self.reports)

    @property
    def names(self) -> list[str]:
        """The clients' names by id; a client without a name has its number. Empty if no client has a name."""
        return [r.name or str(i) for i, r in enumerate(self.reports)] if any(r.name for r in self.reports) else []

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
        """The record of the data: the number of rows of each client in each task, and the shape of a row."""
        return [[[task.rows for task in r.tasks], *r.X.shape] for r in self.reports]


def agreed(r: ClientReport, limits: ClientLimits) -> str:
    """A sentence on the first fact on which a client differs from the recipe's [clients]; empty if none does."""
    expected = r.names
    scaling = limits.scaling
    named = limits.features or (scaling.coding.features if scaling is not None and scaling.coding is not None else ())
    expected = Names(
        [*named] or expected.features,
        [*map(repr, limits.labels)] or expected.labels,
        _digest(scaling) or expected.scaling,
    )
    difference = r.names.differs(expected)
    return (
        f"{name_of(r.client)} has {difference[0]}, the recipe's [clients] {difference[1]}{_remedy(difference[0])}"
        if difference
        else ""
    )


def _digest(scaling: Scaling | None) -> str:
    """Short text that differs if scalings do; empty without scaling."""
    text = "" if scaling is None else json.dumps({**scaling.plain(), "shared": True})
    return blake2b(text.encode(), digest_size=8).hexdigest() if text else ""
