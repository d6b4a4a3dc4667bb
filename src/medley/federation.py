"""A federation: clients with data, means and devices; and `run`, which trains one method on it."""

from __future__ import annotations

import contextlib
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .core import streams, tree
from .core.algorithm import Algorithm
from .core.client import Client, Engine
from .core.errors import BadData, Diverged, RecipeError, Stalled, Unsupported
from .core.files import lasting
from .core.pace import Pace as Means
from .core.patience import Patience
from .core.problem import Family, Objective, Problem, State
from .core.result import Result, Row
from .core.run import Run
from .core.site import Memories, Site
from .core.sparse import Sparse, arrays, is_sparse, not_finite
from .core.store import Store
from .core.task import Policy, Replay, Stage, Task
from .core.transport import BlockReply, Exchange, Link, Tag, Transport
from .core.tuned import Tuned
from .core.types import Data, Index, Vec, Weights
from .core.wire import Codec, Plain, Uplink
from .datasets import Dataset
from .problems import engines
from .problems.linear import Linear
from .scenarios import Devices, Everyone, Pace, Participation, Partition, Stream, Tasks, describe
from .scenarios import participation as who_takes_part
from .scenarios.laws import is_number
from .scenarios.partition import Description, Parts
from .transports import Local

Metric = Callable[[Tensor, Tensor], float]
"""(outputs, y) of the test rows -> a figure."""

Split = Literal["test", "validation"]

COLUMNS = {"round", "exchanges", "seconds", "wall", "bytes_down", "bytes_up", "loss", "gap", "grad_norm"}
COLUMNS |= {"test_loss", "accuracy", "client_accuracy_mean", "client_accuracy_worst", "task"}
"""What a row of the history may hold beside metrics and a method's notes."""

EVALUATED_AT_ONCE = 1 << 22
"""Input numbers in one forward pass of an evaluation: 16 MB in float32, so that activations stay small."""


