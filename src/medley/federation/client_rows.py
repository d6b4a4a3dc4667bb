"""One client's rows, in any form that you may pass, as tensors with one target per row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..contract import BadData, Place
from ..datasets import Dataset
from ..datasets.checks import refuse_other_form, rows_and_targets, weights_of
from ..datasets.ingest.keys import refuse_parts
from ..datasets.ingest.labels import RawTargets, raw
from ..datasets.ingest.raw import is_items, pair_of
from ..rows.columns import in_order, is_frame, names_of

TEST = Place("Federation(test=...)")
"""Where test rows come from that belong to no client."""

FORMS = "give a pair (X, y), (X, y, weights of rows), (X, y, X_test, y_test), or the latter and weights"

FILE = "it is a text; read the file, datasets.csv(path, target=..., client=...), or "


class ClientRows(NamedTuple):
    """One client's rows: X [n, ...], targets, weights [n] or None, and test rows or None."""

    X: Tensor
    y: RawTargets
    w: Tensor | None = None
    X_test: Tensor | None = None
    y_test: RawTargets | None = None

    @classmethod
    def of(
        cls,
        source: Any,
        place: Place,
        aside: str | None = None,
        features: Sequence[str] = (),
        missing: bool = False,
    ) -> ClientRows:
        """A client's rows, checked.

        Args:
            source: a tuple of arrays in one of the `FORMS`, a data set of any library, or a frame
            aside: a column that is no input; default none
            features: the names of a frame's columns of inputs, in the wanted order; default the frame's order
            missing: whether NaN and empty cells stand for missing values; default False

        Raises BadData, naming client, row and column.
        """
        arrays = _arrays(source, place, aside, features, missing)
        if not isinstance(arrays, tuple | list) or not 2 <= len(arrays) <= 5:
            shape = getattr(source, "shape", ())
            raw = f"it is one array {[*shape]}, rows without targets; " if shape else ""
            raise BadData(FILE * isinstance(source, str | Path) + raw + FORMS, place=place)
        _refuse_slips(arrays, place)
        X, y = rows_and_targets(arrays[0], arrays[1], place, missing)
        w = None if len(arrays) in (2, 4) or arrays[-1] is None else weights_of(arrays[-1], len(X), place)
        if len(arrays) < 4 or arrays[2] is None or _is_empty(arrays[2]):
            return cls(X, y, w)
        tests = replace(place, part="test")
        X_test, y_test = rows_and_targets(arrays[2], arrays[3], tests, missing)
        refuse_other_form((X_test, y_test.values), (X, y.values), tests, "the training rows")
        return cls(X, y, w, X_test, y_test)

    @classmethod
    def of_tests(
        cls,
        source: Any,
        like: tuple[Any, Any],
        aside: str | None = None,
        features: Sequence[str] = (),
        missing: bool = False,
    ) -> ClientRows:
        """Test rows that belong to no client, checked; arguments and errors are those of `of`.

        Args:
            like: inputs and targets of training rows, which have the same form
        """
        if isinstance(source, Dataset):
            source = replace(source, X_test=None, y_test=None, test_keys={}, weights=None)
        arrays = _arrays(source, TEST, aside, features, missing)
        if not isinstance(arrays, tuple | list) or len(arrays) != 2:
            what = type(source).__name__ + (f" of {len(source)}" if isinstance(source, tuple | list) else "")
            raise BadData(f"its type is {what}; give a pair (X, y), a frame or a data set", place=TEST)
        if any(map(_is_empty, arrays)):
            raise BadData("there are no rows; leave test= out", place=TEST)
        X, y = rows_and_targets(arrays[0], arrays[1], TEST, missing)
        refuse_other_form((X, y.values), like, TEST, "the training rows")
        return cls(X, y)


def refuse_by_client(test: Any) -> None:
    """Raise BadData for test rows in a mapping by client's name, or in a list of pairs, frames or data sets."""
    if isinstance(test, Mapping):
        refuse_parts([*map(str, test)], f"{TEST} has {{}}")
    parts = [*test.values()] if isinstance(test, Mapping) else test if isinstance(test, list) else []
    if parts and all(isinstance(v, tuple | Dataset) or is_items(v) for v in parts):
        raise BadData(
            "these are test rows by client, and test= is one pair (X, y) for all clients; to measure each on rows of "
            "its own, give it as (X, y, X_test, y_test) in clients=",
            place=TEST,
        )


def _arrays(source: Any, place: Place, aside: str | None, features: Sequence[str], missing: bool) -> Any:
    """Rows as a tuple of arrays, columns in the order of ``features``; anything unknown unchanged."""
    if isinstance(source, Dataset):
        if source.X_validation is not None and place.client is not None:
            raise BadData("it has validation rows; leave them out, and pass Federation(validation=...)", place=place)
        data = source.ordered(features, str(place))
        tests = [] if data.X_test is None or data.y_test is None else [data.X_test, raw(data.y_test, data.labels)]
        return (data.X, raw(data.y, data.labels), *tests, *([] if data.weights is None else [data.weights]))
    if is_items(source):
        return pair_of(source, place, aside, features, missing)
    if isinstance(source, Mapping):
        refuse_parts([*map(str, source)], f"{place} has {{}}")
    if not isinstance(source, tuple | list):
        return source
    _check_index(source, place)
    return tuple(in_order(v, features) if features and k in (0, 2) and names_of(v) else v for k, v in enumerate(source))


def _refuse_slips(arrays: Sequence[Any], place: Place) -> None:
    """Raise BadData, with the remedy, for tuples of other things."""
    if len(arrays) == 2 and is_frame(arrays[1]) and (np.ndim(arrays[0]) == 0 or isinstance(arrays[0], tuple)):
        message = "it is a name and a frame, as groupby makes them; give one frame of all clients' rows, "
        raise BadData(f"{message}clients=datasets.frame(frame, target=..., client=...)", place=place)
    if len(arrays) == 4 and np.ndim(arrays[1]) > 1 and np.ndim(arrays[2]) == 1:
        raise BadData("these look like (X, X_test, y, y_test); give (X, y, X_test, y_test)", place=place)
    if len(arrays) > 3 and (arrays[2] is None) != (arrays[3] is None):
        raise BadData("pass both X_test and y_test, or None for both", place=place)


def _check_index(arrays: Sequence[Any], place: Place) -> None:
    """Raise BadData if the pandas indices of X and of the targets have the rows in different orders."""
    for k, v in enumerate(arrays):
        X = arrays[2 if k == 3 or (k == 2 and len(arrays) > 3) else 0]
        if not all(hasattr(t, "iloc") for t in (X, v)) or len(X) != len(v) or X.index.equals(v.index):
            continue
        if Counter(X.index) == Counter(v.index):
            row = int(np.flatnonzero(X.index != v.index)[0])
            name = "y" if k in (1, 3) else "the weights"
            raise BadData(
                f"X has the index {X.index[row]}, but {name} {v.index[row]}; Medley pairs rows by position, so pass "
                f"{name.split()[-1]}.loc[X.index], or reset_index(drop=True) of both if the positions are right",
                place=place.at(row),
            )


def _is_empty(part: Any) -> bool:
    """Whether a part has no rows; a sparse matrix has no length."""
    part = part.values if isinstance(part, RawTargets) else part
    return bool(part.shape[:1] == (0,)) if hasattr(part, "shape") else hasattr(part, "__len__") and not len(part)
