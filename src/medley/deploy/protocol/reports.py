"""What the server knows of clients' data: numbers, shapes, labels and names. Rows never leave a client."""

from __future__ import annotations

import json
import logging
import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...contract import OwnState, Problem
from ...contract.annotation import at_least
from ...contract.errors import BadData, WireError
from ...contract.place import name_of
from ...datasets import Dataset
from ...numerics.scaling import Scaling
from ...problems.network import NetworkProblem, SharedNetwork
from ...recipe.limits import ClientLimits
from ...rows.fields import Fields, names_of
from ...storage.base import digest, frozen
from .checked_json import ClientNumber, Count, Figure, Integer, Line, checked, declared, table, wrong

log = logging.getLogger("medley")

Dtype = Literal["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
"""Types that rows, targets and weights may have."""

Kind = tuple[list[Count], Dtype] | tuple[list[Count], Dtype, list[tuple[Line, list[Count], Dtype]]]
"""Shape and type of a row; if it has several inputs, with the name, the shape and the type of each."""

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
        return kind._replace(parts=[[name, *cls.of(part)[:2]] for name, part in zip(names_of(t), t.parts, strict=True)])

    @classmethod
    def read(cls, who: str, account: Mapping[str, Any], key: str, limits: ClientLimits) -> RowKind:
        """The kind under ``key``. Raises WireError for a shape or a type that rows cannot have."""
        expected = f"[shape, type], a shape of at most {limits.row} numbers, or with a row's inputs behind"
        shape, dtype, *more = checked(who, account, key, Kind, limits.row, expected)
        parts = [[*part] for part in more[0]] if more else []
        shapes = [sizes for _, sizes, _ in parts]
        fit = all(len(sizes) <= 8 for sizes in (shape, *shapes)) and len(parts) <= MOST_INPUTS
        fit = fit and math.prod(shape) <= limits.row and sum(map(math.prod, shapes)) <= limits.row
        if not fit or len({name for name, *_ in parts}) < len(parts):
            raise wrong(who, account, key, expected)
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

    features: list[Line] = field(default_factory=list)
    labels: list[Line] = field(default_factory=list)
    scaling: Line = ""

    @classmethod
    def of(cls, d: Dataset) -> Names:
        """The names of a data set."""
        labels = [v.item() if isinstance(v, np.generic) else v for v in d.labels]
        return cls([*d.features], [*map(repr, labels)], _digest(d.scaling))

    @classmethod
    def read(cls, who: str, values: Any, classes: int | None, limits: ClientLimits) -> Names:
        """The names in an account. Raises WireError for names that exceed the limits."""
        names = declared(cls, who, values)
        for key, texts, most in (("features", names.features, limits.row), ("labels", names.labels, classes or 0)):
            if len(texts) > most or len({*texts}) < len(texts):
                raise wrong(who, values, key, f"a list of at most {most} different texts")
        return names

    def facts(self) -> dict[str, str]:
        """The facts that two clients have to agree on, in words."""
        out = dict[str, str]()
        for what, names in (("column", self.features), ("label", self.labels)):
            out[f"{what}s"] = ", ".join(names)[:200] or UNNAMED
            out |= {f"as {what} {k}": name for k, name in enumerate(names)}
        return out | {"rows": f"scaled by the numbers {self.scaling}" if self.scaling else "that are not scaled"}

    def differs(self, other: Names) -> tuple[str, str] | None:
        """The first fact on which two clients differ, as each states it; None if they agree."""
        return differing(self.facts(), other.facts())


def namesake(client: int, names: Mapping[int, str], clients: int) -> str:
    """A sentence if a reader could take this client for another one, by its name or number; empty otherwise.

    Args:
        names: names by client, empty for none; this client's among them
        clients: the number of clients, with ids from 0
    """
    name = names[client]
    read = _as_read(name)
    number = read.removeprefix("client ")
    other = next((i for i, text in names.items() if i != client and read and _as_read(text) == read), None)
    if other is not None:
        alike = f"both called {name!r}" if names[other] == name else f"called {names[other]!r} and {name!r}"
        reason = f"clients {other} and {client} are {alike}"
    elif number in map(str, range(clients)) and number != str(client):
        reason = f"client {client} is called {name!r}, another client's number"
    else:
        return ""
    return f"{reason}: give each node its own --name"


def _as_read(name: str) -> str:
    """A name without what readers overlook: case, width of letters, spaces."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


UNNAMED = "without names"

REMEDIES = {
    "row": ": give all clients rows of one form, from the same prepared.json if they are prepared",
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

    rows: Count
    weight: Annotated[float, at_least(0)]
    test: Count
    labels: list[Count]
    support: list[tuple[Count, Count]] = field(default_factory=list)

    @classmethod
    def read(cls, who: str, values: Any, classes: int | None, weighted: bool, limits: ClientLimits) -> TaskReport:
        """The numbers of one task. Raises WireError for numbers outside the limits."""
        task = declared(cls, who, values, rows=limits.rows, weight=limits.weight, test=limits.rows)
        n = classes or 0
        if not weighted and task.weight != task.rows:
            raise wrong(who, values, "weight", f"{task.rows}, the number of rows, because rows have no weights")
        if weighted and (task.weight > 0) != (task.rows > 0):
            raise wrong(who, values, "weight", "above 0 if there are rows, otherwise 0")
        if any(k >= n for k in task.labels) or len({*task.labels}) < len(task.labels):
            raise wrong(who, values, "labels", f"different whole numbers below {n}")
        counted = [count for k, count in task.support if k < n]
        if not len(counted) == len(task.support) <= n or sum(counted) > task.rows:
            raise wrong(who, values, "support", f"pairs of a class below {n} and its rows, {task.rows} in all at most")
        return task


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
        client = checked("a client's account of its data", account, "client", ClientNumber)
        who = f"{name_of(client)}'s account of its data"
        table(who, account, cls.__annotations__)
        classes = checked(who, account, "classes", Annotated[int, at_least(1)] | None, limits.classes)
        X = RowKind.read(who, account, "X", limits)
        y = RowKind.read(who, account, "y", limits)
        weights = None if account["weights"] is None else RowKind.read(who, account, "weights", limits)
        entries = checked(who, account, "tasks", list)
        if not 1 <= len(entries) <= limits.tasks:
            raise wrong(who, account, "tasks", f"a list of 1 to {limits.tasks} entries")
        tasks = [
            TaskReport.read(f"{who}, task {k}", task, classes, weights is not None, limits)
            for k, task in enumerate(entries)
        ]
        names = Names.read(f"{who}, its names", account["names"], classes, limits)
        return cls(client, classes, tasks, X, y, weights, names, checked(who, account, "name", Line))

    @property
    def facts(self) -> dict[str, str]:
        """The facts that all clients have in common, in words."""
        return {
            **self.names.facts(),
            "rows of shape and type": str(self.X.plain()),
            "targets of shape and type": str(self.y.plain()),
            "weights of rows": "not at all" if self.weights is None else f"of shape and type {self.weights.plain()}",
            "targets": "without classes" if self.classes is None else "in classes",
            "tasks": f"{len(self.tasks)} in number",
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

    def emptied(self, client: int) -> ClientReport:
        """The same report without rows."""
        return replace(self, client=client, name="", tasks=[TaskReport(0, 0.0, 0, []) for _ in self.tasks])


TASKS = "the server's description of the tasks"
"""The beginning of errors of a `Known`."""


@dataclass(frozen=True)
class Known:
    """The values that the server tells every client: the number of classes, and the labels of every task."""

    classes: Annotated[int, at_least(1)] | None
    labels: list[list[Count]]
    first: dict[str, list[float]] | None = None
    """The initial personal part of clients' models; None if the seed draws it."""
    base: str | None = None
    """The digest of the network's frozen part, see `base_of`."""

    @classmethod
    def read(cls, values: Any, limits: ClientLimits | None = None) -> Known:
        """The values in a request. Raises WireError for others, and for more tasks and classes than the limits."""
        limits = limits or ClientLimits()
        values = {"first": None, "base": None, **table(TASKS, values)}
        known = declared(cls, TASKS, values, classes=limits.classes)
        n = known.classes or 0
        if any(k >= n for labels in known.labels for k in labels):
            raise wrong(TASKS, values, "labels", f"whole numbers below {n}")
        if len(known.labels) > limits.tasks or any(len({*labels}) < len(labels) for labels in known.labels):
            raise wrong(TASKS, values, "labels", f"lists of different labels, of at most {limits.tasks} tasks")
        parts = known.first or {}
        if not parts.keys() <= {"x", "floats", "ints"}:
            raise wrong(TASKS, values, "first", "the numbers of x, floats and ints")
        for name in parts:
            numbers: Any = list[Integer] if name == "ints" else list[Figure]
            checked(f"{TASKS}, first", parts, name, numbers)
        return known

    def personal(self, like: OwnState) -> OwnState:
        """``first`` as tensors with the shapes and types of ``like``. Raises WireError for other numbers of them."""
        first = self.first or {}
        shapes = {name: [*t.shape] for name, t in like.items()}
        if {name: [len(part)] for name, part in first.items()} != shapes:
            raise wrong(TASKS, {"first": {name: len(part) for name, part in first.items()}}, "first", f"of {shapes}")
        return {name: torch.tensor(first[name], dtype=t.dtype) for name, t in like.items()}


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
            names = {k: read[k].name for k in read if k < i and k not in refused} | {i: r.name}
            reason = r.differs(first) or agreed(r, limits or ClientLimits()) or namesake(i, names, len(accounts))
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
