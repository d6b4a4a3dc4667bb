"""Raw columns of a file or a frame as a data set: the one way from a reader to `Dataset`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...contract import BadData, Place, RecipeError, checked
from ...numerics.scaling import Scaling
from ...rows.columns import cells, columns_of, is_frame, is_hugging_face
from ...rows.numbers import numbers, refuse_inexact
from ...rows.numbers import table as table_of
from ...rows.precision import kept_apart
from ...rows.sparse import Sparse, is_sparse
from ...rows.tensors import check_finite, native, plain
from ..dataset import Dataset
from ..ingest.keys import DROP, all_keys, key_column, names_in, refuse_absent, refuse_index
from ..ingest.labels import Floats, RawTargets, code, of_file
from ..ingest.prepared import cells_of, preparation, refuse_special
from ..ingest.raw import target_of

CALL = "datasets.frame(...)"
"""The call, for messages."""


@dataclass(frozen=True, eq=False)
class Raw:
    """What a reader finds: inputs, targets and keys, unconverted.

    Attributes:
        call: the reader's call, for messages
        X: rows [n, ...]: an array, a SciPy sparse matrix, or a tensor that is ready
        y: targets [n]
        target: the name of the targets' column
        keys: columns [n] by name
        features: the names of X's columns; none for arrays without names
        test: X and y of test rows, if there are some
        missing: whether NaN in X stands for a missing value
    """

    call: str
    X: Any
    y: Any
    target: str = "y"
    keys: Mapping[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    test: tuple[Any, Any] | None = None
    missing: bool = False

    def dataset(self, name: str, regression: bool | None = None, scaling: Scaling | None = None) -> Dataset:
        """The data set of these rows.

        Args:
            regression: whether targets are values; None: they are if some have fractions, else they are labels

        Raises BadData, naming row and column, for cells that are no numbers, and for targets that do not fit.
        """
        places = [Place(self.call), Place(self.call, "test")][: 1 + (self.test is not None)]
        rows = [(self.X, self.y), *([] if self.test is None else [self.test])]
        Xs = [self._inputs(X, place) for (X, _), place in zip(rows, places, strict=True)]
        parts = [RawTargets.of(y, place.at(column=self.target)) for (_, y), place in zip(rows, places, strict=True)]
        keys = {k: key_column(v, places[0].at(column=k)) for k, v in self.keys.items()}
        same: dict[str, Any] = {"keys": keys, "name": name, "features": self.features, "scaling": scaling}
        same["missing"] = self.missing
        coded = None if regression else code(parts, floats="either" if regression is None else "labels")
        if coded is None or (coded.classes is None and parts[0].values.ndim == 1):
            ys = [values_of(p) for p in parts]
        else:
            ys = coded.parts
            same |= {"classes": coded.classes, "labels": coded.labels, "inferred": coded.classes is not None}
        tested = {"X_test": Xs[1], "y_test": ys[1]} if self.test is not None else {}
        return Dataset(Xs[0], ys[0], **tested, **same)

    def _inputs(self, X: Any, place: Place) -> Any:
        if isinstance(X, Tensor):
            return X
        if not is_sparse(X):
            X = plain(X, place, "X", self.missing)
            refuse_inexact(X, place)
        if not X.shape:
            raise BadData(f"X is one value, {X[()]!s:.40}; give rows", place=place)
        if not X.shape[0] or 0 in X.shape[1:]:
            raise BadData(
                f"there are {X.shape[0]} rows of {int(np.prod(X.shape[1:]))} features; at least one of each is needed",
                place=place,
            )
        ready = kept_apart(X)
        t = Sparse.of(ready) if is_sparse(ready) else torch.from_numpy(ready)
        try:
            check_finite(t, place, self.missing)
        except BadData as e:
            check_finite(Sparse.of(X) if is_sparse(X) else torch.from_numpy(native(X)), place, self.missing)
            stands = place if e.stands is None else e.stands[0]
            raise BadData("it is too large for float32; use another unit", place=stands) from None
        return t


def values_of(p: RawTargets) -> Tensor:
    """RawTargets of a regression. Raises BadData, naming the row, for one that is no finite number."""
    if p.are_text:
        texts = p.values.ravel()
        return torch.from_numpy(kept_apart(numbers(texts, p.place, "for classes leave regression=True out")))
    if p.values.ndim == 1:
        return torch.from_numpy(kept_apart(numbers(p.values, p.place)))
    t = torch.from_numpy(kept_apart(p.values))
    check_finite(t, p.place)
    return t


@dataclass(frozen=True, eq=False)
class Roles:
    """Which columns of a table are the target, the clients and further keys; all others are inputs.

    Attributes:
        call: the reader's call, for messages
        target: the column of targets
        keys: the columns of keys, that of the clients first
        client: the column of the clients, if there is one
        scaling: a preparation, whose columns are the inputs; None: all columns without another role
        unindexed: what to do with a frame's index
        missing: whether empty cells of inputs become NaN
    """

    call: str
    target: str
    keys: tuple[str, ...]
    client: object = None
    scaling: Scaling | None = None
    unindexed: str = "write the file with index=False"
    missing: bool = False

    @classmethod
    def of(
        cls, call: str, target: str, client: object, keys: Sequence[object], prepared: Any = None, **how: Any
    ) -> Roles:
        """The roles that a user names. Raises RecipeError for a column with two of them."""
        names = all_keys(target, client, keys, call)
        scaling = None if prepared is None else preparation(prepared, call)
        if scaling is not None:
            if how.get("missing"):
                raise RecipeError(f"{call}: prepared= fills in empty cells; leave missing= out", "missing")
            refuse_special(scaling, [target, *names[: client is not None]], call)
        return cls(call, target, names, client, scaling, **how)

    @property
    def named(self) -> tuple[str, ...]:
        """The target and the keys."""
        return self.target, *self.keys

    def inputs(self, columns: Sequence[str]) -> list[str]:
        """The inputs among a table's columns.

        Raises RecipeError for a column that is not there, and BadData for one that is there twice, or a frame's index.
        """
        if len(set(columns) - {""}) != len(columns) - columns.count(""):
            twice = next(h for h in columns if columns.count(h) > 1)
            place = columns.index(twice, columns.index(twice) + 1)
            raise BadData(f"{self.call}: the header names {twice!r} twice; rename one", column=place)
        coded = () if self.scaling is None or self.scaling.coding is None else self.scaling.coding.names
        refuse_absent(columns, self.named, self.client, self.call)
        if coded:
            missing = [name for name in coded if name not in columns]
            if missing:
                raise RecipeError.unknown(missing[0], columns, f"{self.call}: prepared=: the header")
            return [*coded]
        inputs = [name for name in columns if name not in self.named]
        refuse_index(inputs, Place(self.call), self.unindexed)
        return inputs

    def dataset(
        self, columns: Mapping[str, Any], inputs: Sequence[str], name: str, regression: bool | None, X: Any = None
    ) -> Dataset:
        """The data set of columns by name; ``X`` has the inputs if these are numbers already."""
        n = len(columns[self.target])
        features = tuple(inputs)
        place = Place(self.call)
        if not n or not inputs:
            raise BadData(f"there are {n} rows of {len(inputs)} features; give at least one of each", place=place)
        if self.scaling is not None and self.scaling.coding is not None:
            features = self.scaling.coding.features
        if X is None:
            X = self.matrix(columns, inputs)
        keyed = {k: columns[k] for k in self.keys}
        raw = Raw(self.call, X, columns[self.target], self.target, keyed, features, missing=self.missing)
        return raw.dataset(name, regression, self.scaling)

    def matrix(self, columns: Mapping[str, Any], inputs: Sequence[str]) -> Tensor:
        """The inputs [n, features] of columns by name. Raises BadData, naming row and column, for other cells."""
        if self.scaling is not None and self.scaling.coding is not None:
            return self.scaling(torch.from_numpy(self.scaling.coding(columns, self.call)))
        cells_of_inputs = table_of({k: columns[k] for k in inputs}, Place(self.call), self.missing)
        return torch.from_numpy(kept_apart(cells_of_inputs))

    def of_frame(self, table: Any, names: Mapping[str, Any], name: str, regression: bool | None) -> Dataset:
        """As `dataset`, of these columns of a frame."""
        inputs = self.inputs([*names])
        return self.dataset(
            {k: cells(table, names[k], Place(self.call)) for k in (*self.named, *inputs)}, inputs, name, regression
        )

    def of_texts(
        self, texts: Mapping[str, Sequence[str]], X: Any, inputs: Sequence[str], name: str, regression: bool | None
    ) -> Dataset:
        """As `dataset`, of a text file's columns."""
        place = Place(self.call)
        floats: Floats = "values" if regression else "either" if regression is None else "labels"
        coding = () if self.scaling is None or self.scaling.coding is None else self.scaling.coding.columns
        columns: dict[str, Any] = {c.name: cells_of(texts[c.name], c.levels) for c in coding}
        columns[self.target] = of_file(texts[self.target], place.at(column=self.target), floats)
        columns |= {k: names_in(key_column(texts[k], place.at(column=k)).tolist()) for k in self.keys}
        return self.dataset(columns, inputs, name, regression, X)


