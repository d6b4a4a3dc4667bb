"""Streams of tasks, each with its own rows.

Side: the server's, in simulations only: a stream cuts rows that are on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from .contract import BadData, Checked, Mode, RecipeError, Settings, check_flags, in_range
from .contract.public import public
from .runtime import streams

TaskCount = Annotated[int, in_range(1, 2**31 - 1)]
"""The number of tasks of a stream."""

__all__ = ["Permuted", "Rotated", "Split", "Stream", "Tasks", "TimeOrder"]

Pick = Callable[[Tensor, Tensor], Bool[Tensor, " n"]]
"""A function of X [n, ...] and y [n], from training, test or validation rows, to a mask [n]."""


@dataclass(frozen=True)
class Cut:
    """One task.

    Attributes:
        pick: Marks its rows.
        change: Changes their X; None leaves it as it is.
        classes: Its classes; empty if the data has none.
    """

    pick: Pick
    change: Callable[[Tensor], Tensor] | None
    classes: tuple[int, ...]


@runtime_checkable
class Stream(Protocol):
    """A rule that cuts a data set into tasks."""

    @property
    def mode(self) -> Mode:
        """The outputs that a row is compared with. "task": its task's; "class": all seen so far; "domain": all."""

    @property
    def tasks(self) -> int:
        """The number of tasks."""

    @property
    def own_order(self) -> bool:
        """Whether every client has the tasks in its own order."""

    def cut(self, X: Tensor, y: Tensor, classes: int | None, seed: int) -> list[Cut]:
        """The tasks in order.

        Args:
            X: Training rows [n, ...].
            y: Their labels or targets [n].
            classes: The number of classes; None if there are none.
            seed: Of the run.

        Raises RecipeError if the rule does not suit the data, and BadData if the rows cannot be cut into that many
        tasks.
        """


@dataclass(frozen=True)
class Split(Checked):
    """Classes arrive in groups: a task has all rows of some classes, and no other task has any of them.

    Raises RecipeError for classes that occur twice or not at all, for more tasks than classes, and, in mode "task", for
    a task with only one class, whose accuracy would be 1 for any model.

    Attributes:
        tasks: The number of tasks; default 5.
        mode: "task" (default): the task of a row is known, and the row is compared only with the classes of that task,
            one head per task. "class": it is compared with all classes seen so far.
        classes: The order of the classes, or a list of groups, one per task; by default an order drawn from the seed.
        own_order: Whether every client has the tasks in its own order, drawn from the seed; default False.
    """

    tasks: TaskCount = 5
    mode: Literal["task", "class"] = "task"
    classes: Sequence[int | Sequence[int]] | None = None
    own_order: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        groups = self._groups()
        if groups is not None and len(groups) != self.tasks:
            raise RecipeError(f"Split(classes=...): {len(groups)} groups of classes for {self.tasks} tasks", "classes")

    def _groups(self) -> list[list[int]] | None:
        """Groups as they were given. Raises RecipeError if some classes stand outside them."""
        groups = [list(g) for g in self.classes or () if isinstance(g, Sequence)]
        single = [c for c in self.classes or () if not isinstance(c, Sequence)]
        if groups and single:
            raise RecipeError(
                f"Split(classes=...): {single[0]!r} stands next to lists of classes; put it into a list: "
                f"[{single[0]!r}]",
                "classes",
            )
        return groups or None

    def cut(self, X: Tensor, y: Tensor, classes: int | None, seed: int) -> list[Cut]:
        """Rows by their class."""
        if not classes:
            raise RecipeError("Split: the data has no classes; use TimeOrder, Permuted or Rotated", "stream")
        C = classes
        groups = self._groups()
        if groups is None:
            order = streams.rng(seed, "tasks").permutation(C) if self.classes is None else np.array(self.classes)
            groups = [g.tolist() for g in np.array_split(order, self.tasks)]
        flat = [*chain.from_iterable(groups)]
        if sorted(flat) != list(range(C)):
            wrong = next((c for c in flat if flat.count(c) > 1 or not 0 <= c < C), None)
            lacking = next((c for c in range(C) if c not in flat), None)
            problem = f"class {wrong} is repeated or not in the data" if wrong is not None else f"no class {lacking}"
            raise RecipeError(f"Split(classes=...): {problem}; give each of 0..{C - 1} once", "classes")
        least = 2 if self.mode == "task" else 1
        for s, group in enumerate(groups):
            if len(group) < least:
                raise RecipeError(
                    f"Split(tasks={self.tasks}, mode={self.mode!r}): task {s} would have {len(group)} of the {C} "
                    f"classes, but needs {least}; use fewer tasks",
                    "tasks",
                )
        return [Cut(partial(_of_classes, torch.tensor(group)), None, tuple(group)) for group in groups]