class Federation:
    """Clients that differ: what they hold, what they can do, who takes part.

    Give ``data`` and a ``partition``, which is drawn anew for every seed; or ``clients``, one (X, y) pair each or
    (X, y, w) with weights of rows, and a ``test`` pair; a linear model's X may be one of SciPy's sparse matrices.
    ``pace`` says how each client works, ``participation`` who takes part in a round (a fraction, or one of
    `medley.scenarios`), ``devices`` how fast machines and links are.
    ``weights`` are p_i by "size" (the sum of its rows' weights, where rows have such) or "uniform".
    ``validation`` is a share of the training rows that is never trained on, for `tune`. ``f_star`` is the optimal loss
    where it is known, for the column ``gap``.

    ``stream`` cuts the data into tasks that come one after the other, each divided among clients by the partition;
    ``replay`` says which rows of past tasks a client keeps (`medley.memory`).

    Raises BadData, naming client, row and column, for data that cannot be used; RecipeError for settings that can't.
    """

    def __init__(
        self,
        problem: Family,
        *,
        data: Dataset | None = None,
        clients: Sequence[tuple[Any, ...]] | None = None,
        test: tuple[Any, Any] | None = None,
        partition: Partition | None = None,
        pace: Pace | None = None,
        participation: float | Participation | None = None,
        devices: Devices | None = None,
        weights: Literal["size", "uniform"] = "size",
        validation: float = 0.0,
        classes: int | None = None,
        f_star: float | None = None,
        stream: Stream | Tasks | None = None,
        replay: Policy | None = None,
    ) -> None:
        if isinstance(problem, torch.nn.Module):
            raise RecipeError("Federation(problem): this is a module; wrap it, problems.Network(module)", "problem")
        _is_a(problem, Family, "Federation(problem)", "problems.Softmax()", "problem", wanted=True)
        _is_a(data, Dataset, "Federation(data=...)", "datasets.Dataset(X, y, classes=10)", "data")
        _is_a(pace, Pace, "Federation(pace=...)", "scenarios.Pace(lr=0.1)", "pace")
        _is_a(partition, Partition, "Federation(partition=...)", "scenarios.IID(clients=10)", "partition")
        _is_a(devices, Devices, "Federation(devices=...)", "scenarios.phones()", "devices")
        _is_a(participation, object, "Federation(participation=...)", "scenarios.Everyone()", "participation")
        _is_a(stream, Stream | Tasks, "Federation(stream=...)", "scenarios.Split(tasks=5)", "stream")
        _is_a(replay, Policy, "Federation(replay=...)", "memory.Ring(capacity=100)", "replay")
        if replay is not None and stream is None:
            raise RecipeError("Federation(replay=...): there is nothing to remember without stream=", "replay")
        if isinstance(stream, Tasks):
            if data is not None or clients is not None:
                raise RecipeError("Federation(stream=Tasks(...)): the tasks have the data; leave data= out", "data")
            parts = stream.parts()
            X, y, X_test, y_test = (torch.cat([part[k] for part in parts]) for k in range(4))
            data = Dataset(X, y, X_test, y_test, classes=max(2, 1 + int(max(y.max(), y_test.max()))), name="own tasks")
        if (data is None) == (clients is None):
            raise RecipeError("Federation: give either data= with partition=, or clients=[(X, y), ...]", "data")
        if data is not None and partition is None:
            raise RecipeError(
                "Federation(data=...): say who holds what with partition=, e.g. scenarios.Dirichlet(clients=100, "
                "alpha=0.1)",
                "partition",
            )
        if clients is not None and partition is not None:
            raise RecipeError(
                "Federation(clients=...): they hold their data already; leave partition= out", "partition"
            )
        if weights not in ("size", "uniform"):
            raise RecipeError.unknown(str(weights), ("size", "uniform"), "Federation(weights=...)")
        if not is_number(validation) or not 0 <= validation < 1:
            raise RecipeError(f"Federation(validation={validation!r}): must be a share in [0, 1)", "validation")
        if classes is not None and (not is_number(classes) or classes != int(classes) or classes < 2):
            raise RecipeError(f"Federation(classes={classes!r}): must be a whole number, at least 2", "classes")
        if f_star is not None and not is_number(f_star):
            raise RecipeError(f"Federation(f_star={f_star!r}): must be a finite number, the optimal loss", "f_star")
        self.problem, self.partition, self.weights, self.f_star = problem, partition, weights, f_star
        self.pace, self.devices = pace or Pace(), devices or Devices()
        self.participation = who_takes_part(participation)
        self.validation, self.stream, self.replay = validation, stream, replay
        self.sizes: list[int] | None = None
        if clients is not None:
            data, self.sizes = _pooled(problem, clients, test, classes)
        assert data is not None
        self.data = data if classes is None else replace(data, classes=classes)
        if stream is not None and self.sizes is not None:
            owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
            self.data = replace(self.data, keys={**self.data.keys, "client": owner})
        if validation and data.X_validation is None and (self.sizes is None) != (stream is not None):
            self.data = self.data.split(test=0.0, validation=validation)

    def draw(
        self,
        seed: int,
        on: Split = "test",
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        rounds: int = 1,
    ) -> World:
        """The clients of this seed: who holds what, ready to run; where there are tasks, ``rounds`` rounds each."""
        return World(self, seed, on, dtype, device, rounds)

    def describe(self, seed: int = 0) -> Description:
        """Who holds what under this seed, in all tasks: sizes, labels, and how far from IID it is."""
        if self.stream is None:
            return describe(self.parts(seed)[0], self._labels())
        tasks = self.tasks(seed)
        offsets = np.cumsum([0, *(len(data.X) for data, _, _ in tasks)])
        shifted = [[rows + at for rows in parts] for (_, _, parts), at in zip(tasks, offsets, strict=False)]
        labels = np.concatenate([data.y.numpy() for data, _, _ in tasks])
        whose = [np.concatenate(rows) for rows in zip(*shifted, strict=True)]
        return describe(whose, labels if self.data.classes else None)

    def tasks(self, seed: int) -> list[tuple[Dataset, tuple[int, ...], Parts]]:
        """The stream under this seed: each task's rows and classes, and which rows each client has (maybe none).

        Under ``own_order`` these are the tasks as the stream has them, whoever meets them when.
        """
        stream, whole, out = self.stream, self.data, []
        assert stream is not None
        cut: list[tuple[Dataset, tuple[int, ...]]] = []
        if isinstance(stream, Tasks):
            for s, rows in enumerate(stream.parts()):
                labels = tuple(sorted({*rows[1].tolist(), *rows[3].tolist()}))
                cut.append((Dataset(*rows, classes=whole.classes, name=f"task {s}"), labels))
        else:
            for s, task in enumerate(stream.cut(whole.X, whole.y, whole.classes, seed)):
                data = whole.where(task.pick, f"task {s} of {whole.name}")
                cut.append((data if task.change is None else data.map(task.change), task.classes))
        for s, (data, classes) in enumerate(cut):
            if self.validation and data.X_validation is None:
                data = data.split(test=0.0, validation=self.validation)
            if self.partition is not None:
                y = data.y.numpy() if data.classes else None
                parts = self.partition.split(y, len(data.X), streams.key(seed, "task", s), data.keys)
            else:
                parts = [np.flatnonzero(data.keys["client"] == i) for i in range(len(self.sizes or []))]
            out.append((data, classes, parts))
        if len({len(parts) for _, _, parts in out}) > 1:
            raise RecipeError(
                f"{self.partition!r} makes {[len(p) for _, _, p in out]} clients in the tasks; want as many in all",
                "partition",
            )
        return out

    def parts(self, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Per client the rows it trains on, and the rows kept for validation (empty unless carved per client)."""
        if self.sizes is None:
            assert self.partition is not None
            labels = self._labels()
            parts = self.partition.split(labels, len(self.data.X), seed, self.data.keys)
            return parts, [p[:0] for p in parts]
        ends = np.cumsum(self.sizes)
        whole = [np.arange(e - n, e) for n, e in zip(self.sizes, ends, strict=True)]
        kept = []
        for i, rows in enumerate(whole):
            out = streams.rng(seed, i, "validation").permutation(rows)[: int(self.validation * len(rows))]
            kept.append(np.sort(out))
        return [np.setdiff1d(rows, out) for rows, out in zip(whole, kept, strict=True)], kept

    def _labels(self) -> np.ndarray | None:
        return self.data.y.numpy() if self.data.classes else None

    def settings(self) -> dict[str, Any]:
        """Everything that makes this federation, in plain values."""
        return {
            **self.problem.settings(),
            "data": f"{self.data.name} {list(self.data.X.shape)} #{self._digest}",
            "partition": lasting(repr(self.partition))
            if self.partition
            else f"{len(self.sizes or [])} clients' own data",
            "pace": lasting(repr(self.pace)),
            "participation": lasting(repr(self.participation)),
            "devices": lasting(repr(self.devices)),
            "weights": self.weights,
            "validation": self.validation,
            **({} if self.stream is None else {"stream": lasting(repr(self.stream)), "replay": repr(self.replay)}),
        }

    @cached_property
    def _digest(self) -> str:
        """Of all rows, training, test and validation, and of how clients of their own share them."""
        digest, d = blake2b(repr(self.sizes).encode(), digest_size=6), self.data
        weights = () if d.weights is None else (d.weights,)
        for t in (d.X, d.y, d.X_test, d.y_test, d.X_validation, d.y_validation, *weights):
            if t is None:
                digest.update(b"|")
                continue
            for part in arrays(t):
                digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def run(self, method: Algorithm[Any, Any] | Tuned, rounds: int = 100, **options: Any) -> Result:
        """`medley.run` on this federation."""
        return run(method, self, rounds, **options)


@dataclass(frozen=True)
class Step:
    """What a seed drew for one task, or for the whole run where there are none."""

    sizes: np.ndarray
    """Rows of each client."""
    p: dict[int, float]
    histograms: np.ndarray | None
    """Labels of each client, [clients, classes]."""
    held: tuple[Tensor, Tensor] | None
    """Test or validation rows of what clients have now."""
    task: Task
    allowed: Tensor | None
    """Which outputs a row of each label is compared with, [classes, classes]."""


class World:
    """A federation as one seed drew it: data sorted by step and client, so that a client's rows of a task are a slice.

    ``rounds`` is the length of a task; without a stream there is one task, without end.
    """

    def __init__(
        self, fed: Federation, seed: int, on: Split, dtype: torch.dtype | None, device: str, rounds: int = 1
    ) -> None:
        self.fed, self.seed, self.rounds, self.on, self.device = fed, seed, rounds, on, device
        kept: list[np.ndarray] = []
        if fed.stream is None:
            parts, kept = fed.parts(seed)
            for i, rows in enumerate(parts):
                if len(rows) == 0:
                    raise BadData(
                        f"client {i} has no training rows; drop it, give its partition a minimum, or take fewer "
                        "clients",
                        client=i,
                    )
            dealt = [(fed.data, tuple(range(fed.data.classes or 0)), parts)]
        else:
            dealt = fed.tasks(seed)
        self.n, S = len(dealt[0][2]), len(dealt)
        fed.pace.check(self.n)
        fed.devices.check(self.n)
        own = fed.stream is not None and fed.stream.own_order
        self.turns = [streams.rng(seed, i, "order").permutation(S) if own else np.arange(S) for i in range(self.n)]
        """Which task client i meets first, second, ..."""
        met = [(dealt[turn[s]][0], dealt[turn[s]][2][i]) for s in range(S) for i, turn in enumerate(self.turns)]
        sizes = np.array([len(rows) for _, rows in met], dtype=np.int64).reshape(S, self.n)
        self.starts = np.cumsum([0, *sizes.ravel()])
        """Where the rows that client i meets at step s begin among all: starts[s·n + i]."""
        self.firsts = np.cumsum(np.vstack([np.zeros_like(sizes[:1]), sizes]), axis=0)
        """Their first one's number among the client's own: firsts[s, i]; one row more for the end."""
        X, y = (_gathered([(getattr(data, k), rows) for data, rows in met]) for k in "Xy")
        try:
            self.problem: Problem = fed.problem.ready(X, y, fed.data.classes, dtype, device)
        except BadData as e:
            raise self._blamed(e) from e.__cause__
        self.X, self.y = self.problem.inputs(X), self._targets(y, "train")
        self.w, totals = self._weights(met, sizes)
        self.labels = y if fed.data.classes else None
        self.tests = [self._test(data, s, kept) for s, (data, _, _) in enumerate(dealt)]
        self.masks = torch.zeros(S, fed.data.classes or 0, dtype=torch.bool, device=device)
        for s, (_, classes, _) in enumerate(dealt):
            self.masks[s, list(classes)] = True
        self.steps = [self._step(s, sizes[s], totals[s]) for s in range(S)]
        self._kept: dict[tuple[int, int], Index] = {}
        self._steady, self._paces = fed.pace.steady, dict[int, Means]()

    def _weights(self, met: list[tuple[Dataset, np.ndarray]], sizes: np.ndarray) -> tuple[Weights, np.ndarray]:
        """Of all rows, with a mean of 1 at every client, and what each client's rows weigh together."""
        if met[0][0].weights is None:
            return None, sizes
        if "weights" not in self.problem.gives:
            raise Unsupported(
                f"{type(self.fed.problem).__name__} takes no weights of rows; leave them out, or use Logistic, Softmax "
                "or LeastSquares",
                method=type(self.fed.problem).__name__,
                need="weights",
            )
        parts = [torch.as_tensor(data.weights)[torch.from_numpy(rows)].double() for data, rows in met]
        totals = np.array([float(w.sum()) for w in parts]).reshape(sizes.shape)
        if (idle := (totals == 0) & (sizes > 0)).any():
            client = int(idle.nonzero()[1][0])
            raise BadData(f"client {client}: all its rows have weight 0; leave it out", client=client)
        mean = [w * (len(w) / max(float(w.sum()), sys.float_info.min)) for w in parts]
        return torch.cat(mean).to(device=self.device, dtype=self.problem.dtype), totals

    def _test(self, data: Dataset, s: int, kept: list[np.ndarray]) -> tuple[Tensor, Tensor] | None:
        X, y = (data.X_test, data.y_test) if self.on == "test" else (data.X_validation, data.y_validation)
        if self.on == "validation" and X is None and kept:
            carved = torch.from_numpy(np.concatenate(kept))
            X, y = data.X[carved], data.y[carved]
        if X is None or y is None or not len(X):
            if self.on == "validation":
                raise RecipeError("there is no validation data: give Federation(validation=0.1)", "validation")
            if self.fed.stream is not None:
                raise BadData(f"task {s} has no test rows; give it some, or take them by Dataset.split(test=0.2)")
            return None
        return self.problem.inputs(X), self._targets(y, self.on)

    def _step(self, s: int, sizes: np.ndarray, totals: np.ndarray) -> Step:
        fed = self.fed
        weights = totals if fed.weights == "size" else (sizes > 0).astype(np.int64)
        histograms = None
        if self.labels is not None:
            owner, C = np.repeat(np.arange(self.n), sizes), fed.data.classes or 0
            histograms = np.zeros((self.n, C))
            mine = slice(int(self.starts[s * self.n]), int(self.starts[(s + 1) * self.n]))
            np.add.at(histograms, (owner, self.labels[mine].numpy().astype(np.int64)), 1.0)
        now = sorted({int(turn[s]) for turn in self.turns})
        before = sorted({int(k) for turn in self.turns for k in turn[:s]})
        tests = [t for k in now if (t := self.tests[k]) is not None]
        held = (torch.cat([X for X, _ in tests]), torch.cat([y for _, y in tests])) if len(tests) > 1 else None
        if len(tests) == 1:
            held = tests[0]  # not a copy
        task, allowed = Task(), None
        if fed.stream is not None:
            met = [*(k for k in before if k not in now), *now]
            masks = self.masks[now].any(0), self.masks[before].any(0)
            task = Task(s, len(self.tests), fed.stream.mode, *masks, heads=tuple(self.masks[met]))
            if fed.stream.mode == "task":
                allowed = (self.masks[:, :, None] & self.masks[:, None, :]).any(0)
            elif fed.stream.mode == "class":
                allowed = task.seen.expand(len(task.seen), -1)
        return Step(sizes, dict(enumerate((weights / weights.sum()).tolist())), histograms, held, task, allowed)

    def _targets(self, y: Tensor, part: Literal["train"] | Split) -> Tensor:
        try:
            y = self.fed.problem.targets(y, self.fed.data.classes)
        except BadData as e:
            if part != "train":
                raise BadData(f"the {part} set: {e}", row=e.row) from None
            raise self._blamed(e) from None
        return y.to(device=self.device, dtype=self.problem.dtype if y.is_floating_point() else y.dtype)

    def _blamed(self, e: BadData) -> BadData:
        """The same with the client whose row it is, where it names a row of all."""
        if e.row is None:
            return e
        at = int(np.searchsorted(self.starts, e.row, side="right")) - 1
        s, client = divmod(at, self.n)
        row = e.row - int(self.starts[at])
        where = f"client {client}, row {row}" + (f" of task {s}" if self.fed.stream is not None else "")
        return BadData(f"{where}: {e}", client=client, row=row)

    @property
    def p(self) -> dict[int, float]:
        """Shares of the rows, of the first task's where there are tasks."""
        return self.steps[0].p

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each client, of the first task where there are tasks."""
        return self.steps[0].sizes

    def at(self, round: int) -> int:
        """The task of this round, from 0; its outputs are the ones that rows are compared with from now on."""
        if self.fed.stream is None:
            return 0
        s = min(max(round - 1, 0) // max(1, self.rounds), len(self.steps) - 1)
        self.problem.restrict(self.steps[s].allowed)
        return s

    def stage(self, round: int) -> Stage:
        """The task of this round as the server sees it."""
        step = self.steps[self.at(round)]
        return Stage(step.task, step.p)

    def client(self, i: int, round: int, engine: Engine, lr: float = 1.0) -> Client[Any]:
        """Client i in this round, its lr multiplied by ``lr``."""
        pace = self._paces.get(i)
        if pace is None:
            pace = self.fed.pace.of(self.seed, i, round)
            if self._steady:
                self._paces[i] = pace
        if lr != 1.0:
            pace = replace(pace, lr=pace.lr * lr)
        s = self.at(round)
        step, objective = self.steps[s], self.problem.bind(*self._slice(s, i))
        me = Client[Any](i, step.p[i], objective, pace, engine, self.seed, round, step.task)
        if self.fed.stream is not None:
            turn, first = self.turns[i], int(self.firsts[s, i])
            now, past, heads = self.masks[turn[s]], self.masks[turn[:s]].any(0), tuple(self.masks[turn[: s + 1]])
            me.task = replace(step.task, now=now, past=past, first=first, heads=heads)
            me.rows = lambda rows: self._recall(i, s, rows)
            if (policy := self.fed.replay) is not None:
                held = self._recall(i, s, self._held_rows(i, s))
                me.replay = Replay(held, first, policy.capacity, policy.sample, me.rng)
        return me

    def _held_rows(self, i: int, s: int) -> Index:
        """What client i keeps of its tasks before the s-th, by its own numbers: the same whoever works it out."""
        if s == 0:
            return torch.zeros(0, dtype=torch.int64)
        if (i, s) not in self._kept:
            assert self.fed.replay is not None
            first, end = (int(k) for k in self.firsts[s - 1 : s + 1, i])
            labels = None if self.labels is None else self.labels[self._place(s - 1, i)]
            generator = streams.generator(self.seed, i, s - 1, "replay")
            came, earlier = torch.arange(first, end), self._held_rows(i, s - 1)
            self._kept[i, s] = self.fed.replay.keep(earlier, came, labels, first, generator)
        return self._kept[i, s]

    def _recall(self, i: int, s: int, rows: Index) -> Objective:
        """The objective of rows of client i by its own numbers, of its s-th task or of earlier ones."""
        numbers, firsts = rows.cpu().numpy(), self.firsts[:, i]
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < firsts[s + 1]:
            raise BadData(
                f"client {i} in its task {s}: it has met rows 0..{firsts[s + 1] - 1} so far, not row "
                f"{numbers.min() if numbers.min() < 0 else numbers.max()}",
                client=i,
            )
        step = np.searchsorted(firsts, numbers, side="right") - 1
        at = torch.from_numpy(self.starts[step * self.n + i] + numbers - firsts[step]).to(self.X.device)
        return self.problem.bind(*self._at(at))

    def cohort(self, round: int) -> tuple[int, ...]:
        """Who takes part: of those drawn, who has rows of the task."""
        sizes = self.steps[self.at(round)].sizes
        return tuple(i for i in self.fed.participation.draw(round, sizes, self.seed).tolist() if sizes[i])

    def evaluate(
        self,
        x: Vec,
        buffers: State | None,
        metrics: Mapping[str, Metric] | None = None,
        grad_norm: bool = False,
        round: int = 0,
        minimum: bool = False,
    ) -> Row:
        """loss, and gap, grad_norm, test_loss, accuracy and accuracy over clients where there are such.

        A client's accuracy is the test accuracy under its own mix of labels, Σ_c share_i(c)·accuracy(c). In a stream
        all are of the task of ``round``, whose number is there too.
        """
        if buffers is not None:
            self.problem.load_buffers(buffers)
        s = self.at(round)
        problem, step = self.problem, self.steps[s]
        present = {i: p for i, p in step.p.items() if p > 0}
        row: Row = {} if self.fed.stream is None else {"task": s}
        mine = slice(int(self.starts[s * self.n]), int(self.starts[(s + 1) * self.n]))
        losses = [problem.losses(z, y) for z, y in self._outputs(x, self.X[mine], self.y[mine])]
        if any(part is None for part in losses):
            row["loss"] = sum(p * problem.bind(*self._slice(s, i)).loss(x) for i, p in present.items())
        else:
            by_row = torch.cat([part for part in losses if part is not None]).double()
            weighed = by_row if self.w is None else by_row * self.w[mine]
            family = self.fed.problem
            # A loss below log 2 is a row on its right side: 2x is better than x then, and so on for ever.
            free = isinstance(family, Linear) and family.classification and family.mu == 0
            if minimum and isinstance(family, Linear) and family.classification and family.intercept:
                labels = self.y[mine]
                if bool((labels == labels[0]).all()):
                    raise Stalled(
                        "all training rows have one class: a larger intercept has a smaller loss and there is no "
                        f"minimiser; {type(family).__name__}(intercept=False), or rows of another class"
                    )
            if minimum and free and float(by_row.max()) < math.log(2):
                raise Stalled(
                    "the training rows are separable: x puts every one on its right side, so that a longer x has a "
                    f"smaller loss and there is no minimiser; give {type(family).__name__}(mu=...) above 0"
                )
            if self.fed.weights == "size" and self.w is None:
                mean = float(by_row.mean())
            else:
                by_client = torch.split(weighed, [int(step.sizes[i]) for i in present])
                mean = sum(p * float(rows.mean()) for p, rows in zip(present.values(), by_client, strict=True))
            row["loss"] = mean + problem.penalty(x)
        if self.fed.f_star is not None:
            row["gap"] = row["loss"] - self.fed.f_star
        if grad_norm:
            row["grad_norm"] = float(self._gradient(x, s, present).norm())
        if step.held is not None:
            row |= self._held(x, *step.held, metrics or {}, step.histograms)
        return row

    def _gradient(self, x: Vec, s: int, shares: Mapping[int, float]) -> Vec:
        """Σ p_i ∇f_i(x); at one go where rows can be weighed."""
        if "weights" not in self.problem.gives:
            parts = (p * self.problem.bind(*self._slice(s, i)).grad(x) for i, p in shares.items())
            return sum(parts, torch.zeros_like(x))
        X, y, w = self._at(slice(int(self.starts[s * self.n]), int(self.starts[(s + 1) * self.n])))
        if self.fed.weights != "size" or w is not None:
            sizes = self.steps[s].sizes
            ratio = [p * len(y) / sizes[i] for i, p in shares.items()]
            owner = torch.from_numpy(np.repeat(ratio, [sizes[i] for i in shares])).to(y.device, x.dtype)
            w = owner if w is None else w * owner
        return self.problem.bind(X, y, w).grad(x)

    def measure(self, x: Vec, buffers: State | None, round: int) -> list[float]:
        """Test accuracy on every task, of the model after this round; empty where there are no classes."""
        if buffers is not None:
            self.problem.load_buffers(buffers)
        self.at(round)
        scores = []
        for test in self.tests:
            assert test is not None  # a stream has test rows of every task
            hits = [self.problem.hits(z, y) for z, y in self._outputs(x, *test)]
            scores.append([h for h in hits if h is not None])
        return [float(torch.cat(h).double().mean()) for h in scores if h]

    def _held(self, x: Vec, X: Data, y: Data, metrics: Mapping[str, Metric], histograms: np.ndarray | None) -> Row:
        row: Row = {}
        z = torch.cat([z for z, _ in self._outputs(x, X, y)])
        losses = self.problem.losses(z, y)
        row["test_loss"] = float(losses.double().mean()) if losses is not None else self.problem.bind(X, y).loss(x)
        hits = self.problem.hits(z, y)
        if hits is not None:
            row["accuracy"] = float(hits.double().mean())
        if hits is not None and histograms is not None:
            label = (y > 0).long() if y.is_floating_point() else y
            C = histograms.shape[1]
            seen = torch.bincount(label, minlength=C).cpu().numpy()
            right = torch.bincount(label, weights=hits.double(), minlength=C).cpu().numpy()
            by_class = np.where(seen > 0, right / np.maximum(seen, 1), row["accuracy"])
            mixes = histograms[histograms.sum(1) > 0]
            by_client = np.sort(mixes @ by_class / mixes.sum(1))
            row["client_accuracy_mean"] = float(by_client.mean())
            row["client_accuracy_worst"] = float(by_client[: max(1, round(len(by_client) / 10))].mean())
        for name, f in metrics.items():
            row[name] = float(f(z, y))
        return row

    def _outputs(self, x: Vec, X: Data, y: Data) -> Iterator[tuple[Tensor, Tensor]]:
        rows = max(64, EVALUATED_AT_ONCE // max(1, X[0].numel()))
        for a, b in zip(torch.split(X, rows), torch.split(y, rows), strict=True):
            yield self.problem.outputs(x, a), b

    def _place(self, s: int, i: int) -> slice:
        at = s * self.n + i
        return slice(int(self.starts[at]), int(self.starts[at + 1]))

    def _slice(self, s: int, i: int) -> tuple[Tensor, Tensor, Weights]:
        return self._at(self._place(s, i))

    def _at(self, rows: Index | slice) -> tuple[Tensor, Tensor, Weights]:
        return self.X[rows], self.y[rows], None if self.w is None else self.w[rows]


def run(
    method: Algorithm[Any, Any] | Tuned,
    fed: Federation,
    rounds: int = 100,
    *,
    seed: int = 0,
    init: Tensor | None = None,
    dtype: torch.dtype | str | None = None,
    device: str = "cpu",
    engine: str = "auto",
    transport: Transport | None = None,
    codec: Codec | Uplink | None = None,
    patience: Patience | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    resume: str | Path | None = None,
    recipe: str | None = None,
    eval_every: int = 1,
    evaluate_on: Split = "test",
    target: Mapping[str, float] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    on_round: Callable[[Row], object] | None = None,
    throw: bool = True,
    progress: bool | None = None,
) -> Result:
    """Train ``method`` on ``fed``.

    In a stream ``rounds`` are those of one task, and the history's figures are of the task at hand.

    ``init`` is x₀ [d] in place of the seed's own. ``target={"accuracy": 0.9}`` ends the run when it is reached (loss,
    test_loss, gap and grad_norm: at most). ``checkpoint`` is a new folder for the run: settings, versions,
    history and ledger as they grow, a checkpoint every ``checkpoint_every`` rounds, at the end and on Ctrl-C, and the
    result (see `medley.core.folder`); ``resume`` is such a folder, and goes on writing to it, whenever the run was
    killed. ``recipe`` is the text that all this was made from, to be kept there too. ``metrics`` are figures
    of the test outputs by name. ``codec`` is what messages go through: `core.wire`'s Cast narrows them both ways;
    Quantise, TopK and Delta are for replies. With ``throw`` a run that diverges raises Diverged, and one that
    stalls raises Stalled; both carry the result so far.

    Raises Unsupported before round 1 when the method needs what the problem or the scenario cannot give.
    """
    _is_a(method, Algorithm | Tuned, "run(method)", "FedAvg()", "method", wanted=True)
    _is_a(fed, Federation, "run(fed)", "Federation(problem, data=..., partition=...)", "fed", wanted=True)
    _is_a(transport, Transport, "run(transport=...)", "transports.Local()", "transport")
    _is_a(codec, Codec | Uplink, "run(codec=...)", "core.wire.Cast('float16')", "codec")
    _is_a(patience, Patience, "run(patience=...)", "Patience(deadline=60)", "patience")
    _is_a(target, Mapping, "run(target=...)", "{'accuracy': 0.9}", "target")
    for key, folder in (("checkpoint", checkpoint), ("resume", resume)):
        _is_a(folder, str | Path, f"run({key}=...)", "'runs/a', a folder's name", key)
    _is_a(metrics, Mapping, "run(metrics=...)", "{'top3': function}", "metrics")
    for name, f in {"on_round": on_round or print, **(metrics or {})}.items():
        if not callable(f):
            raise RecipeError(f"run(): {name} is {f!r}; give a function", name)
    for name, goal in (target or {}).items():
        if not is_number(goal):
            raise RecipeError(f"run(target={{{name!r}: {goal!r}}}): must be a finite number", "target")
    if evaluate_on not in ("test", "validation"):
        raise RecipeError.unknown(str(evaluate_on), ("test", "validation"), "run(evaluate_on=...)")
    try:
        seed = operator.index(seed)
    except TypeError:
        raise RecipeError(f"run(seed={seed!r}): must be a whole number", "seed") from None
    with contextlib.suppress(TypeError):  # numpy's whole numbers are no int; Run refuses what is none
        rounds = operator.index(rounds)
    if taken := COLUMNS & (metrics or {}).keys():
        raise RecipeError(f"run(metrics=...): {min(taken)!r} is a column already; choose another name", "metrics")
    try:
        torch.empty(0, device=str(device))
    except Exception:  # of several kinds: no such word, torch built without it, no such hardware
        raise RecipeError(
            f"run(device={device!r}): torch finds no such device here; leave device= out", "device"
        ) from None
    algorithm, lr = (method.method, method.lr) if isinstance(method, Tuned) else (method, 1.0)
    if fed.stream is not None and target:
        raise RecipeError("run(target=...): the tasks of a stream have one end each; leave target= out", "target")
    world = fed.draw(seed, evaluate_on, _dtype(dtype), device, rounds)
    asked, algorithm = algorithm.settings(), algorithm.suited(world.problem.gives)
    _refuse(algorithm, world)
    local = engines.choose(engine, world.problem, device)
    x0 = world.problem.initial(streams.generator(seed, "init"))
    if init is not None:
        try:
            init = torch.as_tensor(init)
        except (TypeError, ValueError, RuntimeError) as e:
            raise RecipeError(f"run(init=...): cannot be made a tensor: {e}", "init") from None
        if init.shape != x0.shape:
            raise RecipeError(
                f"run(init=...): x has {x0.numel()} parameters, init has shape {list(init.shape)}", "init"
            )
        x0 = init.detach().to(x0).clone()
        if not bool(torch.isfinite(x0).all()):
            raise RecipeError("run(init=...): it holds numbers that are not finite", "init")
    up = codec if isinstance(codec, Uplink) else None
    down = codec if codec is not None and not isinstance(codec, Uplink) else Plain()
    client = lambda i, t: world.client(i, t, local, lr)
    memories = Memories(Store(tree.dataclasses_in(algorithm.memory), device=device))
    crew = engines.crew(world.problem.d, device)
    site = Site(algorithm, world.problem, client, seed, down, memories, device=device, uplink=up, crew=crew)
    wanted = dict(target or {})
    if "gap" in wanted and fed.f_star is None:
        raise RecipeError("run(target={'gap': ...}): the optimum is not known; give Federation(f_star=...)", "target")
    if world.tests[0] is None and (metrics or wanted.keys() & {"accuracy", "test_loss"}):
        key = "metrics" if metrics else "target"
        raise RecipeError(f"run({key}=...): there is no test set to measure that on; give Federation(test=(X, y))", key)
    settings = {
        "method": algorithm.name,
        **{f"method.{k}": v for k, v in asked.items()},
        **{f"resolved.{k}": v for k, v in algorithm.settings().items() if v != asked[k]},
        "lr multiplier": lr,
        **fed.settings(),
        "seed": seed,
        "dtype": str(world.problem.dtype).removeprefix("torch."),
        "device": device,
        "engine": local.name,
        "codec": repr(up or down),
    }
    if fed.stream is not None:  # another number moves the ends of tasks
        settings["rounds a task"] = rounds
    patience = patience or Patience()
    if not patience.endless:
        settings["patience"] = repr(patience)
    if faults := getattr(transport, "faults", ""):
        settings["faults"] = faults
    folder = resume if checkpoint is None else checkpoint
    total = rounds if fed.stream is None else rounds * len(world.steps)
    with contextlib.closing((transport or Local()).open(site)) as link, _bar(progress, algorithm.name, total) as bar:

        def watch(row: Row) -> None:
            if bar is not None:
                bar.tick(row)
            if on_round is not None:
                on_round(row)

        loop = Run(
            algorithm,
            link if bar is None else _Watched(link, bar),
            x0,
            world.problem.buffers(),
            world.p,
            world.cohort,
            lambda x, b, t: world.evaluate(x, b, metrics, "grad_norm" in wanted, t, "convex" in algorithm.requires()),
            rounds=total,
            seed=seed,
            eval_every=eval_every,
            target=wanted,
            codec=down,
            block=crew,
            device=cache(lambda i: fed.devices.of(seed, i)),
            checkpoint=Path(folder) if folder is not None else None,
            checkpoint_every=checkpoint_every,
            recipe=recipe,
            on_round=watch,
            settings=settings,
            stages=None if fed.stream is None else world,
            patience=patience,
        )
        result = loop(Path(resume) if resume is not None else None)
    if result.buffers is not None:
        world.problem.load_buffers(result.buffers)
    world.problem.outputs(result.x.to(device), world.X[:2])  # loads x into the module
    result.model = getattr(world.problem, "module", None)
    if throw and (kind := {"diverged": Diverged, "stalled": Stalled}.get(result.status.outcome)):
        raise kind(result.status.message, result)
    return result


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise RecipeError(f"run(dtype={dtype!r}): choose float32 or float64", "dtype")
    return found


def _is_a(value: object, kind: Any, where: str, example: str, key: str, wanted: bool = False) -> None:
    """Raise RecipeError unless ``value`` is of this kind, or None where it isn't ``wanted``; a class in an instance's
    place is the usual slip.
    """
    if (value is not None or wanted) and (isinstance(value, type) or not isinstance(value, kind)):
        what = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise RecipeError(f"{where} is {what}; give an object such as {example}", key)


def _refuse(algorithm: Algorithm[Any, Any], world: World) -> None:
    gives, fed = set(world.problem.gives), world.fed
    offers = {"everyone": isinstance(fed.participation, Everyone), "stream": fed.stream, "replay": fed.replay}
    gives |= {name for name, there in offers.items() if there}
    why = {
        "everyone": "every client in every round; leave participation= out",
        "hessian": "Hessians, which this problem hasn't got",
        "factor": "Hessians of the form AᵀA + δI: Logistic, Softmax or LeastSquares",
        "convex": "a convex problem: Logistic, Softmax or LeastSquares",
        "features": "a network whose last layer is linear, or a linear model",
        "classes": "labels in classes",
        "stream": "a stream of tasks: give Federation(stream=scenarios.Split(tasks=5))",
        "network": "a Network",
        "replay": "a memory of past tasks: give Federation(stream=..., replay=memory.Ring(capacity=100))",
    }
    for need in sorted(algorithm.requires() - gives):
        raise Unsupported(f"{algorithm.name} needs {why.get(need, need)}", method=algorithm.name, need=need)


def _tensor(value: Any, what: str, client: int | None) -> Tensor:
    try:
        if is_sparse(value):
            t: Tensor = Sparse.of(value)
        else:
            t = value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
    except (TypeError, ValueError) as e:
        raise BadData(f"{what} cannot be made a tensor: {e}", client=client) from None
    t = t.detach().cpu()
    return t if t.is_floating_point() else t.to(torch.int64)


def _gathered(parts: list[tuple[Tensor, np.ndarray]]) -> Tensor:
    """These rows of these tensors, one below the other; not a copy where they are one tensor as it is."""
    whole = parts[0][0]
    if any(t is not whole for t, _ in parts):
        return torch.cat([t[torch.from_numpy(rows)] for t, rows in parts])
    rows = np.concatenate([rows for _, rows in parts])
    return whole if np.array_equal(rows, np.arange(len(whole))) else whole[torch.from_numpy(rows)]


def _pooled(
    problem: Family, clients: Sequence[tuple[Any, ...]], test: tuple[Any, Any] | None, classes: int | None
) -> tuple[Dataset, list[int]]:
    """One data set of the clients' rows in order, and how many each has."""
    if isinstance(clients, Mapping):
        raise BadData("Federation(clients=...) is a mapping; give a list of pairs (X, y), list(clients.values())")
    if not (clients := list(clients)):
        raise BadData("Federation(clients=[]): there are no clients")
    Xs: list[Tensor] = []
    ys: list[Tensor] = []
    ws: list[Tensor] = []
    for i, pair in enumerate(clients):
        if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
            raise BadData(f"client {i}: give a pair (X, y), or (X, y, weights of rows)", client=i)
        X, y = _tensor(pair[0], f"client {i}'s X", i), _tensor(pair[1], f"client {i}'s y", i)
        if len(X) == 0:
            raise BadData(f"client {i} has no rows; leave it out", client=i)
        if X.ndim < 2 or len(X) != len(y):
            raise BadData(
                f"client {i}: X is {list(X.shape)} and y is {list(y.shape)}; want one row a sample in both", client=i
            )
        if Xs and X.shape[1:] != Xs[0].shape[1:]:
            want = list(Xs[0].shape[1:])
            raise BadData(
                f"client {i} has rows of shape {list(X.shape[1:])}, client 0 of {want}: all must agree", client=i
            )
        _finite(X, i, "column")
        _finite(y[:, None] if y.ndim == 1 else y, i, "target")
        Xs.append(X)
        ys.append(y)
        if len(pair) == 3:
            w = _tensor(pair[2], f"client {i}'s weights", i).double()
            if w.shape != y.shape[:1] or not bool(((w >= 0) & w.isfinite()).all()):
                raise BadData(f"client {i}: want a weight a row, finite and at least 0", client=i)
            ws.append(w)
    if ws and len(ws) < len(Xs):
        raise BadData("Federation(clients=...): some clients' rows have weights and some have not; give all, or none")
    sizes = [len(X) for X in Xs]
    if test is not None and (not isinstance(test, tuple | list) or len(test) != 2):
        raise BadData("Federation(test=...): give a pair (X, y)")
    X_test, y_test = (
        (None, None) if test is None else (_tensor(t, f"the test {k}", None) for t, k in zip(test, "Xy", strict=True))
    )
    try:
        y_test = None if y_test is None else problem.canonical(y_test, classes)
    except BadData as e:
        raise BadData(f"the test set: {e}", row=e.row) from None
    try:
        y = problem.canonical(torch.cat(ys), classes)
    except BadData as e:
        if e.row is None:
            raise
        client = int(np.searchsorted(np.cumsum(sizes), e.row, side="right"))
        row = e.row - sum(sizes[:client])
        raise BadData(f"client {client}, row {row}: {e}", client=client, row=row) from None
    if classes is None and not y.is_floating_point():
        classes = max(int(t.max()) for t in (y, y_test) if t is not None) + 1
        classes = max(classes, 2)
    weights = torch.cat(ws) if ws else None
    return Dataset(torch.cat(Xs), y, X_test, y_test, classes=classes, name="own", weights=weights), sizes


