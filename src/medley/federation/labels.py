"""What a problem makes of targets: classes, values, or what its own loss takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..contract import BadData, Family, Place
from ..datasets import Dataset
from ..datasets.ingest.labels import SOME_LABELS, Coded, RawTargets, code, count_kinds, is_plain, raw
from ..problems import LeastSquares, Logistic, Network, Softmax
from ..problems.network.own_loss import fits_values
from ..rows.numbers import refuse_inexact


def fits(problem: Family, classes: int = 2) -> Literal["values", "classes", "loss"]:
    """What a problem fits; "loss" if its own loss may take either."""
    if isinstance(problem, LeastSquares) or (isinstance(problem, Network) and fits_values(problem.loss, classes)):
        return "values"
    if isinstance(problem, Logistic | Softmax) or getattr(problem, "loss", None) == "cross_entropy":
        return "classes"
    return "loss"


def numbered(problem: Family, parts: Sequence[RawTargets], classes: int | None) -> Coded:
    """Targets of all clients' training and test rows, as the problem reads them, numbered together.

    Raises BadData, naming client and row, for labels that the problem does not take, and if all rows have one label.
    """
    text = any(p.are_text for p in parts)
    for p in parts if isinstance(problem, Logistic | Softmax) else ():
        if p.are_text and p.values.ndim > 1:
            said = f"{type(problem).__name__} takes one label a row, and y is {list(p.values.shape)} of texts, "
            said += f"such as {p.first!r}; give one column of them"
            raise BadData(said, place=replace(p.place, column=None))
    plain = not text and all(p.values.ndim == 1 for p in parts if p.values.size)
    kind = fits(problem)
    if kind == "loss" and plain and all(p.values.dtype.kind in "biu" for p in parts):
        kind = fits(problem, count_kinds([p.values for p in parts if p.values.size]))
    if kind == "values" and not text:
        for p in parts:
            refuse_inexact(p.values, p.place)
        return Coded(as_values(problem, [p.tensor() for p in parts]))
    if kind == "loss" and plain and any(p.values.size and p.values.min() < 0 for p in parts):
        return Coded([p.tensor() for p in parts])  # its loss may ignore these
    padding = getattr(problem, "ignore_index", None)
    for p in parts if plain and padding is not None else ():
        if (bad := p.values == padding).any():
            said = (
                f"{type(problem).__name__}(ignore_index={padding}) is for sequences and maps, and these rows have one "
            )
            said += "label each; leave out the rows without a label, X[y != ignore_index]"
            raise p.refuse(int(bad.argmax()), said)
    signed = isinstance(problem, Logistic) and plain and any((p.values == -1).any() for p in parts)
    given = None if signed and classes == 2 else classes
    coded = code(parts, given, floats="whole" if kind == "classes" else "values")
    if coded.classes is not None and given is None:
        refuse_other_number(coded.labels, classes)
    return coded


def as_values(problem: Family, ys: Sequence[Tensor]) -> list[Tensor]:
    """Numbers of all parts, each [n] or [n, ...], as the values that a problem fits.

    Whether whole numbers look like classes is for all rows together to say, since one client or the test rows may have
    only some of them. Raises BadData if they do.
    """
    whole = [y for y in ys if y.ndim == 1 and not y.is_floating_point()]
    if len(whole) == len(ys):
        joined = _as_values(problem, torch.cat(whole))
        return [y.clone() for y in torch.split(joined, [len(y) for y in ys])]
    return [_as_values(problem, y) for y in ys]


def _as_values(problem: Family, y: Tensor) -> Tensor:
    y = problem.canonical(y, None)
    return y if y.is_floating_point() else y.float()


def refuse_other_number(labels: Sequence[Any], classes: int | None) -> None:
    """Raise BadData if rows have one label, or another number of them than ``classes``, if that is given."""
    if classes is not None and len(labels) != classes:
        said = f"classes={classes}, and the rows have the labels {', '.join(map(repr, labels[:8]))}"
        raise BadData(f"{said}; {SOME_LABELS}")
    if len(labels) == 1:
        others = SOME_LABELS if isinstance(labels[0], str) else "pass classes= if the others have no rows here"
        raise BadData(f"all labels are {labels[0]!r}; there must be at least two: {others}")


def suited(problem: Family, data: Dataset, classes: int | None) -> Dataset:
    """A data set whose targets are what the problem fits.

    Whole numbers that a reader took for classes are values again for a problem of values; and numbers that ``classes``
    says are 0..classes-1 already stay as they are.
    """
    if data.y.ndim != 1:
        return data if classes is None else replace(data, classes=classes)
    names, kind = data.labels, fits(problem, len(data.labels))
    numbers = data.classes is None or not any(isinstance(v, str) for v in names)
    again = data.inferred and numbers and not is_plain(names)
    if kind == "values" and data.inferred and numbers and (again or data.classes is not None):
        for v in _targets(data):
            refuse_inexact(v, Place(data.name, column="y"))
        values = [torch.from_numpy(v).to(torch.int64) for v in _targets(data)]
        return _with(data, as_values(problem, values), None, ())
    whole = kind == "classes" and data.classes is None and not bool((data.y != data.y.round()).any())
    kept = classes is not None and data.inferred and numbers
    if whole or kept or (again and kind == "loss" and data.y.min() >= 0 and float(names[0]) < 0):
        parts = [
            RawTargets(v, Place(data.name, part, column="y"))
            for v, part in zip(_targets(data), _parts(data), strict=True)
        ]
        coded = numbered(problem, parts, classes)
        labels = () if is_plain(coded.labels) else coded.labels
        counted = coded.classes or (None if kind == "classes" else int(max(int(y.max()) for y in coded.parts)) + 1)
        return _with(data, coded.parts, counted, labels)
    if classes is not None and names and len(names) == classes:
        return replace(data, inferred=False)
    if data.inferred and kind != "values" and names:
        refuse_other_number(names, classes)
    return data if classes is None else replace(data, classes=classes)


def refuse_renumbered(data: Dataset, call: str) -> None:
    """Raise BadData if the labels that happen to occur have other numbers than their own, for a model that is trained.

    Its outputs have classes already, and these rows may lack some.
    """
    if data.inferred and data.classes and data.labels and set(data.labels) != {False, True}:
        said = ", ".join(map(repr, data.labels[:8])) + (", …" if data.labels[8:] else "")
        raise BadData(
            f"{call} begins at trained weights, whose outputs stand for classes already, but the labels {said} would "
            "be numbered as they occur in these rows; pass classes= if labels are the outputs' numbers, or "
            "Dataset(X, y, labels=...) with all names in the order of the outputs"
        )


def _parts(data: Dataset) -> list[str]:
    return [p[2:] for p in ("y", "y_test", "y_validation") if getattr(data, p) is not None]


def _targets(data: Dataset) -> list[np.ndarray]:
    """The targets of all rows as the user had them."""
    return [raw(getattr(data, f"y_{p}" if p else "y"), data.labels) for p in _parts(data)]


def _with(data: Dataset, ys: Sequence[Tensor], classes: int | None, labels: Sequence[Any]) -> Dataset:
    new: dict[str, Any] = {f"y_{p}" if p else "y": y for p, y in zip(_parts(data), ys, strict=True)}
    return replace(data, **new, classes=classes, labels=tuple(labels), inferred=bool(labels))


def joined_tests(data: Dataset, X: Any, y: RawTargets, keys: dict[str, np.ndarray], named: bool) -> Dataset:
    """A data set with test rows, whose labels are numbered together with those of its training rows.

    Numbers beside texts are the labels' places among them, as the data set's own y has them.

    Args:
        named: whether targets are labels, as in a frame; else whole numbers may be their places

    Raises BadData, naming the row, for a label that is new although the data set names all, and for whole numbers that
    may be either.
    """
    if data.classes is None or (y.values.ndim > 1 and not y.are_text):
        y_test = y.tensor()
        y_test = y_test.to(data.y.dtype) if data.classes is None else y_test
        return replace(data, X_test=X, y_test=y_test, test_keys=keys)
    labels = data.labels or tuple(range(data.classes))
    text, coded = isinstance(labels[0], str), labels != tuple(range(len(labels)))
    given = {*y.values.ravel().tolist()} if coded and not text and not data.inferred else set()
    if not y.are_text and not named and (text or (not data.inferred and given <= {*range(len(labels))})):
        if given and coded and given <= {*labels}:
            raise BadData(
                f"the targets may be the labels {', '.join(map(str, labels))}, or their numbers from 0; "
                "pass a frame if they are labels, or a data set, datasets.Dataset(X, y, labels=...)",
                place=replace(y.place, column=None),
            )
        return replace(data, X_test=X, y_test=y.tensor().long(), test_keys=keys)
    together = code([RawTargets(raw(data.y, labels), Place(data.name, column="y")), y], floats="labels")
    names, y_test = together.labels, together.parts[1]
    if data.inferred:
        new: dict[str, Any] = {"labels": () if is_plain(names) else names, "classes": len(names)}
        return replace(data, y=together.parts[0], X_test=X, y_test=y_test, test_keys=keys, **new)
    if others := [v for v in names if v not in labels]:
        row = [str(v).strip() for v in y.values.tolist()].index(str(others[0]))
        said = (
            f"the label is {others[0]!r}, but the training rows have {', '.join(map(repr, labels))}; leave others out"
        )
        raise y.refuse(row, said)
    places = torch.tensor([labels.index(v) for v in names])
    return replace(data, X_test=X, y_test=places[y_test], test_keys=keys)


def recorded_labels(problem: Family, data: Dataset) -> dict[str, Any]:
    """Number and names of the classes, as results store them. Whole floats are classes of a logistic regression."""
    classes = 2 if isinstance(problem, Logistic) and data.classes is None else data.classes
    signed = isinstance(problem, Logistic) and classes == 2 and bool((data.y == -1).any())
    labels = data.labels or ((-1, 1) if signed else ())
    return {"classes": classes, **({"labels": list(labels)} if labels else {})}
