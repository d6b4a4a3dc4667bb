"""One client's own rows: read, reported to the server, and made into a client for each request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...contract import (
    BadData,
    Client,
    Diverged,
    Engine,
    Family,
    PersonalModel,
    Place,
    Problem,
    RecipeError,
    Vec,
    WireError,
)
from ...contract.place import name_of
from ...contract.problem import Objective
from ...datasets import Dataset
from ...datasets.ingest.labels import Label, RawTargets, code, is_plain, placed
from ...datasets.readers.table import values_of
from ...federation.clients import ClientFactory
from ...federation.evaluation import Held, held_figures, load, outputs
from ...federation.labels import refuse_missing
from ...federation.people import people_of
from ...federation.rows import Layout, bound, counting, gathered, held_out, ready, with_targets
from ...federation.scenario import Scenario
from ...federation.tasks import TaskPlan
from ...federation.whole_data import recoded
from ...numerics.intervals import Z
from ...partitions.dealing import Parts
from ...problems.network import NetworkProblem, SharedNetwork
from ...recipe import Recipe
from ...runtime import streams
from ...server.options import Metric
from ..protocol.reports import ClientReport, Known, Names, RowKind, TaskReport, base_of
from .coarse import Coarse

Own = Dataset | Sequence[Dataset]
"""A client's own data; with a stream, one data set for each task."""


@dataclass(frozen=True, eq=False)
class Lot:
    """A client's rows of one task.

    Attributes:
        X, y: training rows, possibly none
        X_test, y_test: test rows, or None
        missing: whether NaN in X stands for a missing value
    """

    X: Tensor
    y: Tensor
    weights: Tensor | None
    X_test: Tensor | None
    y_test: Tensor | None
    classes: int | None
    labels: tuple[int, ...]
    names: Names
    keys: Mapping[str, np.ndarray]
    missing: bool

    @classmethod
    def of(cls, d: Dataset, labels: Sequence[int], rows: Tensor | slice, tests: Tensor | slice) -> Lot:
        """Some rows of a data set."""
        X, y = (None if t is None or not len(t[tests]) else t[tests] for t in (d.X_test, d.y_test))
        w = None if d.weights is None else d.weights[rows].double()
        keys = {name: column[rows] for name, column in d.keys.items()}
        return cls(d.X[rows], d.y[rows], w, X, y, d.classes, tuple(labels), Names.of(d), keys, d.missing)

    def counted(self, family: Family, client: int) -> Lot:
        """The rows that have a target, as in a simulation. Raises BadData if no training row has one."""
        usable = torch.from_numpy(with_targets(family, self.y, Parts.of([np.arange(len(self.y))]), client).rows)
        X = self.X_test
        y = self.y_test
        if X is not None and y is not None and (mask := counting(family, y)) is not None:
            X, y = (X[mask], y[mask]) if bool(mask.any()) else (None, None)
        if len(usable) == len(self.y):
            return replace(self, X_test=X, y_test=y)
        w = None if self.weights is None else self.weights[usable]
        keys = {name: column[usable] for name, column in self.keys.items()}
        return replace(self, X=self.X[usable], y=self.y[usable], weights=w, X_test=X, y_test=y, keys=keys)


def share(r: Recipe, i: int) -> list[Lot]:
    """Client i's rows of the recipe's data in each task. Its test rows are its own, or every n-th of the shared ones.

    Raises BadData if there is no such client, and if none of its rows has a target.
    """
    fed = r.federation()
    tasks = [fed.whole(r.seed)[0]] if fed.stream is None else fed.tasks(r.seed)
    n = len(tasks[0].parts)
    if i >= n:
        raise BadData(f"partition-id={i}, but the recipe's partition has clients 0..{n - 1}", client=i)
    out = []
    for task in tasks:
        tests = slice(i, None, n) if task.tests is None else torch.from_numpy(task.tests[i])
        lot = Lot.of(task.data, task.classes, torch.from_numpy(task.parts[i]), tests)
        out.append(lot.counted(fed.problem, i))
    return out