@checked("datasets")
def frame(  # noqa: PLR0913
    table: Any,
    target: str | int,
    client: str | int | None = None,
    features: Sequence[str | int] | None = None,
    regression: bool | None = None,
    name: str = "frame",
    prepared: Any = None,
    keys: Sequence[str | int] = (),
    missing: bool = False,
) -> Dataset:
    """The data set of a pandas frame, a Hugging Face data set, or any table with columns by name, read into memory.

    Args:
        table: the frame
        target: the column of labels, numbers or text, or of values
        client: the column of each row's client; `partitions.ByKey` deals by it. Default None
        features: the columns of inputs, numbers or booleans; default None: all others
        regression: whether targets are values; by default fractions are values, and everything else is labels
        name: the data set's name in messages and reports
        prepared: what `Study.prepare` found, or its file; its columns are the inputs. Default none
        keys: further columns that are no inputs, such as each row's patient; default none
        missing: whether empty cells of inputs become missing values, for `medley.problems.Trees`; default False

    Numbers that name columns become text: the key of ``client=3`` is "3". Raises RecipeError for a column that is not
    there, BadData for a table without rows or with two columns of one name, and, naming column and row, for cells that
    are no numbers.
    """
    if not is_hugging_face(table) and not is_frame(table):
        kind = type(table).__name__
        remedy = "read a file by datasets.csv" if isinstance(table, str | Path) else "such as pandas.DataFrame(table)"
        raise RecipeError(f"datasets.frame(table) is a {kind}; give a frame, {remedy}", "table")
    names = columns_of(table, CALL)
    roles = Roles.of(CALL, str(target), client, keys, prepared, unindexed=DROP, missing=missing)
    if features is not None:
        chosen = [*map(str, features)]
        if prepared is not None:
            raise RecipeError(f"{CALL}: prepared= says which columns are inputs; leave features= out", "features")
        both = [name for name in chosen if name in roles.named]
        if both:
            role = "target" if both[0] == roles.target else "client"
            message = f"features= has {both[0]!r}, the column of the {role}; leave it out there"
            raise RecipeError(f"{CALL}: {message}", "features")
        absent = [name for name in chosen if name not in names]
        if absent:
            raise RecipeError.unknown(absent[0], names, f"{CALL}: features=: the table")
        if len({*chosen}) < len(chosen):
            raise RecipeError(f"{CALL}: features={chosen}: give each column once", "features")
        names = {k: names[k] for k in (*chosen, *roles.named) if k in names}
    return roles.of_frame(table, names, name, regression)


def by_client(value: Any, missing: bool = False) -> Dataset:
    """A frame of all clients' rows as a data set with the key "client". Raises BadData without that column.

    Args:
        missing: whether empty cells of inputs become missing values; default False
    """
    place = Place("Federation(clients=frame)")
    columns = columns_of(value, str(place))
    target = target_of(columns, place)
    if target is None or "client" not in columns:
        index = [n for n in getattr(getattr(value, "index", None), "names", ()) if n is not None]
        remedy = f"make columns of its index {', '.join(map(repr, index))}, frame.reset_index(), and " if index else ""
        raise BadData(
            f"it is a frame with the columns {', '.join(columns)}: {remedy}say which are the client's and "
            "the target's, clients=datasets.frame(table, target='died', client='hospital')",
            place=place,
        )
    roles = Roles.of(str(place), target, "client", (), unindexed=DROP, missing=missing)
    return roles.of_frame(value, columns, "frame", None)