@dataclass(frozen=True)
class Permuted(Checked):
    """Every task has all rows, with their features in its own order; task 0 leaves the order unchanged.

    Each task is a copy of the data set in memory. ``tasks`` is their number, 5 by default; for ``own_order`` see
    `Split`.
    """

    tasks: TaskCount = 5
    own_order: bool = False
    mode: Mode = field(default="domain", init=False)

    def cut(self, X: Tensor, y: Tensor, classes: int | None, seed: int) -> list[Cut]:
        """One permutation of the features for each task, from the streams (seed, "tasks", task)."""
        orders = [torch.from_numpy(streams.rng(seed, "tasks", s).permutation(X[0].numel())) for s in range(self.tasks)]
        changes = [None, *(partial(_permuted, order) for order in orders[1:])]
        return [Cut(_all, change, tuple(range(classes or 0))) for change in changes]


@dataclass(frozen=True)
class Rotated(Checked):
    """Every task has all images, rotated by equal steps: task 0 by 0, the last task by ``degrees``.

    Each task is a copy of the data set in memory. Raises RecipeError for rows that are not images [channels, h, w].

    Attributes:
        tasks: The number of tasks; default 5.
        degrees: The angle of the last task; default 90.
        own_order: As in `Split`; default False.
    """

    tasks: TaskCount = 5
    degrees: float = 90.0
    own_order: bool = False
    mode: Mode = field(default="domain", init=False)

    def cut(self, X: Tensor, y: Tensor, classes: int | None, seed: int) -> list[Cut]:
        """One angle for each task."""
        if X.ndim != 4:
            raise RecipeError(f"Rotated: rows are {list(X.shape[1:])}, not images [channels, h, w]", "stream")
        angles = [math.radians(self.degrees * s / max(1, self.tasks - 1)) for s in range(self.tasks)]
        return [Cut(_all, partial(_turned, a) if a else None, tuple(range(classes or 0))) for a in angles]


