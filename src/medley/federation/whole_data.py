"""Data that is divided among clients: its test rows, and its targets as the problem reads them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from ..contract import BadData, Family, Place, RecipeError
from ..datasets import Dataset
from ..datasets.ingest.labels import Label, RawTargets, code, is_plain, placed, raw
from ..datasets.ingest.raw import as_key, features_of, is_items, is_table, target_of
from ..rows.columns import TARGETS, cells, columns_of, differ
from .client_rows import TEST, ClientRows, refuse_by_client
from .clients_data import pooled
from .labels import fits, refuse_missing, refuse_other_number, stored

log = logging.getLogger("medley")

WHOLE = "Federation(data=...)"
"""The name of a user's data in errors, if it does not come from their own clients."""


def whole_data(problem: Family, data: Any, test: Any, classes: int | None, key: str | None) -> Any:
    """``data`` with its test rows as a data set, if it is a pair (X, y), a frame or another library's data set.

    Args:
        problem: the model, for the labels that it accepts
        data: what the user passed; a data set, None and other values are returned unchanged
        classes: the number of classes; None counts the labels that occur
        key: the column that names each row's client, or None

    Raises RecipeError for a mapping of splits, and for test rows if ``data`` already has some.
    """
    if isinstance(data, Mapping):
        raise RecipeError(
            f"Federation(data=...) has the parts {', '.join(map(str, data))}; pass one, as data=parts['train'], "
            "test=parts['test']",
            "data",
        )
    if is_items(data) or (isinstance(data, tuple) and len(data) in (2, 3)):
        keys = {} if key is None or isinstance(data, tuple) else {key: as_key(data, key)}
        return replace(pooled(problem, [data], test, classes, whole=(WHOLE, key))[0], keys=keys)
    if test is None or not isinstance(data, Dataset):
        return data
    if data.X_test is not None:
        raise RecipeError("Federation(test=...): the data set already has test rows; leave one of them out", "test")
    refuse_by_client(test)
    rows, keys = _tests_like(data, test, key)
    if (
        data.inferred
        and not any(isinstance(v, str) for v in data.labels)
        and fits(problem) != "classes"
        and len(fractions(rows.y))
    ):
        data = recoded(data, Place(data.name), lambda parts: ([p.tensor().double() for p in parts], None, ()))
    return _joined(data, rows, keys, isinstance(test, Dataset) or is_table(test))


def _tests_like(data: Dataset, test: Any, key: str | None) -> tuple[ClientRows, dict[str, np.ndarray]]:
    """Test rows of any kind with the columns and the scale of ``data``, targets as the user has them, and keys."""
    scaling = data.scaling
    like = (data.X, data.y)
    if isinstance(test, Dataset):
        if (scaling is not None or test.scaling is not None) and not (
            scaling is not None and scaling.same(test.ordered(data.features, str(TEST)).scaling)
        ):
            raise BadData(
                "the training rows are standardised, but the test rows are not, or differently; "
                "give test=rows.standardise(like=data)",
                place=TEST,
            )
        test_keys = {name: test.keys[name] for name in data.keys if name in test.keys}
        return ClientRows.of_tests(test, like, features=data.features, missing=data.missing), test_keys
    columns = columns_of(test, str(TEST)) if is_table(test) else {}
    coding = None if scaling is None or not columns else scaling.coding
    is_raw = coding is not None and ({*coding.names} <= {*columns} or not {*data.features} <= {*columns})
    if scaling is not None and is_raw:
        target = target_of(columns, TEST)
        if target is None:
            raise BadData(f"the frame has no column called {', '.join(TARGETS)}; rename the target's", place=TEST)
        y = RawTargets.of(cells(test, columns[target], TEST), TEST.at(column=target))
        return ClientRows.of_tests((scaling.of_table(test, columns, str(TEST)), y), like), {}
    names = features_of(test, TEST, key)
    has_names = bool(names) and bool(data.features)
    difference = differ(names, data.features) if has_names else ""
    if difference:
        raise BadData(f"the frame {difference}; give the columns of the training rows", place=TEST)
    rows = ClientRows.of_tests(test, like, key, data.features if has_names else (), data.missing)
    if scaling is not None and has_names:
        rows = rows._replace(X=scaling(rows.X))
    elif scaling is not None:
        log.warning(
            "%s: the training rows are standardised; Medley assumes that these rows are already scaled in the same way",
            TEST,
        )
    return rows, {}


