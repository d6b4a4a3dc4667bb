"""Raw columns of a file or a frame as a data set: the one way from a reader to `Dataset`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from ...rows.tensors import as_tensor, check_finite
from ..dataset import Dataset
from ..ingest.keys import DROP, all_keys, key_column, refuse_index
from ..ingest.labels import RawTargets, code
from ..ingest.prepared import preparation, refuse_special
from ..ingest.raw import inputs_of, target_of

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
    """

    call: str
    X: Any
    y: Any
    target: str = "y"
    keys: Mapping[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    test: tuple[Any, Any] | None = None

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
        coded = None if regression else code(parts, floats="either" if regression is None else "labels")
        if coded is not None and parts[0].values.ndim > 1:
            ys = coded.parts
        elif coded is None or coded.classes is None:
            ys = [values_of(p) for p in parts]
        else:
            ys = coded.parts
            same |= {"classes": coded.classes, "labels": coded.labels, "inferred": True}
        tested = {"X_test": Xs[1], "y_test": ys[1]} if self.test is not None else {}
        return Dataset(Xs[0], ys[0], **tested, **same)

    def _inputs(self, X: Any, place: Place) -> Any:
        if isinstance(X, Tensor):
            return X
        if not is_sparse(X):
            refuse_inexact(X, place) if X.dtype.kind in "iu" else None
        if not X.shape[0] or 0 in X.shape[1:]:
            raise BadData(
                f"there are {X.shape[0]} rows of {int(np.prod(X.shape[1:]))} features; at least one of each is needed",
                place=place,
            )
        if X.dtype.kind not in "biuf":
            as_tensor(X, place)
        if self.features:
            for j, name in enumerate(self.features):
                if not (np.abs(X[:, j]) <= np.finfo(np.float32).max).all():
                    numbers(X[:, j], place.at(column=name))
        ready = kept_apart(X)
        t = Sparse.of(ready) if is_sparse(ready) else torch.from_numpy(ready)
        check_finite(t, place)
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


@checked("datasets")
def frame(
    table: Any,
    target: str | int,
    client: str | int | None = None,
    features: Sequence[str | int] | None = None,
    regression: bool | None = None,
    name: str = "frame",
    prepared: Any = None,
    keys: Sequence[str | int] = (),
) -> Dataset:
    """The data set of a pandas frame, a Hugging Face data set, or any table with columns by name, read into memory.

    Args:
        table: the frame
        target: the column of labels, numbers or text, or of values
        client: the column of each row's client; `scenarios.ByKey` deals by it. Default None
        features: the columns of inputs, numbers or booleans; default None: all others
        regression: whether targets are values; by default fractions are values, and everything else is labels
        name: the data set's name in messages and reports
        prepared: what `Study.prepare` found, or its file; its columns are the inputs. Default none
        keys: further columns that are no inputs, such as each row's patient; default none

    Numbers that name columns become text: the key of ``client=3`` is "3". Raises RecipeError for a column that is not
    there, BadData for a table without rows or with two columns of one name, and, naming column and row, for cells that
    are no numbers.
    """
    if not is_hugging_face(table) and not is_frame(table):
        kind = type(table).__name__
        raise RecipeError(f"datasets.frame(table) is a {kind}; give a frame, such as pandas.DataFrame(table)", "table")
    target = str(target)
    names = all_keys(target, client, keys, CALL)
    columns = columns_of(table, CALL)
    if missing := [c for c in (target, *names) if c not in columns]:
        raise RecipeError.unknown(missing[0], columns, f"{CALL}: the table")
    if both := [str(f) for f in features or () if str(f) in (target, *names)]:
        role = "target" if both[0] == target else "client"
        said = f"features= has {both[0]!r}, the column of the {role}; leave it out there"
        raise RecipeError(f"{CALL}: {said}", "features")
    scaling = None if prepared is None else preparation(prepared, CALL)
    if scaling is not None and scaling.coding is not None:
        refuse_special(scaling, [target, *([] if client is None else [str(client)])], CALL)
        if features is not None:
            raise RecipeError(f"{CALL}: prepared= says which columns are inputs; leave features= out", "features")
        inputs, X = scaling.coding.features, scaling.of_table(table, columns, CALL)
    else:
        inputs = (
            tuple(n for n in columns if n not in (target, *names)) if features is None else tuple(map(str, features))
        )
        if features is None:
            refuse_index(inputs, Place(CALL), DROP)
        X = inputs_of(table, inputs, Place(CALL))
    keyed = {k: cells(table, columns[k]) for k in names}
    return Raw(CALL, X, cells(table, columns[target]), target, keyed, inputs).dataset(name, regression, scaling)


def frame_of(
    columns: Mapping[str, np.ndarray], call: str, name: str, target: str, keys: Sequence[str], regression: bool | None
) -> Dataset:
    """The data set of a file's columns by name; arguments and errors as of `frame`."""
    inputs = {n: c for n, c in columns.items() if n not in (target, *keys)}
    refuse_index(inputs, Place(call), "write the file with index=False")
    place = Place(call)
    if not inputs or not len(columns[target]):
        raise BadData(f"there are {len(columns[target])} rows of {len(inputs)} features; give both", place=place)
    X = torch.from_numpy(kept_apart(table_of(inputs, place)))
    keyed = {k: columns[k] for k in keys}
    return Raw(call, X, columns[target], target, keyed, tuple(inputs)).dataset(name, regression)


def by_client(value: Any) -> Dataset:
    """A frame of all clients' rows as a data set with the key "client". Raises BadData without that column."""
    columns, place = columns_of(value), Place("Federation(clients=...)")
    target = target_of(columns, place)
    if target is None or "client" not in columns:
        raise BadData(
            f"it is a frame with the columns {', '.join(columns)}: say which are the client's and "
            "the target's, clients=datasets.frame(table, target='died', client='hospital')",
            place=place,
        )
    return frame(value, target, "client")