def _finite(t: Tensor, client: int, what: str) -> None:
    if not t.is_floating_point() or bool(torch.isfinite(t.sum())):
        return
    if (found := not_finite(t if isinstance(t, Sparse) else t.reshape(len(t), -1))) is not None:
        (row, column), value = found
        raise BadData(
            f"client {client} has {value} in row {row}, {what} {column}; remove or fill such rows first",
            client=client,
            row=row,
            column=column,
        )


class _Bar:
    """A progress bar with the live loss and accuracy, and within a round how many have answered."""

    def __init__(self, name: str, rounds: int) -> None:
        from rich import console  # only for a terminal
        from rich import progress as bars

        live, now = bars.TextColumn("{task.fields[live]}"), bars.TextColumn("{task.fields[now]}")
        columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn(), live, now)
        clocks = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
        self.shown = bars.Progress(*columns, *clocks, console=console.Console(stderr=True), transient=True)
        self.task = self.shown.add_task(name, total=rounds, now="", live="")

    def tick(self, row: Row) -> None:
        """A row of the history is there."""
        accuracy = f"  accuracy {row['accuracy']:.3f}" if "accuracy" in row else ""
        self.shown.update(self.task, completed=int(row["round"]), now=f"loss {row['loss']:.4g}{accuracy}", live="")

    def answered(self, exchange: Exchange, count: int) -> None:
        """So many of an exchange have answered."""
        live = f"{exchange.method} {count}/{sum(map(len, exchange.blocks))}"
        self.shown.update(self.task, completed=exchange.round - 1, live=live)


class _Watched:
    """A link that tells the bar how far an exchange has come."""

    def __init__(self, link: Link, bar: _Bar) -> None:
        self.link, self.bar = link, bar

    def exchange(self, exchange: Exchange) -> Iterator[BlockReply]:
        """As the link does it."""
        count = 0
        for reply in self.link.exchange(exchange):
            count += len(reply.receipts)
            self.bar.answered(exchange, count)
            yield reply

    def save(self, acked: Mapping[int, Tag]) -> Mapping[int, Any]:
        """As the link does it."""
        return self.link.save(acked)

    def load(self, memories: Mapping[int, Any], acked: Mapping[int, Tag]) -> None:
        """As the link does it."""
        self.link.load(memories, acked)

    def close(self) -> None:
        """As the link does it."""
        self.link.close()


@contextlib.contextmanager
def _bar(progress: bool | None, name: str, rounds: int) -> Iterator[_Bar | None]:
    """A bar on a terminal, unless told otherwise."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield None
        return
    bar = _Bar(name, rounds)
    with bar.shown:
        yield bar