def _joined(data: Dataset, rows: ClientRows, keys: dict[str, np.ndarray], named: bool) -> Dataset:
    """The data set with these test rows added; training and test labels are numbered together.

    If the labels are texts and the test targets numbers, these are the labels' positions, as in the data set's own y.

    Args:
        named: whether targets are labels, as in a frame; else whole numbers may be their places

    Raises BadData, naming the row, for a label that is new although the data set names all, and for whole numbers that
    may be either.
    """
    X = rows.X
    y = rows.y
    if data.classes is None or (y.values.ndim > 1 and not y.are_text):
        if y.are_text:
            raise y.refuse(0, f"{y.first!r} is text, and the training rows' targets are values; give numbers")
        y_test = y.tensor()
        y_test = y_test.to(data.y.dtype) if data.classes is None else y_test
        return replace(data, X_test=X, y_test=y_test, test_keys=keys)
    labels = data.labels or tuple(range(data.classes))
    odd = fractions(y)
    if len(odd) and not any(isinstance(v, float) for v in labels):
        shown = ", ".join(map(repr, labels[:8]))
        raise y.refuse(int(odd[0]), f"{y.values.flat[odd[0]]} is not one of the classes of the training rows, {shown}")
    text = isinstance(labels[0], str)
    coded = labels != tuple(range(len(labels)))
    values = {*y.values.ravel().tolist()} if coded and not text and not data.inferred else set()
    is_number = not y.are_text and y.values.dtype.kind != "b"
    if is_number and not named and (text or (not data.inferred and values <= {*range(len(labels))})):
        if values and coded and values <= {*labels}:
            raise BadData(
                f"the targets may be the labels {', '.join(map(str, labels))}, or their numbers from 0; "
                "pass a frame if they are labels, or a data set, datasets.Dataset(X, y, labels=...)",
                place=replace(y.place, column=None),
            )
        return replace(data, X_test=X, y_test=y.tensor().long(), test_keys=keys)
    joint = code([RawTargets(raw(data.y, labels), Place(data.name, column="y")), y], floats="labels")
    names = joint.labels
    y_test = joint.parts[1]
    if data.inferred:
        new: dict[str, Any] = {"labels": () if is_plain(names) else names, "classes": len(names)}
        return replace(data, y=joint.parts[0], X_test=X, y_test=y_test, test_keys=keys, **new)
    others = [v for v in names if v not in labels]
    if others:
        row = [str(v).strip() for v in y.values.tolist()].index(str(others[0]))
        message = (
            f"the label is {others[0]!r}, but the training rows have {', '.join(map(repr, labels))}; leave others out"
        )
        raise y.refuse(row, message)
    return replace(data, X_test=X, y_test=placed(y_test, names, labels), test_keys=keys)


def fractions(y: RawTargets) -> np.ndarray:
    """The rows of targets that are no whole numbers."""
    return np.flatnonzero(y.values % 1) if y.values.dtype.kind == "f" else np.empty(0, int)


def suited(problem: Family, data: Dataset, classes: int | None) -> Dataset:
    """The data set with its targets in the form that the problem fits.

    If the problem fits values, whole numbers that a reader took for classes become values again. If you passed
    ``classes``, the labels are already 0..classes-1 and stay as they are.
    """
    refuse_missing(problem, data.missing, Place(data.name))
    if data.y.ndim != 1:
        return data if classes is None else replace(data, classes=classes)
    names = data.labels
    kind = fits(problem, len(names))
    if data.inferred and not any(isinstance(v, str) for v in names):
        ignored = kind == "loss" and bool(names) and float(names[0]) < 0 and bool(data.y.min() >= 0)
        reread = kind == "values" or classes is not None or ignored
    else:
        reread = kind == "classes" and data.classes is None and not bool((data.y != data.y.round()).any())
    if reread:
        return recoded(data, Place(data.name), lambda parts: stored(problem, parts, classes, data.X))
    if classes is not None and names and len(names) == classes:
        return replace(data, inferred=False)
    if data.inferred and kind != "values" and names:
        refuse_other_number(names, classes)
    return data if classes is None else replace(data, classes=classes)


def recoded(
    data: Dataset, place: Place, read: Callable[[list[RawTargets]], tuple[list[Tensor], int | None, Sequence[Label]]]
) -> Dataset:
    """A data set whose targets are read again.

    Args:
        place: whose rows these are
        read: makes tensors, the number of classes and their names of the training, test and validation rows' targets
    """
    parts = [part for part in ("y", "y_test", "y_validation") if getattr(data, part) is not None]
    raws = [RawTargets(raw(getattr(data, p), data.labels), replace(place, part=p[2:], column="y")) for p in parts]
    ys, classes, labels = read(raws)
    new: dict[str, Any] = dict(zip(parts, ys, strict=True))
    labels = () if is_plain(labels) else tuple(labels)
    return replace(data, **new, classes=classes, labels=labels, inferred=bool(labels))