def _numbered(d: Dataset, names: tuple[Any, ...], place: Place, fit: str) -> Dataset:
    """A data set whose labels have their places among all clients' ``names``, or whose values are values.

    Args:
        fit: what the recipe's problem fits, see `medley.federation.labels.fits`

    Raises BadData, naming the client, for a label that the recipe does not name: the client sees only its own rows, so
    it cannot number classes by itself.
    """
    if d.y.ndim == 1 and fit == "values":
        if d.labels and isinstance(d.labels[0], str):
            raise BadData(
                f"the recipe's problem fits values, but the targets are text, such as {d.labels[0]!r}; give numbers, "
                "y.astype('float64') or a reader's regression=True",
                place=place,
            )
        return recoded(d, place, lambda parts: ([*map(values_of, parts)], None, ())) if d.inferred else d
    if d.y.ndim == 1 and fit == "classes" and d.classes is None:
        d = replace(recoded(d, place, _whole), inferred=True)
    labels = d.labels or (tuple(range(d.classes or 0)) if d.inferred else ())
    shown = ", ".join(map(repr, labels[:8]))
    if d.inferred and not names and not is_plain(labels) and labels != (False, True):
        text = f"all its labels are {shown}" if len(labels) == 1 else f"its labels are {shown}"
        raise BadData(
            f"{text}, and a client sees its own rows only: name all classes in the server's and the nodes' recipe, "
            f"[clients] labels = [{shown}{', ...' if len(labels) == 1 else ''}], numbers or texts as the data has them",
            place=place,
        )
    if all(isinstance(v, str) for v in names) and all(type(v) is int for v in labels):
        labels = tuple(map(str, labels))  # a file that has none of the texts looks like numbers
    if not names or not labels or labels == names:
        return d
    unknown = [k for k, v in enumerate(labels) if v not in names]
    if unknown:
        places = (d.y == unknown[0]).reshape(len(d.y), -1).any(1).nonzero()
        text = f"the label {labels[unknown[0]]!r} is not among [clients] labels = {[*names]}"
        if d.X_test is not None and len(places):
            text += f"; {len(places)} training rows have it (rows are counted after split(): look for the label)"
        raise BadData(text, place=place.at(int(places[0]) if len(places) else None, "y"))
    ys = {part: y for part in ("y", "y_test", "y_validation") if (y := getattr(d, part)) is not None}
    new: dict[str, Any] = {part: placed(y, labels, names) for part, y in ys.items()}
    return replace(d, classes=len(names), labels=names, inferred=False, **new)


def _whole(parts: list[RawTargets]) -> tuple[list[Tensor], int | None, Sequence[Label]]:
    """Whole numbers in floats as classes."""
    coded = code(parts, floats="whole")
    return coded.parts, coded.classes, coded.labels


def _fit(r: Recipe) -> str:
    """What the recipe's problem fits, without making its model."""
    table = r.tables.get("problem", {})
    kind = str(table.get("kind")).lower()
    loss = table.get("loss", "cross_entropy")
    if kind == "leastsquares" or loss in ("mse", "squared", "poisson"):
        return "values"
    classes = kind in ("logistic", "softmax") or (kind == "network" and loss == "cross_entropy")
    return "classes" if classes or loss in ("logistic", "softmax") else "loss"