@dataclass(frozen=True)
class TimeOrder(Checked):
    """Data that drifts: rows in the order of a feature or key, or in their own order, cut into tasks of equal size.

    Test rows are cut at the training rows' borders of that feature or, in their own order, into pieces of equal size.
    Raises BadData for more tasks than rows, or than the feature's different values allow.

    Attributes:
        tasks: The number of tasks; default 5.
        column: The feature's index, for rows [n, features]; default None: the rows in their own order.
        own_order: As in `Split`; default False.
        key: The name of a column of ``Dataset.keys``, such as the day of each row, that orders the rows: numbers, times
            or texts like 2024-05-31 or 2024-05-31T09:30; anything else raises BadData with its row. Test rows
            need it as well. Default None.
    """

    tasks: TaskCount = 5
    column: int | None = None
    own_order: bool = False
    key: str | None = None
    mode: Mode = field(default="domain", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key is not None and self.column is not None:
            raise RecipeError(f"TimeOrder(key={self.key!r}): give the name of a key, and no column", "key")

    def cut(self, X: Tensor, y: Tensor, classes: int | None, seed: int) -> list[Cut]:
        """Cut the rows; ``y`` and ``seed`` are ignored. With a key, X is its order, [n, 1]."""
        del y, seed
        if len(X) < self.tasks:
            raise BadData(f"TimeOrder(tasks={self.tasks}): there are only {len(X)} rows; use fewer tasks")
        picks: list[Pick] = [partial(_piece, s, self.tasks) for s in range(self.tasks)]
        column, what = (self.column, "feature") if self.key is None else (0, f"key {self.key!r}")
        if column is not None:
            if X.ndim != 2 or not 0 <= column < X.shape[1]:
                raise RecipeError(f"TimeOrder(column={column}): rows are {list(X.shape[1:])}", "column")
            ordered = X[:, column].sort().values
            borders = ordered[[len(ordered) * s // self.tasks for s in range(1, self.tasks)]]
            sizes = torch.bucketize(ordered, borders, right=True).bincount(minlength=self.tasks).tolist()
            if 0 in sizes:
                count = 1 + int((ordered[1:] != ordered[:-1]).sum())
                raise BadData(
                    f"TimeOrder(tasks={self.tasks}, column={self.column}): {len(ordered)} rows have {count} different "
                    f"values of that {what}, and equal ones stay together: task {sizes.index(0)} would have no rows; "
                    "use fewer tasks, another column, or column=None for the rows as they stand"
                )
            picks = [partial(_between, column, borders, s) for s in range(self.tasks)]
        return [Cut(pick, None, tuple(range(classes or 0))) for pick in picks]


@dataclass(frozen=True, eq=False)
class Tasks(Settings):
    """A user's own tasks, instead of ``data=``.

    Labels are whole numbers. Raises BadData, naming the task, for rows that do not fit together; for test rows of a
    class that no training row of this or an earlier task has, except in mode "domain"; and, in mode "task", for a task
    with only one class.

    Attributes:
        pairs: A pair ((X, y), (X_test, y_test)) per task, in order: arrays or tensors X [n, ...] and y [n].
        mode: "task": each task has its own outputs, and its labels are numbered by their order. "class" (default) and
            "domain": equal labels are the same class in all tasks.
        own_order: As in `Split`; default False.
    """

    pairs: Sequence[tuple[tuple[Any, Any], tuple[Any, Any]]] = field(repr=False)
    mode: Mode = "class"
    own_order: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("task", "class", "domain"):
            raise RecipeError.unknown(str(self.mode), ("task", "class", "domain"), "Tasks(mode=...)")
        if not isinstance(self.pairs, Sequence):
            raise RecipeError(f"Tasks: pairs is a {type(self.pairs).__name__}; give a list, one pair per task", "pairs")
        check_flags(self, "own_order")
        if not self.pairs:
            raise RecipeError("Tasks(pairs=[]): give a pair ((X, y), (X_test, y_test)) for each task", "pairs")

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return len(self.pairs)

    def parts(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """X, y, X_test and y_test of each task, with labels numbered over all tasks. Raises BadData as described
        above."""
        parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        offset = 0
        for s, pair in enumerate(self.pairs):
            if not _is_pair(pair) or not all(_is_pair(half) for half in pair):
                raise BadData(f"Tasks: task {s} is not ((X, y), (X_test, y_test))")
            try:
                X, y, X_test, y_test = map(torch.as_tensor, chain.from_iterable(pair))
            except (ValueError, TypeError, RuntimeError) as e:
                raise BadData(f"Tasks: task {s} cannot be converted to tensors: {e}") from None
            for rows, labels, what in ((X, y, "training"), (X_test, y_test, "test")):
                if rows.ndim < 2 or labels.ndim != 1 or len(rows) != len(labels) or not len(rows):
                    raise BadData(
                        f"Tasks: task {s} has {what} X of shape {list(rows.shape)} and y of {list(labels.shape)}; "
                        "use [n, ...] and [n]"
                    )
                if labels.is_floating_point() or bool((labels.long() < 0).any()):
                    raise BadData(f"Tasks: task {s} has {what} labels that are not whole numbers 0, 1, ...")
                if rows.shape[1:] != (first := parts[0][0] if parts else X).shape[1:]:
                    raise BadData(
                        f"Tasks: {what} rows of task {s} are {list(rows.shape[1:])}, others {list(first.shape[1:])}"
                    )
            y = y.long()
            y_test = y_test.long()
            present = torch.unique(y if self.mode == "task" else torch.cat([*(part[1] for part in parts), y]))
            if self.mode == "task" and len(present) < 2:
                raise BadData(f"Tasks(mode='task'): task {s} has only one class, so any model has accuracy 1")
            if self.mode != "domain" and len(unseen := y_test[~torch.isin(y_test, present)]):
                where = "its" if self.mode == "task" else "its and earlier tasks'"
                raise BadData(
                    f"Tasks(mode={self.mode!r}): task {s} has test rows of class {int(unseen[0])}, which none of "
                    f"{where} training rows has"
                )
            if self.mode == "task":
                y = torch.searchsorted(present, y) + offset
                y_test = torch.searchsorted(present, y_test) + offset
                offset += len(present)
            parts.append((X, y, X_test, y_test))
        return parts


def _is_pair(value: object) -> bool:
    return isinstance(value, Sequence) and len(value) == 2


def _all(X: Tensor, y: Tensor) -> Tensor:
    return torch.ones(len(y), dtype=torch.bool)


def _of_classes(classes: Tensor, X: Tensor, y: Tensor) -> Tensor:
    return torch.isin(y, classes)


def _piece(s: int, tasks: int, X: Tensor, y: Tensor) -> Tensor:
    at = torch.arange(len(y))
    return (at >= len(y) * s // tasks) & (at < len(y) * (s + 1) // tasks)


def _between(column: int, borders: Tensor, s: int, X: Tensor, y: Tensor) -> Tensor:
    return torch.bucketize(X[:, column].contiguous(), borders, right=True) == s


def _permuted(order: Tensor, X: Tensor) -> Tensor:
    return X.flatten(1)[:, order].reshape(X.shape)


def _turned(angle: float, X: Tensor) -> Tensor:
    c = math.cos(angle)
    s = math.sin(angle)
    turn = torch.tensor([[c, -s, 0.0], [s, c, 0.0]], dtype=X.dtype)
    blocks = []
    for block in torch.split(X, 4096):
        grid = F.affine_grid(turn.expand(len(block), 2, 3), list(block.shape), align_corners=False)
        blocks.append(F.grid_sample(block, grid, align_corners=False))
    return torch.cat(blocks)


public(__name__)
