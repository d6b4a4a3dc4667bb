"""A federation: clients with data, pace and devices."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..contract import Algorithm, BadData, Family, Place, RecipeError, ReplayPolicy, Settings, Tuned
from ..contract.explained import Explained
from ..contract.place import naming
from ..contract.surroundings import set_aside
from ..datasets import Dataset
from ..datasets.facts import recorded
from ..datasets.ingest.keys import client_names, only_key
from ..datasets.readers.table import by_client
from ..devices import Devices
from ..participation import Participation
from ..partitions import ByKey, Partition
from ..partitions.dealing import Parts, dealt_alike
from ..partitions.rules import deal_rows
from ..problems import Network
from ..rows.columns import is_frame, is_hugging_face
from ..rows.fields import Fields, integers
from ..rows.lazy import joined
from ..runtime import streams
from ..scenarios import Attack, Members, Pace, describe
from ..scenarios.description import Description
from ..server.options import HeldOut
from ..storage.as_json import without_addresses
from ..storage.html import facts
from ..storage.identity import PREFIX, fingerprint, identity
from ..storage.result import Result
from ..tasks import Stream, Tasks
from .checks import check_labels, check_names, check_sources, checked_number, expect
from .clients_data import pooled
from .labels import recorded_labels, refuse_renumbered, takes_missing
from .run import check, run
from .scenario import Scenario, Weighting
from .simulation import Simulation
from .tasks import DealtTask
from .whole_data import suited, whole_data

UNGIVEN: Any = object()
"""The default of an argument that has none."""


class Federation(Settings, Explained):
    """Clients that differ in their data, pace, devices and participation.

    Pass ``data`` with a ``partition``, or ``clients`` with their own data.

    Args:
        problem: the model and its loss
        data: the data set to divide among clients: a Medley, PyTorch or Hugging Face data set, a pair (X, y) or a frame
        partition: the rule that divides it; each seed draws a new partition
        clients: each client's own pair (X, y), in a list or by the client's name, or (X, y, w) with weights of rows
            [n], or (X, y, X_test, y_test) or (X, y, X_test, y_test, w) with its own test rows, or a PyTorch data set
            (or a DataLoader of one) or a Hugging Face data set. Such data sets and mapped arrays are read when they are
            used. For a linear model, X may be a SciPy sparse matrix. For a network with several inputs per row, X may
            be a dict or a tuple of arrays. Instead of a list, one frame with all clients' rows needs columns "client"
            and "label" (or "target", "y"); for other column names, pass the result of `datasets.frame`
        test: test rows (X, y), or a data set, if ``data`` or clients have none
        pace: the clients' local training budgets; lr 0.1, one epoch, batches of 32 by default
        participation: the rule for taking part in a round, one of `medley.participation`, or a fraction; by default all
            clients take part
        devices: the speed of machines and of their network, which determines virtual seconds; by default each is an
            ordinary phone, `devices.Devices()`
        weights: p_i by "size" (or the sum of the rows' weights, if they have weights), the default, or "uniform"
        validation: the share of the training rows to hold out, for `tune`; 0 by default
        classes: the number of classes, if the labels do not include all of them
        f_star: the optimal loss if it is known, for the column ``gap``
        stream: the rule that splits the data into consecutive tasks; each is divided among clients
        replay: the rule for the rows of past tasks that a client keeps (`medley.replay`)
        own_test: whether figures over clients are measured on each client's own test rows. True divides ``data``'s test
            rows by each client's label distribution, unless they already belong to clients; False shares all test rows.
            By default Medley measures if clients bring test rows, or if `partitions.ByKey` finds its key in
            ``data.test_keys``
        attack: the Byzantine clients and their attack; by default all clients are honest
        membership: the clients that join or leave during a run, `scenarios.Membership`; by default none

    Raises BadData, naming client, row and column, for data that cannot be used; RecipeError for settings that can't.
    """

    people: str = ""
    """The column of people that the method's privacy needs, see `Scenario.sharing`."""

    @set_aside("Federation()")
    def __init__(
        self,
        problem: Family,
        *,
        data: Any = None,
        clients: Any = None,
        test: Any = None,
        partition: Partition | None = None,
        pace: Pace | None = None,
        participation: float | Participation | None = None,
        devices: Devices | None = None,
        weights: Weighting = "size",
        validation: float = 0.0,
        classes: int | None = None,
        f_star: float | None = None,
        stream: Stream | Tasks | None = None,
        replay: ReplayPolicy | None = None,
        own_test: bool | None = None,
        attack: Attack | None = None,
        membership: Members | None = None,
    ) -> None:
        scenario = Scenario.of(problem, pace, participation, devices, weights, f_star, stream, replay)
        data, clients, partition = _sources(data, clients, partition, takes_missing(problem))
        classes = checked_number(problem, validation, classes, own_test)
        data = whole_data(problem, data, test, classes, partition.key if isinstance(partition, ByKey) else None)
        expect(data, Dataset, "Federation(data=...)", "datasets.Dataset(X, y, classes=10)", "data")
        expect(partition, Partition, "Federation(partition=...)", "partitions.IID(clients=10)", "partition")
        if isinstance(stream, Tasks):
            if data is not None or clients is not None:
                raise RecipeError("Federation(stream=Tasks(...)): the tasks have the data; leave data= out", "data")
            data = _joined_tasks(stream)
        check_sources(data, clients, partition)
        self._copy_settings(scenario.attacked(attack).joined(membership))
        self.partition = partition
        self.validation = validation
        self.own_test = own_test
        self.sizes: list[int] | None = None
        """Rows of each client, if clients have their own data."""
        self._names: tuple[str, ...] = ()
        if clients is not None:
            if isinstance(clients, Mapping):
                self._names, clients = client_names(clients, "Federation(clients=...)"), clients.values()
            with naming(self._names):
                data, self.sizes = pooled(problem, clients, test, classes)
        assert data is not None
        self.data = suited(problem, data, classes)
        if isinstance(problem, Network) and problem.start == "module" and classes is None:
            refuse_renumbered(self.data, "Network(start='module')")
        check_labels(problem, self.data, self._place)
        check_names(self.data, partition, self.client_names)
        if own_test and self.data.X_test is None:
            raise RecipeError(
                "Federation(own_test=True): there are no test rows; add some to clients or data", "own_test"
            )
        if stream is not None and self.sizes is not None:
            owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
            self.data = replace(self.data, keys={**self.data.keys, "client": owner})
        if validation and data.X_validation is None and (self.sizes is None) != (stream is not None):
            self.data = self.data.split(test=0.0, validation=validation)

    def _copy_settings(self, scenario: Scenario) -> None:
        self.problem = scenario.problem
        self.pace = scenario.pace
        self.participation = scenario.participation
        self.devices = scenario.devices
        self.weights = scenario.weights
        self.f_star = scenario.f_star
        self.stream = scenario.stream
        self.replay = scenario.replay
        self.attack = scenario.attack
        self.membership = scenario.membership

    def _place(self, row: int) -> Place:
        """The place of a training row, by its number among all: whose it is, if it belongs to a client."""
        if self.sizes is not None:
            ends = np.cumsum(self.sizes)
            i = int(np.searchsorted(ends, row, side="right"))
            with naming(self._names):
                return Place.of(i).at(row - int(ends[i]) + self.sizes[i])
        if isinstance(self.partition, ByKey) and self.partition.key in self.data.keys:
            with naming([str(self.data.keys[self.partition.key][row])]):
                return replace(Place.of(0), client=None)
        return Place(self.data.name, row=row)

    def within(self, scenario: Scenario) -> Federation:
        """The same clients, with the problem of this scenario and its column of people."""
        out = copy.copy(self)
        out.problem = scenario.problem
        out.people = scenario.people
        return out

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """The clients' names by id, if ``clients`` has names or `ByKey` divides the rows; otherwise empty."""
        rule = self.partition
        if isinstance(rule, ByKey) and self.stream is None and rule.key in self.data.keys:
            return rule.names(self.data.keys)
        return self._names

    @property
    def scenario(self) -> Scenario:
        """The settings that do not depend on the data."""
        return Scenario(
            self.problem,
            self.pace,
            self.participation,
            self.devices,
            self.weights,
            self.f_star,
            self.stream,
            self.replay,
            self.attack,
            self.membership,
            self.people,
        )

    def draw(
        self, seed: int, on: HeldOut = "test", dtype: torch.dtype | None = None, device: str = "cpu", rounds: int = 1
    ) -> Simulation:
        """The clients of this seed, ready to run.

        Args:
            seed: the seed of the partition and of all other draws
            on: the rows of the test figures, "test" or "validation"
            dtype: the floating-point type of the model; None for the problem's own
            device: torch's name of the device
            rounds: the rounds of one task of a stream

        Raises BadData for a client without training rows, and what `Simulation` raises.
        """
        with naming(self.client_names):
            return self._draw(seed, on, dtype, device, rounds)

    def _draw(self, seed: int, on: HeldOut, dtype: torch.dtype | None, device: str, rounds: int) -> Simulation:
        if self.stream is not None:
            return Simulation(self.scenario, self.tasks(seed), None, seed, on, dtype, device, rounds)
        task, validation = self.whole(seed)
        idle = np.flatnonzero(task.parts.sizes == 0)
        if len(idle):
            i = int(idle[0])
            message = "it has no training rows; drop it, set a minimum in its partition, or use fewer clients"
            raise BadData(message, place=Place.of(i))
        if self.attack is not None and self.attack.of_rows:
            attackers = {i: task.parts[i] for i in self.attack.attackers(seed, len(task.parts))}
            data = task.data
            X, y = self.attack.poison(data.X, data.y, data.classes, attackers, seed)
            task = task._replace(data=replace(data, X=X, y=y))
        return Simulation(self.scenario, [task], validation, seed, on, dtype, device, rounds)

    def describe(self, seed: int = 0) -> Description:
        """The partition under this seed, over all tasks: sizes, labels, and the distance from IID."""
        if self.stream is None:
            description = describe(self.parts(seed)[0], self._labels())
            labels = [self.data.labels[k] for k in description.labels] if self.data.labels else description.labels
            fixed = self.sizes is not None or isinstance(self.partition, ByKey)
            return replace(description, labels=np.asarray(labels), clients=self.client_names, fixed=fixed)
        tasks = self.tasks(seed)
        offsets = np.cumsum([0, *(len(task.data.X) for task in tasks)])
        shifted = [[rows + at for rows in task.parts] for task, at in zip(tasks, offsets, strict=False)]
        labels = np.concatenate([task.data.y.numpy() for task in tasks])
        parts = [np.concatenate(rows) for rows in zip(*shifted, strict=True)]
        return describe(parts, labels if self.data.classes else None)

    def tasks(self, seed: int) -> list[DealtTask]:
        """The tasks of the stream under this seed, in the stream's order, divided among clients.

        A client may have no rows of a task. Raises RecipeError if the partition makes different numbers of clients in
        different tasks.
        """
        out = []
        for s, (task_data, classes) in enumerate(self._cut(seed)):
            data = task_data
            if self.validation and data.X_validation is None:
                data = data.split(test=0.0, validation=self.validation)
            if self.partition is not None:
                y = data.y.numpy() if data.classes and data.y.ndim == 1 else None
                parts = deal_rows(self.partition, y, len(data.X), streams.key(seed, "task", s), data.keys)
            else:
                parts = Parts.of(np.flatnonzero(data.keys["client"] == i) for i in range(len(self.sizes or [])))
            tests = self._tests(data, parts, streams.rng(seed, "partition", "test", s))
            out.append(DealtTask(data, classes, parts, tests))
        if len({len(task.parts) for task in out}) > 1:
            raise RecipeError(
                f"{self.partition!r} makes {[len(task.parts) for task in out]} clients in the tasks; every task "
                "must have the same number",
                "partition",
            )
        return out

    def _cut(self, seed: int) -> Iterator[tuple[Dataset, tuple[int, ...]]]:
        """Data and classes of each task."""
        stream = self.stream
        all_data = self.data
        assert stream is not None
        if isinstance(stream, Tasks):
            for s, rows in enumerate(stream.parts()):
                labels = tuple(sorted({*rows[1].tolist(), *rows[3].tolist()}))
                yield Dataset(*rows, classes=all_data.classes, name=f"task {s}", missing=all_data.missing), labels
            return
        key = getattr(stream, "key", None)
        X = all_data.X if key is None else all_data.order_of(key)[0]
        for s, task in enumerate(stream.cut(X, all_data.y, all_data.classes, seed)):
            data = all_data.where(task.pick, f"task {s} of {all_data.name}", key)
            yield data if task.change is None else data.map(task.change), task.classes

    def _tests(self, data: Dataset, parts: Parts, g: np.random.Generator) -> Parts | None:
        """Each client's own test rows of ``data``; None if the rows are shared."""
        if data.X_test is None or data.y_test is None or self.own_test is False:
            return None
        if self.sizes is not None and "client" in data.test_keys:
            return Parts.of(np.flatnonzero(data.test_keys["client"] == i) for i in range(len(parts)))
        if isinstance(self.partition, ByKey) and self.partition.key in data.test_keys:
            return self.partition.split_test(data.keys, data.test_keys)
        if not self.own_test:
            return None
        y, y_test = (data.y.numpy(), data.y_test.numpy()) if data.classes and data.y.ndim == 1 else (None, None)
        return dealt_alike(parts, y, y_test, len(data.X_test), g)

    def whole(self, seed: int) -> tuple[DealtTask, Parts]:
        """All data under this seed, divided among clients, and each client's rows for validation as in `parts`."""
        parts, validation = self.parts(seed)
        tests = self._tests(self.data, parts, streams.rng(seed, "partition", "test"))
        return DealtTask(self.data, range(self.data.classes or 0), parts, tests), validation

    def parts(self, seed: int) -> tuple[Parts, Parts]:
        """Each client's rows for training, and its rows for validation, which are empty unless each client holds out
        its own.
        """
        if self.sizes is None:
            assert self.partition is not None
            labels = self._labels()
            parts = deal_rows(self.partition, labels, len(self.data.X), seed, self.data.keys)
            return parts, Parts(parts.rows[:0], np.zeros_like(parts.starts))
        starts = np.cumsum([0, *self.sizes], dtype=np.int64)
        all_rows = Parts(np.arange(starts[-1]), starts)
        if not self.validation:
            return all_rows, Parts(all_rows.rows[:0], np.zeros_like(starts))
        validation = []
        for i, rows in enumerate(all_rows):
            out = streams.rng(seed, i, "validation").permutation(rows)[: int(self.validation * len(rows))]
            validation.append(np.sort(out))
        training = [np.setdiff1d(rows, out) for rows, out in zip(all_rows, validation, strict=True)]
        return Parts.of(training), Parts.of(validation)

    def _labels(self) -> np.ndarray | None:
        return self.data.y.numpy() if self.data.classes and self.data.y.ndim == 1 else None

    def settings(self) -> dict[str, Any]:
        """A record of everything that defines this federation, in plain values."""
        data = f"{self.data.name} {list(self.data.X.shape)} #{self._digest[:12]}"
        rule = f"{len(self.sizes or [])} clients' own data"
        partition = without_addresses(repr(self.partition)) if self.partition else rule
        tests = {} if self.own_test is None else {"own_test": self.own_test}
        names = self.client_names
        named: dict[str, Any] = {"client_names": list(names)} if names else {}
        if isinstance(self.problem, Network) and (ids := integers(self.data.X)):
            named["integers"] = ids
        if not isinstance(self.data.X, Fields):
            named["dimensions"] = self.data.X.ndim
        return {
            **recorded_labels(self.scenario.problem, self.data),
            **named,
            **({} if self.stream is not None else recorded(self.data)),
            **tests,
            **self.scenario.settings(data, partition, self.validation),
        }

    def identity(self) -> dict[str, str]:
        """Fingerprints of data, partition and scenario, see `medley.storage.identity`. The data's fingerprint is
        cached.

        Raises RecipeError, naming the part, if another process could not compare it.
        """
        parts = identity({"partition": self.partition, **self.scenario.parts})
        return {PREFIX + "data": self._digest, **parts}

    @cached_property
    def _digest(self) -> str:
        """Fingerprint of the data, of the sizes of clients with data of their own, and of own tasks."""
        tasks = self.stream if isinstance(self.stream, Tasks) else None
        return fingerprint([self.data, self.sizes, tasks])

    def run(self, method: Algorithm[Any, Any] | Tuned = UNGIVEN, rounds: int = 100, **options: Any) -> Result:
        """`medley.run` on this federation."""
        if method is UNGIVEN:
            return run(fed=self, rounds=rounds, **options)  # raises an error that names an unknown option first
        return run(method, self, rounds, **options)

    def check(self, methods: Mapping[str, Algorithm[Any, Any] | Tuned], options: Mapping[str, Any]) -> None:
        """Raise the error that a run of one of these methods would raise at its start; see `run.check`."""
        check(methods, self, options)

    def __repr__(self) -> str:
        """The problem, the data and their partition, in one line."""
        rule = (
            f"{len(self.sizes)} clients' own data"
            if self.sizes is not None
            else without_addresses(repr(self.partition))
        )
        return f"Federation({without_addresses(repr(self.problem))}; {self.data!r}; {rule}; {self.participation!r})"

    def _repr_html_(self) -> str:
        items = {k: v for k, v in self.settings().items() if v not in (None, "None", {})}
        return facts("Federation", items)


def _joined_tasks(stream: Tasks) -> Dataset:
    """The rows of all tasks, one task after the other."""
    parts = stream.parts()
    X, y, X_test, y_test = (joined([part[k] for part in parts]) for k in range(4))
    return Dataset(X, y, X_test, y_test, classes=max(2, 1 + int(max(y.max(), y_test.max()))), name="own tasks")


def _sources(data: Any, clients: Any, partition: Any, missing: bool) -> tuple[Any, Any, Any]:
    """Data, clients and partition: clients in one table, whose empty cells may be ``missing`` values, or in one data
    set with a key, become data with that partition.
    """
    if is_frame(clients) or is_hugging_face(clients):
        clients = by_client(clients, missing)
    if isinstance(clients, Dataset) and data is None:
        return clients, None, ByKey(only_key(clients.keys, repr(clients))) if partition is None else partition
    return data, clients, partition