def own_lots(r: Recipe, i: int, data: Any) -> list[Lot]:
    """A client's own data, task by task. A task of Split has the labels that occur in it; any other task has all
    labels. Labels that the recipe's [clients] names have their places there.

    Raises BadData if the data is not an `Own`, does not fit the recipe's stream, has weights in some tasks only, names
    columns or labels differently between tasks, is scaled by its own mean and deviation, or has a task without any
    target.
    """
    stream = r.tables.get("stream")
    names = r.limits().labels
    tasks = [*data] if isinstance(data, list | tuple) else [data]
    if isinstance(data, Dataset) != (stream is None) or not tasks or not all(isinstance(d, Dataset) for d in tasks):
        want = "one Dataset: the recipe has no [stream]" if stream is None else "a list of Datasets, one for each task"
        raise BadData(f"{name_of(i)}'s data function returns a {type(data).__name__}; it must return {want}", client=i)
    tasks = [_numbered(d, names, Place.of(i), _fit(r)) for d in tasks]
    if len({d.weights is None for d in tasks}) == 2:
        raise BadData(f"{name_of(i)} has weights of rows in some tasks only; give all, or none", client=i)
    for k, d in enumerate(tasks):
        if d.scaling is not None and not d.scaling.shared:
            raise BadData(
                f"{name_of(i)}'s rows are standardised by their own mean and deviation, which the other clients "
                "do not have: leave standardise() out of data(), or take numbers that all share, "
                "standardise(like=...)",
                client=i,
            )
        difference = Names.of(tasks[0]).differs(Names.of(d))
        if difference:
            raise BadData(
                f"{name_of(i)}'s task 0 has {difference[0]}, and its task {k} {difference[1]}: all must agree", client=i
            )
    few = stream is not None and str(stream.get("kind")).lower() == "split"
    out = []
    for d in tasks:
        present = {*d.y.tolist(), *([] if d.y_test is None else d.y_test.tolist())} if few and d.classes else None
        labels = tuple(range(d.classes or 0)) if present is None else tuple(sorted(present))
        out.append(Lot.of(d, labels, slice(None), slice(None)))
    if not any(d.y.ndim > 1 for d in tasks):
        return out  # without a model
    family = r.scenario(tuple(tasks[0].X.shape[1:]), tasks[0].classes).problem
    return [lot.counted(family, i) for lot in out]


def report(lots: Sequence[Lot], client: int) -> ClientReport:
    """A client's account of its rows."""
    d = lots[0]
    tasks = [
        TaskReport(
            len(lot.X),
            float(len(lot.X) if lot.weights is None else lot.weights.sum()),
            0 if lot.X_test is None else len(lot.X_test),
            [*lot.labels],
            _support(lot),
        )
        for lot in lots
    ]
    weights = None if d.weights is None else RowKind.of(d.weights)
    return ClientReport(client, d.classes, tasks, RowKind.of(d.X), RowKind.of(d.y), weights, d.names)


def _support(lot: Lot) -> list[tuple[int, int]]:
    """The classes that training rows have, each with its number of rows."""
    if not lot.classes or lot.y.ndim != 1 or lot.y.is_floating_point():
        return []
    labels, counts = torch.unique(lot.y, return_counts=True)
    return [(int(k), int(n)) for k, n in zip(labels, counts, strict=True)]


class NodeRows:
    """One client's side of a run: its own rows, on the run's device.

    Attributes:
        metrics: further figures of test rows, by name
        summed: whether metrics that have sums give them

    Args:
        who: the client's id, and the number of clients
        dtype: the floating-point type of the model; None for the problem's own

    Raises WireError if the client and the server have different numbers of tasks, and BadData or Unsupported for rows
    that the problem does not accept.
    """

    def __init__(
        self,
        who: tuple[int, int],
        scenario: Scenario,
        lots: Sequence[Lot],
        seed: int,
        dtype: torch.dtype | None,
        device: str,
        rounds: int,
        common: Known,
    ) -> None:
        self.i, n = who
        if len(lots) != len(common.labels):
            raise WireError(f"{name_of(self.i)} has {len(lots)} tasks, but the server has {len(common.labels)}")
        scenario.check(n)
        classes = common.classes
        family = scenario.problem
        refuse_missing(family, any(lot.missing for lot in lots), Place.of(self.i))
        self.plan = TaskPlan.draw(scenario.stream, common.labels, classes, n, seed, rounds, device)
        in_order = [lots[k] for k in self.plan.order(self.i)]
        ordered = [(lot, np.arange(len(lot.X))) for lot in in_order]
        sizes = np.array([[len(rows)] for _, rows in ordered], dtype=np.int64)
        layout = Layout((self.i,), sizes, scenario.stream is not None)
        X, y = (gathered([(getattr(lot, k), rows) for lot, rows in ordered]) for k in "Xy")
        shown = (X, y) if len(X) else (RowKind.of(X).example(), RowKind.of(y).example())
        self.problem: Problem = ready(shown, layout, family, classes, dtype, device)
        base = base_of(self.problem)
        if base != common.base:
            raise RecipeError(
                f"{name_of(self.i)}'s network has a frozen part with digest {base}, but the server's is {common.base}: "
                "give both the same weights",
                "model",
            )
        self.rows = bound(ordered, layout, (X, y), family, self.problem, classes, device)
        self.rows = replace(self.rows, people=people_of(scenario.people, ordered, layout))
        self.metrics: Mapping[str, Metric] = {}
        self.summed = True
        if isinstance(self.problem, SharedNetwork):
            initial = self.problem.initial(streams.generator(seed, "init"))
            if common.first is not None:
                first = common.personal(self.problem.own())
                self.problem.load_own({k: t.to(device) for k, t in first.items()})
                self.problem.begin_at(torch.cat([initial, self.problem.own()["x"]]))
        self.clients = ClientFactory(scenario, seed, self.problem, self.rows, self.plan)
        self.tests: list[Held | None] = [
            None
            if lot.X_test is None or lot.y_test is None
            else held_out(family, self.problem, (lot.X_test, lot.y_test), classes, device, "test")
            for lot in lots
        ]

    def vacate(self) -> None:
        """Give a large model's memory back between two requests: each brings its model."""
        if isinstance(self.problem, NetworkProblem):
            self.problem.vacate()

    def client(self, round: int, engine: Engine, lr: float, p: float) -> Client[Any]:
        """The client in this round; see `ClientFactory.client`."""
        return self.clients.client(self.i, round, engine, lr, {self.i: p})

    def evaluate(
        self,
        model: PersonalModel,
        round: int,
        tests: Sequence[int],
        loss: bool,
        sample: Sequence[int] = (),
        coarse: Coarse | None = None,
    ) -> dict[str, Any]:
        """Figures of a model on this client's rows.

        Args:
            tests: the tasks whose test rows are asked for
            loss: whether the loss f_i(x) of the training rows is asked for
            sample: for an estimate of the loss: the index of the client's first row among all clients' rows, the number
                of all rows, and the number of the client's rows in the sample. Empty: use all of its rows
            coarse: coarsens each figure; None if the owner lets exact figures leave

        Returns "tests": for each of ``tests``, figures by name, or None without test rows; "loss" if asked for and the
        client has rows of the task; and with a sample "sample": its number of rows and the sum of their squared
        deviations.
        """
        load(self.problem, model.buffers, model.own)
        x = model.x
        s = self.plan.step(round)
        problem = self.clients.problem_of(s)
        out = dict[str, Any](tests=[])
        for k in tests:
            figures: dict[str, Any] | None = None
            test = self.tests[k]
            if test is not None:
                sums = dict[str, list[float]]()
                values = held_figures(problem, x, test, self.metrics, client=self.i, sums=sums if self.summed else None)
                if coarse is not None:
                    values = self._coarse(problem, x, test, coarse, f"test {k}", values)
                # JSON has no NaN: leave out a figure that is not finite.
                figures = {name: v for name, v in values.items() if math.isfinite(v)} | ({"sums": sums} if sums else {})
            out["tests"].append(figures)
        if loss and self.rows.layout.sizes[s, 0]:
            rows = sample or coarse is not None
            out |= self._losses(problem, x, s, sample, coarse) if rows else {"loss": self._exact(s, x)}
            if not math.isfinite(out["loss"]):
                text = f"{name_of(self.i)}: the loss is {out['loss']} after round {round}: the run diverges"
                raise Diverged(text, unexplained=True)
        return out

    @staticmethod
    def _coarse(
        problem: Problem, x: Vec, test: Held, coarse: Coarse, name: str, exact: Mapping[str, float]
    ) -> dict[str, Any]:
        """Coarse figures of test rows: means of rows from the rows, others by the number of rows that decide them.

        ``<name>_within`` is the most that rounding can change a figure, and of an accuracy also the replaced rows; the
        error of the test loss includes it.
        """
        each = zip(*((problem.losses(z, y), problem.hits(z, y)) for z, y in outputs(problem, x, *test)), strict=True)
        parts = zip(("test_loss", "accuracy"), each, strict=True)
        by_row = {key: torch.cat([p for p in part if p is not None]) for key, part in parts if part[0] is not None}
        y = test[1]
        out = dict[str, Any]()
        counted = y.ndim == 1 and not y.is_floating_point()
        rows = int(torch.unique(y, return_counts=True)[1].min()) if counted else len(y)
        for key, value in exact.items():
            about = f"{name} {key}"
            if key == "test_loss_error" and "test_loss" in by_row:
                spread = float(coarse.clipped(by_row["test_loss"]).std())
                out[key] = coarse.figure(about, spread / math.sqrt(len(y)), rows, 1.0) + out["test_loss_within"] / Z
            elif key in by_row:
                values = coarse.clipped(by_row[key])
                out[key] = coarse.mean(about, by_row[key])
                out[f"{key}_within"] = coarse.step(float(values.mean()), len(y), coarse.size(values))
            else:
                out[key] = coarse.figure(about, value, rows, 1.0)
                out[f"{key}_within"] = coarse.step(value, rows, 1.0)
        if "accuracy" in out:
            out["accuracy"] = min(out["accuracy"], 1.0)
            out["accuracy_within"] = coarse.step(1.0, len(y)) + (coarse.least - 1) / len(y)
        return out

    def _exact(self, s: int, x: Vec) -> float:
        return float(self._objective(s).loss(x))

    def _objective(self, s: int) -> Objective:
        return self.clients.problem_of(s).bind(*self.rows.of(s, self.i))

    def gradient(self, x: Vec, round: int) -> Vec:
        """∇f_i(x) on the training rows of this round's task."""
        return self._objective(self.plan.step(round)).grad(x)

    def _sampled(self, s: int, sample: Sequence[int]) -> Tensor:
        """The places of a sample's rows, the same as in a simulation; see `medley.federation.row_sample.RowSample`."""
        n = int(self.rows.layout.sizes[s, 0])
        place = self.rows.layout.place(s, self.i)
        if not sample:
            return torch.arange(place.start, place.stop)
        start, _, count = sample
        rng = streams.rng(self.clients.seed, "eval rows", s)
        assert isinstance(rng.bit_generator, np.random.PCG64)
        rng.bit_generator.advance(start)  # skip the other clients' rows, one draw each
        order = np.argsort(rng.random(n), kind="stable")
        return torch.from_numpy(np.sort(order[:count]) + place.start)

    def _losses(self, problem: Problem, x: Vec, s: int, sample: Sequence[int], coarse: Coarse | None) -> dict[str, Any]:
        """The loss of all rows or of a sample, coarse or exact, with the sample's number of rows and their spread."""
        X, y, w = self.rows.at(self._sampled(s, sample).to(self.rows.y.device))
        losses = [problem.losses(z, t) for z, t in outputs(problem, x, X, y)]
        about = f"loss {s} {[*sample]}"
        if any(part is None for part in losses):
            if not sample and coarse is not None:
                args = self._exact(s, x), len(y), 1.0
                return {"loss": coarse.figure(about, *args), "loss_within": coarse.step(*args)}
            raise RecipeError(
                "run.eval_rows: the problem's loss is a mean over rows, and a sample of them cannot estimate "
                "it; return the loss of each row, or leave eval_rows out",
                "eval_rows",
            )
        by_row = torch.cat([part for part in losses if part is not None]).double()
        by_row = by_row if w is None else by_row * w
        mean = float(by_row.mean()) if coarse is None else coarse.mean(about, by_row)
        out: dict[str, Any] = {"loss": mean + problem.penalty(x)}
        values = by_row if coarse is None else coarse.clipped(by_row)
        if coarse is not None and math.isfinite(out["loss"]):
            out["loss_within"] = coarse.step(float(values.mean()), len(values), coarse.size(values))
        if sample:
            squares = float(((values - values.mean()) ** 2).sum())
            squares = squares if coarse is None else coarse.figure(f"{about} spread", squares, len(values))
            out["sample"] = [len(values), squares]
        return out
